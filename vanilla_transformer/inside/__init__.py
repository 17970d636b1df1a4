"""Look inside a model: record its steps, intervene in its forward pass, and explore its predictions."""

from vanilla_transformer.inside.interventions import Interventions, intervene
from vanilla_transformer.inside.page import explore, explore_data
from vanilla_transformer.inside.recorder import record


__all__ = ["Interventions", "explore", "explore_data", "intervene", "record"]
