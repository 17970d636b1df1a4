"""Record one layer of a model while it runs: every equation of the paper with the numbers that went through it.

    for step in record(model, {"input_ids": ids}, layer=0, head=1):
        print(step.part, step.name, step.equation, step.shape, step.source)

Nothing is computed a second time. Projections, norms and feed-forward networks are watched by forward hooks; inside
attention, which runs as the project's own `eager_attention_forward`, each PyTorch operation is watched as it happens.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


EMBEDDING, SELF_ATTENTION, CROSS_ATTENTION = "embedding", "self-attention", "cross-attention"
FEED_FORWARD, OUTPUT = "feed-forward", "output"
ATTENTIONS = {"self_attn": SELF_ATTENTION, "cross_attn": CROSS_ATTENTION}  # module -> part


@dataclass(frozen=True)
class Step:
    """One result of the forward pass.

    Args:
        part: where in the model: "embedding", "self-attention", "cross-attention", "feed-forward" or "output".
        name: what the result is, such as "scaled scores"; a part has each name once.
        equation: how it is made, in the paper's symbols, as plain text.
        tensor: the result, on the CPU.
        axes: what each dimension of `tensor` counts, such as ("batch", "queries", "keys").
        source: the line of code that makes it, such as "modeling_vanilla_transformer.py:147".
    """

    part: str
    name: str
    equation: str
    tensor: Tensor
    axes: tuple[str, ...]
    source: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)


class Result(NamedTuple):
    """A step without its tensor. `place`: a class or function of the modeling file, and a part of the line in it."""

    name: str
    equation: str
    axes: tuple[str, ...]
    place: tuple[str, str]


@lru_cache
def find_line(path: Path, definition: str, fragment: str) -> str:
    """The first line with `fragment` from the class or function `definition` on, as "file:line"."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next((n for n, line in enumerate(lines) if re.match(rf"(class|def) {definition}\b", line)), len(lines))
    for number, line in enumerate(lines[start:], start=start + 1):
        if fragment in line:
            return f"{path.name}:{number}"
    raise LookupError(f"{path.name} has no line with {fragment!r} in {definition}.")


class Operations(TorchFunctionMode):
    """Keeps the result of each PyTorch function that is called under it: name -> results in order."""

    def __init__(self):
        super().__init__()
        self.results: dict[str, list[Any]] = {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.results.setdefault(function.__name__, []).append(result)
        return result


class Recorder:
    """The steps of one layer of one stack, in the order in which they happen."""

    def __init__(self, stack: nn.Module, layer: int, head: int | None):
        self.steps: list[Step] = []
        self.stack, self.layer, self.head = stack, stack.layers[layer], head
        self.config = stack.config
        self.code = sys.modules[type(stack).__module__]  # of a model with remote code, the copy in its folder
        self.pre_norm = self.config.norm_position == "pre"
        self.x = "LayerNorm(X)" if self.pre_norm else "X"  # what enters a sub-layer
        self.previous = stack.layers[layer - 1] if layer else None

    def add(self, part: str, result: Result, tensor: Tensor) -> None:
        axes = result.axes
        if "heads" in axes and self.head is not None:
            tensor = tensor.select(axes.index("heads"), self.head)
            axes = tuple(axis for axis in axes if axis != "heads")
        source = find_line(Path(self.code.__file__), *result.place)
        self.steps.append(Step(part, result.name, result.equation, tensor.detach().cpu().clone(), axes, source))

    def watch(
        self, module: nn.Module, part: str, before: Result | None = None, after: Result | None = None
    ) -> RemovableHandle:
        """Record what goes into `module`, what comes out of it, or both, each time it is called."""

        def see(_, args: tuple[Tensor, ...], output: Tensor) -> None:
            if before is not None:
                self.add(part, before, args[0])
            if after is not None:
                self.add(part, after, output)

        return module.register_forward_hook(see)

    def watch_all(self, model: PreTrainedModel) -> Iterator[RemovableHandle]:
        # The encoder may share modules with the decoder and come first.
        yield self.stack.register_forward_pre_hook(lambda *_: self.steps.clear())
        yield from self.watch_embedding()
        for name, part in ATTENTIONS.items():
            if hasattr(self.layer, name):
                yield from self.watch_attention(part, getattr(self.layer, name))
                yield from self.watch_add_norm(part, getattr(self.layer, f"{name}_add_norm"))
        yield from self.watch_feed_forward(self.layer.feed_forward)
        yield from self.watch_add_norm(FEED_FORWARD, self.layer.feed_forward_add_norm)
        yield from self.watch_output(model)

    def watch_embedding(self) -> Iterator[RemovableHandle]:
        states = ("batch", "length", "d_model")
        place = ("TransformerStack", "self.embed_tokens(input_ids)")
        tokens = Result("tokens", "t", states[:2], place)
        yield self.watch(self.stack.embed_tokens, EMBEDDING, tokens, Result("embeddings", "E = W_E[t]", states, place))
        if self.config.position_embedding == "learned":
            positions = Result("positions", "PE = W_P[pos]", states, ("LearnedPositions", "super().forward"))
        else:
            angle = "pos / 10000^(2i/d_model)"
            equation = f"PE(pos, 2i) = sin({angle}), PE(pos, 2i+1) = cos({angle})"
            positions = Result("positions", equation, states, ("sinusoids", "angles.sin()"))
        yield self.watch(self.stack.embed_positions, EMBEDDING, after=positions)
        equation = "X = √d_model · E + PE" if self.config.scale_embedding else "X = E + PE"
        total = Result(
            "embedding + position", equation, states, ("TransformerStack", "inputs_embeds * self.embed_scale")
        )
        yield self.watch(self.stack.dropout, EMBEDDING, after=total)

    def watch_attention(self, part: str, attention: nn.Module) -> Iterator[RemovableHandle]:
        """What surrounds Equation 1, which is `add_attention`'s part."""
        if part == CROSS_ATTENTION:
            place = ("CrossAttention", "self.keys_and_values(encoder_hidden_states)")
            source = Result("encoder output", "Z", ("batch", "keys", "d_model"), place)
            yield self.watch(attention.k_proj, part, before=source)
        place = ("MultiHeadAttention", "self.o_proj(output.reshape")
        concatenation = ("concatenation", "C = Concat(head_1, ..., head_h)", ("batch", "length", "h · d_v"), place)
        projection = ("output projection", "C W_O", ("batch", "length", "d_model"), place)
        yield self.watch(attention.o_proj, part, Result(*concatenation), Result(*projection))

    def watch_add_norm(self, part: str, add_norm: nn.Module) -> Iterator[RemovableHandle]:
        states = ("batch", "length", "d_model")
        if self.pre_norm:
            place = ("AddAndNorm", "sublayer(self.norm(x))")
            yield self.watch(add_norm.norm, part, after=Result("layer norm", self.x, states, place))
            yield self.watch(add_norm, part, after=Result("residual", f"X + Sublayer({self.x})", states, place))
        else:
            place = ("AddAndNorm", "self.norm(x + self.dropout(sublayer(x)))")
            total = Result("residual", "X + Sublayer(X)", states, place)
            normed = Result("layer norm", f"LayerNorm({total.equation})", states, place)
            no_norm = isinstance(add_norm.norm, nn.Identity)  # as in some worked examples
            yield self.watch(add_norm.norm, part, total, None if no_norm else normed)

    def watch_feed_forward(self, network: nn.Module) -> Iterator[RemovableHandle]:
        place = ("FeedForward", "self.fc2(self.dropout(self.activation(self.fc1(")
        inner = ("batch", "length", "d_ff")
        function = (
            "max(0, H)" if self.config.activation_function == "relu" else f"{self.config.activation_function}(H)"
        )
        yield self.watch(network.fc1, FEED_FORWARD, after=Result("hidden", f"H = {self.x} W_1 + b_1", inner, place))
        yield self.watch(network.activation, FEED_FORWARD, after=Result("activation", function, inner, place))
        outer = Result("feed-forward output", f"{function} W_2 + b_2", ("batch", "length", "d_model"), place)
        yield self.watch(network.fc2, FEED_FORWARD, after=outer)

    def watch_output(self, model: PreTrainedModel) -> Iterator[RemovableHandle]:
        states = ("batch", "length", "d_model")
        loop = ("TransformerStack", "for layer in self.layers")
        if self.previous is not None:
            arrived = Result("layer input", "X, the output of the layer before", states, loop)
            yield self.watch(self.previous, EMBEDDING, after=arrived)
        yield self.watch(self.layer, OUTPUT, after=Result("layer output", "X of the next layer", states, loop))
        equation = "LayerNorm(X) after the last layer" if self.pre_norm else "X after the last layer"
        last = Result("stack output", equation, states, ("TransformerStack", "self.norm(hidden_states)"))
        yield self.watch(self.stack.norm, OUTPUT, after=last)
        if hasattr(model, "lm_head"):
            equation = "logits = X W_Eᵀ" if self.config.tie_word_embeddings else "logits = X W"
            place = ("VocabularyModel", "logits = self.lm_head(")
            logits = Result("logits", equation, ("batch", "length", "vocab"), place)
            yield self.watch(model.lm_head, OUTPUT, after=logits)

    def add_attention(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, results: dict[str, list]
    ) -> None:
        """Record what is inside attention. `results`: what each PyTorch function in it has returned, by its name."""
        name = next(name for name in ATTENTIONS if getattr(self.layer, name, None) is module)
        source = "Z" if name == "cross_attn" else self.x  # Z: the encoder's output
        queries, keys = ("batch", "heads", "queries"), ("batch", "heads", "keys")
        square = (*queries, "keys")
        query_place = ("MultiHeadAttention", "self.q_proj(hidden_states)")
        key_place = ("MultiHeadAttention", "self.k_proj(states)")
        scale, add, softmax, weigh = (
            ("eager_attention_forward", line)
            for line in ("query @ key", "scores + attention_mask", "scores.softmax", "weights @ value")
        )
        scores, weighted_values = results["matmul"]
        (scaled,), (masked,), (weights,) = results["mul"], results["add"], results["softmax"]
        for result, tensor in (
            (Result("queries", f"Q = {self.x} W_Q", (*queries, "d_k"), query_place), query),
            (Result("keys", f"K = {source} W_K", (*keys, "d_k"), key_place), key),
            (Result("values", f"V = {source} W_V", (*keys, "d_v"), key_place), value),
            (Result("scores", "S = Q Kᵀ", square, scale), scores),
            (Result("scaled scores", "S / √d_k", square, scale), scaled),
            (Result("mask", "M = 0 where a query may attend, −∞ where not", square, add), mask.expand_as(masked)),
            (Result("masked scores", "S / √d_k + M", square, add), masked),
            (Result("weights", "A = softmax(S / √d_k + M)", square, softmax), weights),
            (Result("heads", "head = A V", (*queries, "d_v"), weigh), weighted_values),
        ):
            self.add(ATTENTIONS[name], result, tensor)


RECORDING: ContextVar[Recorder | None] = ContextVar("RECORDING", default=None)


def recorded_attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs
) -> tuple[Tensor, Tensor]:
    """The model's own `eager_attention_forward`; in the layer that is being recorded, step by step."""
    attention = sys.modules[type(module).__module__].eager_attention_forward
    recorder = RECORDING.get()
    if recorder is None or module not in recorder.layer.children():
        return attention(module, query, key, value, attention_mask, **kwargs)
    with Operations() as operations:
        output = attention(module, query, key, value, attention_mask, **kwargs)
    recorder.add_attention(module, query, key, value, attention_mask, operations.results)
    return output


def whole_mask(*args, **kwargs) -> Tensor:
    """The mask of eager attention, also where it would be left out because nothing is masked."""
    return eager_mask(*args, **(kwargs | {"allow_is_bidirectional_skip": False}))


ALL_ATTENTION_FUNCTIONS.register("recorded", recorded_attention_forward)
ALL_MASK_ATTENTION_FUNCTIONS.register("recorded", whole_mask)


@contextmanager
def attention_implementation(model: PreTrainedModel, name: str) -> Iterator[None]:
    usual = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(usual)


def find_stacks(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The stacks of any model of the project: "encoder", "decoder", or both."""
    base = model.base_model
    if hasattr(base, "encoder"):
        return {"encoder": base.encoder, "decoder": base.decoder}
    return {"decoder" if base.layers[0].self_attn.is_causal else "encoder": base}


def check_index(name: str, index: int, size: int) -> None:
    if not 0 <= index < size:
        raise ValueError(f"{name}={index} does not exist: the model has {name}s 0 to {size - 1}.")


@torch.no_grad()
def record(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    layer: int = 0,
    head: int | None = None,
    stack: str | None = None,
) -> list[Step]:
    """Run `model` once and return what happened in one layer, from the tokens to the output, in order.

    While it runs, the model's attention is "recorded"; do not use the same model in another thread meanwhile.

    Args:
        inputs: what the model's `forward` takes. For the encoder of an encoder-decoder, its inputs are enough.
        layer, head: which one, counted from 0. `head=None` keeps all heads, as an axis of the tensors.
        stack: "encoder" or "decoder"; by default the only one, or the encoder.

    Raises:
        ValueError: the model has no such stack, layer or head.
    """
    stacks = find_stacks(model)
    stack = next(iter(stacks)) if stack is None else stack
    if stack not in stacks:
        raise ValueError(f"stack={stack!r} does not exist: {type(model).__name__} has {' and '.join(stacks)}.")
    check_index("layer", layer, len(stacks[stack].layers))
    if head is not None:
        check_index("head", head, model.config.num_heads)

    runner = model
    if stack == "encoder" and len(stacks) == 2:
        runner = stacks["encoder"]
        inputs = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
    recorder = Recorder(stacks[stack], layer, head)
    token = RECORDING.set(recorder)
    try:
        with attention_implementation(model, "recorded"), ExitStack() as hooks:
            for handle in recorder.watch_all(model):
                hooks.callback(handle.remove)
            runner(**inputs)
    finally:
        RECORDING.reset(token)
    return recorder.steps
