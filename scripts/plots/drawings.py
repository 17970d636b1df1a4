"""Draw the pictures of the lessons: the bottleneck, matrices cut into heads, both places of the norm, a beam."""

from functools import cache

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from vanilla_transformer import VanillaTransformerEncoderConfig, VanillaTransformerEncoderModel


LAYERS = 12


def blank(ax: Axes, width: float, height: float) -> Axes:
    """Turn axes into an empty canvas of the given size."""
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.set_aspect("equal")
    ax.axis("off")
    return ax


def box(ax: Axes, x: float, y: float, text: str, color: str, width: float = 1.0, height: float = 0.6) -> None:
    """Draw a box with text around (x, y)."""
    corner = (x - width / 2, y - height / 2)
    patch = FancyBboxPatch(corner, width, height, "round,pad=0,rounding_size=0.1", linewidth=1.2, zorder=3)
    patch.set(edgecolor=color, facecolor=(color, 0.2))
    ax.add_patch(patch)
    ax.text(x, y, text, ha="center", va="center", fontsize=9, zorder=4)


def arrow(ax: Axes, *points: tuple[float, float], width: float = 1.0, color: str | None = None) -> None:
    """Draw a line through `points` that ends in an arrowhead."""
    color = plt.rcParams["text.color"] if color is None else color
    ax.plot(*zip(*points, strict=True), color=color, linewidth=width, linestyle="-", zorder=2)
    style = {"arrowstyle": "-|>", "color": color, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", points[-1], points[-2], arrowprops=style, zorder=2)


def bottleneck() -> Figure:
    """Draw a recurrent translator that keeps only its last state, and one that attends to all states."""
    words, weights = "the cat chased the mice".split(), (0.05, 0.6, 0.2, 0.05, 0.1)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    for ax, attends in zip(axes, (False, True), strict=True):
        blank(ax, 6.4, 4.4)
        for i, (word, weight) in enumerate(zip(words, weights, strict=True)):
            x = 0.7 + 1.25 * i
            ax.text(x, 0.3, word, ha="center", va="center", fontsize=9)
            arrow(ax, (x, 0.5), (x, 0.95))
            box(ax, x, 1.25, f"$h_{i + 1}$", "C0", 0.8)
            if i:
                arrow(ax, (x - 0.85, 1.25), (x - 0.4, 1.25))
            if attends:
                arrow(ax, (x, 1.55), (3.2 + 0.25 * (i - 2), 3.0), width=0.6 + 4 * weight, color="C1")
                behind = {"facecolor": plt.rcParams["figure.facecolor"], "edgecolor": "none", "pad": 0.5}
                ax.text(x + 0.06 * (i - 2), 1.75, f"{weight:.2f}", ha="center", fontsize=8, zorder=5, bbox=behind)
        if not attends:
            arrow(ax, (5.7, 1.55), (5.7, 3.3), (4.2, 3.3), width=3, color="C1")
        box(ax, 3.2, 3.3, "decoder", "C3", 2.0)
        arrow(ax, (3.2, 3.6), (3.2, 4.1))
        ax.set_title("A weighted mean of all states" if attends else "One vector for the whole sentence")
    return figure


def grid(ax: Axes, x: float, y: float, rows: int, columns: int, colors: list[str], label: str) -> None:
    """Draw a matrix of small cells with its top left corner at (x, y), one colour for each column."""
    cell = 0.3
    for i in range(rows):
        for j in range(columns):
            corner = (x + j * cell, y - (i + 1) * cell)
            patch = Rectangle(corner, cell, cell, linewidth=0.6, facecolor=(colors[j], 0.35), edgecolor=colors[j])
            ax.add_patch(patch)
    ax.text(x + columns * cell / 2, y + 0.15, label, ha="center", va="bottom", fontsize=9)


def cut_into_heads() -> Figure:
    """Draw how one product gives the queries of all heads, which are then cut, used and put together again."""
    heads, width, length = 4, 2, 5
    model = heads * width
    by_head = [f"C{head}" for head in range(heads) for _ in range(width)]
    figure, ax = plt.subplots(figsize=(9.6, 5.4))
    blank(ax, 14.6, 8.2)
    ax.plot([0], [0], alpha=0)
    center, half = 3.9, 0.75  # half the height of a matrix with `length` rows
    grid(ax, 0.2, center + half, length, model, ["C5"] * model, f"$X$  ({length} × {model})")
    ax.text(2.9, center, "×", fontsize=14, ha="center", va="center")
    grid(ax, 3.2, center + 1.2, model, model, by_head, f"$W^Q$  ({model} × {model})")
    ax.text(5.95, center, "=", fontsize=14, ha="center", va="center")
    grid(ax, 6.3, center + half, length, model, by_head, f"$Q$  ({length} × {model})")
    ax.text(7.5, center - 1.1, "cut into 4 heads", ha="center", va="center", fontsize=9)
    for head in range(heads):
        top = 7.7 - 1.95 * head
        arrow(ax, (8.75, center), (9.35, top - half), (9.6, top - half), color=f"C{head}")
        grid(ax, 9.7, top, length, width, [f"C{head}"] * width, f"head {head + 1}")
        arrow(ax, (10.4, top - half), (11.6, top - half), (12.0, center), color=f"C{head}")
        ax.text(11.0, top - half + 0.1, "attends", ha="center", va="bottom", fontsize=8)
    grid(ax, 12.05, center + half, length, model, by_head, "concatenated")
    ax.text(13.25, center - 1.1, "× $W^O$", ha="center", va="center", fontsize=10)
    return figure


@cache
def gradients_by_layer(norm_position: str) -> np.ndarray:
    """Return the norm of the loss gradient at the feed-forward network of each layer, in an untrained encoder."""
    torch.manual_seed(0)
    config = VanillaTransformerEncoderConfig(
        vocab_size=100, d_model=64, num_heads=4, d_ff=256, num_layers=LAYERS, norm_position=norm_position, dropout=0.0
    )
    encoder = VanillaTransformerEncoderModel(config)
    states = encoder(torch.randint(0, 100, (8, 32))).last_hidden_state
    logits = states @ encoder.get_input_embeddings().weight.T
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(0, 100, (8 * 32,))).backward()
    return np.array([layer.feed_forward.fc2.weight.grad.norm().item() for layer in encoder.layers])


def draw_sublayer(ax: Axes, norm_position: str) -> None:
    """Draw a sub-layer with its norm; the path that always exists for the gradient is thick."""
    blank(ax, 3.6, 6.2)
    post = norm_position == "post"
    line = {"width": 2.6, "color": "C1"}
    middle, total = (2.2, 3.5) if post else (3.2, 4.5)
    arrow(ax, (1.2, 0.3), (1.2, 0.9), (3.0, 0.9), (3.0, total), (1.42, total), **line)
    if not post:
        box(ax, 1.2, 2.0, "LayerNorm", "C5", 1.7)
        arrow(ax, (1.2, 0.9), (1.2, 1.7))
        arrow(ax, (1.2, 2.3), (1.2, middle - 0.3))
    else:
        arrow(ax, (1.2, 0.9), (1.2, middle - 0.3))
    box(ax, 1.2, middle, "Sublayer", "C0", 1.7)
    arrow(ax, (1.2, middle + 0.3), (1.2, total - 0.2))
    circle = {"boxstyle": "circle,pad=0.15", "facecolor": "none", "edgecolor": plt.rcParams["text.color"]}
    ax.text(1.2, total, "+", ha="center", va="center", fontsize=13, bbox=circle)
    if post:
        arrow(ax, (1.2, total + 0.22), (1.2, 4.3), **line)
        box(ax, 1.2, 4.6, "LayerNorm", "C5", 1.7)
        arrow(ax, (1.2, 4.9), (1.2, 5.7), **line)
    else:
        arrow(ax, (1.2, total + 0.22), (1.2, 5.7), **line)
    ax.text(1.2, 0.05, "$x$", ha="center", va="center")
    ax.set_title("post-norm (the paper)" if post else "pre-norm")


def norm_placement() -> Figure:
    """Draw post-norm and pre-norm, and the gradients that each sends to its layers before training."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.6, 4.0), width_ratios=(1, 1, 1.7))
    for ax, norm_position in ((left, "post"), (middle, "pre")):
        draw_sublayer(ax, norm_position)
    for norm_position, marker in (("post", "o"), ("pre", "s")):
        right.plot(
            range(1, LAYERS + 1), gradients_by_layer(norm_position), marker=marker, label=f"{norm_position}-norm"
        )
    right.set(xlabel="layer", ylabel="norm of the gradient", yscale="log", xticks=range(1, LAYERS + 1))
    right.set_title("Gradients before the first step")
    right.legend()
    return figure


def beam_search() -> Figure:
    """Draw a beam of width 2 over three steps; lesson 8 computes the same probabilities."""
    figure, ax = plt.subplots(figsize=(8.4, 4.0))
    blank(ax, 10.6, 5.0)
    nodes = {  # name -> (x, y, text, kept)
        "s": (1.1, 2.5, "start", True),
        "a": (3.6, 3.6, "a  0.5", True),
        "b": (3.6, 2.3, "b  0.4", True),
        "e": (3.6, 1.0, "end  0.1", False),
        "aa": (6.9, 4.4, "a a  0.15", False),
        "ab": (6.9, 3.5, "a b  0.20", True),
        "ba": (6.9, 2.3, "b a  0.04", False),
        "be": (6.9, 1.2, "b end  0.36", True),
    }
    for name, (x, y, text, kept) in nodes.items():
        box(ax, x, y, text, "C0" if kept else "C5", 1.9, 0.62)
        if len(name) == 2 or name in "abe":
            before = nodes[name[0] if len(name) == 2 else "s"]
            arrow(ax, (before[0] + 0.95, before[1]), (x - 0.95, y), width=2.0 if kept else 0.8)
    ax.text(9.3, 1.2, "finished", ha="center", va="center", fontsize=9)
    ax.text(9.3, 3.5, "goes on", ha="center", va="center", fontsize=9)
    ax.set_title("A beam of 2 keeps the two best beginnings (blue) at every step")
    return figure
