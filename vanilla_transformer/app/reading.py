"""Validate visitors' inputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr
from torch import Tensor

from vanilla_transformer.app.loading import LONGEST_INPUT, Loaded
from vanilla_transformer.decoding import token_text
from vanilla_transformer.inside.readings import check_positions, encode_text, tokenizer_options
from vanilla_transformer.pipeline_vanilla_transformer import is_blank


MOST_TOKENS = 200  # maximum number of tokens in a text; in some scripts, a character takes several


def refusal(message: str) -> gr.Error:
    """Return an error that is shown to the visitor, but not printed in the terminal."""
    return gr.Error(message, print_exception=False)


def check_text(text: str | None, purpose: str, keep_space: bool = False) -> str:
    """Return the text, stripped unless `keep_space`; raise an error if it is not a string, is empty, or is too long.

    Trailing spaces matter to a language model, but are a typo for other models.
    """
    if not isinstance(text, str | None):  # the page sends only strings, but API clients may send anything
        raise refusal(f"A text is needed {purpose}, not {text!r:.50}.")
    text = text or ""
    if is_blank(text):
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


def warn_of_unknown_letters(loaded: Loaded, text: str) -> bool:
    """Warn the visitor if most letters have no token, because they did not occur in the training data.

    Returns:
        Whether a warning was shown.
    """
    ids = loaded.tokenizer(text, add_special_tokens=False, **tokenizer_options(loaded.model))["input_ids"]
    known = "".join(loaded.tokenizer.decode([i], skip_special_tokens=True) for i in ids)
    unknown = 2 * sum(map(str.isalpha, known)) < sum(map(str.isalpha, text))
    if unknown:
        gr.Warning("The model has never seen most of these letters, so its answer has no meaning.")
    return unknown


def token_name(loaded: Loaded, i: int) -> str:
    """Return a token's text in quotes; for part of a character, return the token's name instead."""
    text = token_text(loaded.tokenizer, i)
    return loaded.tokenizer.convert_ids_to_tokens(i) if "\ufffd" in text else repr(text)


@contextmanager
def refusing() -> Iterator[None]:
    """Convert a ValueError to an error message for the visitor."""
    try:
        yield
    except ValueError as error:
        raise refusal(str(error)) from None


def check_length(loaded: Loaded, tokens: int, text: str = "this text", most: int = MOST_TOKENS) -> None:
    """Raise an error if a text has too many tokens for the model, or more than `most`, the limit of the demo."""
    with refusing():
        check_positions(loaded.model, tokens, text)
    if tokens > most:
        raise refusal(f"Please keep to {most} tokens; {text} has {tokens:,}.")


def encode(loaded: Loaded, text: str) -> dict[str, Tensor]:
    """Tokenise a text as a batch of size 1; raise an error if it is too long."""
    with refusing():
        batch = encode_text(loaded.model, loaded.tokenizer, text)
    check_length(loaded, batch["input_ids"].shape[1])
    return batch
