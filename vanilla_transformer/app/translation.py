"""Add the endpoints for translation: beam search hypotheses, attention, and the candidates at each step."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import gradio as gr
import torch
from torch import Tensor

from vanilla_transformer.app.drawing import heat_map
from vanilla_transformer.app.loading import Loaded
from vanilla_transformer.app.reading import (
    MOST_TOKENS,
    check_text,
    encode,
    is_integer,
    refusal,
    token_name,
    warn_of_unknown_letters,
)
from vanilla_transformer.decoding import longest_output
from vanilla_transformer.inside.predictions import Prediction, predict
from vanilla_transformer.inside.readings import max_length, tokenizer_options, until_end


BEAMS = 4
ALTERNATIVES = 3  # number of hypotheses to show
LONGEST_TRANSLATION = 2000  # maximum number of characters in a translation
# Warn if the score is below this. The quickstart model scores above -0.5 on phrases like its training data, and mostly
# below -1 on French.
UNSURE = -1
MOST_LIKELY = 5
DRAWN = 40  # maximum number of tokens on an axis of a heat map
REMEMBERED = 64  # number of texts whose hypotheses are cached
# Kind of attention -> titles of the rows and columns of its heat map
AXES = {
    "cross": ("being written", "read in the text"),
    "encoder self": ("looking", "looked at"),
    "decoder self": ("being written", "already written"),
}


class Hypothesis(NamedTuple):
    """A translation found by beam search; `ids` are its tokens without the start token.

    The ids are stored because tokenising the text again could give different ones.
    """

    text: str
    score: float  # log-probability with length penalty
    ids: list[int]


def draw(rows: list[str], columns: list[str], weights: Tensor, names: tuple[str, str]) -> str:
    """Return the heat map of one attention matrix (rows, columns) as HTML."""
    y, x = (
        f"{name}: the first {DRAWN} of {len(tokens)} tokens" if len(tokens) > DRAWN else name
        for name, tokens in zip(names, (rows, columns), strict=True)
    )
    rows, columns = rows[:DRAWN], columns[:DRAWN]
    return heat_map(rows, columns, weights[: len(rows), : len(columns)], (y, x))


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise an error if `value` is not one of `choices`. Numbers may be sent as strings."""
    if str(value) not in map(str, choices):
        raise refusal(f"There is no {name} {value!r:.50}, only: {', '.join(map(str, choices))}.")


class Translator:
    """A translation model behind the API."""

    def __init__(self, loaded: Loaded):
        self.loaded = loaded
        self.hypotheses = lru_cache(REMEMBERED)(self.search)  # the hypotheses depend only on the text

    @torch.inference_mode()
    def search(self, text: str) -> list[Hypothesis]:
        """Return the top beam search hypotheses with distinct texts, best first."""
        batch, model = encode(self.loaded, text), self.loaded.model
        max_length = longest_output(model.config, batch["input_ids"].shape[1])
        if self.loaded.engine is None:
            output = model.generate(
                **batch,
                num_beams=BEAMS,
                num_return_sequences=BEAMS,
                do_sample=False,
                max_length=max_length,
                return_dict_in_generate=True,
                output_scores=True,
            )
            rows = [until_end(row[1:], model.config.eos_token_id) for row in output.sequences.tolist()]
            scored = list(zip(rows, output.sequences_scores.tolist(), strict=True))
        else:
            (scored,) = self.loaded.engine.search(batch["input_ids"].tolist(), max_length, num_beams=BEAMS)
        found: dict[str, Hypothesis] = {}
        for ids, score in scored:
            hypothesis = Hypothesis(self.loaded.tokenizer.decode(ids, skip_special_tokens=True), score, ids)
            found.setdefault(hypothesis.text, hypothesis)
        return list(found.values())[:ALTERNATIVES]

    def target_ids(self, source: str, target: str) -> list[int]:
        """Return the token ids of a translation: the generated ids for a hypothesis, or else the tokenizer's.

        Translations that are too long are truncated.
        """
        own = {hypothesis.text: hypothesis.ids for hypothesis in self.hypotheses(source)}
        if target in own:
            return own[target]
        target = target[:LONGEST_TRANSLATION]
        ids = self.loaded.tokenizer(text_target=target, **tokenizer_options(self.loaded.model))["input_ids"]
        return ids[: min(MOST_TOKENS, max_length(self.loaded.model))]

    def predict(self, source: str, target: str) -> tuple[Prediction, Tensor, dict[tuple[str, int], Tensor]]:
        """Run the model on a given translation, like the explorer's `predict`.

        Raises:
            gr.Error: the text is empty or too long.
        """
        source = check_text(source, "to translate")
        return predict(self.loaded.model, self.loaded.tokenizer, source, self.target_ids(source, target))

    def name(self, i: int) -> str:
        """Return the label of token `i`: its text, or its name if it has no text."""
        text = self.loaded.tokenizer.decode([i])
        return self.loaded.tokenizer.convert_ids_to_tokens(i) if "\ufffd" in text else text.strip() or "␣"

    def attend(self, text: str, translation: str, kind: str, layer: str, head: str) -> str:
        """Return a heat map of one layer's attention, for one head or the mean of all heads."""
        check_choice("kind", kind, list(AXES))
        seen, _, attention = self.predict(text, translation)
        layers = [weights[0] for (of, _), weights in attention.items() if of == kind.removesuffix(" self")]
        check_choice("layer", layer, range(1, len(layers) + 1))
        check_choice("head", head, ["mean", *range(1, len(layers[0]) + 1)])
        weights = layers[int(layer) - 1]
        read, written = ([self.name(i) for i in ids] for ids in (seen.source, seen.chosen))
        tokens = {
            "cross": (written, read),
            "encoder self": (read, read),
            "decoder self": (written, ["(start)", *written[:-1]]),
        }[kind]
        return draw(*tokens, weights.mean(dim=0) if head == "mean" else weights[int(head) - 1], AXES[kind])

    def most_likely(self, text: str, translation: str, step: int) -> dict[str, float]:
        """Return the most probable tokens at a decoding step (from 1), with their probabilities."""
        seen, scores, _ = self.predict(text, translation)
        if not is_integer(step) or not 1 <= step <= len(seen.chosen):
            raise refusal(f"This translation has the steps 1 to {len(seen.chosen)}.")
        probabilities, ids = scores[step - 1].exp().topk(MOST_LIKELY)
        names = [token_name(self.loaded, i) for i in ids.tolist()]
        return dict(zip(names, probabilities.tolist(), strict=True))

    def translate(self, text: str, layer: str, head: str, kind: str) -> tuple[str, list[list[Any]], str]:
        """Return the best translation, the table rows of all hypotheses, and the best one's attention heat map."""
        text = check_text(text, "to translate")
        unknown = warn_of_unknown_letters(self.loaded, text)
        hypotheses = self.hypotheses(text)
        best = hypotheses[0]
        if best.score < UNSURE and not unknown:
            gr.Warning("The model is not sure of this. Is the text in its language, and of a kind that it knows?")
        rows = [[hypothesis.text, round(hypothesis.score, 3)] for hypothesis in hypotheses]
        return best.text, rows, self.attend(text, best.text, kind, layer, head)


def offer_translations(loaded: Loaded) -> None:
    """Add the endpoints of a translation model."""
    translator = Translator(loaded)
    config = loaded.model.config
    last, example = str(config.decoder_layers), loaded.examples[0]["text"]

    def translate(
        text: str = example, layer: str = last, head: str = "mean", kind: str = "cross"
    ) -> tuple[str, list[list[Any]], str]:
        """Return the translation, all hypotheses with their scores, and an attention heat map as HTML."""
        return translator.translate(text, layer, head, kind)

    def attention(text: str, translation: str, kind: str = "cross", layer: str = last, head: str = "mean") -> str:
        """Return an attention heat map for any translation as HTML."""
        return translator.attend(text, translation, kind, layer, head)

    gr.api(translate, api_name="translate")
    gr.api(attention, api_name="attention")
    gr.api(translator.most_likely, api_name="decoding_step")
