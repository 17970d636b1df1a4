"""Saved models of this project, under their own heads."""

from pathlib import Path

import torch
from safetensors import SafetensorError
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


def load_whole(loaded_class: type[PreTrainedModel], source: str | Path, **options) -> PreTrainedModel:
    """A saved model in evaluation mode, where its folder holds all of it.

    Args:
        options: of `from_pretrained`.

    Raises:
        ValueError: a weight is missing, has another shape, or is not a finite number; or the file is damaged.
    """
    try:
        model, report = loaded_class.from_pretrained(
            source, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    except SafetensorError as error:
        raise ValueError(f"{source}: the file of its weights is damaged or cut short ({error}).") from error
    for kind, names in (
        ("missing", report["missing_keys"]),
        ("of a shape that its config.json does not say", [name for name, *_ in report["mismatched_keys"]]),
        ("not finite", [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]),
    ):
        if names:
            raise ValueError(f"{source} is not whole: {len(names)} of its weights are {kind}, such as {min(names)}.")
    return model.eval()


def load_model(source: str | Path, heads: tuple[str, ...] = MODELS, **options) -> PreTrainedModel:
    """A saved model by the installed code, in evaluation mode; see `model_class` and `load_whole`."""
    return load_whole(model_class(source, heads, **options), source, **options)
