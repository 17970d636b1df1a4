"""Extract fenced code blocks from Markdown pages, and the output that comments in the code promise."""

import re
from dataclasses import dataclass
from pathlib import Path


BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]+) -->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced code block.

    Args:
        place: "page:line".
        mark: HTML comment before the block, or an empty string.
    """

    place: str
    language: str
    code: str
    mark: str


def blocks(page: Path, language: str) -> list[Block]:
    """Return the code blocks of a page that are in `language`."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        found.append(Block(f"{page.name}:{line}", match["language"], match["code"], match["mark"] or ""))
    return [block for block in found if block.language == language]


def printed(code: str) -> list[str]:
    """Return the expected output lines: the comments on the line of a `print` call or directly below it."""
    lines, after_print = [], False
    for line in map(str.strip, code.splitlines()):
        if line.startswith("print("):
            after_print = True
            lines += line.split("  # ")[1:]
        elif after_print and line.startswith("# "):
            lines.append(line.removeprefix("# "))
        else:
            after_print = False
    return lines
