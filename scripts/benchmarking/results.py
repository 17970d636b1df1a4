"""Results of the benchmark, as a table, as JSON and as a picture."""

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from vanilla_transformer.files import markdown_table, open_output
from vanilla_transformer.inside.palette import LIGHT


OURS, PACKED = "ours", "ours, packed"
COMPILED, PACKED_COMPILED = f"{OURS}, compiled", f"{PACKED}, compiled"
HEADER = ("what", "model", "median", "spread", "ours / theirs", "ours, packed / theirs", "")


@dataclass
class Result:
    """The measurements of one model in one section.

    Args:
        values: one per round, in `unit`. More is better, unless `unit` is one of time, memory or loss.
    """

    section: str
    model: str
    unit: str
    values: list[float]
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the interquartile range, divided by the median."""
        if len(self.values) < 4:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4)
        return (high - low) / 2 / self.median


def medians_of(model: str, results: list[Result]) -> dict[str, float]:
    """Return the medians of a model by section."""
    return {result.section: result.median for result in results if result.model == model}


def rows_of(results: list[Result]) -> list[tuple[str, ...]]:
    """Return the cells of `HEADER`. Where more is better, ratios above 1 mean that ours is ahead."""
    ours, packed = medians_of(OURS, results), medians_of(PACKED, results)

    def ratio(medians: dict[str, float], result: Result) -> str:
        known = result.section in medians and result.median
        return f"{medians[result.section] / result.median:.2f}" if known else ""

    return [
        (
            result.section,
            result.model,
            f"{result.median:,.4g} {result.unit}",
            f"± {result.spread:.0%}" if result.spread else "",
            ratio(ours, result),
            ratio(packed, result),
            result.note,
        )
        for result in results
    ]


def draw(results: list[Result]) -> Figure:
    """Draw each section's medians relative to ours, as bars."""
    ours = medians_of(OURS, results)
    shown = [result for result in results if result.section in ours]
    figure = Figure(figsize=(8, 0.32 * len(shown) + 1), layout="constrained")
    axes = figure.subplots()
    names = [f"{result.section}: {result.model}" for result in shown]
    ratios = [result.median / (ours[result.section] or math.inf) for result in shown]
    axes.barh(names, ratios, color=[LIGHT.blue if result.model == OURS else LIGHT.grey for result in shown])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("relative to ours (tokens/s: longer is faster; MiB, seconds, loss: shorter is better)")
    return figure


def save_figure(figure: Figure, file: Path) -> None:
    part = file.with_suffix(f".part{file.suffix}")
    figure.savefig(part, dpi=120)
    part.replace(file)


def write(results: list[Result], machine: str, folder: Path) -> None:
    """Write benchmark.json, .md and .png; each file is replaced only when complete."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_output(str(folder / "benchmark.json")) as stream:
        json.dump({"machine": machine, "results": [vars(result) for result in results]}, stream, indent=1)
    with open_output(str(folder / "benchmark.md")) as stream:
        stream.write(f"{markdown_table(HEADER, rows_of(results))}\n\n{machine}\n")
    save_figure(draw(results), folder / "benchmark.png")
