"""How much of a text a model can read."""

import gradio as gr

from loading import Loaded


def check_length(loaded: Loaded, tokens: int, text: str = "this text") -> None:
    """In plain words that a text is too long for the model, if it has more tokens than learned positions.

    Sinusoidal positions have no end.
    """
    config = loaded.model.config
    if config.position_embedding == "learned" and tokens > config.max_position_embeddings:
        raise gr.Error(
            f"The model has learned {config.max_position_embeddings} positions, and {text} has {tokens} tokens. "
            "Please shorten it."
        )
