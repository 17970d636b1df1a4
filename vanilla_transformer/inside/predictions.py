"""Run a model on an input text. `predict` selects the `Prediction` subclass for the model's task."""

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
from vanilla_transformer.pipeline_vanilla_transformer import number_end, question_inputs


NEW_TOKENS = 12  # maximum number of tokens that a language model generates
MAX_ANSWER_TOKENS = 30  # maximum length of an answer span
NO_ANSWER = "no answer"
TOP_OPTIONS = 8  # number of top candidates shown at each position


@dataclass
class Position:
    """A position for which the model makes a prediction.

    Args:
        name: label, such as "token 3".
        token: index of the predicted or tagged token; None if the prediction is for the whole text.
        query: index of the position whose output gives the prediction; None if all positions contribute.
        chosen: index of the predicted candidate (a token, class or tag); -1 until `choose` sets it.
    """

    name: str
    token: int | None
    query: int | None
    chosen: int = -1


class Prediction:
    """An encoded input text, and the positions at which the model makes predictions.

    Attributes:
        inputs: arguments of the model's forward pass, with batch size 1.
        source: input ids of the encoder, or of the decoder in a decoder-only model.
        target: in an encoder-decoder, the decoder's start token followed by the target ids.
        written: number of tokens that were generated, or appended to a prompt.
        hypotheses: (text, score, token ids) of each beam.
        regression: the model predicts numeric values instead of classes.
    """

    task: ClassVar[str]  # verb for the task, used by the explorer and the demo
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
        """Return the model's inputs, with batch size 1."""
        return encode_text(model, self.tokenizer, self.text)

    def find_positions(self, model: Any, target: Any, use_cache: bool) -> list[Position]:
        """Return the prediction positions. Models that generate text are forced to write `target` if it is given."""
        raise NotImplementedError

    def logits(self, output: Any) -> Tensor:
        """Return the logits (batch, positions, candidates) from the model's output."""
        return output.logits[:, [position.query for position in self.positions]]

    def option(self, i: int) -> str:
        """Return the name of candidate `i`; by default, candidates are tokens."""
        return display_token(self.tokenizer, i)

    def answer(self, scores: Tensor) -> str:
        """Return the prediction as a string; `scores` is (positions, candidates)."""
        raise NotImplementedError

    @property
    def chosen(self) -> list[int]:
        """The index of the predicted candidate at each position."""
        return [position.chosen for position in self.positions]

    @property
    def answered(self) -> slice:
        """The positions that make up the answer."""
        return slice(None)

    def scores(self, output: Any) -> Tensor:
        """Return log-probabilities (batch, positions, candidates); for regression, the predicted values."""
        return self.logits(output).float().log_softmax(-1)

    def choose(self, scores: Tensor) -> None:
        """Set `chosen` to the best candidate where it is not set; `scores` is (positions, candidates)."""
        for position, best in zip(self.positions, scores.argmax(-1).tolist(), strict=True):
            if position.chosen < 0:
                position.chosen = best

    def probability(self, score: float) -> float:
        """Convert a log-probability to a rounded probability; for regression, return the rounded value."""
        return round(score if self.regression else float(torch.tensor(score).exp()), 5)

    def top_options(self, scores: Tensor, count: int = TOP_OPTIONS) -> list[dict]:
        """Return the top candidates at one position; `scores` is (candidates,)."""
        best, ids = scores.topk(min(count, len(scores)))
        return [
            {"id": i, "text": self.option(i), "p": self.probability(score)}
            for score, i in zip(best.tolist(), ids.tolist(), strict=True)
            if score > -torch.inf
        ]

    def steps(self, scores: Tensor) -> list[dict]:
        """Describe each position: its prediction with probability ("p") and rank, and the top candidates."""
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
        """Decode token ids, skipping special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


class GeneratedText(Prediction):
    """Text that is generated token by token, or forced."""

    prefix: Sequence[int] = ()  # token ids before the first predicted one

    def logits(self, output: Any) -> Tensor:
        """Return the logits (batch, positions, vocab_size) of every decoder position."""
        return output.logits

    def steps(self, scores: Tensor) -> list[dict]:
        """Describe each position, adding the text generated so far, without an incomplete last character."""
        steps = super().steps(scores)
        for i, step in enumerate(steps, start=1):
            step["so_far"] = self.decode([*self.prefix, *self.chosen[:i]]).rstrip("\ufffd")
        return steps


class Translation(GeneratedText):
    """A translation, from the model's own search or given by the caller."""

    task, model_class = "translate", modeling.VanillaTransformerForConditionalGeneration

    def find_positions(self, model: Any, target: Any, use_cache: bool) -> list[Position]:
        """Translate the text, or force `target`, and return one position per target token."""
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
        """Set `hypotheses` by a search with the model's generation config, and return the ids of the best one."""
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
    """A text continued by a language model. The last position predicts the token after the end of the text."""

    task, model_class = "generate", modeling.VanillaTransformerForCausalLM

    def find_positions(self, model: Any, target: Any, use_cache: bool) -> list[Position]:
        """Generate a continuation, or append `target`, and return one position per token."""
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
        """Generate token ids greedily; return none if the prompt already has the maximum length."""
        prompt = len(self.source)
        new_tokens = longest_output(model.config, prompt, NEW_TOKENS) - prompt
        if new_tokens <= 0:
            return []
        options = {"do_sample": False, "num_beams": 1, "max_length": None, "use_cache": use_cache}
        return model.generate(self.inputs["input_ids"], max_new_tokens=new_tokens, **options)[0, prompt:].tolist()

    @property
    def answered(self) -> slice:
        """The positions of the continuation; all positions if there is none."""
        return slice(-1 - self.written, -1) if self.written else slice(None)

    def answer(self, scores: Tensor) -> str:
        """Return the prompt with its continuation."""
        return self.decode(self.source)


class FilledBlanks(Prediction):
    """A text whose blanks (`BLANK`) a masked language model fills."""

    task, model_class = "fill", modeling.VanillaTransformerForMaskedLM

    def encode(self, model: PreTrainedModel, context: str | None) -> dict[str, Tensor]:
        """Return the model's inputs, with each blank replaced by a mask token."""
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
    """The class of a text; several classes in multi-label classification; numeric values in regression."""

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
        """Return log-probabilities (batch, 1, classes); for regression, the predicted values."""
        logits = self.logits(output).float()
        if self.regression:
            return logits
        return torch.nn.functional.logsigmoid(logits) if self.independent else super().scores(output)

    def option(self, i: int) -> str:
        """Return the name of a class."""
        return str(self.config.id2label[i])

    def answer(self, scores: Tensor) -> str:
        """Return the class, the classes with a probability above 0.5 (multi-label), or the values (regression)."""
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
        """Return all positions except those of special tokens; all positions if there are only special tokens."""
        special = self.tokenizer.get_special_tokens_mask(self.source, already_has_special_tokens=True)
        tagged = [i for i, is_special in enumerate(special) if not is_special] or list(range(len(self.source)))
        return [Position(f"token {n}", i, i) for n, i in enumerate(tagged, start=1)]

    def option(self, i: int) -> str:
        """Return the name of a tag."""
        return str(self.config.id2label[i])

    def answer(self, scores: Tensor) -> str:
        """Return the tagged spans, such as "Kenya: COUNTRY, 7.7 ounces: WEIGHT".

        A word gets the tag of its first token.
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
    """The answer to a question: the span of the context between a first and a last token."""

    task, model_class = "answer", modeling.VanillaTransformerForQuestionAnswering

    def encode(self, model: PreTrainedModel, context: str | None) -> dict[str, Tensor]:
        """Return the model's inputs for the question and its context."""
        if not context:
            raise ValueError("A reader answers a question about a text: give the text as `context`.")
        both = self.tokenizer([self.text], [context], return_tensors="pt", **tokenizer_options(model))
        check_positions(model, both["input_ids"].shape[1], "the question with its text")
        self.candidates = torch.tensor([sequence == 1 for sequence in both.sequence_ids(0)], device=model.device)
        self.candidates[0] = getattr(model.config, "handle_impossible_answer", False)
        return {name: both[name].to(model.device) for name in question_inputs(model.config) if name in both}

    def find_positions(self, model: Any, target: Any, use_cache: bool) -> list[Position]:
        """Return two positions: the first and the last token of the answer."""
        return [Position(f"{end} token of the answer", None, None) for end in ("first", "last")]

    def logits(self, output: Any) -> Tensor:
        """Return the start and end logits (batch, 2, tokens), with minus infinity for tokens that cannot be chosen."""
        ends = torch.stack((output.start_logits, output.end_logits), dim=1)
        return ends.masked_fill(~self.candidates, -torch.inf)

    def option(self, i: int) -> str:
        """Return the text of token `i` of the question and its context; token 0 stands for no answer."""
        return display_token(self.tokenizer, self.source[i]) if i else NO_ANSWER

    def choose(self, scores: Tensor) -> None:
        """Choose the most probable span of at most `MAX_ANSWER_TOKENS` tokens."""
        spans = scores[0][:, None] + scores[1]
        allowed = torch.ones_like(spans, dtype=torch.bool).triu().tril(MAX_ANSWER_TOKENS - 1)
        allowed[0, 1:] = False
        best = int(spans.masked_fill(~allowed, -torch.inf).argmax())
        for position, token in zip(self.positions, divmod(best, len(spans)), strict=True):
            position.chosen = position.token = token

    def answer(self, scores: Tensor) -> str:
        """Return the text of the span."""
        first, last = self.chosen
        text, end = self.decode(self.source[first:]), len(self.decode(self.source[first : last + 1]))
        return text[: number_end(text, end)].strip() if last else NO_ANSWER


def is_regression(config: PreTrainedConfig) -> bool:
    """Whether a classifier does regression: by its `problem_type`, or if that is unset, by having a single label."""
    return (config.problem_type or ("regression" if config.num_labels == 1 else None)) == "regression"


def prediction_class(model: PreTrainedModel) -> type[Prediction]:
    """Return the `Prediction` subclass for a model, by class name, which also works with `trust_remote_code`.

    Its `task` is "translate", "generate", "fill", "classify", "tag" or "answer".

    Raises:
        ValueError: the model has no task head.
    """
    kinds = (Translation, Continuation, FilledBlanks, ClassLabels, Tags, AnswerSpan)
    names = {base.__name__ for base in type(unwrapped(model)).__mro__}
    found = next((kind for kind in kinds if kind.model_class.__name__ in names), None)
    if found is None:
        known = ", ".join(kind.model_class.__name__ for kind in kinds)
        raise ValueError(f"{type(unwrapped(model)).__name__} has no head to predict with: load it as one of {known}.")
    return found


@torch.inference_mode()
def predict(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    target: str | Sequence[int] | None = None,
    context: str | None = None,
    interventions: Interventions = NO_INTERVENTIONS,
) -> tuple[Prediction, Tensor, dict[tuple[str, int], Tensor]]:
    """Run a model on a text and return its prediction, the scores and the attention weights.

    Args:
        text: the input; for question answering, the question; for a masked language model, a text with `BLANK`s.
        target: translation or continuation to force, as a string or token ids.
        context: passage that contains the answer, for question answering.

    Returns:
        The prediction, the scores (positions, candidates), and the attention weights by kind and layer.

    Raises:
        ValueError: the model has no task head or lacks a part named by `interventions`; the text has no blank or the
            question has no context; or the input is longer than the learned position embeddings.
    """
    use_cache = not interventions.need_all_positions()
    with intervene(model, interventions) as trace:
        prediction = prediction_class(model)(model, tokenizer, text, target, context, use_cache)
        (scores,) = prediction.scores(model(**prediction.inputs))
    prediction.choose(scores)
    return prediction, scores, trace.attention
