# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Small weight initialisation, Muon with Adam, and the paper's learning-rate schedule."""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import PreTrainedModel

from vanilla_transformer.training.arguments import has_bf16_matmul


class PaperSchedule:
    """Learning-rate schedule of Equation 3 (section 5.3). The equation counts steps from 1, PyTorch from 0."""

    def __init__(self, d_model: int, warmup_steps: int):
        self.d_model, self.warmup_steps = d_model, warmup_steps

    def __call__(self, steps_done: int) -> float:
        """Return the learning rate of the next step."""
        step = steps_done + 1
        return self.d_model**-0.5 * min(step**-0.5, step * self.warmup_steps**-1.5)


def layer_matrices(model: PreTrainedModel) -> list[Tensor]:
    """Return the trainable weights of all `nn.Linear` modules, without the output projection and tied embeddings."""
    head = model.get_output_embeddings()
    tied = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    linear = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
    return [module.weight for module in linear if id(module.weight) not in tied and module.weight.requires_grad]


def init_small(model: PreTrainedModel) -> PreTrainedModel:
    """Initialise the weight matrices of a new model's layers with small values, and return the model.

    The weights are drawn from a normal distribution with variance 2 / (5 fan_in) (Nguyen and Salazar 2019, arXiv
    1910.05895). The variance of Xavier initialisation is 2 / (fan_in + fan_out).
    """
    for matrix in layer_matrices(model):
        nn.init.normal_(matrix, std=(2 / (5 * matrix.shape[1])) ** 0.5)
    return model


def orthogonalize(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Approximate U V^T for each matrix U S V^T of `matrices` (matrices, rows, columns) with Newton-Schulz steps.

    PyTorch's Muon processes one matrix at a time. For small matrices, launching a kernel takes longer than the
    multiplication itself. Like PyTorch's Muon, this function computes in bfloat16, but in float32 on devices without
    bfloat16 instructions.
    """
    a, b, c = coefficients
    x = matrices.to(torch.bfloat16 if has_bf16_matmul(matrices.device.type) else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class BatchedMuon(Muon):
    """Like PyTorch's `Muon`, but updates all matrices of the same shape together; see `orthogonalize`."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:  # type: ignore[override]
        """Take one step, scaled as with `adjust_lr_fn="match_rms_adamw"`. The closure is not called."""
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append(matrix)
            for shape, matrices in by_shape.items():
                updates = orthogonalize(
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
        """Update the moving average of a matrix's gradient, and return the direction with Nesterov momentum."""
        state, gradient = self.state[matrix], cast(Tensor, matrix.grad)
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        mean = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(mean, momentum)


class MuonWithAdam(Optimizer):
    """Muon (Jordan et al. 2024) for matrices and Adam for all other parameters, with a shared learning rate.

    Muon's updates are orthogonal matrices. They are scaled to the size of Adam's updates (Liu et al. 2025, arXiv
    2502.16982), so that both optimizers can share a learning rate.

    Args:
        muon, adam: optimizers of different parameters with the same learning rate. Muon has one parameter group.
    """

    def __init__(self, muon: Muon, adam: Optimizer):
        self.muon, self.adam = muon, adam
        super().__init__([*self.muon.param_groups, *self.adam.param_groups], {})
        self.share_state()

    def share_state(self) -> None:
        """Share the parameter groups and the state of this optimizer with its two inner optimizers."""
        self.muon.param_groups, self.adam.param_groups = self.param_groups[:1], self.param_groups[1:]
        self.muon.state = self.adam.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:  # type: ignore[override]
        """Take one step with both optimizers. The closure is not called."""
        self.muon.step()
        self.adam.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Like `Optimizer.load_state_dict`, for both optimizers."""
        super().load_state_dict(state_dict)
        self.share_state()


def muon_with_adam(
    model: PreTrainedModel,
    lr: float,
    momentum: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-9,
    weight_decay: float = 0.0,
    embedding_decay: float = 0.0,
) -> MuonWithAdam:
    """Build an optimizer for a model: Muon for the weight matrices of its layers, Adam for all other parameters.

    Args:
        lr: learning rate of both optimizers.
        momentum: Muon's momentum.
        betas, eps: Adam's coefficients and epsilon.
        weight_decay: decoupled weight decay of the layers' matrices.
        embedding_decay: decoupled weight decay of the embeddings, whether tied to the output projection or not.
    """
    matrices = layer_matrices(model)
    chosen = {id(matrix) for matrix in matrices}
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in chosen]
    groups: list[dict[str, Any]] = [{"params": others}]
    if embedding_decay:
        groups = [
            {"params": [p for p in others if id(p) not in tables]},
            {"params": [p for p in others if id(p) in tables], "weight_decay": embedding_decay},
        ]
    muon = BatchedMuon(
        [{"params": matrices}], lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return MuonWithAdam(muon, AdamW(groups, lr=lr, betas=betas, eps=eps, weight_decay=0.0))
