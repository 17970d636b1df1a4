"""Share one browser between all tests of the demo."""

from browsing import browser


__all__ = ["browser"]
