"""Display recorded steps as tables in the terminal, or as self-contained HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table
from torch import Tensor

from vanilla_transformer.inside.explanations import describe_step, explanation
from vanilla_transformer.inside.mathml import mathml
from vanilla_transformer.inside.palette import BLUE, ORANGE, css, rgb
from vanilla_transformer.inside.recorder import CROSS_ATTENTION, MASKED, Step


MAX_ROWS, MAX_COLUMNS = 12, 8  # maximum size of a displayed matrix; the middle of larger ones is omitted


@dataclass
class Walk:
    """A step-by-step walkthrough: recorded steps with labels for their rows and columns.

    Args:
        title, note: heading and the remark below it.
        words: the word at each position of each sentence.
        source_words: the same for the encoder's input, to label the keys of cross-attention.
        printed: (part, name) of a step -> published values (positions, features) for the first sentence.
        edges: number of first and last columns of wide matrices in `printed`; 0 means all columns.
        beyond: (part, name) of steps that the publication does not compute.
        likeliest: for each position, a label such as "after <s>" and the most probable words with their probabilities.
    """

    title: str
    note: str
    steps: Sequence[Step]
    words: list[list[str]]
    source_words: list[list[str]]
    printed: dict[tuple[str, str], list] = field(default_factory=dict)
    edges: int = 0
    beyond: frozenset[tuple[str, str]] = frozenset()
    likeliest: list[tuple[str, list[tuple[str, float]]]] = field(default_factory=list)

    @property
    def max_columns(self) -> int:
        """The maximum number of columns to display; with `edges`, as many as the publication prints."""
        return 2 * self.edges + 1 if self.edges else MAX_COLUMNS

    def difference(self, step: Step) -> float | None:
        """Return the largest absolute difference from the published values; None if there are none."""
        if (step.part, step.name) not in self.printed:
            return None
        printed, found = torch.tensor(self.printed[step.part, step.name]), step.tensor[0]
        if printed.shape != found.shape:
            found = torch.cat((found[:, : self.edges], found[:, -self.edges :]), dim=-1)
        return (found - printed).nan_to_num().abs().max().item()

    def labels(self, step: Step, axis: str, sentence: int) -> list[str] | None:
        """Return the words that label an axis; None for a feature axis."""
        if axis not in ("length", "queries", "keys"):
            return None
        from_source = step.part == CROSS_ATTENTION and axis == "keys"
        return (self.source_words if from_source else self.words)[sentence]


@dataclass
class Cell:
    """A displayed entry of a matrix."""

    text: str
    strength: float = 0.0  # value divided by the largest magnitude in the matrix, -1 to 1


def kept(size: int, limit: int) -> list[int | None]:
    """Return the indices of at most `limit` rows or columns to display; None marks the omitted middle."""
    return list(range(size)) if size <= limit else [*range(limit // 2), None, *range(size - (limit - 1) // 2, size)]


def matrix_cells(matrix: Tensor, precision: int, max_columns: int, is_mask: bool = False) -> list[list[Cell]]:
    """Return the cells of a matrix, omitting the middle if it is large."""
    finite = matrix.masked_fill(matrix < MASKED, 0).float()
    largest = finite.abs().max().clamp(min=1e-12)

    def cell(i: int | None, j: int | None) -> Cell:
        if i is None or j is None:
            return Cell("…")
        value = matrix[i, j].item()
        if is_mask:
            return Cell("■" if value == 0 else "·", float(value == 0))
        if not matrix.is_floating_point():
            return Cell(str(value))
        return Cell("−∞" if value < MASKED else f"{value:.{precision}f}", (finite[i, j] / largest).item())

    columns = kept(matrix.shape[1], max_columns)
    return [[cell(i, j) for j in columns] for i in kept(matrix.shape[0], MAX_ROWS)]


def shortened_labels(names: list[str] | None, size: int, limit: int) -> list[str]:
    """Return the labels of the displayed rows or columns; without names, label them from 1."""
    names = [str(i + 1) for i in range(size)] if names is None else names
    return ["…" if i is None else names[i] for i in kept(size, limit)]


class Grid(NamedTuple):
    """A matrix to display: its caption, row and column labels, and cells."""

    caption: str
    rows: list[str]
    columns: list[str]
    cells: list[list[Cell]]


def learned_tables(step: Step, precision: int, max_columns: int) -> list[Grid]:
    """Return the learned matrices of a step as grids; a bias becomes a matrix with one row."""
    result = []
    for name, values in step.matrices.items():
        matrix = values if values.dim() == 2 else values[None]
        rows, columns = (
            shortened_labels(None, *sizes) for sizes in zip(matrix.shape, (MAX_ROWS, max_columns), strict=True)
        )
        rows = rows if values.dim() == 2 else [""]
        result.append(Grid(name, rows, columns, matrix_cells(matrix, precision, max_columns)))
    return result


def tables(walk: Walk, step: Step, precision: int, max_columns: int) -> list[Grid]:
    """Return a step's result for each sentence as a grid, with a caption if its learned matrices are shown too."""
    caption = step.equation.partition(" = ")[0] if step.matrices else ""
    result = []
    for sentence, values in enumerate(step.tensor):
        matrix = values if values.dim() == 2 else values[:, None]
        rows, columns = (*step.axes[1:], "")[:2]
        row_labels = shortened_labels(walk.labels(step, rows, sentence), matrix.shape[0], MAX_ROWS)
        column_names = walk.labels(step, columns, sentence) if columns else [""]
        column_labels = shortened_labels(column_names, matrix.shape[1], max_columns)
        cells = matrix_cells(matrix, precision, max_columns, step.name == "mask")
        result.append(Grid(caption, row_labels, column_labels, cells))
    return result


def described_shape(step: Step) -> str:
    """Return the shape of a step as text, such as "batch 1 × length 5 × d_model 8"."""
    return " × ".join(f"{axis} {size}" for axis, size in zip(step.axes, step.shape, strict=True))


def agreement(walk: Walk, step: Step) -> str:
    """Return a note on how closely a step agrees with published values, or "" if there are none."""
    if (step.part, step.name) in walk.beyond:
        return "our numbers, not published"
    difference = walk.difference(step)
    if difference is None:
        return ""
    return f"as published within {difference:.1g}" if difference else "exactly as published"


def print_walk(walk: Walk, precision: int, console: Console | None = None) -> None:
    """Print the steps as tables, followed by the most probable words."""
    console = Console() if console is None else console
    column = precision + 5  # a number with its sign and padding
    if walk.edges:  # show all published columns even in a narrow terminal
        console.width = max(console.width, 16 + walk.max_columns * column)
    fitting = (console.width - 16) // column
    max_columns = min(walk.max_columns, max(4, fitting))
    console.rule(f"[bold]{escape_markup(walk.title)}")
    console.print(walk.note, style="dim")
    for part, steps in groupby(walk.steps, key=lambda step: step.part):
        console.print()
        console.rule(part, style="cyan")
        for step in steps:
            console.print(f"\n[bold]{step.name}[/]   {escape_markup(step.equation)}", highlight=False)
            console.print(explanation(step), highlight=False)
            console.print(f"[dim]{described_shape(step)}   {step.source}[/]", highlight=False)
            if said := agreement(walk, step):
                console.print(f"[green]{said}[/]", highlight=False)
            for grid in (*learned_tables(step, precision, max_columns), *tables(walk, step, precision, max_columns)):
                print_grid(grid, console)
    if walk.likeliest:
        console.rule("the most probable words", style="cyan")
        width = max(len(place) for place, _ in walk.likeliest)
        for place, words in walk.likeliest:
            line = "   ".join(f"{word} {probability:.1%}" for word, probability in words)
            console.print(f"{place:>{width}}   {line}", highlight=False, markup=False, soft_wrap=True)


def print_grid(grid: Grid, console: Console) -> None:
    """Print a matrix as a table, with the caption in the top left corner."""
    table = Table(
        grid.caption, *map(escape_markup, grid.columns), box=box.SIMPLE_HEAD, header_style="dim", padding=(0, 1, 0, 0)
    )
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for label, row in zip(grid.rows, grid.cells, strict=True):
        table.add_row(f"[dim]{escape_markup(label)}[/]", *(colored(cell) for cell in row))
    console.print(table)


def colored(cell: Cell) -> str:
    """Return a cell in rich markup: blue if positive, red if negative, bold if large, dim if small."""
    if abs(cell.strength) < 0.05:
        return f"[dim]{cell.text}[/]"
    color = "blue" if cell.strength > 0 else "red"
    return f"[{'bold ' if abs(cell.strength) > 0.6 else ''}{color}]{cell.text}[/]"


COLORS = {"ink": "ink", "soft": "grey", "line": "rule", "agrees": "green", "paper": "paper"}
STYLE = f".walk {{ {' '.join(f'--{name}: {css(color)};' for name, color in COLORS.items())} }}"
STYLE += """
.walk { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem;
  color-scheme: light dark; color: var(--ink); background: var(--paper); }
.walk h2 { border-bottom: 1px solid var(--line); margin: 2rem 0 .5rem; }
.walk section { margin: 1.2rem 0; break-inside: avoid; }
.walk .name { font-weight: 600; margin-right: 1rem; }
.walk .equation { display: inline-block; font-size: 1.15em; margin-right: 1rem; padding-bottom: .3em; }
.walk .hide { float: right; color: var(--soft); font-size: .85em; }
.walk section:has(.hide :checked) .result td { background: none !important; color: transparent; }
.walk .said { margin: .2rem 0; }
.walk .about, .walk .note { color: var(--soft); font-size: .85em; }
.walk .about a { color: inherit; }
.walk .agrees { color: var(--agrees); font-size: .85em; }
.walk .matrices { display: flex; flex-wrap: wrap; gap: 1rem; }
.walk .matrix { overflow-x: auto; max-width: 100%; }
.walk table { border-collapse: collapse; margin-top: .3rem; font-variant-numeric: tabular-nums; }
.walk th { color: var(--soft); font-weight: 400; font-size: .85em; padding: .15rem .5rem; text-align: right; }
.walk td { padding: .15rem .5rem; text-align: right; border: 1px solid var(--line); print-color-adjust: exact; }
@media print {
  .walk { color-scheme: light; max-width: none; padding: 0; font-size: 9pt; }
  .walk h1 { margin-top: 0; }
  .walk h2 { break-after: avoid; margin-top: 1rem; }
  .walk section { margin: .7rem 0; }
  .walk .matrix { overflow: visible; }
  .walk table { font-size: 7.5pt; }
  .walk td, .walk th { padding: .05rem .2rem; }
  .walk section:has(.hide :checked) .result td { padding: .5rem 1.2rem; }
  .walk .hide { display: none; }
}
@page { margin: 12mm; }
"""


def matrix_html(grid: Grid, classes: str = "matrix") -> str:
    """Return a matrix as a horizontally scrollable HTML table, with each cell shaded by its strength."""
    header = "".join(f"<th>{escape(label)}</th>" for label in grid.columns)
    corner = mathml(grid.caption) if grid.caption else ""
    lines = [f'<div class="{classes}"><table><tr><th>{corner}</th>{header}</tr>']
    for label, row in zip(grid.rows, grid.cells, strict=True):
        cells = "".join(f'<td style="background:{background(cell.strength)}">{cell.text}</td>' for cell in row)
        lines.append(f"<tr><th>{escape(label)}</th>{cells}</tr>")
    return "\n".join([*lines, "</table></div>"])


def background(strength: float) -> str:
    """Return a translucent blue for positive or orange for negative values, legible behind dark and light text."""
    red, green, blue = rgb(BLUE if strength > 0 else ORANGE)
    return f"rgb({red} {green} {blue} / {0.5 * abs(strength):.2f})"


def step_html(walk: Walk, step: Step, precision: int) -> str:
    """Return a step as an HTML section: name, equation, explanation, shape, line of code and matrices.

    A checkbox hides the result, so that the printed page is an exercise.
    """
    matrices = [matrix_html(grid) for grid in learned_tables(step, precision, walk.max_columns)]
    matrices += [matrix_html(grid, "matrix result") for grid in tables(walk, step, precision, walk.max_columns)]
    card = describe_step(step)
    code = f'<a href="{card["link"]}">{step.source}</a> <code>{escape(card["code"])}</code>' if step.source else ""
    return (
        '<section><label class="hide"><input type="checkbox"> hide the result</label>'
        f'<span class="name">{escape(step.name)}</span><span class="equation">{card["mathml"]}</span>'
        f'<p class="said">{escape(card["sentence"])}</p>'
        f'<span class="about">{described_shape(step)} · {code}</span> '
        f'<span class="agrees">{agreement(walk, step)}</span>\n'
        f'<div class="matrices">{"".join(matrices)}</div></section>'
    )


def walk_html(walk: Walk, precision: int) -> str:
    """Return the steps as HTML, including their stylesheet, to embed in a page."""
    parts = [f'<style>{STYLE}</style><div class="walk"><h1>{escape(walk.title)}</h1>']
    parts.append(f'<p class="note">{escape(walk.note)}</p>')
    for part, steps in groupby(walk.steps, key=lambda step: step.part):
        parts += [f"<h2>{part}</h2>", *(step_html(walk, step, precision) for step in steps)]
    if walk.likeliest:
        rows = "".join(
            f"<tr><th>{escape(place)}</th>{''.join(f'<td>{escape(word)} {p:.1%}</td>' for word, p in words)}</tr>"
            for place, words in walk.likeliest
        )
        parts.append(
            f'<section><h2>the most probable words</h2><div class="matrix"><table>{rows}</table></div></section>'
        )
    return "\n".join([*parts, "</div>"])


def page_html(walks: Sequence[Walk], precision: int) -> str:
    """Return a self-contained web page with one or more walks."""
    body = "\n".join(walk_html(walk, precision) for walk in walks)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>html {{ color-scheme: light dark; background: {css('paper')}; }} "
        "@media print { html { color-scheme: light; } }</style>"
        f"<title>{escape(walks[0].title)}</title>\n{body}\n</html>\n"
    )
