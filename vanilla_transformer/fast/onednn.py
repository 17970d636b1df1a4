# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""The linear projection x W^T + b by the faster of the two libraries that PyTorch brings for a CPU, MKL and oneDNN.

In float32 PyTorch asks MKL, which does not use the AVX-512 instructions of a processor that is not Intel's. There
oneDNN, which PyTorch has for bfloat16, is twice as fast in all but small products (docs/performance.md). The results
are the same but for the order of additions. `torch.backends.mkldnn.flags(enabled=False)` leaves everything to MKL.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F


PLAIN = (Tensor, nn.Parameter)  # neither sharded, quantised nor traced
SMALLEST_PRODUCT = 2_000_000  # multiplications; below, a call of oneDNN costs more than it gains


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b by PyTorch's operator, which is private to it: `onednn_agrees` says whether it can be relied on."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@cache
def onednn_agrees() -> bool:
    """Whether this PyTorch has the operator, and a product of it is that of `F.linear`."""
    x, weight, bias = (torch.arange(float(n)).sin() for n in (8 * 16, 4 * 16, 4))
    x, weight = x.view(8, 16), weight.view(4, 16)
    try:
        return torch.allclose(onednn_product(x, weight, bias), F.linear(x, weight, bias), atol=1e-5)
    except (AttributeError, RuntimeError):
        return False


@cache
def onednn_is_faster() -> bool:
    """Whether MKL leaves half of this processor unused, and oneDNN is there to do better."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.mkl.is_available()
        and capabilities.get("avx512_f", False)
        and "AMD" in capabilities.get("cpu_name", "")
        and onednn_agrees()
    )


def gains_by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether a product of that size, of plain tensors, is one that oneDNN computes sooner here."""
    return (
        onednn_is_faster()
        and type(weight) in PLAIN
        and x.dim() > 1
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
    )


class OneDNNLinear(torch.autograd.Function):
    """x W^T + b in oneDNN, whose operator has no derivative of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b, as `linear` says."""
        return onednn_product(x, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        """Keep what the derivatives need: x and W."""
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients of x, W and b, as far as each is wanted."""
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            linear(gradient, weight.T) if needs_x else None,
            transposed_product(rows, x.flatten(0, -2)) if needs_weight else None,
            rows.sum(dim=0) if needs_bias else None,
        )

    @staticmethod
    def jvp(ctx, x_tangent: Tensor | None, weight_tangent: Tensor | None, bias_tangent: Tensor | None) -> Tensor:
        """The derivative in the direction of the tangents (forward mode)."""
        x, weight = ctx.saved_tensors
        tangents = [] if bias_tangent is None else [bias_tangent.expand(*x.shape[:-1], -1)]
        tangents += [] if x_tangent is None else [linear(x_tangent, weight)]
        tangents += [] if weight_tangent is None else [linear(x, weight_tangent)]
        return sum(tangents[1:], tangents[0])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: (..., inputs), (outputs, inputs), (outputs,) -> (..., outputs)"""
    if (
        torch.compiler.is_compiling()  # first: a compiler cannot follow what comes after
        or torch.jit.is_tracing()
        or type(x) not in PLAIN
        or x.numel() * weight.shape[0] < SMALLEST_PRODUCT  # here, at once: tokens that come one by one would feel more
        or not gains_by_onednn(x, weight)
    ):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return OneDNNLinear.apply(x, weight, bias)
    return OneDNNLinear.forward(x, weight, bias)


def transposed_product(a: Tensor, b: Tensor) -> Tensor:
    """a^T b: (rows, m), (rows, n) -> (m, n). oneDNN copies what it finds transposed on its left: the narrower."""
    return linear(a.T, b.T) if a.shape[1] <= b.shape[1] else linear(b.T, a.T).T
