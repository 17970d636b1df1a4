"""Test that linear layers with oneDNN give the same results as with MKL, and are used only where faster."""

import math
import warnings
from types import MethodType

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from family import encoder_decoder
from vanilla_transformer import fast
from vanilla_transformer.fast import make_fast
from vanilla_transformer.fast import onednn as onednn_module
from vanilla_transformer.fast.onednn import (
    SMALLEST_PRODUCT,
    OneDNNLinear,
    linear,
    onednn_agrees,
    onednn_is_faster,
)


pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


@pytest.fixture
def onednn(monkeypatch):
    """Simulate a processor on which oneDNN is faster."""
    monkeypatch.setattr(onednn_module, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(fast, "onednn_is_faster", lambda: True)


@pytest.mark.parametrize("shape", [(30, 40), (3, 10, 40), (1, 40)])
@pytest.mark.parametrize("biased", [True, False])
def test_outputs_and_gradients_agree_with_double_precision(shape, biased):
    torch.manual_seed(0)
    x, weight = torch.randn(*shape, requires_grad=True), torch.randn(20, 40, requires_grad=True)
    operands = [x, weight, torch.randn(20, requires_grad=True)] if biased else [x, weight]
    output = OneDNNLinear.apply(x, weight, operands[2] if biased else None)
    exact = [operand.detach().double().requires_grad_() for operand in operands]
    expected = F.linear(*exact)
    upstream = torch.randn_like(output)
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(output, operands, upstream)
    for gradient, true in zip(found, torch.autograd.grad(expected, exact, upstream.double()), strict=True):
        torch.testing.assert_close(gradient.double(), true, rtol=1e-5, atol=1e-5)


def test_onednn_supports_second_derivatives():
    torch.manual_seed(0)
    x, weight = torch.randn(4, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)

    def penalty(product) -> tuple[torch.Tensor, ...]:
        (gradient,) = torch.autograd.grad(product(x, weight, None).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.pow(2).sum(), (x, weight))

    torch.testing.assert_close(penalty(OneDNNLinear.apply), penalty(F.linear), rtol=1e-4, atol=1e-3)


def test_only_large_float32_matrix_multiplications_on_a_cpu_use_onednn(onednn, monkeypatch):
    taken = []
    monkeypatch.setattr(onednn_module, "onednn_product", lambda *operands: taken.append(1) or F.linear(*operands))

    def belongs(x: torch.Tensor, weight: torch.Tensor) -> bool:
        taken.clear()
        linear(x, weight)
        return bool(taken)

    rows = math.ceil(SMALLEST_PRODUCT / (256 * 64))
    x, weight = torch.randn(rows, 256), torch.randn(64, 256)
    assert belongs(x, weight) and belongs(x, nn.Parameter(weight))
    assert not belongs(x[1:], weight)
    assert not belongs(torch.randn(SMALLEST_PRODUCT), torch.randn(1, SMALLEST_PRODUCT))
    assert not belongs(x.double(), weight.double())
    assert not belongs(x.bfloat16(), weight.bfloat16())
    assert not belongs(x.to("meta"), weight.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not belongs(x, weight)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not belongs(x, weight)


def make_fast_linear(layer: nn.Linear) -> nn.Linear:
    layer.forward = MethodType(fast.forward, layer)
    return layer


def test_compile_and_export_use_pytorchs_linear(onednn):
    torch.manual_seed(0)
    layer, x = make_fast_linear(nn.Linear(256, 256)), torch.randn(64, 256)
    exported = torch.export.export(layer, (x,))
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(layer, x)
    assert "mkldnn" not in exported.graph_module.code and "mkldnn" not in str(traced.inlined_graph)
    for form in (exported.module(), traced):
        torch.testing.assert_close(form(x), layer(x), rtol=1e-5, atol=1e-5)


def test_a_fast_projection_compiles_to_one_graph_on_any_processor():
    """The compiler cannot trace the check of the processor, so that check must come last."""
    torch.manual_seed(0)
    layer, x = make_fast_linear(nn.Linear(256, 256)), torch.randn(64, 256)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), x @ layer.weight.T + layer.bias, rtol=1e-5, atol=1e-5)


def test_training_with_onednn_gives_the_same_model(onednn):
    """The model uses oneDNN in all projections, including the chunked output layer."""
    torch.manual_seed(0)
    model = make_fast(encoder_decoder(d_model=256, d_ff=512, vocab_size=600, dropout=0.0).train(), loss_chunk_size=64)
    ids = torch.randint(3, 600, (16, 12))

    def learn(with_onednn: bool) -> list[torch.Tensor]:
        with torch.backends.mkldnn.flags(enabled=with_onednn), torch.profiler.profile() as profile:
            loss = model(input_ids=ids, labels=ids).loss
            gradients = torch.autograd.grad(loss, list(model.parameters()))
        assert with_onednn == any("_linear_pointwise" in event.key for event in profile.key_averages())
        return [loss.detach(), *gradients]

    torch.testing.assert_close(learn(True), learn(False), rtol=1e-4, atol=1e-6)


def test_inference_calls_onednn_without_an_autograd_function(onednn):
    layer, x = nn.Linear(256, 256), torch.randn(64, 256)
    with torch.no_grad():
        output = linear(x, layer.weight, layer.bias)
    assert output.grad_fn is None
    torch.testing.assert_close(output, F.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("operator", [None, lambda x, weight, *_: x @ weight.T + 1], ids=["missing", "another result"])
def test_pytorchs_linear_is_used_if_the_onednn_operator_is_missing_or_wrong(operator, monkeypatch):
    def product(x, weight, bias):
        if operator is None:
            return torch.ops.mkldnn.an_operator_that_is_not_there(x, weight, bias)
        return operator(x, weight, bias)

    monkeypatch.setattr(onednn_module, "onednn_product", product)
    for cached in (onednn_agrees, onednn_is_faster):
        cached.cache_clear()
    try:
        assert not onednn_agrees() and not onednn_is_faster()
        x, weight = torch.randn(64, 256), torch.randn(256, 256)
        assert torch.equal(linear(x, weight), F.linear(x, weight))
    finally:
        for cached in (onednn_agrees, onednn_is_faster):
            cached.cache_clear()
