"""Break a model on purpose: switch parts of it off, or set an attention weight, in real forward passes.

    without = Changes(heads_off={("cross", 1, 0)}, positions_off={"encoder"})
    with changed(model, without) as seen:
        output = model(**inputs)
    seen.attention["cross", 1]  # the weights with which it ran: (batch, heads, queries, keys)

Nothing of the model is written again. Layers, positions and residual connections are changed by forward hooks on the
model's modules; heads, the causal mask and weights around and inside the model's own `eager_attention_forward`, which
the library's attention interface calls under the name "changed".
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
    CHANGING,
    attention_implementation,
    check_index,
    find_stacks,
    nothing_hidden,
    whole_mask,
)
from vanilla_transformer.modeling_vanilla_transformer import AddAndNorm, MultiHeadAttention


KINDS = ("encoder", "decoder", "cross")  # of attention: self-attention of a stack, and the decoder's to the encoder
EXAMPLE = '{"heads_off": [["cross", 0, 1]], "causal_off": true}'
ROUNDING = 1e-5  # of weights that sum to 1
SUBLAYERS = {"self-attention": "self_attn", "cross-attention": "cross_attn", "feed-forward": "feed_forward"}


class Weight(NamedTuple):
    """One attention weight, and what it is set to.

    The weights of a query that are not set share what is left in their proportions; where they have nothing, evenly. A
    key that is hidden keeps 0, and a query that sees no other key than those set keeps its weights.
    """

    kind: str
    layer: int
    head: int
    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class Changes:
    """What is different in a model. All indices count from 0.

    `causal_off`, and a decoder's weights, are of all positions at once: with them `generate` needs use_cache=False.

    Args:
        heads_off: (kind, layer, head), whose output is 0, as if their columns of W_O were. The kinds of attention are
            "encoder" and "decoder" (self-attention) and "cross".
        layers_off: (stack, layer), which hand on what they get.
        residuals_off: (stack, layer, sub-layer), around which X is not added: LayerNorm(Sublayer(X)). The sub-layers
            are "self-attention", "cross-attention" and "feed-forward".
        positions_off: stacks that are not told where a token stands: "encoder", "decoder".
        causal_off: let every position of a decoder see those after it as well; in a sliding window, as many as it
            sees before it.
        weights: attention weights that are set.
    """

    heads_off: frozenset[tuple[str, int, int]] | set[tuple[str, int, int]] = frozenset()
    layers_off: frozenset[tuple[str, int]] | set[tuple[str, int]] = frozenset()
    residuals_off: frozenset[tuple[str, int, str]] | set[tuple[str, int, str]] = frozenset()
    positions_off: frozenset[str] | set[str] = frozenset()
    causal_off: bool = False
    weights: tuple[Weight, ...] = ()

    def __bool__(self) -> bool:
        return any((self.heads_off, self.layers_off, self.residuals_off, self.positions_off, self.causal_off)) or bool(
            self.weights
        )

    def reach(self, stack: str) -> bool:
        """Whether something of a stack is changed; attention across belongs to the decoder."""
        parts = (*self.heads_off, *self.layers_off, *self.residuals_off, *self.weights)
        return stack in self.positions_off or any(part[0] == stack for part in parts)

    def need_whole_targets(self) -> bool:
        """Whether a decoder has to run over all positions at once."""
        return self.causal_off or any(weight.kind != "encoder" for weight in self.weights)


UNCHANGED = Changes()


def changes_from(wishes: Mapping[str, Any] | None) -> Changes:
    """Changes as JSON has them: the same names, with lists in the place of sets and tuples.

    Raises:
        ValueError: a name is none of `Changes`, or what it stands for has another form.
    """
    wishes = wishes or {}
    if not isinstance(wishes, Mapping):
        raise ValueError(f"Changes come as lists by name, such as {EXAMPLE}, not as {wishes}.")
    forms: dict[str, tuple[type, ...]] = {
        "heads_off": (str, int, int),
        "layers_off": (str, int),
        "residuals_off": (str, int, str),
        "weights": (str, int, int, int, int, float),
    }
    known = {*forms, "positions_off", "causal_off"}
    if unknown := sorted(wishes.keys() - known):
        raise ValueError(f"Nothing can be changed by {', '.join(unknown)}; there are {', '.join(sorted(known))}.")

    def value_of(kind: type, value: Any) -> Any:
        """The value, if it is of its kind: no index is cut to an integer, and no text read as letters."""
        kinds = (int, float) if kind is float else kind
        if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(value)
        return kind(value)

    def parts(name: str) -> list[tuple]:
        wanted = value_of(list, wishes.get(name, []))
        pairs = (zip(forms[name], value_of(list, part), strict=True) for part in wanted)
        return [tuple(value_of(kind, value) for kind, value in pair) for pair in pairs]

    try:
        return Changes(
            heads_off=frozenset(parts("heads_off")),
            layers_off=frozenset(parts("layers_off")),
            residuals_off=frozenset(parts("residuals_off")),
            positions_off=frozenset(value_of(str, stack) for stack in value_of(list, wishes.get("positions_off", []))),
            causal_off=value_of(bool, wishes.get("causal_off", False)),
            weights=tuple(Weight(*part) for part in parts("weights")),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Changes come as lists such as {EXAMPLE}, not as {wishes}.") from error


def as_json(changes: Changes) -> dict[str, Any]:
    """Changes as `changes_from` reads them."""
    return {
        name: wish if isinstance(wish, bool) else [part if isinstance(part, str) else [*part] for part in wish]
        for name, wish in vars(changes).items()
    }


def attentions_of(model: PreTrainedModel) -> dict[tuple[str, int], MultiHeadAttention]:
    """The attention modules of a model by kind and layer, in the order in which they run."""
    found = {}
    for name, stack in find_stacks(model).items():
        for layer, module in enumerate(stack.layers):
            found[name, layer] = module.self_attn
        for layer, module in enumerate(stack.layers):
            if hasattr(module, "cross_attn"):
                found["cross", layer] = module.cross_attn
    return cast(dict[tuple[str, int], MultiHeadAttention], found)


def check_changes(model: PreTrainedModel, changes: Changes) -> None:
    """Raise a ValueError that names what the model does not have."""
    stacks, attentions = find_stacks(model), attentions_of(model)
    sizes = {name: len(stack.layers) for name, stack in stacks.items()}
    sizes["cross"] = sum(kind == "cross" for kind, _ in attentions)

    def check_layer(what: str, name: str, layer: int, known: Sequence[str]) -> None:
        if name not in known or not sizes[name]:
            there = ", ".join(name for name in known if sizes.get(name))
            raise ValueError(f"{what}={name!r} does not exist: {type(model).__name__} has {there}.")
        check_index("layer", layer, sizes[name])

    kinds = [kind for kind in KINDS if sizes.get(kind)]
    for kind, layer, head in (*changes.heads_off, *(weight[:3] for weight in changes.weights)):
        check_layer("kind", kind, layer, kinds)
        check_index("head", head, model.config.num_heads)
    for stack, layer, *sublayer in (*changes.layers_off, *changes.residuals_off):
        check_layer("stack", stack, layer, list(stacks))
        for name in sublayer:
            if not hasattr(stacks[stack].layers[layer], SUBLAYERS.get(name, "none")):
                raise ValueError(f"The {stack} has no sub-layer {name!r}; there are {', '.join(SUBLAYERS)}.")
    for stack in changes.positions_off:
        check_layer("stack", stack, 0, list(stacks))
    for weight in changes.weights:
        if min(weight.query, weight.key) < 0:
            raise ValueError(f"Tokens count from 0, so there is no query {weight.query} with a key {weight.key}.")
        if not 0 <= weight.weight <= 1:
            raise ValueError(f"An attention weight lies between 0 and 1, so it cannot be {weight.weight}.")
        back, ahead = reach(attentions[weight.kind, weight.layer], changes)
        if not -ahead <= weight.query - weight.key <= back:
            raise ValueError(f"Token {weight.key} is hidden from token {weight.query}, so no weight of it can be set.")
    for (kind, layer, head, query), wanted in by_query(changes).items():
        if sum(wanted.values()) > 1 + ROUNDING:
            raise ValueError(
                f"The weights of a query sum to 1, so those of token {query} ({kind}, layer {layer}, head {head}) "
                f"cannot be {', '.join(map(str, wanted.values()))}."
            )


def reach(attention: MultiHeadAttention, changes: Changes = UNCHANGED) -> tuple[float, float]:
    """How many positions back and ahead a query may look."""
    side = math.inf if attention.sliding_window is None else attention.sliding_window - 1
    return side, 0 if attention.is_causal and not changes.causal_off else side


def by_query(changes: Changes) -> dict[tuple[str, int, int, int], dict[int, float]]:
    """The weights that are set: (kind, layer, head, query) -> key -> weight."""
    found: dict[tuple[str, int, int, int], dict[int, float]] = {}
    for kind, layer, head, query, key, weight in changes.weights:
        found.setdefault((kind, layer, head, query), {})[key] = weight
    return found


class Rows(NamedTuple):
    """The changes of each row of a batch; those of a single row are those of all."""

    changes: Sequence[Changes]
    device: torch.device

    def where(self, test, *shape: int) -> Tensor | None:
        """True for the rows whose changes pass `test`: (rows, *shape); None if none does."""
        passed = [test(changes) for changes in self.changes]
        return torch.tensor(passed, device=self.device).view(-1, *shape) if any(passed) else None


class Set(TorchFunctionMode):
    """Sets attention weights as they come out of the softmax, of keys that `mask` (batch, 1, queries, keys) shows."""

    def __init__(self, rows: Rows, kind: str, layer: int, mask: Tensor):
        super().__init__()
        self.visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        self.wanted = [
            (slice(None) if len(rows.changes) == 1 else slice(row, row + 1), head, query, wanted)
            for row, changes in enumerate(rows.changes)
            for (*attention, head, query), wanted in by_query(changes).items()
            if attention == [kind, layer]
        ]

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.__name__ == "softmax" and self.wanted:
            result = result.clone()  # its gradient needs it as it is
            visible = self.visible.expand(len(result), *self.visible.shape[1:])
            for rows, head, query, wanted in self.wanted:
                if query < result.shape[-2]:
                    set_weights(result[rows, head, query], visible[rows, 0, query], wanted)
        return result


def set_weights(weights: Tensor, visible: Tensor, wanted: Mapping[int, float]) -> None:
    """Set weights (rows, keys) of one query in place, as `Weight` says; `visible` (rows, keys)."""
    given, is_set = torch.zeros_like(weights), torch.zeros_like(visible)
    for key, weight in wanted.items():
        given[:, key : key + 1], is_set[:, key : key + 1] = weight, True
    given = given.masked_fill(~visible, 0)
    others = weights.masked_fill(is_set, 0)
    others = torch.where(others.sum(-1, keepdim=True) > 0, others, visible & ~is_set)
    shared, left = others.sum(-1, keepdim=True), (1 - given.sum(-1, keepdim=True)).clamp(min=0)
    found = given + others * (left / shared.clamp(min=torch.finfo(weights.dtype).tiny))
    weights.copy_(torch.where((shared > 0) | (left < ROUNDING), found, weights))


@dataclass
class Seen:
    """What the forward passes of a `with` block attended to.

    Args:
        attention: (kind, layer) -> the weights of the last pass (batch, heads, queries, keys).
    """

    rows: Rows
    names: dict[nn.Module, tuple[str, int]]
    attention: dict[tuple[str, int], Tensor] = field(default_factory=dict)


SEEN: ContextVar[Seen | None] = ContextVar("SEEN", default=None)


def changed_attention_forward(
    module: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs
) -> tuple[Tensor, Tensor]:
    """The model's own `eager_attention_forward` with the changes of the running `with` block; outside it, as it is."""
    attention = sys.modules[type(module).__module__].eager_attention_forward
    seen = SEEN.get()
    if seen is None or module not in seen.names:
        return attention(module, query, key, value, attention_mask, **kwargs)
    kind, layer = seen.names[module]
    number = len(seen.rows.changes)
    if number not in (1, len(query)):
        raise ValueError(
            f"There are changes for {number} rows, and the batch has {len(query)} (a beam search makes num_beams of "
            "each): give one for each row, or one for all."
        )
    behind_cache = kind == "decoder" and query.shape[2] < key.shape[2]
    if behind_cache and any(changes.need_whole_targets() for changes in seen.rows.changes):
        raise ValueError("causal_off, and a decoder's weights, are of all positions at once: give use_cache=False.")
    if attention_mask is None:
        attention_mask = nothing_hidden(query, key)
    free = seen.rows.where(lambda changes: changes.causal_off, 1, 1, 1)
    if free is not None and module.is_causal:
        attention_mask = torch.where(free, without_causality(attention_mask, module.sliding_window), attention_mask)
    with Set(seen.rows, kind, layer, attention_mask):
        heads, weights = attention(module, query, key, value, attention_mask, **kwargs)
    seen.attention[kind, layer] = weights
    for head in range(heads.shape[2]):
        off = seen.rows.where(lambda changes, head=head: (kind, layer, head) in changes.heads_off, 1, 1)
        if off is not None:
            heads[:, :, head] = heads[:, :, head].masked_fill(off, 0)
    return heads, weights


def without_causality(mask: Tensor, window: int | None) -> Tensor:
    """A causal mask (batch, 1, queries, keys) that hides nothing but padding and what lies outside the window."""
    mask = mask.amax(dim=-2, keepdim=True).expand_as(mask)  # what no query sees is padding
    if window is None:
        return mask
    keys = torch.arange(mask.shape[-1], device=mask.device)
    far = (keys - keys[-mask.shape[-2] :, None]).abs() >= window
    return mask.masked_fill(far, False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min)


ALL_ATTENTION_FUNCTIONS.register("changed", changed_attention_forward)
ALL_MASK_ATTENTION_FUNCTIONS.register("changed", whole_mask)


def hooks(model: PreTrainedModel, rows: Rows, seen: Seen) -> Iterator[RemovableHandle]:
    """Change layers, positions and residual connections; the handles take the hooks off again.

    Other threads may run the same model meanwhile: only the passes of the `with` block are changed.
    """

    def keep(off: Tensor, _, args: tuple, output: Tensor) -> Tensor:
        return torch.where(off, args[0], output) if SEEN.get() is seen else output

    def remove(off: Tensor, _, args: tuple, output: Tensor) -> Tensor:
        return output.masked_fill(off, 0) if SEEN.get() is seen else output

    for name, stack in find_stacks(model).items():
        off = rows.where(lambda changes, name=name: name in changes.positions_off, 1, 1)
        if off is not None:
            yield stack.embed_positions.register_forward_hook(partial(remove, off))
        for i, layer in enumerate(stack.layers):
            off = rows.where(lambda changes, at=(name, i): at in changes.layers_off, 1, 1)
            if off is not None:
                yield layer.register_forward_hook(partial(keep, off))
            for sublayer, attribute in SUBLAYERS.items():
                off = rows.where(lambda changes, at=(name, i, sublayer): at in changes.residuals_off, 1, 1)
                if off is not None:
                    yield from without_residual(getattr(layer, f"{attribute}_add_norm"), off, seen)


def without_residual(add_norm: AddAndNorm, off: Tensor, seen: Seen) -> Iterator[RemovableHandle]:
    """Take X off the sum again: before it is normalised, or with `norm_position="pre"` as it leaves."""
    entered: list[Tensor] = []

    def taken_off(total: Tensor) -> Tensor:
        return total - entered[0].masked_fill(~off, 0) if SEEN.get() is seen else total

    def enter(_, args: tuple) -> None:
        if SEEN.get() is seen:
            entered[:] = args[:1]

    yield add_norm.register_forward_pre_hook(enter)
    if add_norm.norm_first:
        yield add_norm.register_forward_hook(lambda _, args, output: taken_off(output))
    else:
        yield add_norm.norm.register_forward_pre_hook(lambda _, args: taken_off(*args))


@contextmanager
def changed(model: PreTrainedModel, changes: Changes | Iterable[Changes] = UNCHANGED) -> Iterator[Seen]:
    """A `with` block in which `model` runs with changes, and shows what it attends to.

    Args:
        changes: those of the whole batch; or of each of its rows, so that one pass tries many.

    Raises:
        ValueError: the model has no such part, or a weight is not between 0 and 1; in the block, positions that run
            behind a cache, where that cannot be, or a batch of other rows.
    """
    rows = Rows([changes] if isinstance(changes, Changes) else list(changes), model.device)
    for each in rows.changes:
        check_changes(model, each)
    seen = Seen(rows, {module: name for name, module in attentions_of(model).items()})
    with attention_implementation(model, "changed"), ExitStack() as hooked:
        hooked.callback(SEEN.reset, SEEN.set(seen))
        hooked.callback(CHANGING.reset, CHANGING.set(changed_attention_forward))
        for handle in hooks(model, rows, seen):
            hooked.enter_context(handle)
        yield seen
