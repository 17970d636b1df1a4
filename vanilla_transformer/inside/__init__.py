"""What happens in a forward pass, step by step, and what becomes of it when parts are switched off."""

from vanilla_transformer.inside.explore import explore, explore_data
from vanilla_transformer.inside.interventions import Changes, changed
from vanilla_transformer.inside.recorder import record


__all__ = ["Changes", "changed", "explore", "explore_data", "record"]
