"""Explain each recorded step: a sentence, its equation, and the line of code that computes it.

The explorer, the walk and notebooks show the same texts.
"""

import linecache
import re
from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer import modeling_vanilla_transformer
from vanilla_transformer.inside.mathml import mathml
from vanilla_transformer.inside.recorder import CROSS_ATTENTION, FEED_FORWARD, Step


REPOSITORY = "https://github.com/vanilla-transformer/vanilla-transformer"


SENTENCES = {
    "tokens": "The text is split into tokens. Each token is an index into the vocabulary.",
    "embeddings": "Each index selects a row of the embedding matrix: the vector that the model has learned for it.",
    "vectors": "The vectors that the example starts from, one row per word.",
    "positions": "Attention ignores the order of tokens, so a vector that depends on the position is added to each.",
    "embedding + position": "The sum represents both the token and its position.",
    "layer input": "The output of the layer before, one row per token.",
    "encoder output": "The encoder's output for the source, the same for every layer of the decoder.",
    "queries": "A query for each position: what it looks for.",
    "keys": "A key for each position: what it offers to queries.",
    "values": "A value for each position: what it passes on to the positions that attend to it.",
    "scores": "The dot product of a query (row) and a key (column) measures how well they match.",
    "scaled scores": "Dividing by the square root of d_k keeps the scores of wide heads from growing too large.",
    "mask": "The mask marks the keys a query may attend to (■). It hides padding and, in a decoder, later positions.",
    "masked scores": "Hidden keys get a score of minus infinity.",
    "weights": "The softmax turns each row into weights that sum to 1: how much the position attends to each key.",
    "heads": "Each position gets the mean of the values, weighted by its attention.",
    "concatenation": "The outputs of all heads are concatenated.",
    "output projection": "Another matrix mixes the outputs of the heads.",
    "residual": "The output is added to the input, so a sub-layer changes its input instead of replacing it.",
    "layer norm": "Each row is normalised to mean 0 and variance 1, then scaled and shifted by learned parameters.",
    "hidden": "The feed-forward network processes each position separately; its first matrix maps to a larger width.",
    "activation": "Negative numbers become 0. Without this, the two matrices would be equal to a single one.",
    "feed-forward output": "A second matrix maps back to the width of the model.",
    "layer output": "The output of this layer is the input of the next one.",
    "stack output": "The output of the whole stack, one row per position.",
    "logits": "The dot product of each position with the embedding of every token: a score for each token.",
    "probabilities": "The softmax turns the scores of each position into probabilities that sum to 1.",
}
SPECIAL = {
    (CROSS_ATTENTION, "queries"): "A query for each position of the target: what it looks for in the source.",
    (CROSS_ATTENTION, "keys"): "A key for each position of the source.",
    (CROSS_ATTENTION, "values"): "A value for each position of the source.",
    (CROSS_ATTENTION, "mask"): "Only the padding of the source is hidden.",
    (
        CROSS_ATTENTION,
        "weights",
    ): "How much each target position attends to each source token: often the one that it translates.",
    (FEED_FORWARD, "residual"): "Here too, the output is added to the input.",
}


def explanation(step: Step) -> str:
    """Return the sentence that explains a step, or "" if there is none."""
    return SPECIAL.get((step.part, step.name), SENTENCES.get(step.name, ""))


def describe_step(step: Step) -> dict[str, Any]:
    """Return what a step card shows besides the numbers, as JSON-serialisable objects."""
    return {
        "part": step.part,
        "name": step.name,
        "sentence": explanation(step),
        "equation": step.equation,
        # an element for each of several equations, so that a line can break between them
        "mathml": ", ".join(map(mathml, re.split(r"(?<=\)), ", step.equation))),
        "axes": list(step.axes[1:]),
        "source": step.source,
        "code": code_line(step.source),
        "link": code_link(step.source),
    }


def code_line(source: str) -> str:
    """Return the line of code named by `source`, such as "modeling_vanilla_transformer.py:147", or ""."""
    return linecache.getline(modeling_vanilla_transformer.__file__, int(source.partition(":")[2] or 0)).strip()


def code_link(source: str) -> str:
    """Return the address of a line of the model file in the repository, or ""."""
    return f"{REPOSITORY}/blob/main/{source.replace(':', '#L')}" if source else ""


def arrangement(config: PreTrainedConfig) -> str:
    """Say in one sentence where the model applies layer norm, and whether the paper does the same."""
    if config.norm_position == "pre":
        return "Pre-norm, unlike the paper: layer norm comes before each sub-layer, and once more after the stack."
    return "Post-norm, as in the paper: layer norm comes after each sub-layer has been added to its input."
