"""Style figures and tables with a transparent background, and colours that are legible in light and dark mode."""

from html import escape

from cycler import cycler
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
    """Draw the text and lines of the axes in grey, on a transparent background."""
    axes.set_facecolor("none")
    axes.tick_params(which="both", colors=GREY)
    axes.spines[:].set_color(GREY)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(GREY)
        axis.get_offset_text().set_color(GREY)


def blank(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure (size in inches) that pyplot does not manage."""
    figure = Figure(figsize=(width, height), dpi=160, facecolor="none", layout="constrained")
    axes = figure.subplots()
    style(axes)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_prop_cycle(cycler(color=[BLUE, ORANGE], linestyle=["-", "--"]))
    return figure, axes


def add_scale(figure: Figure, image: AxesImage, **options) -> None:
    """Add a colour bar to a heat map."""
    bar = figure.colorbar(image, **options)
    bar.outline.set_visible(False)
    style(bar.ax)


def heat_map(rows: list[str], columns: list[str], weights: Tensor, names: tuple[str, str]) -> str:
    """Return a matrix (rows, columns) of non-negative numbers as an HTML table; larger values are a deeper blue.

    Unlike matplotlib, a browser has glyphs for every script. Screen readers and tooltips get the values.
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
    told = escape(f"Rows: {names[0]}. Columns: {names[1]}. No colour means 0, full blue means {most:.3g}.")
    head, body = f"<thead><tr><td></td>{heads}</tr></thead>", f"<tbody>{lines}</tbody>"
    table = f"<table><caption>{told}</caption>{head}{body}</table>"
    return f'<div class="heat-map"><div class="wide">{table}</div></div>'
