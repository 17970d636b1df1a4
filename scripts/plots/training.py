"""Draw figures about training (section 5 of the paper): the learning rate schedule and label smoothing."""

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from vanilla_transformer.modeling_vanilla_transformer import cross_entropy
from vanilla_transformer.training.optimizer import PaperSchedule


def learning_rate_schedule() -> Figure:
    figure, ax = plt.subplots(figsize=(7.5, 4))
    steps = range(1, 20_001, 20)
    for d_model, warmup_steps, note in (
        (512, 4000, " (base)"), (1024, 4000, " (big)"), (256, 4000, ""), (512, 8000, ""), (512, 2000, "")
    ):  # fmt: skip
        schedule = PaperSchedule(d_model, warmup_steps)
        label = f"$d_{{model}}$ = {d_model}, warm-up {warmup_steps}{note}"
        ax.plot(steps, [schedule(step - 1) for step in steps], label=label)
    ax.set(xlabel="step", ylabel="learning rate", xlim=(0, 20_000), ylim=(0, None))
    ax.set_title(r"$d_{model}^{-0.5} \cdot \min(step^{-0.5},\ step \cdot warmup^{-1.5})$")
    ax.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    ax.legend()
    return figure


def smoothed_targets(label: int, classes: int, label_smoothing: float) -> Tensor:
    """Return the smoothed target distribution: (classes,).

    Recover it from the model's own loss, whose gradient with respect to the logits is softmax(logits) - targets.
    """
    logits = torch.zeros(1, classes, requires_grad=True)
    cross_entropy(logits, torch.tensor([label]), label_smoothing=label_smoothing).backward()
    return logits.detach().softmax(dim=-1)[0] - logits.grad[0]


def loss_by_confidence(confidences: Tensor, classes: int, label_smoothing: float) -> Tensor:
    """Return the loss for each probability of the right class: (points,) -> (points,)

    The remaining probability is spread evenly over the other classes.
    """
    others = ((1 - confidences) / (classes - 1))[:, None].expand(-1, classes - 1)
    logits = torch.cat((confidences[:, None], others), dim=1).log()
    return torch.stack(
        [cross_entropy(row[None], torch.tensor([0]), label_smoothing=label_smoothing) for row in logits]
    )


def label_smoothing() -> Figure:
    classes, label = 10, 3
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
    confidences = torch.linspace(0.3, 0.9999, 300)
    for i, (epsilon, hatch) in enumerate(zip((0.0, 0.1, 0.2), ("", "//", ".."), strict=True)):
        name = rf"$\epsilon_{{ls}}$ = {epsilon}"
        targets = smoothed_targets(label, classes, epsilon)
        places = np.arange(classes) + (i - 1) * 0.28
        edge = plt.rcParams["figure.facecolor"]
        left.bar(places, targets.numpy(), width=0.28, label=name, hatch=hatch, edgecolor=edge, linewidth=0)
        right.plot(confidences, loss_by_confidence(confidences, classes, epsilon), label=name)
        best = targets[label : label + 1].clamp(max=confidences[-1])
        lowest = loss_by_confidence(best, classes, epsilon)
        right.plot(best, lowest, marker="o", color=f"C{i}", linestyle="")
    left.set(xlabel="class", ylabel="target probability", xticks=range(classes))
    left.set_title(f"Targets where class {label} of {classes} is right")
    right.set(xlabel="probability given to the right class", ylabel="loss", ylim=(0, None))
    right.set_title("The smoothed loss is lowest (dot) below 1")
    for ax in (left, right):
        ax.legend()
    return figure
