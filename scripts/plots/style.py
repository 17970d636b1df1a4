"""Style figures for light and dark pages, and save them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from cycler import cycler
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from vanilla_transformer.inside.palette import DARK, LIGHT


THEMES = {"": LIGHT, "-dark": DARK}  # file name suffix -> colours
LINE_STYLES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1))]  # tell curves apart in greyscale print


def theme_parameters(theme: str) -> dict:
    colors = THEMES[theme]
    ink_names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(ink_names, colors.ink),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), colors.paper),
        "axes.prop_cycle": cycler(color=colors.curves, linestyle=LINE_STYLES),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "axes.grid": True,
        "grid.color": colors.ink,
        "grid.alpha": 0.12,
        "font.size": 10,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
        "savefig.dpi": 144,
        "svg.hashsalt": "figures",  # make the ids in SVG files reproducible
    }


def sequential_map() -> Colormap:
    """Return a colour map from the background colour at 0 to blue at 1."""
    return LinearSegmentedColormap.from_list("sequential", [plt.rcParams["figure.facecolor"], "C0"])


def diverging_map() -> Colormap:
    """Return a colour map from orange through the background colour at the centre to blue."""
    return LinearSegmentedColormap.from_list("diverging", ["C1", plt.rcParams["figure.facecolor"], "C0"], N=255)


def matrix(ax: Axes, values: np.ndarray, limit: float | None = None, signed: bool = True, **options) -> AxesImage:
    """Draw a matrix as a heat map with colours for -limit to limit, or 0 to limit if not `signed`.

    The default limit is the largest magnitude in the matrix.
    """
    limit = float(np.abs(values).max()) if limit is None else limit
    ax.grid(False)
    ax.spines[:].set(visible=True, alpha=0.35, linewidth=0.6)
    colors = diverging_map() if signed else sequential_map()
    options = {"aspect": "equal", "interpolation": "none"} | options
    return ax.imshow(values, cmap=colors, vmin=-limit if signed else 0.0, vmax=limit, **options)


def label_words(ax: Axes, rows: list[str], columns: list[str]) -> None:
    ax.set_xticks(range(len(columns)), columns, rotation=60, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0)


def rule_cells(ax: Axes, rows: int, columns: int) -> None:
    """Draw grid lines between the cells of a matrix."""
    ax.set_xticks(np.arange(0.5, columns - 1), minor=True)
    ax.set_yticks(np.arange(0.5, rows - 1), minor=True)
    ax.grid(which="minor", alpha=0.35, linewidth=0.6)
    ax.tick_params(which="minor", length=0)


def write_numbers(ax: Axes, values: np.ndarray, text: Callable[[float], str]) -> None:
    """Write each value of a matrix into its cell."""
    for (i, j), value in np.ndenumerate(values):
        ax.text(j, i, text(value), ha="center", va="center", fontsize=7.5)


def save(name: str, draw: Callable[[], Figure], folder: Path) -> list[Path]:
    """Draw a figure in each theme and save it as PNG and SVG: name.png, name.svg, name-dark.png, name-dark.svg."""
    plt.switch_backend("agg")  # needs no display
    paths = []
    for theme in THEMES:
        with plt.rc_context(theme_parameters(theme)):
            figure = draw()
            for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
                paths.append(folder / f"{name}{theme}.{kind}")
                figure.savefig(paths[-1], metadata=metadata)
            plt.close(figure)
    return paths
