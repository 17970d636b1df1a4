"""One browser, shared by all tests of the demo."""

from browsing import browser


__all__ = ["browser"]
