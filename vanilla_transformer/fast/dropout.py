# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""CPU dropout that gets four random numbers from each draw of the generator.

PyTorch draws one 64-bit number per element, which takes a fifth of the step time of a small model. Here, each element
uses only 16 bits, so the dropout probability is rounded to a multiple of 2^-16.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class QuickDropout(torch.autograd.Function):
    """Zero each element with probability p, and divide the remaining elements by 1 - p (section 5.4)."""

    @staticmethod
    def forward(ctx, x: Tensor, p: float) -> Tensor:
        """Return `x` with dropout applied. The random numbers come from PyTorch's default generator."""
        # draw from the full range of 64-bit integers
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        numbers = draws.view(torch.int16)[: x.numel()].view(x.shape)
        stays = torch.ge(numbers, round(p * 2**16) - 2**15, out=torch.empty_like(x))  # 1 or 0, in the dtype of x
        ctx.save_for_backward(stays)
        ctx.scale = 1 / (1 - p)
        return (x * stays).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of `x`: 0 for dropped elements, and divided by 1 - p for kept ones."""
        (stays,) = ctx.saved_tensors
        return (gradient * stays).mul_(ctx.scale), None


def is_quick(x: Tensor, p: float) -> bool:
    """Whether `QuickDropout` applies: `x` is a plain CPU tensor, 0 < p < 1, and there is no tracing or compilation."""
    compiled = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return 0 < p < 1 and type(x) is Tensor and x.device.type == "cpu" and not compiled


def forward(self: nn.Dropout, x: Tensor) -> Tensor:
    """Apply dropout; bound to modules in place of `nn.Dropout.forward`."""
    if self.training and is_quick(x, self.p):
        return QuickDropout.apply(x, self.p)
    return F.dropout(x, self.p, self.training)
