"""Collect all data about one prediction as JSON, for the explorer to draw: see `explore_data`."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.inside.effects import ablation_effects, head_statistics, input_attributions, logit_lens
from vanilla_transformer.inside.explanations import describe_step
from vanilla_transformer.inside.interventions import (
    NO_INTERVENTIONS,
    Interventions,
    attentions_of,
    intervene,
    interventions_to_json,
    visible_range,
    weights_by_query,
)
from vanilla_transformer.inside.predictions import Prediction, predict
from vanilla_transformer.inside.readings import display_token, is_partial, max_length
from vanilla_transformer.inside.recorder import MASKED, find_stacks, record


@torch.inference_mode()
def explore_data(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    target: str | Sequence[int] | None = None,
    context: str | None = None,
    interventions: Interventions = NO_INTERVENTIONS,
    effects: bool = True,
    values: bool = True,
) -> dict[str, Any]:
    """Return all data that `explore` displays, as JSON-serialisable objects.

    Args:
        text, target, context, interventions: see `predict`.
        effects: include the effect of ablating each head, which adds one batch row per head.
        values: include the values of every step in every layer.

    Raises:
        ValueError: see `predict`.
    """
    prediction, scores, attention = predict(model, tokenizer, text, target, context, interventions)
    kinds, heads = describe_attention(model, attention, prediction, interventions)
    data: dict[str, Any] = {
        "model": describe_model(model, prediction),
        "text": text,
        "context": context,
        "source": describe_tokens(tokenizer, prediction.source),
        "target": prediction.target and describe_tokens(tokenizer, prediction.target),
        "written": prediction.written,
        "steps": prediction.steps(scores),
        "answer": prediction.answer(scores),
        "hypotheses": [
            {"text": words, "score": round(score, 4), "ids": ids} for words, score, ids in prediction.hypotheses
        ],
        "attention": kinds,
        "heads": heads,
        "lens": logit_lens(model, prediction, interventions),
    }
    if interventions:
        data["changes"] = interventions_to_json(interventions)
    if prediction.task == "classify":
        data["mattered"] = input_attributions(model, tokenizer, prediction, interventions)
    if effects:
        data["effects"] = ablation_effects(model, prediction, interventions)
    if values:
        data["values"] = {
            f"{stack} {layer}": layer_values(model, prediction, stack, layer, interventions)
            for stack, modules in find_stacks(model).items()
            for layer in range(len(modules.layers))
        }
    return data


@torch.inference_mode()
def compare_data(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    interventions: Interventions,
    target: str | Sequence[int] | None = None,
    context: str | None = None,
    prediction: Prediction | None = None,
) -> dict[str, Any]:
    """Compare the model under `interventions` with the original model.

    Args:
        prediction: the original model's prediction, if it has already been computed.

    Returns:
        "changed": `explore_data` of the changed model. "same": the original prediction, with the probabilities that
        the changed model assigns to it. "rows": for each query with set weights, (kind, layer, head, query, weights
        per mille) when the changed model scores the original prediction.

    Raises:
        ValueError: see `predict`.
    """
    prediction = prediction or predict(model, tokenizer, text, target, context)[0]
    with intervene(model, interventions) as trace:
        (scores,) = prediction.scores(model(**prediction.inputs))
    rows = [
        [kind, layer, head, query, per_mille(trace.attention[kind, layer][0, head, query])]
        for kind, layer, head, query in weights_by_query(interventions)
        if query < trace.attention[kind, layer].shape[-2]
    ]
    changed = explore_data(model, tokenizer, text, target, context, interventions, effects=False, values=False)
    return {"changed": changed, "same": prediction.steps(scores), "rows": rows}


def describe_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[dict]:
    """Return each token's id and text, whether it is a special token, and whether it is only part of a character."""
    special = set(tokenizer.all_special_ids)
    return [
        {"id": i, "text": display_token(tokenizer, i), "special": i in special, "bytes": is_partial(tokenizer, i)}
        for i in ids
    ]


def describe_model(model: PreTrainedModel, prediction: Prediction) -> dict:
    """Return the model's architecture and sizes, from which the page draws it."""
    config, positions = model.config, max_length(model)
    return {
        "class": type(model).__name__,
        "task": prediction.task,
        "regression": prediction.regression,
        "stacks": {name: len(stack.layers) for name, stack in find_stacks(model).items()},
        "heads": config.num_heads,
        "d_model": config.d_model,
        "d_k": config.d_k,
        "d_ff": config.d_ff,
        "norm": config.norm_position,
        "positions": config.position_embedding,
        "room": None if positions == math.inf else positions,
        "parameters": model.num_parameters(),
    }


def describe_attention(
    model: PreTrainedModel,
    attention: dict[tuple[str, int], Tensor],
    prediction: Prediction,
    interventions: Interventions,
) -> tuple[list[dict], list[dict]]:
    """Return the weights of each kind of attention in per mille, [layer][head][query][key], and head statistics.

    "reach" is how many positions before and after itself a query may attend to; None means no limit.
    """
    special = set(prediction.tokenizer.all_special_ids)
    modules = attentions_of(model)
    written = prediction.target or prediction.source
    texts = {
        "encoder": (prediction.source, prediction.source),
        "decoder": (written[:-1], written[:-1]) if prediction.target else (written, written),
        "cross": (written[1:], prediction.source),
    }
    kinds, heads = [], []
    for kind in dict.fromkeys(kind for kind, _ in attention):
        queries, keys = texts[kind]
        layers = [weights[0].float().cpu() for (of, _), weights in attention.items() if of == kind]
        reach = [None if far == math.inf else far for far in visible_range(modules[kind, 0], interventions)]
        weights = [per_mille(layer) for layer in layers]
        kinds.append({"kind": kind, "reach": reach, "weights": weights})
        heads += [
            {"kind": kind, "layer": i, "head": j} | head_statistics(kind, weights, queries, keys, special)
            for i, layer in enumerate(layers)
            for j, weights in enumerate(layer)
        ]
    return kinds, heads


def per_mille(weights: Tensor) -> list:
    """Return attention weights in per mille, as integers, to keep the JSON small."""
    return (weights * 1000).round().to(torch.int16).tolist()


@torch.inference_mode()
def layer_values(
    model: PreTrainedModel,
    prediction: Prediction,
    stack: str,
    layer: int,
    interventions: Interventions = NO_INTERVENTIONS,
) -> list[dict]:
    """Return each step of a layer with its description, shape and values.

    The values are nested as [row][column], or [head][row][column] for steps with a head dimension. Logits have none:
    they would be large, and `Prediction.steps` has the most probable tokens.
    """
    with intervene(model, interventions):
        steps = record(model, prediction.inputs, layer, None, stack)
    return [
        describe_step(step)
        | {"shape": list(step.shape[1:])}
        | ({} if "vocab" in step.axes else {"values": rounded(step.tensor[0])})
        for step in steps
    ]


def rounded(tensor: Tensor) -> list:
    """Return a tensor as nested lists, rounded to keep the JSON small, with None for masked scores."""
    matrix = tensor if tensor.dim() > 1 else tensor[:, None]
    if not matrix.is_floating_point():
        return matrix.tolist()
    values = matrix.masked_fill(matrix < MASKED, math.nan).double()
    return without_nan(((values * 1000).round() / 1000).tolist())


def without_nan(values: Any) -> Any:
    """Replace NaN with None in nested lists, because JSON has no NaN."""
    if isinstance(values, list):
        return [without_nan(value) for value in values]
    return None if math.isnan(values) else values
