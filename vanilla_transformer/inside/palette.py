"""Define the colours of figures, pages and tables. Blue marks positive or large values, orange negative ones."""

from typing import NamedTuple


# legible on light and dark backgrounds
BLUE, ORANGE, GREY = "#2f81f7", "#db6d28", "#777b84"


class Theme(NamedTuple):
    """Colours of the background (`paper`), text (`ink`), thin lines (`rule`) and curves."""

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
        """The curve colours, in order of use."""
        return list(self[3:])


LIGHT = Theme("#ffffff", "#1f2328", "#d1d9e0", "#0969da", "#d1570b", "#1a7f37", "#8250df", "#bf3989", "#59636e")
DARK = Theme("#0d1117", "#e6edf3", "#3d444d", "#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#f778ba", "#9198a1")


def css(name: str) -> str:
    """Return a theme colour as CSS that follows the browser's light or dark mode."""
    return f"light-dark({getattr(LIGHT, name)}, {getattr(DARK, name)})"


def rgb(color: str) -> tuple[int, ...]:
    """Return the red, green and blue components of "#rrggbb", 0 to 255."""
    return tuple(bytes.fromhex(color.removeprefix("#")))
