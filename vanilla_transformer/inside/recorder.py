"""Record one layer of a model while it runs: every equation of the paper with its values.

    for step in record(model, {"input_ids": ids}, layer=0, head=1):
        print(step.part, step.name, step.equation, step.shape, step.source)

Nothing is computed twice. Forward hooks record projections, norms and feed-forward networks. Attention runs in the
model's `eager_attention_forward`, whose PyTorch calls are intercepted. The call stack provides the lines of code.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, RLock
from traceback import walk_stack
from typing import Any, NamedTuple, TypeAlias, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vanilla_transformer.modeling_vanilla_transformer import (
    AddAndNorm,
    DecoderLayer,
    FeedForward,
    MultiHeadAttention,
    TransformerLayer,
    TransformerStack,
)


EMBEDDING, SELF_ATTENTION, CROSS_ATTENTION = "embedding", "self-attention", "cross-attention"
FEED_FORWARD, OUTPUT = "feed-forward", "output"
ATTENTIONS = {"self_attn": SELF_ATTENTION, "cross_attn": CROSS_ATTENTION}  # module name -> part of the layer
STATES = ("batch", "length", "d_model")
MASKED = -1e30  # attention scores below this are masked


@dataclass(frozen=True)
class Step:
    """One result of the forward pass.

    Args:
        part: "embedding", "self-attention", "cross-attention", "feed-forward" or "output".
        name: name of the result, such as "scaled scores"; unique within its part.
        equation: equation in the paper's symbols, as plain text.
        tensor: the result, on the CPU.
        axes: name of each dimension of `tensor`, such as ("batch", "queries", "keys").
        source: line of code that computes the result, such as "modeling_vanilla_transformer.py:147".
        matrices: name, such as "W_Q" -> learned matrix (inputs, outputs) or bias (outputs,) in the equation; if one
            head is recorded, only its columns.
    """

    part: str
    name: str
    equation: str
    tensor: Tensor
    axes: tuple[str, ...]
    source: str
    matrices: dict[str, Tensor] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return tuple(self.tensor.shape)


class Result(NamedTuple):
    """The name, equation and axes of a step."""

    name: str
    equation: str
    axes: tuple[str, ...] = STATES


class Operation(NamedTuple):
    """A call to a PyTorch function from the line `source` of the model's code."""

    name: str
    arguments: tuple
    result: Any
    source: str


Matrices: TypeAlias = dict[str, Tensor]


def matrices_of(projection: nn.Module, letter: str, head: int | None = None, width: int = 0) -> Matrices:
    """Return W (inputs, outputs) and the bias b, if any, of x W + b; with `head`, only that head's columns.

    Returns nothing if PEFT or quantization has replaced the linear layer, because its weight may not be a matrix.
    """
    if type(projection) is not nn.Linear:
        return {}
    columns = slice(None) if head is None or not width else slice(head * width, (head + 1) * width)
    matrices = {f"W_{letter}": projection.weight.T[:, columns]}
    if projection.bias is not None:
        matrices[f"b_{letter}"] = projection.bias[columns]
    return {name: matrix.detach().float().cpu().clone() for name, matrix in matrices.items()}


def position_equation(config: PreTrainedConfig) -> str:
    """Return the equation of the positional encoding in section 3.5, or of the variant in the config."""
    pos = f"pos + {config.position_offset}" if config.position_offset else "pos"
    if config.position_embedding == "learned":
        return f"PE = W_P[{pos}]"
    exponent = "2i/d_model" if config.sinusoid_frequencies == "paper" else "i / (d_model/2 - 1)"
    angle = f"{f'({pos})' if config.position_offset else pos} / 10000^({exponent})"
    places = ("2i", "2i+1") if config.sinusoid_layout == "interleaved" else ("i", "i + d_model/2")
    sine, cosine = (f"PE(pos, {place}) = {wave}({angle})" for place, wave in zip(places, ("sin", "cos"), strict=True))
    return f"{sine}, {cosine}"


def embedding_equation(config: PreTrainedConfig) -> str:
    """Return the equation of the first layer's input (section 3.4), including token types and norm if configured."""
    vectors = "E + W_T[kind]" if getattr(config, "type_vocab_size", 0) else "E"
    if config.scale_embedding:
        vectors = f"√d_model · {f'({vectors})' if '+' in vectors else vectors}"
    return f"X = LayerNorm({vectors} + PE)" if config.normalize_embedding else f"X = {vectors} + PE"


class Recorder(TorchFunctionMode):
    """Record the steps of one layer of one stack, in execution order."""

    def __init__(self, stack: TransformerStack, layer: int, head: int | None):
        super().__init__()
        self.steps: list[Step] = []
        self.operations: list[Operation] = []  # PyTorch calls since the last attention call began
        self.stack, self.head = stack, head
        self.layer = cast(TransformerLayer | DecoderLayer, stack.layers[layer])
        self.previous = stack.layers[layer - 1] if layer else None
        self.attentions = {getattr(self.layer, a): part for a, part in ATTENTIONS.items() if hasattr(self.layer, a)}
        self.projected_at: dict[
            nn.Module, str
        ] = {}  # projection of queries, keys or values -> line of code that calls it
        self.config = stack.config
        self.pre_norm = self.config.norm_position == "pre"
        self.x = "LayerNorm(X)" if self.pre_norm else "X"  # symbol for the input of a sub-layer

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.operations.append(Operation(function.__name__, args, result, self.running_line()))
        return result

    def is_running(self) -> bool:
        """Whether the current thread is recording; other threads may be running the same modules."""
        return RECORDING.get() is self

    def running_line(self) -> str:
        """Return the line of the model's code being executed, as "file:line", or "" if there is none."""
        code = type(self.layer).__module__  # with trust_remote_code, the copy in the model folder
        for frame, line in walk_stack(sys._getframe()):  # innermost call first
            if frame.f_globals.get("__name__") == code:
                return f"{Path(frame.f_code.co_filename).name}:{line}"
        return ""

    def made_at(self, tensor: Tensor) -> str | None:
        """Return the line that computed `tensor`; None if it was computed before the last attention call."""
        return next((operation.source for operation in self.operations if operation.result is tensor), None)

    def add(
        self, part: str, result: Result, tensor: Tensor, source: str | None = None, matrices: Matrices | None = None
    ) -> None:
        """Record `tensor` as a step; `source` defaults to the line being executed."""
        if not self.is_running():
            return
        axes = result.axes
        if "heads" in axes and self.head is not None:
            tensor = tensor.select(axes.index("heads"), self.head)
            axes = tuple(axis for axis in axes if axis != "heads")
        source = self.running_line() if source is None else source
        tensor = tensor.detach().cpu().clone()
        self.steps.append(Step(part, result.name, result.equation, tensor, axes, source, matrices or {}))

    def watch(
        self,
        module: nn.Module,
        part: str,
        before: Result | None = None,
        after: Result | None = None,
        inside: bool = False,
        matrices: Matrices | None = None,
    ) -> Iterator[RemovableHandle]:
        """Record the input of `module` (`before`), its output (`after`), or both, at each call.

        The source of the output is the line that calls the module, or with `inside`, the line within the module that
        computes it. `matrices` are recorded with the output.
        """
        if before is not None:
            yield module.register_forward_pre_hook(
                lambda _, args: self.add(part, before, args[0], self.made_at(args[0]))
            )
        if after is not None:
            yield module.register_forward_hook(
                lambda _, args, output: self.add(
                    part, after, output, self.made_at(output) if inside else None, matrices
                )
            )

    def watch_all(self, model: PreTrainedModel) -> Iterator[RemovableHandle]:
        """Add hooks to every part of the layer, and yield the handles to remove them."""
        # Drop steps of the encoder, which runs first and may share modules with the decoder.
        yield self.stack.register_forward_pre_hook(lambda *_: self.steps.clear() if self.is_running() else None)
        yield from self.watch_embedding()
        for name, part in ATTENTIONS.items():
            if hasattr(self.layer, name):
                yield from self.watch_attention(part, getattr(self.layer, name))
                yield from self.watch_add_norm(part, getattr(self.layer, f"{name}_add_norm"))
        yield from self.watch_feed_forward(self.layer.feed_forward)
        yield from self.watch_add_norm(FEED_FORWARD, self.layer.feed_forward_add_norm)
        yield from self.watch_output(model)

    def watch_embedding(self) -> Iterator[RemovableHandle]:
        """Record what sections 3.4 and 3.5 compute: tokens, embeddings, positional encodings, and their sum."""
        tokens = Result("tokens", "t", STATES[:2])
        yield from self.watch(self.stack.embed_tokens, EMBEDDING, tokens, Result("embeddings", "E = W_E[t]"))
        positions = Result("positions", position_equation(self.config))
        yield from self.watch(self.stack.embed_positions, EMBEDDING, after=positions, inside=True)
        total = Result("embedding + position", embedding_equation(self.config))
        yield from self.watch(self.stack.layers[0], EMBEDDING, before=total)

    def watch_attention(self, part: str, attention: MultiHeadAttention) -> Iterator[RemovableHandle]:
        """Record the projections around Equation 1; `add_attention` records Equation 1 itself."""
        if part == CROSS_ATTENTION:
            yield from self.watch(attention.k_proj, part, Result("encoder output", "Z", ("batch", "keys", "d_model")))
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            yield projection.register_forward_hook(
                lambda module, *_: (
                    self.projected_at.update({module: self.running_line()}) if self.is_running() else None
                )
            )
        heads = Result("concatenation", "C = Concat(head_1, ..., head_h)", ("batch", "length", "h · d_v"))
        mixed = Result("output projection", "C W_O")
        yield from self.watch(attention.o_proj, part, heads, mixed, matrices=matrices_of(attention.o_proj, "O"))

    def watch_add_norm(self, part: str, add_norm: AddAndNorm) -> Iterator[RemovableHandle]:
        """Record the residual connection and layer norm of a sub-layer (section 3.1), for pre-norm or post-norm."""
        residual = Result("residual", f"X + Sublayer({self.x})")
        if self.pre_norm:
            yield from self.watch(add_norm.norm, part, after=Result("layer norm", self.x))
            yield from self.watch(add_norm, part, after=residual, inside=True)
        else:
            normed = Result("layer norm", f"LayerNorm({residual.equation})")
            yield from self.watch(add_norm.norm, part, residual, normed)

    def watch_feed_forward(self, network: FeedForward) -> Iterator[RemovableHandle]:
        """Record the feed-forward network (Equation 2)."""
        inner = ("batch", "length", "d_ff")
        name = self.config.activation_function
        function = "max(0, H)" if name == "relu" else f"{name}(H)"
        hidden = Result("hidden", f"H = {self.x} W_1 + b_1", inner)
        yield from self.watch(network.fc1, FEED_FORWARD, after=hidden, matrices=matrices_of(network.fc1, "1"))
        active, output = Result("activation", function, inner), Result("feed-forward output", f"{function} W_2 + b_2")
        yield from self.watch(network.fc2, FEED_FORWARD, active, output, matrices=matrices_of(network.fc2, "2"))

    def watch_output(self, model: PreTrainedModel) -> Iterator[RemovableHandle]:
        """Record the layer's input and output, the stack's output, and the logits if the model has an `lm_head`."""
        if self.previous is not None:
            layer_input = Result("layer input", "X, the output of the layer before")
            yield from self.watch(self.previous, EMBEDDING, after=layer_input)
        yield from self.watch(self.layer, OUTPUT, after=Result("layer output", "X of the next layer"))
        equation = "LayerNorm(X) after the last layer" if self.pre_norm else "X after the last layer"
        yield from self.watch(self.stack.norm, OUTPUT, after=Result("stack output", equation))
        if (lm_head := getattr(model, "lm_head", None)) is not None:
            equation = "logits = X W_Eᵀ" if self.config.tie_word_embeddings else "logits = X W"
            logits = Result("logits", equation, ("batch", "length", "vocab"))
            yield from self.watch(lm_head, OUTPUT, after=logits)

    def add_attention(
        self, module: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, output: Tensor, weights: Tensor
    ) -> None:
        """Record the steps of the last attention call from the intercepted `operations`.

        Args:
            query, key, value, output, weights: arguments and return values of `eager_attention_forward`.
        """
        scores, heads = self.calls("matmul")
        # Take the first operation of each name: `SetWeights` may add more.
        (scaled, *_), (masked, *_), (softmax, *_) = map(self.calls, ("mul", "add", "softmax"))
        at = self.projected_at.get
        part = self.attentions[module]
        z = "Z" if part == CROSS_ATTENTION else self.x  # Z is the encoder's output
        queries, keys = ("batch", "heads", "queries"), ("batch", "heads", "keys")
        square = (*queries, "keys")
        for name, letter, x, axes, tensor, projection in (
            ("queries", "Q", self.x, (*queries, "d_k"), query, module.q_proj),
            ("keys", "K", z, (*keys, "d_k"), key, module.k_proj),
            ("values", "V", z, (*keys, "d_v"), value, module.v_proj),
        ):
            matrices = matrices_of(projection, letter, self.head, tensor.shape[-1])
            self.add(part, Result(name, f"{letter} = {x} W_{letter}", axes), tensor, at(projection), matrices)
        self.add(part, Result("scores", "S = Q Kᵀ", square), scores.result, scores.source)
        self.add(part, Result("scaled scores", "S / √d_k", square), scaled.result, scaled.source)
        visible = Result("mask", "M = 0 where a query may attend, −∞ where not", square)
        _, mask = masked.arguments
        self.add(part, visible, mask.expand_as(masked.result), masked.source)
        self.add(part, Result("masked scores", "S / √d_k + M", square), masked.result, masked.source)
        self.add(part, Result("weights", "A = softmax(S / √d_k + M)", square), weights, softmax.source)
        self.add(part, Result("heads", "head = A V", (*queries, "d_v")), output.transpose(1, 2), heads.source)

    def calls(self, name: str) -> list[Operation]:
        """Return the operations named `name` since the last attention call began, in order."""
        return [operation for operation in self.operations if operation.name == name]


RECORDING: ContextVar[Recorder | None] = ContextVar("RECORDING", default=None)
# attention function to use instead of the model's in an `intervene` block
INTERVENING: ContextVar[Callable[..., tuple[Tensor, Tensor]] | None] = ContextVar("INTERVENING", default=None)


def recorded_attention_forward(
    module: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs
) -> tuple[Tensor, Tensor]:
    """Run the model's `eager_attention_forward`, with any active interventions, and record its steps."""
    attention = INTERVENING.get() or sys.modules[type(module).__module__].eager_attention_forward
    recorder = RECORDING.get()
    if recorder is not None:
        recorder.operations.clear()
    output, weights = attention(module, query, key, value, attention_mask, **kwargs)
    if recorder is not None and module in recorder.attentions:
        recorder.add_attention(module, query, key, value, output, weights)
    return output, weights


def full_mask(*args, **kwargs) -> Tensor:
    """Like `eager_mask`, but returns a mask even if it hides nothing."""
    return eager_mask(*args, **(kwargs | {"allow_is_bidirectional_skip": False}))


ALL_ATTENTION_FUNCTIONS.register("recorded", recorded_attention_forward)
ALL_MASK_ATTENTION_FUNCTIONS.register("recorded", full_mask)


LOCKS: WeakKeyDictionary[PreTrainedModel, RLock] = WeakKeyDictionary()
MAKING_A_LOCK = Lock()


@contextmanager
def attention_implementation(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Switch the model's attention implementation within a `with` block, which other threads wait for."""
    with MAKING_A_LOCK:
        lock = LOCKS.setdefault(model, RLock())
    with lock:
        usual = model.config._attn_implementation
        model.set_attn_implementation(name)
        try:
            yield
        finally:
            model.set_attn_implementation(usual)


def unwrapped(model: PreTrainedModel) -> Any:
    """Return the base model of a PEFT wrapper, including its adapters; return any other model unchanged."""
    wrapper: Any = model
    return wrapper.get_base_model() if hasattr(wrapper, "get_base_model") else model


def find_stacks(model: PreTrainedModel) -> dict[str, TransformerStack]:
    """Return a model's stacks: "encoder", "decoder", or both.

    Raises:
        ValueError: it is not a VanillaTransformer model.
    """
    base = unwrapped(model).base_model
    stacks = [base.encoder, base.decoder] if hasattr(base, "decoder") else [base]
    if not all(hasattr(stack, "run_layers") for stack in stacks):
        raise ValueError(
            f"{type(unwrapped(model)).__name__} is not one of this project's models: `vanilla-transformer import` it."
        )
    if len(stacks) == 2:
        return dict(zip(("encoder", "decoder"), stacks, strict=True))
    return {"decoder" if base.layers[0].self_attn.is_causal else "encoder": base}


def check_index(name: str, index: int, size: int) -> None:
    """Raise a ValueError unless `index` is an integer from 0 to `size` - 1."""
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < size:
        raise ValueError(f"{name}={index!r} does not exist: the model has {name}s 0 to {size - 1}.")


@torch.no_grad()
def record(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    layer: int = 0,
    head: int | None = None,
    stack: str | None = None,
) -> list[Step]:
    """Run `model` once and return the steps of one layer, from the tokens to the output, in order.

    During the run, the attention implementation is "recorded", which gives the same results as "eager". The
    interventions of a surrounding `intervene` block apply.

    Args:
        inputs: arguments of the model's `forward`. To record the encoder, its arguments suffice.
        layer, head: indices from 0. `head=None` records all heads, as an axis of the tensors.
        stack: "encoder" or "decoder"; by default, the encoder if the model has one.

    Raises:
        ValueError: the model has no such stack, layer or head.
    """
    stacks = find_stacks(model)
    stack = next(iter(stacks)) if stack is None else stack
    if stack not in list(stacks):
        raise ValueError(f"stack={stack!r} does not exist: {type(model).__name__} has {' and '.join(stacks)}.")
    check_index("layer", layer, len(stacks[stack].layers))
    if head is not None:
        check_index("head", head, model.config.num_heads)

    runner: nn.Module = model
    if stack == "encoder" and len(stacks) == 2:
        runner = stacks["encoder"]
        inputs = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
    recorder = Recorder(stacks[stack], layer, head)
    with attention_implementation(model, "recorded"), ExitStack() as watching:
        watching.callback(RECORDING.reset, RECORDING.set(recorder))
        for handle in recorder.watch_all(model):
            watching.enter_context(handle)
        watching.enter_context(recorder)
        runner(**inputs)
    return recorder.steps
