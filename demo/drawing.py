"""How the demo's pictures look: without a background, in colours that are legible on white, on dark, and on paper."""

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure


GREY = "#777b84"  # as far from white as from black
BLUE, ORANGE = "#2f81f7", "#db6d28"

matplotlib.use("Agg")
matplotlib.rcParams.update(
    {
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), GREY),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
        "axes.prop_cycle": cycler(color=[BLUE, ORANGE], linestyle=["-", "--"]),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "figure.dpi": 160,
    }
)

# What is 0 is not painted.
SEQUENTIAL = LinearSegmentedColormap.from_list("sequential", [to_rgba(BLUE, 0), to_rgba(BLUE)])
DIVERGING = LinearSegmentedColormap.from_list(
    "diverging", [(0, ORANGE), (0.5, to_rgba(ORANGE, 0)), (0.5, to_rgba(BLUE, 0)), (1, BLUE)]
)


def blank(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty picture, of a size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def name_cells(axes: Axes, rows: list[str], columns: list[str]) -> None:
    """Write the words beside a drawn matrix, and lines between its cells."""
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks([i + 0.5 for i in range(len(columns) - 1)], minor=True)
    axes.set_yticks([i + 0.5 for i in range(len(rows) - 1)], minor=True)
    axes.grid(which="minor", color=GREY, alpha=0.3, linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set(visible=True, alpha=0.4)
