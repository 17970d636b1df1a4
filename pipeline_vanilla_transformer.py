# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""The pipelines of two tasks that transformers 5 no longer has: translation and extractive question answering.

    pipeline("translation", model=folder, trust_remote_code=True)("How are you?", num_beams=4)
    pipeline("question-answering", model=folder, trust_remote_code=True)(question="Who?", context="A text ...")

A saved config names these classes in `custom_pipelines`, where `transformers.pipeline` looks first. For a model in
memory, make one directly: `TranslationPipeline(model=model, tokenizer=tokenizer)`.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.pipelines.base import ChunkPipeline, Pipeline


# What other tasks that a config may name for `TranslationPipeline` call its output.
TEXT_KEYS = {"summarization": "summary_text", "text2text-generation": "generated_text"}
EXTRA_TOKENS = 50  # section 6.1: an output is at most so much longer than its input

PREPROCESS_OPTIONS = ("max_seq_len", "doc_stride")
POSTPROCESS_OPTIONS = ("top_k", "max_answer_len", "handle_impossible_answer")
LEAST = {"max_seq_len": 1, "doc_stride": 0, "top_k": 1, "max_answer_len": 1}  # of what the options may be


def longest_input(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig | None) -> int:
    """Return the most tokens of a text: the length that the model was trained for, at most its positions."""
    return min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", tokenizer.model_max_length))


def longest_output(config: PreTrainedConfig | None, input_length: int, extra_tokens: int = EXTRA_TOKENS) -> int:
    """Return the most tokens of an output, its start token included; learned positions limit it."""
    limit = input_length + extra_tokens
    if config is None or getattr(config, "position_embedding", None) != "learned":
        return limit
    return min(limit, config.max_position_embeddings)


class TranslationPipeline(Pipeline):
    """Translate texts with an encoder-decoder. Every other keyword is an option of `generate`, such as `num_beams`.

    A text gives `[{"translation_text": ...}]`. A list of texts gives a list: of one such record for each text, or of a
    list of them where `num_return_sequences` is above 1. A blank text stays blank.

    Options:
        batch_size: texts translated at once.
        truncation: whether to truncate texts that are longer than the model was trained for.
        extra_tokens: how many tokens longer than its input an output may be (50).
        src_lang, tgt_lang: languages of a multilingual model.
        return_tensors: whether to return tokens, as "translation_token_ids".
        clean_up_tokenization_spaces: see the tokenizer's `decode`.
    """

    _load_tokenizer = True
    _load_processor = _load_feature_extractor = _load_image_processor = _load_video_processor = False

    def __call__(self, inputs: Any, **options) -> Any:
        """Translate a text, or each text of a list."""
        if isinstance(inputs, list) and not inputs:
            return []
        results = super().__call__(inputs, **options)
        if isinstance(inputs, list) and all(len(records) == 1 for records in results):
            return [record for records in results for record in records]
        return results

    def _sanitize_parameters(self, return_text: bool | None = None, **options) -> tuple[dict, dict, dict]:
        reading, writing = (
            {name: options.pop(name) for name in names if name in options}
            for names in (("truncation", "src_lang", "tgt_lang"), ("return_tensors", "clean_up_tokenization_spaces"))
        )
        return reading, options, writing

    def preprocess(self, text: str, truncation: bool = False, **languages: str) -> dict[str, Any]:
        """Return `input_ids` and `attention_mask`, each (1, length), and whether the text is blank, (1,).

        Raises:
            TypeError: the input is not a string.
        """
        if not isinstance(text, str):
            raise TypeError(f"A translation needs a text; got {text!r}.")
        encode = getattr(self.tokenizer, "_build_translation_inputs", None) if languages else None
        # As in training, "</s>" in a text is text.
        options = {"return_tensors": "pt", "split_special_tokens": True, "truncation": truncation}
        if truncation:
            options["max_length"] = longest_input(self.tokenizer, getattr(self.model, "config", None))
        encoded = encode(text, **options, **languages) if encode else self.tokenizer(text, **options)
        return {**encoded, "is_blank": torch.tensor([not text.strip()])}

    def _forward(self, inputs: dict[str, Any], extra_tokens: int = EXTRA_TOKENS, **options) -> dict[str, Tensor]:
        is_blank, language = inputs.pop("is_blank"), inputs.pop("forced_bos_token_id", None)
        if language is not None:
            options["forced_bos_token_id"] = language[0] if isinstance(language, list) else language
        if not options.keys() & {"max_length", "max_new_tokens", "generation_config"}:
            length = inputs["input_ids"].shape[1]
            options["max_length"] = longest_output(getattr(self.model, "config", None), length, extra_tokens)
        output_ids = self.model.generate(**inputs, **options)  # (batch * num_return_sequences, length)
        return {"output_ids": output_ids.unflatten(0, (len(is_blank), -1)), "is_blank": is_blank}

    def postprocess(
        self, outputs: dict[str, Tensor], return_tensors: bool = False, **decode_options
    ) -> list[dict[str, Any]]:
        """Return a record for each of the generated sequences, `output_ids` (1, num_return_sequences, length)."""
        key, ids = TEXT_KEYS.get(self.task, "translation_text"), outputs["output_ids"][0]
        if return_tensors:
            return [{key.replace("_text", "_token_ids"): row} for row in ids]
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True, **decode_options)
        return [{key: "" if outputs["is_blank"] else text} for text in texts]


def question_inputs(config: PreTrainedConfig) -> list[str]:
    """What a reader takes of an encoded question and context; their types tell them apart, where a model has any."""
    return ["input_ids", "attention_mask", *(["token_type_ids"] if config.type_vocab_size else [])]


def tokens_beside_context(tokenizer: PreTrainedTokenizerBase, question: str) -> int:
    """How many tokens a window has that are not the context's: those of the question, and special ones."""
    length = len(tokenizer(question, add_special_tokens=False, verbose=False)["input_ids"])
    return length + tokenizer.num_special_tokens_to_add(pair=True)


def read_windows(
    tokenizer: PreTrainedTokenizerBase, question: str, context: str, length: int, overlap: int
) -> Iterator[dict[str, list]]:
    """Yield the windows of a context, each of the question and at most so much of it that they have `length` tokens.

    They overlap by that many tokens, or by half of the room for the context. Each has what the tokenizer gives, where
    `offset_mapping` has the characters of the context that a token stands for; 0 and 0 for a token outside of it.
    """
    room = length - tokens_beside_context(tokenizer, question)
    windows = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=length,
        stride=min(overlap, room // 2),
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    for i, spans in enumerate(windows["offset_mapping"]):
        parts = zip(spans, windows.sequence_ids(i), strict=True)
        window = {name: values[i] for name, values in windows.items()}
        yield window | {"offset_mapping": [span if part == 1 else (0, 0) for span, part in parts]}


class QuestionAnsweringPipeline(ChunkPipeline):
    """Find the answer to a question in a text, its context.

    Takes `question=` and `context=`, or a record {"question", "context"}; or lists of them, which give a list. An
    answer is {"score", "start", "end", "answer"}, where `context[start:end] == answer`, and `score` is the probability
    of that start times that of that end. A context too long for one window is read in several, which overlap.

    Options:
        top_k: number of answers, best first; with 1 (the default) the answer comes by itself, not in a list.
        max_seq_len: tokens of one window, question included (384).
        doc_stride: tokens by which windows overlap (128), at most half of the room for the context.
        max_answer_len: longest answer in tokens (30).
        handle_impossible_answer: whether "" (no answer) is an answer too, with the score of each window's first token.
        batch_size: windows read at once.
    """

    _load_tokenizer = True
    _load_processor = _load_feature_extractor = _load_image_processor = _load_video_processor = False

    def __call__(self, inputs: Any = None, *, question: Any = None, context: Any = None, **options) -> Any:
        """The answer to a question, or to each of a list, as the class says."""
        if inputs is None:
            inputs = self.pair(question, context)
        if isinstance(inputs, list) and not inputs:
            return []
        return super().__call__(inputs, **options)

    @staticmethod
    def pair(question: str | list[str], context: str | list[str]) -> dict[str, str] | list[dict[str, str]]:
        """Records of questions and contexts; one question or context goes with every one of a list of the others."""
        if not isinstance(question, list) and not isinstance(context, list):
            return {"question": question, "context": context}
        count = len(question if isinstance(question, list) else context)
        questions = question if isinstance(question, list) else [question] * count
        contexts = context if isinstance(context, list) else [context] * count
        if len(questions) != len(contexts):
            raise ValueError(f"{len(questions)} questions do not go with {len(contexts)} contexts.")
        return [{"question": q, "context": c} for q, c in zip(questions, contexts, strict=True)]

    def _sanitize_parameters(self, **options) -> tuple[dict, dict, dict]:
        known = (*PREPROCESS_OPTIONS, *POSTPROCESS_OPTIONS)
        for name, value in options.items():
            if name not in known:
                raise TypeError(f"{name}={value!r} is not an option here. Choose from: {', '.join(known)}.")
            if name in LEAST and not (isinstance(value, int) and value >= LEAST[name]):
                raise ValueError(f"{name}={value!r} must be an integer, at least {LEAST[name]}.")
        return (
            {name: options[name] for name in PREPROCESS_OPTIONS if name in options},
            {},
            {name: options[name] for name in POSTPROCESS_OPTIONS if name in options},
        )

    def window_length(self, max_seq_len: int) -> int:
        """The longest input, in tokens, that the option, the tokenizer and the model's positions allow."""
        config = self.model.config
        positions = config.max_position_embeddings if config.position_embedding == "learned" else max_seq_len
        return min(max_seq_len, self.tokenizer.model_max_length, positions)

    def preprocess(
        self, inputs: dict[str, str], max_seq_len: int = 384, doc_stride: int = 128
    ) -> Iterator[dict[str, Any]]:
        """Yield the windows of one context.

        Each has `input_ids` and `attention_mask` (1, length), `token_type_ids` where the model and its tokenizer have
        types, and `offsets` (1, length, 2): the characters of the context that a token stands for; 0 and 0 for a token
        of the question, a special one and padding.
        """
        question, context = (inputs.get(name) for name in ("question", "context"))
        for name, text in (("question", question), ("context", context)):
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"{name}={text!r} must be a text that is not empty.")
        length = self.window_length(max_seq_len)
        needed = tokens_beside_context(self.tokenizer, question)
        if needed >= length:
            raise ValueError(
                f"The question needs {needed} tokens, which leaves no room for the context in a window of {length}. "
                "Ask a shorter one, or raise max_seq_len if the model allows it."
            )
        windows = list(read_windows(self.tokenizer, question, context, length, doc_stride))
        for i, window in enumerate(windows):
            names = [name for name in question_inputs(self.model.config) if name in window]
            yield {
                **{name: torch.tensor([window[name]]) for name in names},
                "offsets": torch.tensor([window["offset_mapping"]]),
                "context": context,
                "is_last": i == len(windows) - 1,
            }

    def _forward(self, window: dict[str, Any]) -> dict[str, Any]:
        ids, types = window.pop("input_ids"), window.pop("token_type_ids", None)
        output = self.model(input_ids=ids, attention_mask=window["attention_mask"], token_type_ids=types)
        return {"start_logits": output.start_logits, "end_logits": output.end_logits, **window}

    def postprocess(
        self,
        windows: list[dict[str, Any]],
        top_k: int = 1,
        max_answer_len: int = 30,
        handle_impossible_answer: bool = False,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """The best answers over all windows of one context, as the class says."""
        scores: dict[tuple[int, int], float] = {}  # characters -> the best score in any window
        no_answer = 1.0
        for window in windows:
            found, nothing = window_answers(window, top_k, max_answer_len)
            scores |= {span: max(score, scores.get(span, 0.0)) for span, score in found.items()}
            no_answer = min(no_answer, nothing)
        if handle_impossible_answer or not scores:
            scores[0, 0] = no_answer
        context = windows[0]["context"]
        best = sorted(scores, key=scores.__getitem__, reverse=True)[:top_k]
        answers = [
            {"score": scores[start, end], "start": start, "end": end, "answer": context[start:end]}
            for start, end in best
        ]
        return answers[0] if top_k == 1 else answers


def window_answers(
    window: dict[str, Any], top_k: int, max_answer_len: int
) -> tuple[dict[tuple[int, int], float], float]:
    """The best `top_k` answers in one window, as characters of the context, and the score of there being none.

    Probabilities are over the tokens of the context and the first token of all, where models learn to put both start
    and end if a window does not hold the answer.
    """
    offsets, context = window["offsets"][0], window["context"]
    in_context = offsets[:, 0] < offsets[:, 1]
    first = int(window["attention_mask"][0].argmax())
    candidates = in_context.clone()
    candidates[first] = True
    start, end = (
        window[name][0].float().masked_fill(~candidates, -torch.inf).softmax(dim=-1)
        for name in ("start_logits", "end_logits")
    )

    allowed = (in_context[:, None] & in_context).triu().tril(max_answer_len - 1)  # (start, end)
    starts, ends = allowed.nonzero(as_tuple=True)
    scores = start[starts] * end[ends]
    answers: dict[tuple[int, int], float] = {}
    for i in scores.argsort(descending=True).tolist():
        span = strip_spaces(context, int(offsets[starts[i], 0]), int(offsets[ends[i], 1]))
        if span[0] < span[1]:
            answers.setdefault(span, float(scores[i]))
        if len(answers) == top_k:
            break
    return answers, float(start[first] * end[first])


def strip_spaces(text: str, start: int, end: int) -> tuple[int, int]:
    """The characters [start, end) of `text` without the white space at either end of them."""
    span = text[start:end]
    return start + len(span) - len(span.lstrip()), start + len(span.rstrip())
