"""Look inside a model: record its steps, intervene in its forward pass, and explore its predictions."""

from vanilla_transformer.lazy import lazy_names


__all__ = ["Interventions", "explore", "explore_data", "intervene", "record"]

# Importing PyTorch takes seconds, and the page of the demo needs only the texts of its scripts.
__getattr__ = lazy_names(
    __name__,
    {
        "interventions": ("Interventions", "intervene"),
        "notebook": ("explore",),
        "page": ("explore_data",),
        "recorder": ("record",),
    },
)
