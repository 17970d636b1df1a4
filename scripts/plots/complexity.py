"""Measure Table 1 of the paper: operations, time and memory of one layer for sequence length n and width d."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarking.timing import peak_memory
from vanilla_transformer import VanillaTransformerEncoderConfig
from vanilla_transformer.modeling_vanilla_transformer import SelfAttention, eager_attention_forward


os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silence the profiler, which logs each start and stop

WINDOW, KERNEL = 64, 3  # r and k in Table 1
FITTED = 3  # fit exponents to this many of the largest sizes, where overheads matter least


@dataclass(frozen=True)
class Sizes:
    """Sizes to measure: each of `lengths` at `width`, and each of `widths` at `length`.

    Time each of them for at least `seconds`.
    """

    lengths: tuple[int, ...]
    width: int
    widths: tuple[int, ...]
    length: int
    seconds: float

    def axes(self) -> dict[str, list[tuple[int, int]]]:
        """Return the (n, d) pairs to measure along each axis of the figure."""
        return {"n": [(n, self.width) for n in self.lengths], "d": [(self.length, d) for d in self.widths]}


FULL = Sizes((256, 512, 1024, 2048), 128, (64, 128, 256, 512, 1024), 1024, 0.4)
QUICK = Sizes((128, 256, 512), 32, (32, 64, 128), 256, 0.01)


def attention_layer(attention: Callable, length: int, width: int, **options) -> Callable[[], object]:
    """Return a function that runs Equation 1 for one head, without projections: Table 1 omits their n d^2."""
    module = SelfAttention(VanillaTransformerEncoderConfig(d_model=8, num_heads=1), 0, is_causal=False).eval()
    query, key, value = torch.randn(3, 1, 1, length, width)
    return lambda: attention(module, query, key, value, None, scaling=width**-0.5, **options)


def full_attention(length: int, width: int) -> Callable[[], object]:
    return attention_layer(eager_attention_forward, length, width)


def fused_attention(length: int, width: int) -> Callable[[], object]:
    return attention_layer(ALL_ATTENTION_FUNCTIONS["sdpa"], length, width)


def restricted_attention(length: int, width: int) -> Callable[[], object]:
    return attention_layer(ALL_ATTENTION_FUNCTIONS["windowed_sdpa"], length, width, sliding_window=WINDOW // 2 + 1)


def recurrent_layer(length: int, width: int) -> Callable[[], object]:
    layer, states = nn.RNN(width, width, batch_first=True), torch.randn(1, length, width)
    return lambda: layer(states)


def convolutional_layer(length: int, width: int) -> Callable[[], object]:
    layer, states = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2), torch.randn(1, width, length)
    return lambda: layer(states)


# name -> (function that builds the layer, its complexity in Table 1)
LAYERS = {
    "self-attention, eager": (full_attention, "n^2 d"),
    "self-attention, sdpa": (fused_attention, "n^2 d"),
    f"restricted, r = {WINDOW}": (restricted_attention, "r n d"),
    "recurrent": (recurrent_layer, "n d^2"),
    f"convolutional, k = {KERNEL}": (convolutional_layer, "k n d^2"),
}


def count_operations(call: Callable[[], object]) -> int:
    """Count the multiplications and additions in matrix products. Fused kernels count as if unfused."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        call()
    return counter.get_total_flops()


def measure_seconds(call: Callable[[], object], at_least: float) -> float:
    """Return the shortest of several single-threaded runs, which is the least disturbed by other processes."""
    return min(Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=at_least).times)


@dataclass(frozen=True)
class Cost:
    """The cost of one layer at each size along an axis."""

    operations: list[int]
    seconds: list[float]
    bytes: list[int]


def growth(sizes: tuple[int, ...], costs: list[float]) -> float:
    """Return the exponent k of cost ~ size^k, fitted to the `FITTED` largest sizes."""
    return float(np.polyfit(np.log(sizes[-FITTED:]), np.log(costs[-FITTED:]), 1)[0])


@cache
@torch.no_grad()
def measure(sizes: Sizes) -> dict[str, dict[str, Cost]]:
    """Time every type of layer for several sequence lengths n and widths d. With `FULL`, this takes half a minute."""

    def cost(make: Callable, points: list[tuple[int, int]]) -> Cost:
        calls = [make(*point) for point in points]
        return Cost(
            [count_operations(call) for call in calls],
            [measure_seconds(call, sizes.seconds) for call in calls],
            [peak_memory(call) for call in calls],
        )

    return {
        name: {axis: cost(make, points) for axis, points in sizes.axes().items()} for name, (make, _) in LAYERS.items()
    }


def complexity(sizes: Sizes = FULL) -> Figure:
    figure = plt.figure(figsize=(9, 8.4))
    grid = figure.add_gridspec(3, 2, height_ratios=(1, 1, 0.68))
    costs = measure(sizes)
    draw_curves(figure.add_subplot(grid[0, 0]), costs, "n", sizes.lengths, "seconds")
    draw_curves(figure.add_subplot(grid[0, 1]), costs, "d", sizes.widths, "seconds")
    draw_curves(figure.add_subplot(grid[1, 0]), costs, "n", sizes.lengths, "bytes")
    draw_curves(figure.add_subplot(grid[1, 1]), costs, "d", sizes.widths, "bytes")
    length, width = figure.axes[2:]
    length.set_xlabel(f"length n (width d = {sizes.width})")
    width.set_xlabel(f"width d (length n = {sizes.length})")
    figure.axes[0].legend(fontsize=8)
    draw_table(figure.add_subplot(grid[2, :]), costs, sizes)
    return figure


def draw_curves(ax: Axes, costs: dict[str, dict[str, Cost]], axis: str, sizes: tuple[int, ...], quantity: str) -> None:
    scale, label = {"seconds": (1e3, "milliseconds"), "bytes": (2**-20, "MiB at the peak")}[quantity]
    for marker, (name, cost) in zip("os^Dv", costs.items(), strict=True):
        values = np.array(getattr(cost[axis], quantity)) * scale
        ax.plot(sizes, values, marker=marker, markersize=4, label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set_ylabel(label)


def draw_table(ax: Axes, costs: dict[str, dict[str, Cost]], sizes: Sizes) -> None:
    def powers(cost: dict[str, Cost], quantity: str) -> str:
        n = growth(sizes.lengths, getattr(cost["n"], quantity))
        d = growth(sizes.widths, getattr(cost["d"], quantity))
        return rf"$n^{{{n:.2f}}}\ d^{{\,{d:.2f}}}$"

    rows = [
        [name, f"$O({paper})$", *(powers(costs[name], quantity) for quantity in ("operations", "seconds", "bytes"))]
        for name, (_, paper) in LAYERS.items()
    ]
    header = ["layer", "Table 1 of the paper", "operations, counted", "time, measured", "memory, measured"]
    ax.axis("off")
    table = ax.table(rows, colLabels=header, cellLoc="center", loc="center", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(9.5)
    table.scale(1, 1.5)
    for cell in table.get_celld().values():
        cell.set_edgecolor(plt.rcParams["axes.edgecolor"])
        cell.get_text().set_color(plt.rcParams["text.color"])
        cell.set_linewidth(0.5)
