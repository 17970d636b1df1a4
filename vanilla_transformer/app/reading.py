"""What a model has room for, and endpoints."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import gradio as gr
from gradio.components import Component
from torch import Tensor

from vanilla_transformer.app.loading import Loaded, refusal
from vanilla_transformer.inside.readings import check_room, encoded


MOST_TOKENS = 200  # of a text: letters of some scripts take several each


@contextmanager
def refusing() -> Iterator[None]:
    """Tell the visitor what the library finds wrong."""
    try:
        yield
    except ValueError as error:
        raise refusal(str(error)) from None


def check_length(loaded: Loaded, tokens: int, text: str = "this text", most: int = MOST_TOKENS) -> None:
    """Say in plain words that a text is too long for the model, or for a demo that has other visitors too."""
    with refusing():
        check_room(loaded.model, tokens, text)
    if tokens > most:
        raise refusal(f"Please keep to {most} tokens; {text} has {tokens:,}.")


def encode(loaded: Loaded, text: str) -> dict[str, Tensor]:
    """A text as the model's input, a batch of one; in plain words that it is too long."""
    with refusing():
        batch = encoded(loaded.model, loaded.tokenizer, text)
    check_length(loaded, batch["input_ids"].shape[1])
    return batch


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
