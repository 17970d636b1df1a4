# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Compute the linear projection x W^T + b with the faster of PyTorch's two CPU libraries, MKL and oneDNN.

In float32, PyTorch calls MKL, which does not use AVX-512 on AMD processors. On these, oneDNN is twice as fast except
for small products, but sums in another order. `torch.backends.mkldnn.flags(enabled=False)` disables oneDNN.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F


PLAIN = (Tensor, nn.Parameter)  # types of plain tensors, which are not sharded, quantised or traced
SMALLEST_PRODUCT = 2_000_000  # multiplications; for smaller products, the overhead of calling oneDNN exceeds its gain


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x W^T + b with a private PyTorch operator, which `onednn_agrees` checks."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@cache
def onednn_agrees() -> bool:
    """Whether this version of PyTorch has the operator, and its result equals that of `F.linear`."""
    x, weight, bias = (torch.arange(float(n)).sin() for n in (8 * 16, 4 * 16, 4))
    x, weight = x.view(8, 16), weight.view(4, 16)
    try:
        return torch.allclose(onednn_product(x, weight, bias), F.linear(x, weight, bias), atol=1e-5)
    except (AttributeError, RuntimeError):
        return False


@cache
def onednn_is_faster() -> bool:
    """Whether this is an AMD processor with AVX-512, and oneDNN is available."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    has_libraries = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
    is_amd = "AMD" in capabilities.get("cpu_name", "")
    return has_libraries and is_amd and capabilities.get("avx512_f", False) and onednn_agrees()


class OneDNNLinear(torch.autograd.Function):
    """Autograd function for x W^T + b in oneDNN, because the operator has no derivative."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute x W^T + b, and save x and W for the backward pass."""
        ctx.save_for_backward(x, weight)
        return onednn_product(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, W and b, or None for those that are not needed."""
        (x, weight), needs, rows = ctx.saved_tensors, ctx.needs_input_grad, gradient.flatten(0, -2)
        of_x = linear(gradient, weight.T) if needs[0] else None
        of_weight = transposed_product(rows, x.flatten(0, -2)) if needs[1] else None
        return of_x, of_weight, rows.sum(dim=0) if needs[2] else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x W^T + b: (..., inputs), (outputs, inputs), (outputs,) -> (..., outputs)"""
    if (
        torch.compiler.is_compiling()  # first, because the compiler cannot trace the other conditions
        or torch.jit.is_tracing()
        or type(x) not in PLAIN
        # Check the size before the slower conditions, because decoding has many small products.
        or x.numel() * weight.shape[0] < SMALLEST_PRODUCT
        or not (onednn_is_faster() and torch.backends.mkldnn.enabled and type(weight) in PLAIN and x.dim() > 1)
        or not (x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu")
        or torch.is_autocast_enabled("cpu")
    ):
        return F.linear(x, weight, bias)
    return OneDNNLinear.apply(x, weight, bias) if torch.is_grad_enabled() else onednn_product(x, weight, bias)


def transposed_product(a: Tensor, b: Tensor) -> Tensor:
    """Compute a^T b: (rows, m), (rows, n) -> (m, n). oneDNN copies a transposed left operand: use the narrower one."""
    return linear(a.T, b.T) if a.shape[1] <= b.shape[1] else linear(b.T, a.T).T
