"""Checkpoints of other projects, and for other runtimes."""

from vanilla_transformer.conversion.from_others import convert


__all__ = ["convert"]
