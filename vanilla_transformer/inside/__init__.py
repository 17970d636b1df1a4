"""What happens in a forward pass, step by step."""

from vanilla_transformer.inside.recorder import record


__all__ = ["record"]
