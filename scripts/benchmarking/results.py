"""Format benchmark results as a table and write them as JSON and Markdown."""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from vanilla_transformer.files import markdown_table, open_output


OURS, PACKED = "ours", "ours, packed"
HEADER = ("what", "model", "median", "spread", "ours / this", "note")


@dataclass
class Result:
    """Measurements of one model in one section: one value per round, in `unit`."""

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
        """Return half the interquartile range, relative to the median."""
        if len(self.values) < 4:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4)
        return (high - low) / 2 / self.median


def rows_of(results: list[Result]) -> list[tuple[str, ...]]:
    """Return the table rows, with the columns of `HEADER`.

    Ratios are relative to our packed model, or to our padded model in sections without a packed one.
    """
    ours: dict[str, float] = {}
    for result in results:
        if result.model == PACKED or (result.model == OURS and result.section not in ours):
            ours[result.section] = result.median
    return [
        (
            result.section,
            result.model,
            f"{result.median:,.4g} {result.unit}",
            f"± {result.spread:.0%}" if result.spread else "",
            f"{ours[result.section] / result.median:.2f}" if result.section in ours and result.median else "",
            result.note,
        )
        for result in results
    ]


def write(results: list[Result], machine: str, folder: Path) -> None:
    """Write benchmark.json and benchmark.md. If writing fails, earlier files stay unchanged."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_output(str(folder / "benchmark.json")) as stream:
        json.dump({"machine": machine, "results": [vars(result) for result in results]}, stream, indent=1)
    with open_output(str(folder / "benchmark.md")) as stream:
        stream.write(f"{markdown_table(HEADER, rows_of(results))}\n\n{machine}\n")
