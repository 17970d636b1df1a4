"""Saved models of this project, under their own heads."""

from pathlib import Path

from transformers import AutoConfig, PreTrainedModel

import vanilla_transformer


MODELS = tuple(name for name in vanilla_transformer.__all__ if name.endswith("Model") or "TransformerFor" in name)


def model_class(source: str | Path, heads: tuple[str, ...] = MODELS, **options) -> type[PreTrainedModel]:
    """The class of a saved model.

    Args:
        source: its folder, or its name on the Hub.
        heads: names of the classes that will do.
        options: of `from_pretrained`, such as `revision`.

    Raises:
        ValueError: it is of another class.
    """
    architecture = (AutoConfig.from_pretrained(source, **options).architectures or ["none"])[0]
    if architecture not in heads:
        raise ValueError(f"{source} holds a model of class {architecture}; it must be one of: {', '.join(heads)}.")
    return getattr(vanilla_transformer, architecture)


def load_model(source: str | Path, heads: tuple[str, ...] = MODELS, **options) -> PreTrainedModel:
    """A saved model by the installed code, in evaluation mode. Arguments and errors: see `model_class`."""
    return model_class(source, heads, **options).from_pretrained(source, **options).eval()
