"""Markdown, as tables of numbers are written in cards, pages and terminals."""

from typing import Any


def markdown_table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """A table with a header, in Markdown."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
