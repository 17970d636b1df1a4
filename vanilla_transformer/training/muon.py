# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Muon for the matrices inside the layers, Adam for everything else, as one optimizer."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import PreTrainedModel

from vanilla_transformer.training.precision import multiplies_bfloat16


def matrices_of_layers(model: PreTrainedModel) -> list[Tensor]:
    """The weights that multiply hidden states: those of all `nn.Linear` but the one that gives logits over tokens."""
    head = model.get_output_embeddings()
    tied = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    linear = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
    return [module.weight for module in linear if id(module.weight) not in tied and module.weight.requires_grad]


def orthogonal(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """For each matrix U S V^T about U V^T, by Newton-Schulz: (matrices, rows, columns) -> the same.

    PyTorch's Muon does this for one matrix at a time, and small ones take longer to ask for than to multiply. Like it
    this computes in bfloat16, but in float32 on a device that has no instructions for bfloat16.
    """
    a, b, c = coefficients
    x = matrices.to(torch.bfloat16 if multiplies_bfloat16(matrices.device.type) else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class BatchedMuon(Muon):
    """PyTorch's Muon for all matrices of one shape together: the same steps in less time (see `orthogonal`)."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:  # type: ignore[override]
        """One step, scaled as `adjust_lr_fn="match_rms_adamw"` does; a closure is not called."""
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append(matrix)
            for shape, matrices in by_shape.items():
                updates = orthogonal(
                    torch.stack([self.direction(matrix, group["momentum"]) for matrix in matrices]),
                    group["ns_coefficients"],
                    group["ns_steps"],
                    group["eps"],
                )
                size = 0.2 * math.sqrt(max(shape))
                for matrix, update in zip(matrices, updates, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(update, alpha=-group["lr"] * size)

    def direction(self, matrix: Tensor, momentum: float) -> Tensor:
        """Its mean gradient, which this moves on, as it will be one step ahead (Nesterov)."""
        state, gradient = self.state[matrix], cast(Tensor, matrix.grad)
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        mean = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(mean, momentum)


def grouped(parameters: Iterable[Tensor] | Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parameters as one group, which may be empty, or the groups that they are in."""
    found: list[Any] = list(parameters)
    return found if found and isinstance(found[0], dict) else [{"params": found}]


class MuonWithAdam(Optimizer):
    """Muon (Jordan et al. 2024), whose steps are orthogonal matrices, beside Adam, with one learning rate for both.

    Muon's steps are scaled to the size that Adam's have (Liu et al. 2025, arXiv 2502.16982), so that a learning rate
    serves both.

    Args:
        matrices: parameters of two dimensions, for Muon; others: for Adam, or groups of them that may have a
            `weight_decay` of their own. Either may be empty.
        lr: of both. momentum: of Muon; betas, eps: of Adam. weight_decay: decoupled, of the matrices alone.
    """

    def __init__(
        self,
        matrices: Iterable[Tensor],
        others: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
        weight_decay: float = 0.0,
    ):
        self.muon = BatchedMuon(
            grouped(matrices), lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        self.adam = AdamW(grouped(others), lr=lr, betas=betas, eps=eps, weight_decay=0.0)
        super().__init__([*self.muon.param_groups, *self.adam.param_groups], {})
        self.share()

    def share(self) -> None:
        """Let both work on the groups and the state of the whole."""
        self.muon.param_groups, self.adam.param_groups = self.param_groups[:1], self.param_groups[1:]
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


def muon_with_adam(
    model: PreTrainedModel,
    lr: float,
    momentum: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-9,
    weight_decay: float = 0.0,
    embedding_decay: float = 0.0,
) -> MuonWithAdam:
    """The optimizer of a model, for any Trainer: Muon for the matrices of its layers, Adam for everything else.

    Args:
        weight_decay: of those matrices; embedding_decay: of the embeddings, tied to logits or not. The other options
            are those of `MuonWithAdam`.
    """
    matrices = matrices_of_layers(model)
    chosen = {id(matrix) for matrix in matrices}
    others: list[Any] = [p for p in model.parameters() if p.requires_grad and id(p) not in chosen]
    if embedding_decay:
        tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        others = [
            {"params": [p for p in others if id(p) not in tables]},
            {"params": [p for p in others if id(p) in tables], "weight_decay": embedding_decay},
        ]
    return MuonWithAdam(matrices, others, lr, momentum, betas, eps, weight_decay)
