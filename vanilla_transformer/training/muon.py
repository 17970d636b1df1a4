# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Muon for the matrices inside the layers, Adam for everything else, as one optimizer."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import PreTrainedModel


def matrices_of_layers(model: PreTrainedModel) -> list[Tensor]:
    """The weights that multiply hidden states: those of all `nn.Linear` but the one that gives logits over tokens."""
    head = model.get_output_embeddings()
    tied = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    linear = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
    return [module.weight for module in linear if id(module.weight) not in tied and module.weight.requires_grad]


class MuonWithAdam(Optimizer):
    """Muon (Jordan et al. 2024), whose steps are orthogonal matrices, beside Adam, with one learning rate for both.

    Muon's steps are scaled to the size that Adam's have (Liu et al. 2025, arXiv 2502.16982), so that a learning rate
    serves both.

    Args:
        matrices: parameters of two dimensions, for Muon; others: for Adam.
        lr, betas, eps: of Adam; weight_decay: decoupled, of the matrices alone.
    """

    def __init__(
        self,
        matrices: Iterable[Tensor],
        others: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
        weight_decay: float = 0.0,
    ):
        self.muon = Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        self.adam = AdamW(others, lr=lr, betas=betas, eps=eps, weight_decay=0.0)
        super().__init__([*self.muon.param_groups, *self.adam.param_groups], {})
        self.share()

    def share(self) -> None:
        """Let both work on the groups and the state of the whole."""
        muon, adam = self.param_groups
        self.muon.param_groups, self.adam.param_groups = [muon], [adam]
        self.muon.state = self.adam.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """One step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.muon.step()
        self.adam.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the state of another one, over the same parameters."""
        super().load_state_dict(state_dict)
        self.share()
