"""The browser that the tests of the demo share."""

from browsing import browser


__all__ = ["browser"]
