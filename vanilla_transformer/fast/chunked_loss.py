# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Compute the smoothed cross-entropy over a vocabulary without storing the logits of all positions."""

import torch
from torch import Tensor

from vanilla_transformer.fast.onednn import linear, transposed_product
from vanilla_transformer.modeling_vanilla_transformer import IGNORED_LABEL


class ChunkedCrossEntropy(torch.autograd.Function):
    """Fused output projection and smoothed cross-entropy, one chunk of positions at a time.

    The forward pass also computes the gradients. Memory therefore grows with the size of the hidden states and of the
    projection, not with positions times vocabulary.
    """

    @staticmethod
    def forward(
        ctx, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float, chunk: int
    ) -> Tensor:
        """
        Args:
            states: (positions, d_model); weight: (vocab, d_model); bias: (vocab,); labels: (positions,) class ids, or
                -100 for "no target".

        Returns:
            The sum of the losses, a scalar.
        """
        total = states.new_zeros((), dtype=torch.float32)
        states_grad = torch.empty_like(states)
        # Use the transposed layout that `transposed_product` returns: adding tensors of different layouts takes twice
        # as long. Accumulate at least in float32, because a long sum in 16 bits would lose small terms.
        kept, exact = weight.dtype, torch.promote_types(weight.dtype, torch.float32)
        weight_grad = weight.new_zeros(weight.shape[::-1], dtype=exact).T
        bias_grad = None if bias is None else torch.zeros_like(bias, dtype=exact)
        kind = states.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):  # cast once, not per chunk
            dtype = torch.get_autocast_dtype(kind)
            states, weight = states.to(dtype), weight.to(dtype)
        # Reuse the same buffers for the logits, probabilities and gradients of all chunks: large allocations are slow.
        size = (min(chunk, len(states)), weight.shape[0])
        memory = states.new_empty(2, *size, dtype=torch.float32), states.new_empty(size)
        # The label smoothing terms of loss and gradient need no further pass over the logits.
        share = label_smoothing / weight.shape[0]
        mean_weight = weight.mean(dim=0, dtype=torch.float32)
        sum_of_states = torch.zeros_like(mean_weight)
        mean_bias = 0.0 if bias is None else bias.mean()
        for start in range(0, len(states), chunk):
            part, targets = states[start : start + chunk], labels[start : start + chunk, None]
            real, targets = targets != IGNORED_LABEL, targets.clamp(min=0)
            logits, probabilities = memory[0][:, : len(part)]
            logits.copy_(linear(part, weight, bias))
            torch.softmax(logits, dim=-1, out=probabilities)
            # log(sum(exp(logits))), computed from the largest logit because its probability cannot underflow
            normalizer = logits.amax(dim=-1, keepdim=True) - probabilities.amax(dim=-1, keepdim=True).log()
            target_losses = ((normalizer - logits.gather(1, targets)) * real).sum()
            mean_logits = (part * mean_weight).sum(dim=-1, keepdim=True) + mean_bias
            uniform_losses = ((normalizer - mean_logits) * real).sum()
            total += (1 - label_smoothing) * target_losses + label_smoothing * uniform_losses
            probabilities.scatter_add_(1, targets, torch.full_like(targets, label_smoothing - 1, dtype=torch.float32))
            gradient = memory[1][: len(part)].copy_(probabilities)
            states_grad[start : start + chunk] = (linear(gradient, weight.T) - label_smoothing * mean_weight) * real
            part = part * real
            weight_grad += transposed_product(gradient, part)
            sum_of_states += part.sum(dim=0, dtype=torch.float32)
            if bias_grad is not None:
                bias_grad += ((probabilities - share) * real).sum(dim=0)
        weight_grad -= share * sum_of_states
        parameters_grad = [weight_grad] if bias_grad is None else [weight_grad, bias_grad]
        ctx.save_for_backward(states_grad, *(grad.to(kept) for grad in parameters_grad))
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients that `forward` computed, times the gradient of the loss.

        Raises:
            RuntimeError: second derivatives are requested.
        """
        if torch.is_grad_enabled():  # gradients are enabled here only with create_graph=True
            raise RuntimeError(
                "The chunked loss has no second derivatives. Call make_plain(model), or make_fast(model, "
                "loss_chunk_size=0), to compute the loss from all logits."
            )
        gradients = [saved * gradient.to(saved.dtype) for saved in ctx.saved_tensors]
        return (*gradients, *([None] * (6 - len(gradients))))
