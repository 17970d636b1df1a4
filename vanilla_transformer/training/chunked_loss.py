# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""The smoothed cross-entropy over a vocabulary, without the logits of all positions."""

import torch
from torch import Tensor

from vanilla_transformer.training.onednn import linear, transposed_product


class ChunkedCrossEntropy(torch.autograd.Function):
    """Output projection and smoothed cross-entropy together, for so many positions at a time.

    The gradients are computed along with the loss, so that the logits of all positions are never held at once: what
    is kept is as large as the hidden states and the projection, not as positions times vocabulary.
    """

    @staticmethod
    def forward(
        ctx, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float, chunk: int
    ) -> Tensor:
        """
        Args:
            states: (positions, d_model); weight: (vocab, d_model); bias: (vocab,); labels: (positions,), all of them
                classes.

        Returns:
            The sum of the losses, a scalar.
        """
        total = states.new_zeros((), dtype=torch.float32)
        states_grad, weight_grad = torch.empty_like(states), torch.zeros_like(weight)
        bias_grad = None if bias is None else torch.zeros_like(bias)
        for start in range(0, len(states), chunk):
            part, targets = states[start : start + chunk], labels[start : start + chunk, None]
            logits = linear(part, weight, bias)
            log_probabilities = logits.float().log_softmax(dim=-1)
            target_losses = -log_probabilities.gather(1, targets).sum()
            uniform_losses = -log_probabilities.mean(dim=-1).sum() if label_smoothing else 0.0
            total += (1 - label_smoothing) * target_losses + label_smoothing * uniform_losses
            gradient = log_probabilities.exp_().sub_(label_smoothing / weight.shape[0])
            gradient.scatter_add_(1, targets, torch.full_like(targets, label_smoothing - 1, dtype=gradient.dtype))
            gradient = gradient.to(logits.dtype)
            states_grad[start : start + chunk] = linear(gradient, weight.T)
            weight_grad += transposed_product(gradient, part)
            if bias_grad is not None:
                bias_grad += gradient.sum(dim=0)
        ctx.save_for_backward(states_grad, weight_grad, *([] if bias_grad is None else [bias_grad]))
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients that `forward` has computed, times that of the loss.

        Raises:
            RuntimeError: second derivatives are asked for.
        """
        if torch.is_grad_enabled():  # as it is here under create_graph=True alone
            raise RuntimeError(
                "A loss in chunks has no second derivatives: its gradients are computed along with it. Call "
                "make_plain(model), or make_fast(model, loss_chunk_size=0), for the loss of all logits."
            )
        gradients = [saved * gradient.to(saved.dtype) for saved in ctx.saved_tensors]
        return (*gradients, *([None] * (6 - len(gradients))))
