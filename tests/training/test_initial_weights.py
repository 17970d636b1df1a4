"""Small initial weights: of the distribution that they are said to have, in the layers of a new model alone."""

import pytest
import torch

from family import encoder_decoder
from vanilla_transformer.training.initial_weights import start_small
from vanilla_transformer.training.muon import matrices_of_layers


def test_the_matrices_of_the_layers_are_normal_and_small():
    """Of a variance of 2 / (5 fan_in): Nguyen and Salazar 2019."""
    model = start_small(encoder_decoder(d_model=256, d_ff=1024))
    matrices = matrices_of_layers(model)
    assert {matrix.shape[1] for matrix in matrices} == {256, 1024}
    for matrix in matrices:
        weights = matrix.flatten() * (2.5 * matrix.shape[1]) ** 0.5
        assert weights.std().item() == pytest.approx(1, rel=0.02)
        assert (weights.abs() > 2).float().mean().item() == pytest.approx(0.0455, abs=0.005)  # a normal's two tails


def test_nothing_else_is_drawn_anew():
    model = encoder_decoder()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    chosen = {id(matrix) for matrix in matrices_of_layers(start_small(model))}
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]) == (id(weight) not in chosen), name
