"""What a model has room for, and endpoints."""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import gradio as gr
from gradio.components import Component

from loading import Loaded, refusal


def most_tokens(loaded: Loaded) -> float:
    """How many tokens a model can read: as many as it has learned positions. Sinusoidal ones have no end."""
    config = loaded.model.config
    return config.max_position_embeddings if config.position_embedding == "learned" else math.inf


def check_length(loaded: Loaded, tokens: int, text: str = "this text") -> None:
    """Say in plain words that a text is too long for the model."""
    most = most_tokens(loaded)
    if tokens > most:
        raise refusal(f"The model has learned {most} positions, and {text} has {tokens} tokens. Please shorten it.")


def offer(respond: Callable, api_name: str, *forms: Component) -> None:
    """Make an endpoint of a function, whose values are sent as such components send them; no page shows them."""

    def sent(form: Component, value: Any) -> Any:
        value = form.postprocess(value)
        return value.model_dump() if hasattr(value, "model_dump") else value

    @wraps(respond)
    def respond_in_form(*args, **kwargs):
        values = respond(*args, **kwargs)
        values = values if isinstance(values, tuple) else (values,)
        found = tuple(sent(form, value) for form, value in zip(forms, values, strict=True))
        return found if len(found) > 1 else found[0]

    gr.api(respond_in_form, api_name=api_name)
