"""The project's colours: of pictures, pages and tables. Blue is positive or much, orange negative."""

from typing import NamedTuple


# Legible on white and on dark, for what is seen on either.
BLUE, ORANGE, GREY = "#2f81f7", "#db6d28", "#777b84"


class Theme(NamedTuple):
    """A background, what is written on it, thin lines, and colours for curves, of which the first two are as above."""

    paper: str
    ink: str
    rule: str
    blue: str
    orange: str
    green: str
    purple: str
    pink: str
    grey: str

    @property
    def curves(self) -> list[str]:
        """The colours for curves, in the order in which a figure takes them."""
        return list(self[3:])


LIGHT = Theme("#ffffff", "#1f2328", "#d1d9e0", "#0969da", "#d1570b", "#1a7f37", "#8250df", "#bf3989", "#59636e")
DARK = Theme("#0d1117", "#e6edf3", "#3d444d", "#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#f778ba", "#9198a1")


def css(name: str) -> str:
    """A colour of the theme for CSS, where the reader's screen decides which."""
    return f"light-dark({getattr(LIGHT, name)}, {getattr(DARK, name)})"


def rgb(color: str) -> tuple[int, ...]:
    """The three parts of a colour #rrggbb, 0 to 255."""
    return tuple(bytes.fromhex(color.removeprefix("#")))
