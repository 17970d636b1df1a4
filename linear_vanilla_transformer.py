# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""The linear projection x W^T + b by the faster of the two libraries that PyTorch brings for a CPU, MKL and oneDNN.

In float32 PyTorch asks MKL, which does not use the AVX-512 instructions of a processor that is not Intel's. There
oneDNN, which PyTorch has for bfloat16, is twice as fast in all but small products (docs/performance.md). The results
are the same but for the order of additions. `torch.backends.mkldnn.flags(enabled=False)` leaves everything to MKL.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


PLAIN = (Tensor, nn.Parameter)  # neither sharded, quantised nor traced
SMALLEST_PRODUCT = 2_000_000  # multiplications; below, a call of oneDNN costs more than it gains


def mkl_leaves_avx512_unused() -> bool:
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.mkl.is_available()
        and capabilities.get("avx512_f", False)
        and "AMD" in capabilities.get("cpu_name", "")
    )


ONEDNN_IS_FASTER = mkl_leaves_avx512_unused()


def belongs_to_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether x (..., inputs) W^T is a large float32 product that is computed here and now, with plain tensors."""
    return (
        ONEDNN_IS_FASTER
        and not torch.compiler.is_compiling()
        and x.numel() * weight.shape[0] >= SMALLEST_PRODUCT
        and not torch.jit.is_tracing()
        and type(x) in PLAIN
        and type(weight) in PLAIN
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
    )


class OneDNNLinear(torch.autograd.Function):
    """x W^T + b in oneDNN, whose operator has no derivative of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            linear(gradient, weight.T) if needs_x else None,
            transposed_product(rows, x.flatten(0, -2)) if needs_weight else None,
            rows.sum(dim=0) if needs_bias else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: (..., inputs), (outputs, inputs), (outputs,) -> (..., outputs)"""
    if not belongs_to_onednn(x, weight):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return OneDNNLinear.apply(x, weight, bias)
    return OneDNNLinear.forward(x, weight, bias)


def transposed_product(a: Tensor, b: Tensor) -> Tensor:
    """a^T b: (rows, m), (rows, n) -> (m, n). oneDNN copies what it finds transposed on its left: the narrower."""
    return linear(a.T, b.T) if a.shape[1] <= b.shape[1] else linear(b.T, a.T).T


class Linear(nn.Linear):
    """`nn.Linear`, computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
