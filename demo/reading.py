"""A text as a model reads it: from the page, and cut into tokens, which may be more than it has positions for."""

import math
from collections.abc import Callable, Sequence

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

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


def cut(loaded: Loaded, text: str) -> list[tuple[str, list[int]]]:
    """The text as the model reads it: characters with the places of their tokens.

    A character that takes several tokens comes once, with all of them.
    """
    encoded = loaded.tokenizer(text, return_offsets_mapping=True)
    pieces: list[tuple[str, list[int]]] = []
    begin = end = 0  # of the last piece in the text
    for i, (start, stop) in enumerate(encoded["offset_mapping"]):
        if encoded.sequence_ids()[i] is None:
            pieces.append((loaded.tokenizer.decode([encoded["input_ids"][i]]), [i]))
        elif start < end:
            end = max(end, stop)
            pieces[-1] = (text[begin:end], [*pieces[-1][1], i])
        else:
            begin, end = end, stop
            pieces.append((text[begin:end], [i]))
    return pieces


def answer_with(
    respond: Callable,
    button: gr.Button,
    texts: Sequence[gr.Textbox],
    examples: gr.Examples,
    outputs: Sequence[Component],
    api_name: str,
    options: Sequence[Component] = (),
) -> list[Dependency]:
    """Call `respond` with texts and options at a click on the button, at Enter, and at a click on an example."""
    inputs = [*texts, *options]
    asked = gr.on([button.click, *(text.submit for text in texts)], respond, inputs, list(outputs), api_name=api_name)
    private = {"api_name": f"{api_name}_example", "api_visibility": "private"}
    chosen = examples.load_input_event.success(respond, inputs, list(outputs), **private)
    return [asked, chosen]
