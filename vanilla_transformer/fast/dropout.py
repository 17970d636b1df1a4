# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Dropout on a CPU that takes four random numbers from each draw of the generator.

PyTorch draws one 64-bit number per element, which takes a fifth of a training step of a small model. Here, 16 bits
decide whether an element is kept, so the probability is rounded to a multiple of 2^-16.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class QuickDropout(torch.autograd.Function):
    """Zero each element with probability p, and divide the others by 1 - p (section 5.4)."""

    @staticmethod
    def forward(ctx, x: Tensor, p: float) -> Tensor:
        """Return a tensor like `x`. The random numbers come from PyTorch's default generator."""
        # draw from all 64-bit integers
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        numbers = draws.view(torch.int16)[: x.numel()].view(x.shape)
        stays = torch.ge(numbers, round(p * 2**16) - 2**15, out=torch.empty_like(x))  # 1 or 0, in the dtype of x
        ctx.save_for_backward(stays)
        ctx.scale = 1 / (1 - p)
        return (x * stays).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of `x`: that of the kept elements, divided by 1 - p."""
        (stays,) = ctx.saved_tensors
        return (gradient * stays).mul_(ctx.scale), None


def is_quick(x: Tensor, p: float) -> bool:
    """Whether `x` is a plain tensor on a CPU, nothing is being traced or compiled, and 0 < p < 1."""
    compiled = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return 0 < p < 1 and type(x) is Tensor and x.device.type == "cpu" and not compiled


def forward(self: nn.Dropout, x: Tensor) -> Tensor:
    """Dropout, bound in place of `nn.Dropout.forward`."""
    if self.training and is_quick(x, self.p):
        return QuickDropout.apply(x, self.p)
    return F.dropout(x, self.p, self.training)
