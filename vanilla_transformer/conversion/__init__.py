"""Import checkpoints of published architectures, and export models to other formats and runtimes."""

from vanilla_transformer.conversion.from_others import convert


__all__ = ["convert"]
