"""How the demo's pictures and tables look: without a background, in colours that are legible on white and on dark."""

import base64
import gc
import io
from collections.abc import Callable
from functools import wraps
from html import escape
from typing import Any

from cycler import cycler
from gradio.components.plot import PlotData
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from vanilla_transformer.inside.palette import BLUE, GREY, ORANGE


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


def heat_map(rows: list[str], columns: list[str], weights: Tensor, names: tuple[str, str]) -> str:
    """A matrix (rows, columns) of numbers from 0 on, as a table: the bluer, the larger. What is 0 is not painted.

    The browser has letters for every script; each number is there for a pointer and for a screen reader.
    """
    most = weights.max().item() or 1.0

    def cell(weight: float) -> str:
        shade, number = f"{BLUE}{round(255 * weight / most):02x}", f"{weight:.4g}"
        return f'<td style="background: {shade}" title="{number}"><span>{number}</span></td>'

    heads = "".join(f'<th scope="col"><span>{escape(column)}</span></th>' for column in columns)
    lines = "".join(
        f'<tr><th scope="row">{escape(row)}</th>{"".join(map(cell, numbers))}</tr>'
        for row, numbers in zip(rows, weights.tolist(), strict=True)
    )
    told = escape(f"Rows: {names[0]}. Columns: {names[1]}. No colour is 0, full blue {most:.3g}.")
    head, body = f"<thead><tr><td></td>{heads}</tr></thead>", f"<tbody>{lines}</tbody>"
    table = f"<table><caption>{told}</caption>{head}{body}</table>"
    return f'<div class="heat-map"><div class="wide">{table}</div></div>'


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
