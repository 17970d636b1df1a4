"""Measure how each part of a model contributes to a prediction: ablations, logit lens, gradients, head statistics."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.inside.interventions import NO_INTERVENTIONS, Interventions, attentions_of, intervene
from vanilla_transformer.inside.predictions import Prediction
from vanilla_transformer.inside.readings import INPUTS, split_text, tokenizer_options
from vanilla_transformer.inside.recorder import find_stacks


LENS_OPTIONS = 3  # number of top candidates kept for each layer
BATCH_SIZE = 32  # maximum number of interventions evaluated in one forward pass


def run_variants(model: PreTrainedModel, prediction: Prediction, variants: Sequence[Interventions]) -> list[Tensor]:
    """Return the scores (positions, candidates) of one prediction under each intervention in `variants`.

    Variants are evaluated in batches. In an encoder-decoder, variants that do not affect the encoder share its output.
    """
    has_encoder = prediction.target is not None
    groups: dict[bool, list[int]] = {True: [], False: []}  # whether the encoder's output can be shared
    for i, variant in enumerate(variants):
        groups[has_encoder and not variant.affects("encoder")].append(i)
    found: dict[int, Tensor] = {}
    for is_encoded, numbers in groups.items():
        inputs = with_encoder_output(model, prediction.inputs) if is_encoded and numbers else prediction.inputs
        for start in range(0, len(numbers), BATCH_SIZE):
            batch = numbers[start : start + BATCH_SIZE]
            rows: dict[str, Any] = {name: value.expand(len(batch), *value.shape[1:]) for name, value in inputs.items()}
            if is_encoded:
                rows["encoder_outputs"] = (rows["encoder_outputs"],)
            with intervene(model, [variants[i] for i in batch]):
                found |= zip(batch, prediction.scores(model(**rows)), strict=True)
    return [found[i] for i in range(len(variants))]


def with_encoder_output(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs with `input_ids` replaced by `encoder_outputs`, so that the encoder is not run again."""
    with intervene(model):
        output = find_stacks(model)["encoder"](**{name: inputs[name] for name in INPUTS})
    rest = {name: value for name, value in inputs.items() if name != "input_ids"}
    return {**rest, "encoder_outputs": output.last_hidden_state}


def combine(interventions: Interventions, **more: set) -> Interventions:
    """Return a copy of `interventions` with the sets in `more` added to its fields."""
    return replace(interventions, **{name: getattr(interventions, name) | added for name, added in more.items()})


@torch.inference_mode()
def logit_lens(
    model: PreTrainedModel, prediction: Prediction, interventions: Interventions = NO_INTERVENTIONS
) -> list[list[dict]]:
    """Return the model's predictions after each layer (the logit lens); works with every task head.

    Returns:
        One list per number of layers kept, from 0 to all, with one item per position: the top candidates, and the
        probability of the full model's prediction.
    """
    name, stack = list(find_stacks(model).items())[-1]
    layers = len(stack.layers)
    skipped = [{(name, layer) for layer in range(kept, layers)} for kept in range(layers + 1)]
    variants = [combine(interventions, layers_off=off) for off in skipped]
    return [
        [
            {"top": prediction.top_options(row, LENS_OPTIONS), "p": prediction.probability(float(row[chosen]))}
            for chosen, row in zip(prediction.chosen, scores, strict=True)
        ]
        for scores in run_variants(model, prediction, variants)
    ]


@torch.inference_mode()
def ablation_effects(
    model: PreTrainedModel, prediction: Prediction, interventions: Interventions = NO_INTERVENTIONS
) -> list[dict]:
    """Return how much log-probability (nats per position) the prediction loses when each head is ablated.

    A positive effect means that the head supports the prediction; a negative effect, that it opposes the prediction.
    For regression, the effect is the absolute change of the predicted value. Sorted by magnitude, largest first.
    """
    heads = [(kind, layer, head) for kind, layer in attentions_of(model) for head in range(model.config.num_heads)]
    chosen = torch.tensor(prediction.chosen)[:, None]
    ablated = [combine(interventions, heads_off={head}) for head in heads]
    intact, *without = (
        scores.cpu().gather(1, chosen)[prediction.answered, 0]
        for scores in run_variants(model, prediction, [interventions, *ablated])
    )
    losses = [intact - scores for scores in without]
    effects = [float((loss.abs() if prediction.regression else loss).mean()) for loss in losses]
    return [
        {"kind": kind, "layer": layer, "head": head, "effect": round(effect, 5)}
        for (kind, layer, head), effect in sorted(zip(heads, effects, strict=True), key=lambda item: -abs(item[1]))
    ]


def gradient_times_input(model: PreTrainedModel, inputs: dict[str, Tensor], score: Callable[[Any], Tensor]) -> Tensor:
    """Return gradient times input, summed over d_model: each token's first-order contribution to a score.

    Args:
        score: function that maps the model's output to a scalar.

    Returns:
        Attributions (batch, length).
    """
    with torch.inference_mode(False), torch.enable_grad():
        ids, mask = (inputs[name].clone() for name in INPUTS)
        embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
        output = model(inputs_embeds=embeddings, attention_mask=mask)
        (gradient,) = torch.autograd.grad(score(output), embeddings)
    return (gradient * embeddings).sum(-1).detach()


def sum_over_pieces(pieces: list[tuple[str, list[int]]], values: Tensor) -> list[dict[str, Any]]:
    """Sum `values` over the tokens of each piece, and scale the sums so that the largest magnitude is 1."""
    sums = torch.stack([values[positions].sum() for _, positions in pieces])
    scaled = sums / sums.abs().max().clamp(min=1e-9)
    return [
        {"text": piece, "share": round(value, 3)} for (piece, _), value in zip(pieces, scaled.tolist(), strict=True)
    ]


def input_attributions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prediction: Prediction,
    interventions: Interventions = NO_INTERVENTIONS,
) -> list[dict]:
    """Return gradient times input for each piece of the text, with respect to a classifier's highest logit."""
    with intervene(model, interventions):
        (values,) = gradient_times_input(model, prediction.inputs, lambda output: output.logits[0].max())
    pieces = split_text(tokenizer, prediction.text, **tokenizer_options(model))
    return sum_over_pieces(pieces, values.cpu())


def head_statistics(
    kind: str, weights: Tensor, queries: Sequence[int], keys: Sequence[int], special: set[int]
) -> dict[str, float]:
    """Summarise the attention weights (queries, keys) of one head as means over its queries.

    Args:
        queries, keys: token ids of the rows and columns; in cross-attention, rows are the generated tokens.
        special: ids of special tokens.

    Returns:
        Fractions of the attention, 0 to 1: "same" on other tokens with the query's id, "special" on special tokens; in
        self-attention "itself", "previous" and "next" on these positions; in cross-attention "onward" on the position
        after the one that the previous query attended to most. Also "entropy" in bits, and "tokens", the effective
        number of attended tokens: 2^entropy.
    """
    same = torch.tensor(queries)[:, None] == torch.tensor(keys)
    found = {}
    if kind == "cross":
        onward = (weights[:-1].argmax(-1) + 1).clamp(max=len(keys) - 1)
        found["onward"] = weights[1:].gather(1, onward[:, None])
    else:
        same.fill_diagonal_(False)
        found |= {"itself": weights.diagonal(), "previous": weights.diagonal(-1)}
        if kind == "encoder":
            found["next"] = weights.diagonal(1)
    found["same"] = (weights * same).sum(-1)
    found["special"] = weights[:, [i for i, key in enumerate(keys) if key in special]].sum(-1)
    entropy = torch.special.entr(weights).sum(-1) / math.log(2)
    found |= {"entropy": entropy, "tokens": 2**entropy}
    return {name: round(float(values.mean()), 3) if values.numel() else 0.0 for name, values in found.items()}
