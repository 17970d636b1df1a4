# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Train a model faster and in less memory, with the same loss and gradients.

    make_fast(model)      skip padding, compute the loss in chunks, draw dropout masks faster, and use oneDNN for
                          matrix products on processors where it is faster
    fast_products(model)  only use oneDNN, which also speeds up inference
    make_plain(model)     undo both

The config, the weights and the saved code are unaffected. Loaded and unpickled models are plain; copies made by
`copy.deepcopy` stay fast. Linear layers that are no longer a plain `nn.Linear` with plain weights (replaced,
quantised, sharded, wrapped by PEFT, or with hooks) keep their own computation.
"""

from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from vanilla_transformer.configuration_vanilla_transformer import check_private_api
from vanilla_transformer.fast import dropout
from vanilla_transformer.fast.chunked_loss import ChunkedCrossEntropy
from vanilla_transformer.fast.onednn import PLAIN, linear, onednn_is_faster
from vanilla_transformer.fast.packing import mask_from_labels, round_up, run_layers
from vanilla_transformer.modeling_vanilla_transformer import IGNORED_LABEL, LMHeadModel, check_labels, mean


LOSS_CHUNK_SIZE = 512  # number of positions whose logits are in memory at once
# module attributes that hold hooks, which may change the module's computation
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
check_private_api(nn.Module(), *HOOKS)


def make_fast(
    model: PreTrainedModel,
    *,
    packing: bool = True,
    loss_chunk_size: int = LOSS_CHUNK_SIZE,
    quick_dropout: bool = True,
    onednn: bool = True,
) -> PreTrainedModel:
    """Speed up the training of a Vanilla Transformer model in place, and return the model.

    Args:
        packing: skip padding in all layers, see `vanilla_transformer.fast.packing`.
        loss_chunk_size: in training with labels, compute logits and loss for this many positions at a time, and
            return no logits. 0 computes all at once. Applies only to models that predict tokens.
        quick_dropout: on a CPU, get four random numbers for dropout from each draw.
        onednn: compute large float32 matrix products with oneDNN, if this is faster on this processor.

    Raises:
        ValueError: `loss_chunk_size` is negative.
    """
    if loss_chunk_size < 0:
        raise ValueError(f"loss_chunk_size={loss_chunk_size} must not be negative; 0 computes all logits at once.")
    make_plain(model)
    if packing:
        model.set_attn_implementation("packed_sdpa")
    for module in cast(Iterator[Any], model.modules()):
        if packing and hasattr(module, "run_layers"):
            module.run_layers = MethodType(run_layers, module)
        if packing and hasattr(module, "prepare_decoder_input_ids_from_labels"):
            module.packing_hook = module.register_forward_pre_hook(mask_from_labels, with_kwargs=True)
        if loss_chunk_size and hasattr(module, "logits_and_loss"):
            module.logits_and_loss = MethodType(in_chunks(loss_chunk_size), module)
        if onednn and onednn_is_faster() and is_plain_linear(module):
            module.forward = MethodType(forward, module)
        if quick_dropout and type(module) is nn.Dropout:
            cast(Any, module).forward = MethodType(dropout.forward, module)
    return model


def fast_products(model: PreTrainedModel) -> PreTrainedModel:
    """Compute large matrix products with oneDNN where this is faster, in training and inference; return the model."""
    return make_fast(model, packing=False, loss_chunk_size=0, quick_dropout=False)


def make_plain(model: PreTrainedModel) -> PreTrainedModel:
    """Undo `make_fast`, set attention to "sdpa", the default of transformers, and return the model."""
    if model.config._attn_implementation == "packed_sdpa":
        model.set_attn_implementation("sdpa")
    for module in cast(Iterator[Any], model.modules()):
        vars(module).pop("logits_and_loss", None)
        vars(module).pop("run_layers", None)
        if getattr(vars(module).get("forward"), "__func__", None) in (forward, dropout.forward):
            del module.forward
        if "packing_hook" in vars(module):
            module.packing_hook.remove()
            del module.packing_hook
    return model


# A fast method is bound to the module under the original method's name. A deep copy therefore gets its own fast
# method, and unpickling, which looks methods up by name, restores the original.


def forward(self: nn.Linear, x: Tensor) -> Tensor:
    """Compute x W^T + b; bound to modules in place of `nn.Linear.forward`."""
    return linear(x, self.weight, self.bias)


def is_plain_linear(module: nn.Module) -> bool:
    """Whether calling the module computes x W^T + b with its own weights and nothing else."""
    own_forward = getattr(vars(module).get("forward"), "__func__", nn.Linear.forward)
    return (
        type(module) is nn.Linear
        and type(module.weight) in PLAIN
        and own_forward in (forward, nn.Linear.forward)
        and not any(getattr(module, hooks) for hooks in HOOKS)
    )


def in_chunks(size: int) -> Callable[..., tuple[Tensor | None, Tensor | None]]:
    """Return a `logits_and_loss` method that processes `size` positions at a time."""

    def logits_and_loss(
        self: LMHeadModel,
        states: Tensor,
        labels: Tensor | None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
    ) -> tuple[Tensor | None, Tensor | None]:
        head = self.lm_head
        if labels is None or not self.training or not is_plain_linear(head):
            return type(self).logits_and_loss(self, states, labels, num_items_in_batch, logits_to_keep)
        check_labels(labels, states.shape[:-1], head.out_features)
        labels = labels.to(states.device)
        real = labels != IGNORED_LABEL
        label_smoothing = self.config.label_smoothing
        states, targets = states.flatten(0, -2), labels.flatten()
        # Drop positions without a label, except on a GPU, where counting them would synchronise.
        if states.device.type == "cpu":
            chosen = real.flatten().nonzero()[:, 0]
            padding = 0, round_up(len(chosen)) - len(chosen)
            states = states.index_select(0, F.pad(chosen, padding))
            targets = F.pad(targets[chosen], padding, value=IGNORED_LABEL)
        total = ChunkedCrossEntropy.apply(states, head.weight, head.bias, targets, label_smoothing, size)
        return None, mean(total, real.sum() if num_items_in_batch is None else num_items_in_batch)

    return logits_and_loss
