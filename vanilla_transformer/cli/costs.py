# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""What a training step will cost in memory and arithmetic, counted on a model without data: nothing is allocated.

The model that would be trained runs on fake tensors, which have shapes and no content. What PyTorch would keep for the
backward pass, and which products it would compute, is counted as it goes by: no formula of ours to go stale.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.configuration_vanilla_transformer import require_private_names


ADAM_STATES = 2  # running means of the gradient and of its square
FLOAT = 4  # bytes: weights, gradients and Adam's states are in float32, also where products are in bfloat16
# Bytes for each logit of a chunk of the loss: in bfloat16, in float32, its logarithm, and the gradient in bfloat16.
CHUNK_LOGIT = 2 + 4 + 4 + 2
# The share of model states that one device holds, of n, by how they are cut into shards.
SHARDED: dict[str, tuple[str, ...]] = {
    "ddp": (),
    "zero2": ("gradients", "optimizer"),
    "fsdp2": ("weights", "gradients", "optimizer"),
}

require_private_names(torch.UntypedStorage(0), "_cdata")


@dataclass(frozen=True)
class Pass:
    """Bytes that one pass forward keeps for the pass backward; `layers`: each of the layers, of the activations."""

    activations: int
    logits: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class StepCost:
    """The cost of a training step.

    Args:
        parameters: trained numbers of the model.
        memory: bytes of each device at most, by part.
        operations: multiplications and additions in the matrix products of a whole step, over all devices.
    """

    parameters: int
    memory: dict[str, int]
    operations: int

    def hours(self, steps: int, devices: int, tera_operations: float, utilization: float) -> float:
        """What this many steps take on devices that each reach a share of their operations per second."""
        return steps * self.operations / (devices * tera_operations * 1e12 * utilization) / 3600


class SavedBytes:
    """Counts what is saved for the backward pass while it is entered, each storage once, but for the weights."""

    def __init__(self, model: nn.Module):
        self.weights = {weight.untyped_storage()._cdata for weight in model.parameters()}
        self.storages: dict[int, int] = {}
        self.hooks = saved_tensors_hooks(self.count, lambda tensor: tensor)

    def count(self, tensor: Tensor) -> Tensor:
        """Called by autograd for each tensor that it saves."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.weights:
            self.storages[storage._cdata] = storage.nbytes()
        self.kept.append(tensor)  # whose storage's address would otherwise be used again
        return tensor

    def __enter__(self) -> Callable[[], int]:
        self.kept: list[Tensor] = []
        self.hooks.__enter__()
        return lambda: sum(self.storages.values())

    def __exit__(self, *error) -> None:
        self.hooks.__exit__(*error)
        self.kept.clear()


def fused_dropout(probability: float, states: Tensor) -> Tensor:
    """Dropout as an accelerator computes it, which keeps a byte for each number; a processor keeps a float."""
    return torch.native_dropout(states, probability, True)[0]


def recompute(model: PreTrainedModel) -> None:
    """Let layers run twice, by the name that this release has for it, instead of keeping what they computed."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def count_pass(
    config: VanillaTransformerConfig, rows: int, length: int, bf16: bool, checkpointing: bool, on_accelerator: bool
) -> Pass:
    """Run a batch of `rows` sentences of `length` tokens, source and target, forward on fake tensors."""
    with FakeTensorMode():
        model = VanillaTransformerForConditionalGeneration(config).train()
        if checkpointing:
            recompute(model)
        for module in model.modules():
            if on_accelerator and isinstance(module, nn.Dropout) and module.p:
                module.forward = partial(fused_dropout, module.p)  # type: ignore[method-assign]
        ids = torch.zeros(rows, length, dtype=torch.long)
        layers: list[int] = []
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16), SavedBytes(model) as saved:
            for layer in (module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)):
                layer.register_forward_pre_hook(lambda *_: layers.append(-saved()))
                layer.register_forward_hook(lambda *_: layers.append(layers.pop() + saved()))
            states = model.model(input_ids=ids, decoder_input_ids=ids).last_hidden_state
            activations = saved()
            model.logits_and_loss(states, ids)
            return Pass(activations, saved() - activations, tuple(layers))


def count_operations(config: VanillaTransformerConfig, length: int, checkpointing: bool) -> int:
    """Multiplications and additions in the matrix products of training on a pair of sentences of `length` tokens each,
    attention whole squares.
    """
    with FakeTensorMode():
        model = VanillaTransformerForConditionalGeneration(deepcopy(config)).train()
        model.set_attn_implementation("eager")  # whose products are counted as such; it is noted in the config
        if checkpointing:
            recompute(model)
        ids = torch.zeros(1, length, dtype=torch.long)
        with FlopCounterMode(display=False) as operations:
            model(input_ids=ids, labels=ids).loss.backward()
        return operations.get_total_flops()


def count_parameters(config: VanillaTransformerConfig) -> int:
    """The numbers that are trained, each of a tied matrix once."""
    with torch.device("meta"):
        return VanillaTransformerForConditionalGeneration(config).num_parameters(only_trainable=True)


def step_cost(
    config: VanillaTransformerConfig,
    tokens: int,
    length: int,
    devices: int = 1,
    accumulation_steps: int = 1,
    sharding: str = "ddp",
    bf16: bool = True,
    loss_chunk_size: int = 0,
    checkpointing: bool = False,
    on_accelerator: bool = True,
) -> StepCost:
    """The cost of a step over `tokens` source and as many target tokens, in sentences of `length`.

    Args:
        devices, accumulation_steps: what a step is shared out to.
        sharding: a key of `SHARDED`.
        loss_chunk_size: positions whose logits are held at once; 0: all.

    Raises:
        ValueError: a device has no whole sentence of the step.
    """
    rows = tokens // (devices * accumulation_steps * length)
    if rows < 1:
        raise ValueError(
            f"tokens_per_batch={tokens} are fewer than a sentence of {length} tokens for each of {devices} devices x "
            f"{accumulation_steps} accumulation steps."
        )
    config = deepcopy(config)
    config.use_cache = False  # as a Trainer sets it
    # All that is kept grows with the rows, but for the copies of weights in bfloat16.
    two, three = (count_pass(config, n, length, bf16, False, on_accelerator) for n in (2, 3))
    by_row, positions = three.activations - two.activations, rows * length
    copies = two.activations - 2 * by_row
    if checkpointing:
        # What is kept between the layers, and in the pass backward what one of them at a time keeps again.
        between = [count_pass(config, n, length, bf16, True, on_accelerator).activations for n in (2, 3)]
        by_row = between[1] - between[0] + max(b - a for a, b in zip(two.layers, three.layers, strict=True))
    parameters = count_parameters(config)
    vocab_size = config.target_vocab_size or config.vocab_size
    if loss_chunk_size:
        of_loss = 2 * FLOAT * positions * config.d_model + FLOAT * vocab_size * config.d_model
        of_loss += CHUNK_LOGIT * min(loss_chunk_size, positions) * vocab_size
    else:
        of_loss = rows * (three.logits - two.logits) + FLOAT * positions * vocab_size  # and the gradient of the logits
    memory = {
        "weights": FLOAT * parameters,
        "gradients": FLOAT * parameters,
        "optimizer": ADAM_STATES * FLOAT * parameters,
    }
    for part in SHARDED[sharding]:
        memory[part] = -(-memory[part] // devices)
    memory["weights"] += copies  # which autocast keeps to the end of the pass forward, whatever layers keep
    if devices > 1 and sharding == "ddp":
        memory["exchange of gradients"] = FLOAT * parameters
    memory |= {"activations": rows * by_row, "logits and loss": of_loss}
    return StepCost(parameters, memory, count_operations(config, length, checkpointing) * tokens // length)
