"""How the demo's pictures look: without a background, in colours that are legible on white, on dark, and on paper."""

import base64
import gc
import io
from collections.abc import Callable
from functools import wraps
from typing import Any

from cycler import cycler
from gradio.components.plot import PlotData
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from vanilla_transformer.inside.palette import BLUE, GREY, ORANGE


# What is 0 is not painted.
SEQUENTIAL = LinearSegmentedColormap.from_list("sequential", [to_rgba(BLUE, 0), to_rgba(BLUE)])
DIVERGING = LinearSegmentedColormap.from_list(
    "diverging", [(0, ORANGE), (0.5, to_rgba(ORANGE, 0)), (0.5, to_rgba(BLUE, 0)), (1, BLUE)]
)


def style(axes: Axes) -> None:
    """Everything that is written or ruled in grey, and nothing behind it."""
    axes.set_facecolor("none")
    axes.tick_params(which="both", colors=GREY)
    axes.spines[:].set_color(GREY)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(GREY)
        axis.get_offset_text().set_color(GREY)


def blank(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty picture, of a size in inches. It is nobody else's: matplotlib's own state stays as it is."""
    figure = Figure(figsize=(width, height), dpi=160, facecolor="none", layout="constrained")
    axes = figure.subplots()
    style(axes)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_prop_cycle(cycler(color=[BLUE, ORANGE], linestyle=["-", "--"]))
    return figure, axes


def add_scale(figure: Figure, image: AxesImage, **options) -> None:
    """The bar that says which colour is which number."""
    bar = figure.colorbar(image, **options)
    bar.outline.set_visible(False)
    style(bar.ax)


def name_cells(axes: Axes, rows: list[str], columns: list[str]) -> None:
    """Write the words beside a drawn matrix, whatever they are, and lines between its cells."""
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", rotation_mode="anchor", parse_math=False)
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.set_xticks([i + 0.5 for i in range(len(columns) - 1)], minor=True)
    axes.set_yticks([i + 0.5 for i in range(len(rows) - 1)], minor=True)
    axes.grid(which="minor", color=GREY, alpha=0.3, linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set(visible=True, alpha=0.4)


def encode(figure: Figure) -> PlotData:
    """A picture as the page takes it, and the end of the figure.

    A drawn figure is a knot of objects that only the garbage collector can undo. Its full rounds are rare: hundreds of
    pictures would lie about until the next one.
    """
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    figure.clear()
    gc.collect(1)
    return PlotData(type="matplotlib", plot=f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}")


def pictured(answer: Callable) -> Callable:
    """The same function, whose figures come encoded."""

    def encoded(value: Any) -> Any:
        return encode(value) if isinstance(value, Figure) else value

    @wraps(answer)
    def answer_in_pictures(*args, **kwargs):
        values = answer(*args, **kwargs)
        return tuple(map(encoded, values)) if isinstance(values, tuple) else encoded(values)

    return answer_in_pictures
