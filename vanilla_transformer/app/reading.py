"""Validate visitors' inputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr

from vanilla_transformer.app.loading import LONGEST_INPUT, DemoModel


MOST_TOKENS = 200  # maximum number of tokens in a text; in some scripts, a character takes several


def refusal(message: str) -> gr.Error:
    """Return an error that is shown to the visitor, but not printed in the terminal."""
    return gr.Error(message, print_exception=False)


@contextmanager
def refusing() -> Iterator[None]:
    """Convert a ValueError to an error message for the visitor."""
    try:
        yield
    except ValueError as error:
        raise refusal(str(error)) from None


def check_text(text: Any, purpose: str, keep_space: bool = False) -> str:
    """Return the text, stripped unless `keep_space`; raise an error if it is not a string, is empty, or is too long.

    Trailing spaces matter to a language model, but are a typo for other models.
    """
    if not isinstance(text, str | None):  # the page sends only strings, but API clients may send anything
        raise refusal(f"A text is needed {purpose}, not {text!r:.50}.")
    text = text or ""
    if not text.strip():
        raise refusal(f"Please type something {purpose}.")
    if not keep_space:
        text = text.strip()
    if len(text) > LONGEST_INPUT:
        raise refusal(f"Please keep to {LONGEST_INPUT} characters; this text has {len(text):,}.")
    return text


def is_integer(value: Any) -> bool:
    """Whether a JSON value is an integer; booleans do not count."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_number(name: str, number: float | None, least: float, most: float) -> None:
    """Raise an error if a value is not a number from `least` to `most`."""
    if not isinstance(number, int | float) or not least <= number <= most:  # NaN fails the comparison
        raise refusal(f"{name} must be a number from {least} to {most}, not {number}.")


def check_length(loaded: DemoModel, tokens: int, text: str = "this text", most: int = MOST_TOKENS) -> None:
    """Raise an error if a text has too many tokens for the model, or more than `most`, the limit of the demo."""
    from vanilla_transformer.inside.readings import check_positions

    with refusing():
        check_positions(loaded.model, tokens, text)
    if tokens > most:
        raise refusal(f"Please keep to {most} tokens; {text} has {tokens:,}.")


def encode(loaded: DemoModel, text: str) -> dict[str, Any]:
    """Tokenise a text as a batch of size 1; raise an error if it is too long."""
    from vanilla_transformer.inside.readings import encode_text

    with refusing():
        batch = encode_text(loaded.model, loaded.tokenizer, text)
    check_length(loaded, batch["input_ids"].shape[1])
    return batch
