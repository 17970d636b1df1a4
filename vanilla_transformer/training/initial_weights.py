# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Other initial weights than a new model's own, as a choice of who trains it."""

from torch import nn
from transformers import PreTrainedModel

from vanilla_transformer.training.muon import matrices_of_layers


def start_small(model: PreTrainedModel) -> PreTrainedModel:
    """Draw the matrices of a new model's layers anew, small, and return it.

    As Nguyen and Salazar have them (2019, arXiv 1910.05895): normal, of a variance of 2 / (5 fan_in), where Xavier's
    have one of 2 / (fan_in + fan_out).
    """
    for matrix in matrices_of_layers(model):
        nn.init.normal_(matrix, std=(2 / (5 * matrix.shape[1])) ** 0.5)
    return model
