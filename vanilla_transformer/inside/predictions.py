"""Predict a model's answer to a text. `predict` chooses the subclass of `Prediction` that fits the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer import modeling_vanilla_transformer as modeling
from vanilla_transformer.decoding import longest_output
from vanilla_transformer.inside.interventions import NO_INTERVENTIONS, Interventions, intervene
from vanilla_transformer.inside.readings import (
    BLANK,
    check_positions,
    display_token,
    encode_text,
    tokenizer_options,
    until_end,
)
from vanilla_transformer.inside.recorder import unwrapped
from vanilla_transformer.pipeline_vanilla_transformer import question_inputs


NEW_TOKENS = 12  # maximum number of tokens that a language model generates
MAX_ANSWER_TOKENS = 30
TOP_OPTIONS = 8  # number of best options shown at each position


@dataclass
class Position:
    """A position at which the model predicts something.

    Args:
        name: label such as "token 3".
        token: index of the token that is predicted or tagged; None if the prediction is about the whole text.
        query: index of the position whose output makes the prediction; None if all positions make it.
        chosen: index of the predicted option; -1 until `choose` sets it.
    """

    name: str
    token: int | None
    query: int | None
    chosen: int = -1


class Prediction:
    """A text as a model reads it, and the positions at which the model predicts.

    Attributes:
        inputs: arguments of the model's forward pass, a batch of one.
        source: token ids that the encoder reads; in a decoder-only model, those that the decoder reads.
        target: token ids of the decoder in an encoder-decoder, beginning with its start token.
        written: number of tokens that were added to the text, or translated from it, by the model.
        hypotheses: (text, score, token ids) of each beam.
        regression: options are numbers instead of classes.
    """

    task: ClassVar[str]  # a verb for the task, used by the explorer's page and the demo
    model_class: ClassVar[type[PreTrainedModel]]
    target: list[int] | None = None
    written = 0
    hypotheses: Sequence[tuple[str, float, list[int]]] = ()
    regression = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        text: str,
        target: str | Sequence[int] | None = None,
        context: str | None = None,
        use_cache: bool = True,
    ):
        self.text, self.tokenizer = text, tokenizer
        self.config: Any = model.config
        self.inputs = self.encode(model, context)
        self.source: list[int] = self.inputs["input_ids"][0].tolist()
        self.positions = self.find_positions(model, target, use_cache)

    def encode(self, model: PreTrainedModel, context: str | None) -> dict[str, Tensor]:
        """Return the model's inputs."""
        return encode_text(model, self.tokenizer, self.text)

    def find_positions(self, model: Any, target: Any, use_cache: bool) -> list[Position]:
        """Return the positions of predictions. Models that generate text write `target`, or their own output."""
        raise NotImplementedError

    def logits(self, output: Any) -> Tensor:
        """Return the logits (batch, positions, options) from the model's output."""
        return output.logits[:, [position.query for position in self.positions]]

    def option(self, i: int) -> str:
        """Return the name of an option; by default, options are tokens."""
        return display_token(self.tokenizer, i)

    def answer(self, scores: Tensor) -> str:
        """Return the prediction as a string; `scores` is (positions, options)."""
        raise NotImplementedError

    @property
    def chosen(self) -> list[int]:
        """The predicted option of each position."""
        return [position.chosen for position in self.positions]

    @property
    def answered(self) -> slice:
        """The positions that make up the answer."""
        return slice(None)

    def scores(self, output: Any) -> Tensor:
        """Return log-probabilities (batch, positions, options); for a regression, the predicted numbers."""
        return self.logits(output).float().log_softmax(-1)

    def choose(self, scores: Tensor) -> None:
        """Choose the best option of every position that has none; `scores` is (positions, options)."""
        for position, best in zip(self.positions, scores.argmax(-1).tolist(), strict=True):
            if position.chosen < 0:
                position.chosen = best

    def probability(self, score: float) -> float:
        """Return the probability of a log-probability; for a regression, the number itself."""
        return round(score if self.regression else float(torch.tensor(score).exp()), 5)

    def top_options(self, scores: Tensor, count: int = TOP_OPTIONS) -> list[dict]:
        """Return the best options of one position; `scores` is (options,)."""
        best, ids = scores.topk(min(count, len(scores)))
        return [
            {"id": i, "text": self.option(i), "p": self.probability(score)}
            for score, i in zip(best.tolist(), ids.tolist(), strict=True)
            if score > -torch.inf
        ]

    def steps(self, scores: Tensor) -> list[dict]:
        """Describe each position: its prediction with probability ("p") and rank, and the best options."""
        return [
            {
                "name": position.name,
                "token": position.token,
                "query": position.query,
                "chosen": position.chosen,
                "text": self.option(position.chosen),
                "p": self.probability(float(row[position.chosen])),
                "rank": int((row > row[position.chosen]).sum()) + 1,
                "options": int((row > -torch.inf).sum()),
                "top": self.top_options(row),
            }
            for position, row in zip(self.positions, scores, strict=True)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


class GeneratedText(Prediction):
    """A text that the model writes token by token, freely or forced."""

    prefix: Sequence[int] = ()  # number of ids before the first position

    def logits(self, output: Any) -> Tensor:
        """Return the logits of every position of the decoder."""
        return output.logits

    def steps(self, scores: Tensor) -> list[dict]:
        """Describe each position, including the text written so far, without an incomplete last character."""
        steps = super().steps(scores)
        for i, step in enumerate(steps, start=1):
            step["so_far"] = self.decode([*self.prefix, *self.chosen[:i]]).rstrip("\ufffd")
        return steps


class Translation(GeneratedText):
    """A translation: the result of the model's own search, or a given translation."""

    task, model_class = "translate", modeling.VanillaTransformerForConditionalGeneration

    def find_positions(self, model: Any, target: Any, use_cache: bool) -> list[Position]:
        """Translate the text, or force `target`, and return the positions of the translation."""
        if target is None:
            ids = self.search(model, use_cache)
            self.written = len(ids)
        elif isinstance(target, str):
            ids = self.tokenizer(text_target=target, **tokenizer_options(model))["input_ids"]
        else:
            ids = list(target)
        check_positions(model, len(ids), "the text to write")
        if not ids:
            raise ValueError("target=[] has no token: give at least one, or None for the model's own translation.")
        labels = torch.tensor([ids], device=model.device)
        self.inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
        self.target = [int(self.inputs["decoder_input_ids"][0, 0]), *ids]
        return [Position(f"token {i + 1}", i + 1, i, token) for i, token in enumerate(ids)]

    def search(self, model: Any, use_cache: bool) -> list[int]:
        """Set `hypotheses` with the model's saved search settings, and return the best one."""
        beams = model.generation_config.num_beams or 1
        output = model.generate(
            **self.inputs,
            do_sample=False,
            num_return_sequences=beams,
            max_length=longest_output(model.config, len(self.source)),
            return_dict_in_generate=True,
            output_scores=True,
            use_cache=use_cache,
        )
        scores = output.sequences_scores.tolist() if beams > 1 else [0.0]
        found: dict[str, tuple[str, float, list[int]]] = {}  # beams with the same text count once
        for row, score in zip(output.sequences.tolist(), scores, strict=True):
            ids = until_end(row[1:], model.config.eos_token_id)
            words = self.decode(ids)
            found.setdefault(words, (words, score, ids))
        self.hypotheses = list(found.values())
        return self.hypotheses[0][2]

    def answer(self, scores: Tensor) -> str:
        """Return the translation."""
        return self.decode(self.chosen)


class Continuation(GeneratedText):
    """A text that a language model continues. The last position predicts what would follow the last token."""

    task, model_class = "generate", modeling.VanillaTransformerForCausalLM

    def find_positions(self, model: Any, target: Any, use_cache: bool) -> list[Position]:
        """Continue the text, or append `target`, and return every position."""
        prompt = len(self.source)
        if target is None:
            ids = self.generate(model, use_cache)
        elif isinstance(target, str):
            ids = self.tokenizer(target, add_special_tokens=False, **tokenizer_options(model))["input_ids"]
        else:
            ids = list(target)
        check_positions(model, prompt + len(ids), "this text with its continuation")
        self.source, self.written, self.prefix = [*self.source, *ids], len(ids), self.source[:1]
        self.inputs = {"input_ids": torch.tensor([self.source], device=model.device)}
        following = [*self.source[1:], -1]
        return [Position(f"token {i + 2}", i + 1, i, token) for i, token in enumerate(following)]

    def generate(self, model: Any, use_cache: bool) -> list[int]:
        """Return the most probable tokens one by one; none if the text fills all learned positions."""
        prompt = len(self.source)
        new_tokens = longest_output(model.config, prompt, NEW_TOKENS) - prompt
        if new_tokens <= 0:
            return []
        options = {"do_sample": False, "num_beams": 1, "max_length": None, "use_cache": use_cache}
        return model.generate(self.inputs["input_ids"], max_new_tokens=new_tokens, **options)[0, prompt:].tolist()

    @property
    def answered(self) -> slice:
        """The positions that the model wrote; all of them if it wrote nothing."""
        return slice(-1 - self.written, -1) if self.written else slice(None)

    def answer(self, scores: Tensor) -> str:
        """Return the text with its continuation."""
        return self.decode(self.source)


class FilledBlanks(Prediction):
    """A text with blanks (`BLANK`) that a masked language model fills."""

    task, model_class = "fill", modeling.VanillaTransformerForMaskedLM

    def encode(self, model: PreTrainedModel, context: str | None) -> dict[str, Tensor]:
        """Return the model's inputs, with a mask token for each blank."""
        return encode_text(model, self.tokenizer, self.text.replace(BLANK, str(self.tokenizer.mask_token)))

    def find_positions(self, model: Any, target: Any, use_cache: bool) -> list[Position]:
        """Return the positions of the blanks."""
        blanks = [i for i, token in enumerate(self.source) if token == self.tokenizer.mask_token_id]
        if not blanks:
            raise ValueError(f"A masked language model fills blanks: write {BLANK} where a word is missing.")
        return [Position(f"blank {n}", i, i) for n, i in enumerate(blanks, start=1)]

    def answer(self, scores: Tensor) -> str:
        """Return the text with its blanks filled."""
        filled = {position.token: position.chosen for position in self.positions}
        return self.decode([filled.get(i, token) for i, token in enumerate(self.source)])


class ClassLabels(Prediction):
    """The class of a text, its classes if several can be true, or its numbers."""

    task, model_class = "classify", modeling.VanillaTransformerForSequenceClassification

    def find_positions(self, model: Any, target: Any, use_cache: bool) -> list[Position]:
        """Return one position for the whole text."""
        self.independent = self.config.problem_type == "multi_label_classification"
        self.regression = is_regression(self.config)
        return [Position("the text", None, None)]

    def logits(self, output: Any) -> Tensor:
        """Return the logits (batch, 1, classes)."""
        return output.logits[:, None]

    def scores(self, output: Any) -> Tensor:
        """Return log-probabilities (batch, 1, classes); for a regression, the predicted numbers."""
        logits = self.logits(output).float()
        if self.regression:
            return logits
        return torch.nn.functional.logsigmoid(logits) if self.independent else super().scores(output)

    def option(self, i: int) -> str:
        """Return the name of a class."""
        return str(self.config.id2label[i])

    def answer(self, scores: Tensor) -> str:
        """Return the class, the classes that are true, or the numbers."""
        values = [(self.option(i), self.probability(score)) for i, score in enumerate(scores[0].tolist())]
        if self.regression:
            return ", ".join(f"{name}: {value:.3f}" if len(values) > 1 else f"{value:.3f}" for name, value in values)
        if self.independent:
            return ", ".join(name for name, value in values if value > 0.5) or "none"
        return self.option(self.chosen[0])


class Tags(Prediction):
    """A tag for each token of a text."""

    task, model_class = "tag", modeling.VanillaTransformerForTokenClassification

    def find_positions(self, model: Any, target: Any, use_cache: bool) -> list[Position]:
        """Return every position, without special tokens unless there are only special tokens."""
        special = self.tokenizer.get_special_tokens_mask(self.source, already_has_special_tokens=True)
        tagged = [i for i, is_special in enumerate(special) if not is_special] or list(range(len(self.source)))
        return [Position(f"token {n}", i, i) for n, i in enumerate(tagged, start=1)]

    def option(self, i: int) -> str:
        """Return the name of a tag."""
        return str(self.config.id2label[i])

    def answer(self, scores: Tensor) -> str:
        """Return the tagged spans, such as "Kenya: COUNTRY, 7.7 ounces: WEIGHT"; a word has the tag of its first
        token.
        """
        offsets = self.tokenizer(self.text, return_offsets_mapping=True)["offset_mapping"]
        spans: list[tuple[int, int, str]] = []  # start, end, tag
        end = -1
        for position in self.positions:
            start, stop = offsets[position.query]
            starts_word = start > end or self.text[start : start + 1].isspace()
            prefix, _, tag = self.option(position.chosen).rpartition("-")
            end = max(end, stop)
            if spans and (not starts_word or (prefix != "B" and tag == spans[-1][2])):
                spans[-1] = (spans[-1][0], end, spans[-1][2])
            else:
                spans.append((start, end, tag))
        named = [(self.text[start:end].strip().rstrip(".,;:!?"), tag) for start, end, tag in spans if tag != "O"]
        return ", ".join(map(": ".join, named)) or "nothing"


class AnswerSpan(Prediction):
    """The answer to a question: a span of its context, given by its first and last token."""

    task, model_class = "answer", modeling.VanillaTransformerForQuestionAnswering

    def encode(self, model: PreTrainedModel, context: str | None) -> dict[str, Tensor]:
        """Return the model's inputs for the question and its context."""
        if not context:
            raise ValueError("A reader answers a question about a text: give the text as `context`.")
        both = self.tokenizer([self.text], [context], return_tensors="pt", **tokenizer_options(model))
        check_positions(model, both["input_ids"].shape[1], "the question with its text")
        self.in_context = torch.tensor([sequence == 1 for sequence in both.sequence_ids(0)], device=model.device)
        return {name: both[name].to(model.device) for name in question_inputs(model.config) if name in both}

    def find_positions(self, model: Any, target: Any, use_cache: bool) -> list[Position]:
        """Return the two ends of the answer."""
        return [Position(f"{end} token of the answer", None, None) for end in ("first", "last")]

    def logits(self, output: Any) -> Tensor:
        """Return the logits (batch, 2, tokens), minus infinity outside the context."""
        ends = torch.stack((output.start_logits, output.end_logits), dim=1)
        return ends.masked_fill(~self.in_context, -torch.inf)

    def option(self, i: int) -> str:
        """Return a token of the question or its context."""
        return display_token(self.tokenizer, self.source[i])

    def choose(self, scores: Tensor) -> None:
        """Choose the most probable span of at most `MAX_ANSWER_TOKENS` tokens."""
        first, last = scores
        spans = first[:, None] + last
        allowed = torch.ones_like(spans, dtype=torch.bool).triu().tril(MAX_ANSWER_TOKENS - 1)
        best = int(spans.masked_fill(~allowed, -torch.inf).argmax())
        for position, token in zip(self.positions, divmod(best, len(first)), strict=True):
            position.chosen = position.token = token

    def answer(self, scores: Tensor) -> str:
        """Return the text of the span."""
        first, last = self.chosen
        return self.decode(self.source[first : last + 1]).strip()


def is_regression(config: PreTrainedConfig) -> bool:
    """Whether a classifier predicts numbers: its config says so, or it has a single label and no problem type."""
    return (config.problem_type or ("regression" if config.num_labels == 1 else None)) == "regression"


def prediction_class(model: PreTrainedModel) -> type[Prediction]:
    """Return the kind of prediction that a model makes. Classes loaded from a model folder are known by their name.

    Raises:
        ValueError: the model has no head.
    """
    kinds = (Translation, Continuation, FilledBlanks, ClassLabels, Tags, AnswerSpan)
    names = {base.__name__ for base in type(unwrapped(model)).__mro__}
    found = next((kind for kind in kinds if kind.model_class.__name__ in names), None)
    if found is None:
        known = ", ".join(kind.model_class.__name__ for kind in kinds)
        raise ValueError(f"{type(unwrapped(model)).__name__} has no head to predict with: load it as one of {known}.")
    return found


def task_of(model: PreTrainedModel) -> str:
    """Return the verb for a model's task: "translate", "generate", "fill", "classify", "tag" or "answer"."""
    return prediction_class(model).task


@torch.inference_mode()
def predict(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    target: str | Sequence[int] | None = None,
    context: str | None = None,
    interventions: Interventions = NO_INTERVENTIONS,
) -> tuple[Prediction, Tensor, dict[tuple[str, int], Tensor]]:
    """Run a model on a text and return its prediction.

    Args:
        text: for a reader, the question; for a masked language model, a text with `BLANK` where words are missing.
        target: translation or continuation to force, as text or token ids.
        context: the text in which a reader looks for the answer.

    Returns:
        The prediction, the scores (positions, options), and the attention weights by kind and layer.

    Raises:
        ValueError: the model has no head, or lacks a part named by `interventions`; the text has no blank, the
    question
            has no context, or there are more tokens than learned positions.
    """
    use_cache = not interventions.need_all_positions()
    with intervene(model, interventions) as trace:
        prediction = prediction_class(model)(model, tokenizer, text, target, context, use_cache)
        (scores,) = prediction.scores(model(**prediction.inputs))
    prediction.choose(scores)
    return prediction, scores, trace.attention
