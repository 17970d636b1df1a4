"""A text as a model of any task reads it, and the places at which it answers, each with all it could have said."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from vanilla_transformer.decoding import longest_output, token_text
from vanilla_transformer.inside.recorder import unwrapped
from vanilla_transformer.pipeline_vanilla_transformer import question_inputs


BLANK = "___"
INPUTS = ("input_ids", "attention_mask")
NEW_TOKENS = 12  # by which a language model goes on
LONGEST_ANSWER = 30  # tokens, of a reader
BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}  # of byte-level tokens
# End of the class's name -> what its models do.
TASKS = {
    "ForConditionalGeneration": "translate",
    "ForCausalLM": "generate",
    "ForMaskedLM": "fill",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "answer",
}


@dataclass
class Place:
    """One thing that the model says.

    Args:
        name: what it is, such as "token 3".
        token: index of the token that it is, or is about; None where it is about the whole text.
        query: index of the position that says it; None where all do.
        chosen: number of the option that was taken.
    """

    name: str
    token: int | None
    query: int | None
    chosen: int


@dataclass
class Reading:
    """A text in a model.

    Args:
        inputs: of the model's forward pass, a batch of one.
        source: token ids that the encoder reads; in a decoder-only model, that its decoder reads.
        target: token ids that the decoder writes, the one it starts from first; None without an encoder and a decoder.
        logits: what the model returns -> (batch, places, options).
        option: the name of an option.
        written: how many of the last tokens are the model's own.
        hypotheses: texts of a beam search with their scores and tokens.
        independent: of the options, any number may hold.
        regression: the options are numbers to be estimated.
    """

    task: str
    inputs: dict[str, Tensor]
    source: list[int]
    places: list[Place]
    logits: Callable[[Any], Tensor]
    option: Callable[[int], str]
    target: list[int] | None = None
    written: int = 0
    hypotheses: Sequence[tuple[str, float, list[int]]] = ()
    independent: bool = False
    regression: bool = False

    @property
    def answered(self) -> slice:
        """The places of the answer: of a language model those that it wrote; all where it wrote nothing."""
        if self.task == "generate" and self.written:
            return slice(-1 - self.written, -1)  # after the last comes what would follow
        return slice(None)

    def scores(self, output: Any) -> Tensor:
        """What each option is worth, (batch, places, options): log-probabilities, in a regression the numbers."""
        logits = self.logits(output).float()
        if self.regression:
            return logits
        return torch.nn.functional.logsigmoid(logits) if self.independent else logits.log_softmax(-1)


def is_regression(config: PreTrainedConfig) -> bool:
    """Whether a classifier estimates numbers: it says so, or says nothing and has a single label."""
    return (config.problem_type or ("regression" if config.num_labels == 1 else None)) == "regression"


def task_of(model: PreTrainedModel) -> str:
    """What a model does: a value of `TASKS`.

    Raises:
        ValueError: it has no head, so that it answers nothing.
    """
    name = type(unwrapped(model)).__name__
    for end, task in TASKS.items():
        if name.endswith(end):
            return task
    raise ValueError(f"{name} has no head to answer with; its name must end in one of: {', '.join(TASKS)}.")


def up_to_end(ids: list[int], ends: int | list[int] | None) -> list[int]:
    """What was generated, without what fills the row behind its end; `ends` as a config has it."""
    found = {*ends} if isinstance(ends, list) else {ends}
    length = next((i + 1 for i, token in enumerate(ids) if token in found), len(ids))
    return ids[:length]


def shown_token(tokenizer: PreTrainedTokenizerBase, i: int) -> str:
    """A token as a reader sees it; one that is a part of a character, by its bytes."""
    text = token_text(tokenizer, i)
    if "\ufffd" not in text:
        return text
    name = str(tokenizer.convert_ids_to_tokens(i))
    return " ".join(f"{BYTES[letter]:02X}" for letter in name) if set(name) <= BYTES.keys() else name


def pieces_of(tokenizer: PreTrainedTokenizerBase, text: str, **options) -> list[tuple[str, list[int]]]:
    """The text as a model reads it: characters with the places of their tokens.

    A character that takes several tokens comes once, with all of them.

    Args:
        options: of the tokenizer.
    """
    read = tokenizer(text, return_offsets_mapping=True, **options)
    pieces: list[tuple[str, list[int]]] = []
    begin = end = 0  # of the last piece in the text
    for i, (start, stop) in enumerate(read["offset_mapping"]):
        if read.sequence_ids()[i] is None:
            pieces.append((str(tokenizer.decode([read["input_ids"][i]])), [i]))
        elif start < end:
            end = max(end, stop)
            pieces[-1] = (text[begin:end], [*pieces[-1][1], i])
        else:
            begin, end = end, stop
            pieces.append((text[begin:end], [i]))
    return pieces


def encoding(model: PreTrainedModel) -> dict[str, bool]:
    """How training read a text, as options of the tokenizer: to what writes, the name of a special token is text."""
    return {
        "split_special_tokens": type(unwrapped(model)).__name__.endswith(("ForConditionalGeneration", "ForCausalLM"))
    }


def encoded(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> dict[str, Tensor]:
    """A text as a model's input, a batch of one.

    Raises:
        ValueError: it is too long for the positions that the model has learned.
    """
    batch = tokenizer([text], return_tensors="pt", **encoding(model))
    check_room(model, batch["input_ids"].shape[1])
    return {name: batch[name].to(model.device) for name in INPUTS}


def room(model: PreTrainedModel) -> float:
    """How many tokens a model can read or write: as many as it has learned positions. Sinusoids have no end."""
    config = model.config
    return config.max_position_embeddings if config.position_embedding == "learned" else math.inf


def check_room(model: PreTrainedModel, tokens: int, text: str = "this text") -> None:
    """Raise a ValueError if a text has more tokens than the model has positions."""
    most = room(model)
    if tokens > most:
        raise ValueError(f"The model has learned {most} positions, and {text} has {tokens} tokens. Please shorten it.")


@torch.inference_mode()
def read(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    target: str | Sequence[int] | None = None,
    context: str | None = None,
    new_tokens: int = NEW_TOKENS,
    use_cache: bool = True,
) -> Reading:
    """Let a model read a text, and where it writes, write.

    Args:
        text: the text; of a reader the question; of a masked language model with blanks, "___".
        target: what a translator is made to write, or a language model to go on with, in place of its own: a text,
            or the ids of its tokens.
        context: where a reader looks for the answer.
        new_tokens: by how many tokens a language model goes on.
        use_cache: keep keys and values while writing. Not where earlier positions see later ones.

    Raises:
        ValueError: the model has no head; or the text has no blank, or the question no context; or the model has
            fewer positions than there are tokens.
    """
    task = task_of(model)
    if task == "translate":
        return read_translation(model, tokenizer, text, target, use_cache)
    if task == "generate":
        return read_continuation(model, tokenizer, text, target, new_tokens, use_cache)
    if task == "answer":
        return read_question(model, tokenizer, text, context)
    if task == "fill":
        text = text.replace(BLANK, str(tokenizer.mask_token))
    batch = encoded(model, tokenizer, text)
    ids = batch["input_ids"][0].tolist()
    special = tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)
    option = partial(shown_token, tokenizer)
    if task == "fill":
        at = [i for i, token in enumerate(ids) if token == tokenizer.mask_token_id]
        if not at:
            raise ValueError(f"A masked language model fills blanks: write {BLANK} where a word is missing.")
    elif task == "tag":
        at = [i for i, is_special in enumerate(special) if not is_special] or list(range(len(ids)))
    logits: Callable[[Any], Tensor]
    if task == "classify":
        logits = lambda output: output.logits[:, None]  # noqa: E731
        places = [Place("the text", None, None, 0)]
    else:
        logits = lambda output: output.logits[:, at]  # noqa: E731
        name = "blank" if task == "fill" else "token"
        places = [Place(f"{name} {n}", i, i, 0) for n, i in enumerate(at, start=1)]
    reading = Reading(task, batch, ids, places, logits, option)
    if task != "fill":
        names: Any = model.config.id2label
        reading.option = lambda i: str(names[i])
    if task == "classify":
        reading.independent = model.config.problem_type == "multi_label_classification"
        reading.regression = is_regression(model.config)
    return reading


def read_translation(
    model: Any, tokenizer: PreTrainedTokenizerBase, text: str, target: str | Sequence[int] | None, use_cache: bool
) -> Reading:
    """A text and its translation: the model's own by the search that it was saved with, or a given one."""
    batch = encoded(model, tokenizer, text)
    source, hypotheses = batch["input_ids"][0].tolist(), []
    if target is None:
        beams = model.generation_config.num_beams or 1
        output = model.generate(
            **batch,
            do_sample=False,
            num_return_sequences=beams,
            max_length=longest_output(model.config, len(source)),
            return_dict_in_generate=True,
            output_scores=True,
            use_cache=use_cache,
        )
        scores = output.sequences_scores.tolist() if beams > 1 else [0.0]
        found: dict[str, tuple[float, list[int]]] = {}
        for row, score in zip(output.sequences.tolist(), scores, strict=True):
            ids = up_to_end(row[1:], model.config.eos_token_id)
            found.setdefault(str(tokenizer.decode(ids, skip_special_tokens=True)), (score, ids))
        hypotheses = [(words, score, ids) for words, (score, ids) in found.items()]
        labels = next(iter(found.values()))[1]
    elif isinstance(target, str):
        labels = tokenizer(text_target=target, **encoding(model))["input_ids"]
    else:
        labels = list(target)
    check_room(model, len(labels), "what is to be written")
    if not labels:
        raise ValueError(
            "A translation has at least one token, so target=[] is none; None stands for the model's own."
        )
    batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(
        torch.tensor([labels], device=model.device)
    )
    return Reading(
        task="translate",
        inputs=batch,
        source=source,
        target=[int(batch["decoder_input_ids"][0, 0]), *labels],
        places=[Place(f"token {i + 1}", i + 1, i, label) for i, label in enumerate(labels)],
        logits=lambda output: output.logits,
        option=partial(shown_token, tokenizer),
        written=len(labels) if target is None else 0,
        hypotheses=hypotheses,
    )


def read_continuation(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    target: str | Sequence[int] | None,
    new_tokens: int,
    use_cache: bool,
) -> Reading:
    """A text and how it goes on; after the last token comes one more place, for what would follow.

    A text that takes all learned positions does not go on.
    """
    ids = encoded(model, tokenizer, text)["input_ids"]
    prompt = ids.shape[1]
    if target is None:
        new_tokens = longest_output(model.config, prompt, new_tokens) - prompt
        if new_tokens > 0:
            options = {"do_sample": False, "num_beams": 1, "max_length": None, "use_cache": use_cache}
            ids = model.generate(ids, max_new_tokens=new_tokens, **options)
    else:
        more = list(target)
        if isinstance(target, str):
            more = tokenizer(target, add_special_tokens=False, **encoding(model))["input_ids"]
        check_room(model, prompt + len(more), "this text, with what is to follow it,")
        ids = torch.cat([ids, torch.tensor([more], dtype=ids.dtype, device=ids.device)], dim=1)
    read_ids = ids[0].tolist()
    chosen = [*read_ids[1:], -1]
    return Reading(
        task="generate",
        inputs={"input_ids": ids},
        source=read_ids,
        places=[Place(f"token {i + 2}", i + 1, i, token) for i, token in enumerate(chosen)],
        logits=lambda output: output.logits,
        option=partial(shown_token, tokenizer),
        written=ids.shape[1] - prompt,
    )


def read_question(model: Any, tokenizer: PreTrainedTokenizerBase, question: str, context: str | None) -> Reading:
    """A question and the text with its answer, which is a span of it: two places, its first and its last token."""
    if not context:
        raise ValueError("A reader answers a question about a text: give the text as `context`.")
    both = tokenizer([question], [context], return_tensors="pt", **encoding(model))
    check_room(model, both["input_ids"].shape[1], "the question with its text")
    batch = {name: both[name].to(model.device) for name in question_inputs(model.config) if name in both}
    ids = batch["input_ids"][0].tolist()
    inside = torch.tensor([sequence == 1 for sequence in both.sequence_ids(0)], device=model.device)

    def logits(output: Any) -> Tensor:
        ends = torch.stack((output.start_logits, output.end_logits), dim=1)
        return ends.masked_fill(~inside, -torch.inf)

    def option(i: int) -> str:
        return shown_token(tokenizer, ids[i])

    places = [Place("first token of the answer", None, None, 0), Place("last token of the answer", None, None, 0)]
    return Reading("answer", batch, ids, places, logits, option)
