"""Test that fast dropout drops elements independently, with the right probability, and when PyTorch's is used."""

import copy
import math

import pytest
import torch
from torch import nn

from family import encoder_decoder, right_padded, tokens
from vanilla_transformer.fast import make_fast
from vanilla_transformer.fast.dropout import QuickDropout


def quick(x: torch.Tensor, p: float) -> torch.Tensor:
    return QuickDropout.apply(x, p)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout_keeps_elements_with_the_requested_probability(p, dtype):
    n = 1_000_001  # a number of elements that is not a multiple of four
    output = quick(torch.ones(n, dtype=dtype), p)
    kept = output != 0
    # Allow five standard deviations of a binomial distribution.
    assert abs(kept.double().mean().item() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / n)
    assert output.unique().tolist() == pytest.approx([0, 1 / (1 - p)], rel=torch.finfo(dtype).eps)


def test_dropped_elements_are_independent_within_and_between_calls():
    n, p = 1_000_000, 0.5
    first, second = ((quick(torch.ones(n), p) - 1).double() for _ in range(2))  # at p = 0.5, the values are 1 or -1
    for distance in (1, 2, 3, 4, 8, 128):  # four elements share one random number
        assert abs((first[:-distance] * first[distance:]).mean().item()) < 5 / math.sqrt(n - distance)
    assert abs((first * second).mean().item()) < 5 / math.sqrt(n)


def test_the_same_seed_drops_the_same_elements():
    x = torch.randn(3, 5, 7)
    torch.manual_seed(1)
    first = quick(x, 0.4)
    torch.manual_seed(1)
    assert torch.equal(quick(x, 0.4), first) and not torch.equal(quick(x, 0.4), first)


def test_the_gradient_flows_through_the_kept_elements_only():
    x = torch.randn(4, 33, dtype=torch.float64, requires_grad=True)

    def dropped(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return quick(x, 0.3)

    assert torch.autograd.gradcheck(dropped, x) and torch.autograd.gradgradcheck(dropped, x)
    output = dropped(x)
    output.sum().backward()
    torch.testing.assert_close(x.grad * x, output)


def test_a_fast_model_applies_dropout_in_training_only():
    model = make_fast(encoder_decoder(dropout=0.5))
    ids, mask = right_padded([5, 3])
    assert all("forward" in vars(module) for module in model.modules() if isinstance(module, nn.Dropout))
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": tokens(2, 4)}
    assert torch.equal(model.eval()(**inputs).logits, model(**inputs).logits)
    assert not torch.equal(model.train()(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_rates_0_and_1_use_pytorchs_dropout(p):
    module, x = nn.Dropout(p), torch.randn(9)
    model = make_fast(encoder_decoder(dropout=p))
    dropout = next(m for m in model.modules() if isinstance(m, nn.Dropout) and m.p == p).train()
    assert torch.equal(dropout(x), module(x))


def test_compiled_models_use_pytorchs_dropout():
    """The compiler can fuse PyTorch's dropout, but not fast dropout."""
    module = nn.Dropout(0.5)
    fast = make_fast(encoder_decoder(dropout=0.5))
    ours = next(m for m in fast.modules() if isinstance(m, nn.Dropout) and m.p == 0.5).train()
    x = torch.randn(64)
    graph = torch.jit.trace(copy.deepcopy(ours), x, check_trace=False).graph
    assert "aten::dropout" in str(graph) and module.p == ours.p
