"""Intervene in forward passes: ablate parts, set attention weights, or change the scale of scores and logits.

    ablated = Interventions(heads_off={("cross", 1, 0)}, positions_off={"encoder"})
    with intervene(model, ablated) as trace:
        output = model(**inputs)
    trace.attention["cross", 1]  # attention weights of this forward pass: (batch, heads, queries, keys)

The model runs its own code. Forward hooks modify layers, positional encodings, residual connections and logits. Heads,
the causal mask, attention scores and weights are modified around and inside the model's `eager_attention_forward`, by
the attention implementation "intervened".
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vanilla_transformer.inside.recorder import (
    INTERVENING,
    attention_implementation,
    check_index,
    find_stacks,
    full_mask,
    unwrapped,
)
from vanilla_transformer.modeling_vanilla_transformer import AddAndNorm, MultiHeadAttention


KINDS = ("encoder", "decoder", "cross")  # kinds of attention: self-attention of either stack, and cross-attention
EXAMPLE = '{"heads_off": [["cross", 0, 1]], "causal_off": true}'
TOLERANCE = 1e-5  # allowed rounding error in a sum of attention weights
HEADS = ("lm_head", "classifier", "qa_outputs")  # modules that compute the logits
SUBLAYERS = {"self-attention": "self_attn", "cross-attention": "cross_attn", "feed-forward": "feed_forward"}


class Weight(NamedTuple):
    """An attention weight to set, and its new value.

    The query's other weights are rescaled so that all weights sum to 1; if they were all 0, they share the remainder
    evenly. Masked keys keep weight 0. If all visible keys are set and do not sum to 1, the weights stay unchanged.
    """

    kind: str
    layer: int
    head: int
    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class Interventions:
    """Changes to a model's forward pass. All indices count from 0.

    `causal_off` and `weights` in a decoder need all positions in one pass, so call `generate` with use_cache=False.

    Args:
        heads_off: (kind, layer, head) of heads whose output is set to 0. The kind of attention is "encoder" or
            "decoder" (self-attention), or "cross".
        layers_off: (stack, layer) of layers to skip.
        residuals_off: (stack, layer, sub-layer) of residual connections to remove, leaving LayerNorm(Sublayer(X)). The
            sub-layer is "self-attention", "cross-attention" or "feed-forward".
        positions_off: stacks ("encoder", "decoder") whose positional encoding is removed.
        causal_off: remove the causal mask of the decoder; a sliding window becomes symmetric.
        scaling_off: do not divide attention scores by sqrt(d_k).
        temperature: divide the logits by this positive number.
        weights: attention weights to set.
    """

    heads_off: frozenset[tuple[str, int, int]] | set[tuple[str, int, int]] = frozenset()
    layers_off: frozenset[tuple[str, int]] | set[tuple[str, int]] = frozenset()
    residuals_off: frozenset[tuple[str, int, str]] | set[tuple[str, int, str]] = frozenset()
    positions_off: frozenset[str] | set[str] = frozenset()
    causal_off: bool = False
    scaling_off: bool = False
    temperature: float = 1.0
    weights: tuple[Weight, ...] = ()

    def __bool__(self) -> bool:
        return self != NO_INTERVENTIONS

    def affects(self, stack: str) -> bool:
        """Whether any intervention affects `stack`; cross-attention counts as part of the decoder."""
        parts = (*self.heads_off, *self.layers_off, *self.residuals_off, *self.weights)
        return stack in self.positions_off or any(part[0] == stack for part in parts)

    def need_all_positions(self) -> bool:
        """Whether a decoder must process all positions in one pass."""
        return self.causal_off or any(weight.kind != "encoder" for weight in self.weights)


NO_INTERVENTIONS = Interventions()
# The expected types in each item of a list field, to validate JSON.
ITEMS: dict[str, tuple[type, ...]] = {
    "heads_off": (str, int, int),
    "layers_off": (str, int),
    "residuals_off": (str, int, str),
    "weights": (str, int, int, int, int, float),
}


def interventions_from_json(fields: Mapping[str, Any] | None) -> Interventions:
    """Build `Interventions` from parsed JSON, which has lists instead of sets and tuples.

    Raises:
        ValueError: a field is unknown, or its value has the wrong type.
    """
    fields = fields or {}
    if not isinstance(fields, Mapping):
        raise ValueError(f"Changes must be lists by name, such as {EXAMPLE}; got {fields}.")
    known = {*ITEMS, "positions_off", "causal_off", "scaling_off", "temperature"}
    if unknown := sorted(fields.keys() - known):
        raise ValueError(f"Unknown changes: {', '.join(unknown)}. Choose from: {', '.join(sorted(known))}.")

    def typed(kind: type, value: Any) -> Any:
        """Return `value` as `kind`. Accept integers as floats, but not booleans as integers."""
        kinds = (int, float) if kind is float else kind
        if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(value)
        return kind(value)

    def items(name: str) -> list[tuple]:
        rows = (typed(list, row) for row in typed(list, fields.get(name, [])))
        return [tuple(typed(*pair) for pair in zip(ITEMS[name], row, strict=True)) for row in rows]

    try:
        return Interventions(
            heads_off=frozenset(items("heads_off")),
            layers_off=frozenset(items("layers_off")),
            residuals_off=frozenset(items("residuals_off")),
            positions_off=frozenset(typed(str, stack) for stack in typed(list, fields.get("positions_off", []))),
            causal_off=typed(bool, fields.get("causal_off", False)),
            scaling_off=typed(bool, fields.get("scaling_off", False)),
            temperature=typed(float, fields.get("temperature", 1.0)),
            weights=tuple(Weight(*item) for item in items("weights")),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Changes must be lists such as {EXAMPLE}; got {fields}.") from error


def interventions_to_json(interventions: Interventions) -> dict[str, Any]:
    """Return the JSON form that `interventions_from_json` reads."""
    return {
        name: value
        if isinstance(value, bool | float)
        else [item if isinstance(item, str) else [*item] for item in value]
        for name, value in vars(interventions).items()
    }


def attentions_of(model: PreTrainedModel) -> dict[tuple[str, int], MultiHeadAttention]:
    """Return the attention modules of a model by kind and layer, in the order in which they run."""
    found = {}
    for name, stack in find_stacks(model).items():
        for layer, module in enumerate(stack.layers):
            found[name, layer] = module.self_attn
        for layer, module in enumerate(stack.layers):
            if hasattr(module, "cross_attn"):
                found["cross", layer] = module.cross_attn
    return cast(dict[tuple[str, int], MultiHeadAttention], found)


def check_interventions(model: PreTrainedModel, interventions: Interventions) -> None:
    """Raise a ValueError if the model lacks a named part, or a weight cannot be set."""
    stacks, attentions = find_stacks(model), attentions_of(model)
    sizes = {name: len(stack.layers) for name, stack in stacks.items()}
    sizes["cross"] = sum(kind == "cross" for kind, _ in attentions)

    def check_layer(what: str, name: str, layer: int, known: Sequence[str]) -> None:
        if name not in known or not sizes[name]:
            existing = ", ".join(name for name in known if sizes.get(name))
            raise ValueError(f"{what}={name!r} does not exist: {type(model).__name__} has {existing}.")
        check_index("layer", layer, sizes[name])

    kinds = [kind for kind in KINDS if sizes.get(kind)]
    for kind, layer, head in (*interventions.heads_off, *(weight[:3] for weight in interventions.weights)):
        check_layer("kind", kind, layer, kinds)
        check_index("head", head, model.config.num_heads)
    for stack, layer, *sublayer in (*interventions.layers_off, *interventions.residuals_off):
        check_layer("stack", stack, layer, list(stacks))
        for name in sublayer:
            if not hasattr(stacks[stack].layers[layer], SUBLAYERS.get(name, "none")):
                raise ValueError(f"The {stack} has no sub-layer {name!r}; there are {', '.join(SUBLAYERS)}.")
    for stack in interventions.positions_off:
        check_layer("stack", stack, 0, list(stacks))
    if not 0 < interventions.temperature < math.inf:
        raise ValueError(f"A temperature is a positive number, so it cannot be {interventions.temperature}.")
    for weight in interventions.weights:
        if min(weight.query, weight.key) < 0:
            raise ValueError(f"Tokens count from 0, so there is no query {weight.query} with a key {weight.key}.")
        if not 0 <= weight.weight <= 1:
            raise ValueError(f"An attention weight is between 0 and 1, so it cannot be {weight.weight}.")
        back, ahead = visible_range(attentions[weight.kind, weight.layer], interventions)
        if not -ahead <= weight.query - weight.key <= back:
            raise ValueError(f"Token {weight.key} is hidden from token {weight.query}, so no weight of it can be set.")
    for (kind, layer, head, query), by_key in weights_by_query(interventions).items():
        if sum(by_key.values()) > 1 + TOLERANCE:
            raise ValueError(
                f"The weights of a query sum to 1, so those of token {query} ({kind}, layer {layer}, head {head}) "
                f"cannot be {', '.join(map(str, by_key.values()))}."
            )


def visible_range(attention: MultiHeadAttention, interventions: Interventions) -> tuple[float, float]:
    """Return how many positions before and after itself a query may attend to; infinity means no limit."""
    side = math.inf if attention.sliding_window is None else attention.sliding_window - 1
    return side, 0 if attention.is_causal and not interventions.causal_off else side


def weights_by_query(interventions: Interventions) -> dict[tuple[str, int, int, int], dict[int, float]]:
    """Return the weights to set, grouped by query: (kind, layer, head, query) -> key -> weight."""
    found: dict[tuple[str, int, int, int], dict[int, float]] = {}
    for kind, layer, head, query, key, weight in interventions.weights:
        found.setdefault((kind, layer, head, query), {})[key] = weight
    return found


class PerRow(NamedTuple):
    """Interventions for each row of a batch; a single item applies to all rows."""

    interventions: Sequence[Interventions]
    device: torch.device

    def mask(self, selected: Iterable[bool], *shape: int) -> Tensor | None:
        """Return a boolean mask (rows, *shape) that is true for selected rows; None if no row is selected."""
        rows = list(selected)
        if not any(rows):
            return None
        with torch.inference_mode(False):  # autograd may save the mask, and cannot save inference tensors
            return torch.tensor(rows, device=self.device).view(-1, *shape)


class SetWeights(TorchFunctionMode):
    """Override attention weights in the softmax's output. `mask` (batch, 1, queries, keys) marks the visible keys."""

    def __init__(self, rows: PerRow, kind: str, layer: int, mask: Tensor):
        super().__init__()
        self.visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        self.queries = [
            (slice(None) if len(rows.interventions) == 1 else slice(row, row + 1), head, query, by_key)
            for row, interventions in enumerate(rows.interventions)
            for (*attention, head, query), by_key in weights_by_query(interventions).items()
            if attention == [kind, layer]
        ]

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.__name__ == "softmax" and self.queries:
            result = result.clone()  # the backward pass of softmax needs its unmodified output
            visible = self.visible.expand(len(result), *self.visible.shape[1:])
            for rows, head, query, by_key in self.queries:
                if query < result.shape[-2]:
                    set_weights(result[rows, head, query], visible[rows, 0, query], by_key)
        return result


def set_weights(weights: Tensor, visible: Tensor, by_key: Mapping[int, float]) -> None:
    """Set the weights (rows, keys) of one query in place, as `Weight` describes; `visible` is boolean (rows, keys)."""
    given, is_set = torch.zeros_like(weights), torch.zeros_like(visible)
    for key, weight in by_key.items():
        given[:, key : key + 1], is_set[:, key : key + 1] = weight, True
    given = given.masked_fill(~visible, 0)
    others = weights.masked_fill(is_set, 0)
    others = torch.where(others.sum(-1, keepdim=True) > 0, others, visible & ~is_set)
    shared, left = others.sum(-1, keepdim=True), (1 - given.sum(-1, keepdim=True)).clamp(min=0)
    found = given + others * (left / shared.clamp(min=torch.finfo(weights.dtype).tiny))
    weights.copy_(torch.where((shared > 0) | (left < TOLERANCE), found, weights))


@dataclass
class Trace:
    """Attention weights recorded in an `intervene` block.

    Args:
        attention: (kind, layer) -> attention weights (batch, heads, queries, keys) of the last forward pass.
    """

    rows: PerRow
    names: dict[nn.Module, tuple[str, int]]
    attention: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def is_running(self) -> bool:
        """Whether the current thread is in this trace's `with` block; other threads may be running the same model."""
        return TRACE.get() is self


TRACE: ContextVar[Trace | None] = ContextVar("TRACE", default=None)


def intervened_attention_forward(
    module: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs
) -> tuple[Tensor, Tensor]:
    """Run the model's `eager_attention_forward` with the current thread's interventions, if any."""
    attention = sys.modules[type(module).__module__].eager_attention_forward
    trace = TRACE.get()
    if trace is None or module not in trace.names:
        return attention(module, query, key, value, attention_mask, **kwargs)
    kind, layer = trace.names[module]
    rows = trace.rows
    if len(rows.interventions) not in (1, len(query)):
        raise ValueError(
            f"There are interventions for {len(rows.interventions)} rows, and the batch has {len(query)} (a beam "
            "search makes num_beams of each): give one for each row, or one for all."
        )
    after_cache = kind == "decoder" and query.shape[2] < key.shape[2]
    if after_cache and any(each.need_all_positions() for each in rows.interventions):
        raise ValueError("causal_off and weights of a decoder need all positions at once: give use_cache=False.")
    free = rows.mask((each.causal_off for each in rows.interventions), 1, 1, 1)
    if free is not None and module.is_causal:
        attention_mask = torch.where(free, without_causality(attention_mask, module.sliding_window), attention_mask)
    unscaled = rows.mask((each.scaling_off for each in rows.interventions), 1, 1, 1)
    if unscaled is not None:
        kwargs["scaling"] = torch.where(unscaled, 1.0, kwargs["scaling"])
    with SetWeights(rows, kind, layer, attention_mask):
        heads, weights = attention(module, query, key, value, attention_mask, **kwargs)
    trace.attention[kind, layer] = weights
    for head in range(heads.shape[2]):
        off = rows.mask(((kind, layer, head) in each.heads_off for each in rows.interventions), 1, 1)
        if off is not None:
            heads[:, :, head] = heads[:, :, head].masked_fill(off, 0)
    return heads, weights


def without_causality(mask: Tensor, window: int | None) -> Tensor:
    """Make a causal mask (batch, 1, queries, keys) bidirectional: hide only padding and keys outside the window."""
    mask = mask.amax(dim=-2, keepdim=True).expand_as(mask)  # a key that no query sees is padding
    if window is None:
        return mask
    keys = torch.arange(mask.shape[-1], device=mask.device)
    far = (keys - keys[-mask.shape[-2] :, None]).abs() >= window
    return mask.masked_fill(far, False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min)


ALL_ATTENTION_FUNCTIONS.register("intervened", intervened_attention_forward)
ALL_MASK_ATTENTION_FUNCTIONS.register("intervened", full_mask)


def add_hooks(model: PreTrainedModel, trace: Trace) -> Iterator[RemovableHandle]:
    """Add hooks that modify layers, positions, residual connections and logits; yield handles to remove them."""
    rows = trace.rows

    def skip(off: Tensor, _, args: tuple, output: Tensor) -> Tensor:
        return torch.where(off, args[0], output) if trace.is_running() else output

    def zero(off: Tensor, _, args: tuple, output: Tensor) -> Tensor:
        return output.masked_fill(off, 0) if trace.is_running() else output

    def cool(_, args: tuple, logits: Tensor) -> Tensor:
        temperatures = torch.tensor([each.temperature for each in rows.interventions], device=rows.device)
        return logits / temperatures.view(-1, *[1] * (logits.dim() - 1)) if trace.is_running() else logits

    if any(each.temperature != 1 for each in rows.interventions):
        yield next(
            module for name, module in unwrapped(model).named_children() if name in HEADS
        ).register_forward_hook(cool)
    for name, stack in find_stacks(model).items():
        off = rows.mask((name in each.positions_off for each in rows.interventions), 1, 1)
        if off is not None:
            yield stack.embed_positions.register_forward_hook(partial(zero, off))
        for i, layer in enumerate(stack.layers):
            off = rows.mask(((name, i) in each.layers_off for each in rows.interventions), 1, 1)
            if off is not None:
                yield layer.register_forward_hook(partial(skip, off))
            for sublayer, attribute in SUBLAYERS.items():
                off = rows.mask(((name, i, sublayer) in each.residuals_off for each in rows.interventions), 1, 1)
                if off is not None:
                    yield from remove_residual(getattr(layer, f"{attribute}_add_norm"), off, trace)


def remove_residual(add_norm: AddAndNorm, off: Tensor, trace: Trace) -> Iterator[RemovableHandle]:
    """Remove a residual connection: subtract X from the sum before the norm, or after `add_norm` if pre-norm."""
    entered: list[Tensor] = []

    def subtract(total: Tensor) -> Tensor:
        return total - entered[0].masked_fill(~off, 0) if trace.is_running() else total

    def enter(_, args: tuple) -> None:
        if trace.is_running():
            entered[:] = args[:1]

    yield add_norm.register_forward_pre_hook(enter)
    if add_norm.norm_first:
        yield add_norm.register_forward_hook(lambda _, args, output: subtract(output))
    else:
        yield add_norm.norm.register_forward_pre_hook(lambda _, args: subtract(*args))


@contextmanager
def intervene(
    model: PreTrainedModel, interventions: Interventions | Iterable[Interventions] = NO_INTERVENTIONS
) -> Iterator[Trace]:
    """Apply interventions to `model` in a `with` block, and record its attention weights.

    Args:
        interventions: one for the whole batch, or one per row, to evaluate several in one forward pass.

    Raises:
        ValueError: the model lacks a named part, or a weight is not between 0 and 1. Inside the block: `causal_off` or
            decoder weights are used with a cache, or the batch has a different number of rows.
    """
    rows = [interventions] if isinstance(interventions, Interventions) else list(interventions)
    for each in rows:
        check_interventions(model, each)
    trace = Trace(PerRow(rows, model.device), {module: name for name, module in attentions_of(model).items()})
    with attention_implementation(model, "intervened"), ExitStack() as stack:
        stack.callback(TRACE.reset, TRACE.set(trace))
        stack.callback(INTERVENING.reset, INTERVENING.set(intervened_attention_forward))
        for handle in add_hooks(model, trace):
            stack.enter_context(handle)
        yield trace
