"""Convert checkpoints from other projects and to them, and export models for other runtimes."""

from vanilla_transformer.conversion.from_others import convert


__all__ = ["convert"]
