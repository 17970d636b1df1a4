# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Pipelines for two tasks that transformers 5 has dropped: translation and extractive question answering.

    pipeline("translation", model=folder, trust_remote_code=True)("How are you?", num_beams=4)
    pipeline("question-answering", model=folder, trust_remote_code=True)(question="Who?", context="A text ...")

`transformers.pipeline` finds these classes through `custom_pipelines` in a saved config. For a model in memory,
construct the pipeline yourself: `TranslationPipeline(model=model, tokenizer=tokenizer)`.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.pipelines.base import ChunkPipeline, Pipeline


# Output keys for other tasks under which `TranslationPipeline` may be registered.
TEXT_KEYS = {"summarization": "summary_text", "text2text-generation": "generated_text"}
EXTRA_TOKENS = 50  # section 6.1: the maximum output length is the input length + 50
# question answering option -> minimum value
READER_OPTIONS = {"max_seq_len": 1, "doc_stride": 0, "top_k": 1, "max_answer_len": 1, "handle_impossible_answer": 0}
Answers = dict[tuple[int, int], float]  # (start, end) characters of the context -> probability


def is_blank(text: str) -> bool:
    """Whether the text has no visible character: only Unicode white space, control characters and invisible marks."""
    return not any(character.isprintable() and character != " " for character in text)


def longest_input(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig | None) -> int:
    """Return the maximum input length in tokens: the tokenizer's limit or the model's, whichever is smaller."""
    return min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", tokenizer.model_max_length))


def longest_output(config: PreTrainedConfig | None, input_length: int, extra_tokens: int = EXTRA_TOKENS) -> int:
    """Return the maximum output length in tokens, start token included; learned positions limit it."""
    is_limited = getattr(config, "position_embedding", None) == "learned"
    return min(input_length + extra_tokens, config.max_position_embeddings if is_limited else math.inf)


class TranslationPipeline(Pipeline):
    """Translate with an encoder-decoder. All keywords except the options below, such as `num_beams`, go to `generate`.

    A string gives `[{"translation_text": ...}]`. A list of strings gives a list with one such record per string, or
    with a list of records per string if `num_return_sequences` is above 1. Blank strings stay blank.

    Options:
        batch_size: number of inputs to translate at once.
        truncation: whether to truncate inputs that are longer than the model was trained for.
        extra_tokens: maximum number of tokens by which an output may exceed its input (50).
        src_lang, tgt_lang: source and target language of a multilingual model.
        return_tensors: whether to return token ids, as "translation_token_ids".
        stop_sequence: string whose first token ends the translation.
        clean_up_tokenization_spaces: see the tokenizer's `decode`.
    """

    _load_tokenizer = True
    _load_processor = _load_feature_extractor = _load_image_processor = _load_video_processor = False

    def __call__(self, inputs: Any, **options) -> Any:
        """Translate a string or a list of strings."""
        results = [] if inputs == [] else super().__call__(inputs, **options)
        if isinstance(inputs, list) and all(len(records) == 1 for records in results):
            return [record for records in results for record in records]
        return results

    def _sanitize_parameters(self, return_text=None, stop_sequence="", **options) -> tuple[dict, dict, dict]:
        if stop_sequence:
            options["eos_token_id"] = self.tokenizer.encode(stop_sequence, add_special_tokens=False)[0]
        reading, writing = (
            {name: options.pop(name) for name in names if name in options}
            for names in (("truncation", "src_lang", "tgt_lang"), ("return_tensors", "clean_up_tokenization_spaces"))
        )
        return reading, options, writing

    def preprocess(self, text: str, truncation: bool = False, **languages: str) -> dict[str, Any]:
        """Return `input_ids` and `attention_mask`, each (1, length), and `is_blank` (1,)."""
        if not isinstance(text, str):
            raise TypeError(f"A translation needs a text; got {text!r}.")
        encode = getattr(self.tokenizer, "_build_translation_inputs", None) if languages else None
        # As in training, treat special tokens such as "</s>" in the input as ordinary text.
        limit = longest_input(self.tokenizer, getattr(self.model, "config", None)) if truncation else None
        options = {"return_tensors": "pt", "split_special_tokens": True, "verbose": False}
        options |= {"truncation": truncation, "max_length": limit}
        encoded = encode(text, **options, **languages) if encode else self.tokenizer(text, **options)
        return {**encoded, "is_blank": torch.tensor([is_blank(text)])}

    def _forward(self, inputs: dict[str, Any], extra_tokens: int = EXTRA_TOKENS, **options) -> dict[str, Tensor]:
        is_blank, language = inputs.pop("is_blank"), inputs.pop("forced_bos_token_id", None)
        if language is not None:
            options["forced_bos_token_id"] = language[0] if isinstance(language, list) else language
        if not options.keys() & {"max_length", "max_new_tokens", "generation_config"}:
            length = inputs["input_ids"].shape[1]
            options["max_length"] = longest_output(getattr(self.model, "config", None), length, extra_tokens)
        output_ids = self.model.generate(**inputs, **options)  # (batch * num_return_sequences, length)
        return {"output_ids": output_ids.unflatten(0, (len(is_blank), -1)), "is_blank": is_blank}

    def postprocess(self, outputs: dict[str, Tensor], return_tensors: bool = False, **decode_options) -> list[dict]:
        """Return one record per generated sequence of `output_ids` (1, num_return_sequences, length)."""
        key, ids = TEXT_KEYS.get(self.task, "translation_text"), outputs["output_ids"][0]
        if return_tensors:
            return [{key.replace("_text", "_token_ids"): row} for row in ids]
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True, **decode_options)
        return [{key: "" if outputs["is_blank"] else text} for text in texts]


def question_inputs(config: PreTrainedConfig) -> list[str]:
    """Return the names of the model's inputs, including `token_type_ids` if the model has token types."""
    return ["input_ids", "attention_mask", *(["token_type_ids"] if config.type_vocab_size else [])]


def tokens_beside_context(tokenizer: PreTrainedTokenizerBase, question: str) -> int:
    """Count the tokens of a window that are not part of the context: the question and the special tokens."""
    length = len(tokenizer(question, add_special_tokens=False, verbose=False)["input_ids"])
    return length + tokenizer.num_special_tokens_to_add(pair=True)


def read_windows(
    tokenizer: PreTrainedTokenizerBase, question: str, context: str, length: int, overlap: int
) -> Iterator[dict[str, list]]:
    """Yield windows of at most `length` tokens, each with the question and a part of the context.

    Parts overlap by `overlap` tokens, but at most by half of a part. Each window has the tokenizer's outputs. Its
    `offset_mapping` has the (start, end) characters of each context token, and (0, 0) for all other tokens.
    """
    room = length - tokens_beside_context(tokenizer, question)
    options = {"truncation": "only_second", "max_length": length, "stride": min(overlap, room // 2)}
    windows = tokenizer(question, context, **options, return_overflowing_tokens=True, return_offsets_mapping=True)
    for i, spans in enumerate(windows["offset_mapping"]):
        parts = zip(spans, windows.sequence_ids(i), strict=True)
        window = {name: values[i] for name, values in windows.items()}
        yield window | {"offset_mapping": [span if part == 1 else (0, 0) for span, part in parts]}


class QuestionAnsweringPipeline(ChunkPipeline):
    """Extract the answer to a question from a context.

    Takes `question=` and `context=`, a record {"question", "context"}, or lists of these, which return a list. An
    answer is {"score", "start", "end", "answer"}, where `context[start:end] == answer` and `score` is the product of
    the start and end probabilities. A context that exceeds one window is split into several overlapping windows.

    Options:
        top_k: number of answers, best first; 1 (the default) returns the answer itself instead of a list.
        max_seq_len: maximum length of a window in tokens, question included (384).
        doc_stride: number of tokens by which windows overlap (128), at most half of each window's context.
        max_answer_len: maximum length of an answer in tokens (30).
        handle_impossible_answer: whether to allow the answer "", scored by each window's first token (as in training).
        batch_size: number of windows to process at once.
        padding, max_question_len, align_to_words: ignored; accepted because transformers 4 had them.
    """

    _load_tokenizer = True
    _load_processor = _load_feature_extractor = _load_image_processor = _load_video_processor = False

    def __call__(self, inputs: Any = None, context: Any = None, *, question: Any = None, **options) -> Any:
        """Answer one question or a list of questions."""
        if question is not None or context is not None:
            inputs = self.pair(inputs if question is None else question, context)
        return [] if inputs == [] else super().__call__(inputs, **options)

    @staticmethod
    def pair(question: str | list[str], context: str | list[str]) -> dict[str, str] | list[dict[str, str]]:
        """Return one record, or a list for lists; a single question or context is paired with every item of a list."""
        if not isinstance(question, list) and not isinstance(context, list):
            return {"question": question, "context": context}
        count = len(question if isinstance(question, list) else context)
        questions, contexts = (side if isinstance(side, list) else [side] * count for side in (question, context))
        if len(questions) != len(contexts):
            raise ValueError(f"{len(questions)} questions do not go with {len(contexts)} contexts.")
        return [{"question": q, "context": c} for q, c in zip(questions, contexts, strict=True)]

    def _sanitize_parameters(self, **options) -> tuple[dict, dict, dict]:
        for name in {*options} & {"padding", "max_question_len", "align_to_words"}:
            options.pop(name)
        for name, value in options.items():
            if name not in READER_OPTIONS:
                raise TypeError(f"{name}={value!r} is not an option here. Choose from: {', '.join(READER_OPTIONS)}.")
            if not (isinstance(value, int) and value >= READER_OPTIONS[name]):
                raise ValueError(f"{name}={value!r} must be an integer, at least {READER_OPTIONS[name]}.")
        reading = {name: options.pop(name) for name in ("max_seq_len", "doc_stride") if name in options}
        return reading, {}, options

    def preprocess(self, inputs: dict[str, str], max_seq_len: int = 384, doc_stride: int = 128) -> Iterator[dict]:
        """Yield the windows of one context.

        Each has `input_ids` and `attention_mask` (1, length), `token_type_ids` if model and tokenizer both support
        token types, and `offsets` (1, length, 2), the `offset_mapping` from `read_windows`.
        """
        for name in ("question", "context"):
            if not isinstance(text := inputs.get(name), str) or not text.strip():
                raise ValueError(f"{name}={text!r} must be a text that is not empty.")
        question, context = inputs["question"], inputs["context"]
        config = self.model.config
        positions = config.max_position_embeddings if config.position_embedding == "learned" else max_seq_len
        length = min(max_seq_len, self.tokenizer.model_max_length, positions)
        needed = tokens_beside_context(self.tokenizer, question)
        if needed >= length:
            raise ValueError(f"The question needs {needed} tokens of {length}: raise max_seq_len or shorten it.")
        windows = list(read_windows(self.tokenizer, question, context, length, doc_stride))
        for window in windows:
            batch = {name: torch.tensor([window[name]]) for name in question_inputs(config) if name in window}
            batch["offsets"] = torch.tensor([window["offset_mapping"]])
            yield batch | {"context": context, "is_last": window is windows[-1]}

    def _forward(self, window: dict[str, Any]) -> dict[str, Any]:
        ids, types = window.pop("input_ids"), window.pop("token_type_ids", None)
        output = self.model(input_ids=ids, attention_mask=window["attention_mask"], token_type_ids=types)
        return {"start_logits": output.start_logits, "end_logits": output.end_logits, **window}

    def postprocess(
        self, windows: list[dict], top_k: int = 1, max_answer_len: int = 30, handle_impossible_answer: Any = None
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the best answers from all windows of one context."""
        scores, no_answer = {}, 1.0  # answer -> highest score in any window; lowest score of "no answer"
        for window in windows:
            found, nothing = window_answers(window, top_k, max_answer_len)
            scores |= {span: max(score, scores.get(span, 0.0)) for span, score in found.items()}
            no_answer = min(no_answer, nothing)
        trained = getattr(self.model.config, "handle_impossible_answer", False)
        if (trained if handle_impossible_answer is None else handle_impossible_answer) or not scores:
            scores[0, 0] = no_answer
        text, best = windows[0]["context"], sorted(scores, key=scores.__getitem__, reverse=True)[:top_k]
        answers = [{"score": scores[i, j], "start": i, "end": j, "answer": text[i:j]} for i, j in best]
        return answers[0] if top_k == 1 else answers


def number_end(text: str, end: int) -> int:
    """Return `end`, or the end of the number that it would cut. Models read single digits and may stop too early."""
    return next((i for i in range(end, len(text)) if not text[end - 1 : i + 1].isdigit()), len(text))


def window_answers(window: dict[str, Any], top_k: int, max_answer_len: int) -> tuple[Answers, float]:
    """Return the best `top_k` answers in one window, and the probability that the window has no answer.

    The softmax is over the context and the first token of the window, which stands for "no answer" in training.
    """
    offsets, context = window["offsets"][0], window["context"]
    in_context = offsets[:, 0] < offsets[:, 1]
    first = int(window["attention_mask"][0].argmax())
    candidates = in_context | (torch.arange(len(in_context)) == first)
    logits = (window[name][0].float() for name in ("start_logits", "end_logits"))
    start, end = (each.masked_fill(~candidates, -torch.inf).softmax(dim=-1) for each in logits)
    allowed = (in_context[:, None] & in_context).triu().tril(max_answer_len - 1)  # (start, end)
    starts, ends = allowed.nonzero(as_tuple=True)
    scores = start[starts] * end[ends]
    answers: Answers = {}
    for i in scores.argsort(descending=True).tolist():
        left, right = int(offsets[starts[i], 0]), number_end(context, int(offsets[ends[i], 1]))
        text = context[left:right]
        span = left + len(text) - len(text.lstrip()), left + len(text.rstrip())
        if span[0] < span[1]:
            answers.setdefault(span, float(scores[i]))
        if len(answers) == top_k:
            break
    return answers, float(start[first] * end[first])
