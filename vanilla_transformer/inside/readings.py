"""Tokenise text for a model, and display tokens in readable form."""

import math
import re
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from vanilla_transformer.decoding import token_text
from vanilla_transformer.inside.recorder import unwrapped


BLANK = "___"  # placeholder for the mask token in a text
INPUTS = ("input_ids", "attention_mask")
# Character that represents a byte in byte-level tokens -> the byte
BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}


def is_partial(tokenizer: PreTrainedTokenizerBase, token: int) -> bool:
    """Whether a token is only part of a character."""
    return "\ufffd" in token_text(tokenizer, token)


def display_token(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Return the text of a token, or its bytes in hexadecimal if it is only part of a character."""
    if not is_partial(tokenizer, token):
        return token_text(tokenizer, token)
    name = str(tokenizer.convert_ids_to_tokens(token))
    if fallback := re.fullmatch("<0x(..)>", name):  # a byte in a vocabulary of characters
        return fallback[1]
    return " ".join(f"{BYTES[letter]:02X}" for letter in name) if set(name) <= BYTES.keys() else name


def split_text(tokenizer: PreTrainedTokenizerBase, text: str, **options) -> list[tuple[str, list[int]]]:
    """Split `text` into pieces, each with the positions of its tokens.

    A piece is one token, or all tokens of a character that is split into several.

    Args:
        options: keyword arguments of the tokenizer.
    """
    encoded = tokenizer(text, return_offsets_mapping=True, **options)
    pieces: list[tuple[str, list[int]]] = []
    begin = end = 0  # character offsets of the last piece
    for position, (start, stop) in enumerate(encoded["offset_mapping"]):
        if encoded.sequence_ids()[position] is None:
            pieces.append((str(tokenizer.decode([encoded["input_ids"][position]])), [position]))
        elif start < end:
            end = max(end, stop)
            pieces[-1] = (text[begin:end], [*pieces[-1][1], position])
        else:
            begin, end = end, stop  # a piece includes the space before its token
            pieces.append((text[begin:end], [position]))
    return pieces


def tokenizer_options(model: PreTrainedModel) -> dict[str, bool]:
    """Return the tokenizer options used in training: for models that generate text, "</s>" is ordinary text."""
    return {"split_special_tokens": unwrapped(model).can_generate()}


def encode_text(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> dict[str, Tensor]:
    """Encode `text` as a batch of one on the model's device.

    Raises:
        ValueError: the text has more tokens than the model has position embeddings.
    """
    batch = tokenizer([text], return_tensors="pt", **tokenizer_options(model))
    check_positions(model, batch["input_ids"].shape[1])
    return {name: batch[name].to(model.device) for name in INPUTS}


def until_end(ids: list[int], ends: int | list[int] | None) -> list[int]:
    """Truncate generated ids after the first end token, which drops padding; `ends` is the config's `eos_token_id`."""
    found = {*ends} if isinstance(ends, list) else {ends}
    return ids[: next((i + 1 for i, token in enumerate(ids) if token in found), len(ids))]


def max_length(model: PreTrainedModel) -> Any:
    """Return the maximum sequence length: the number of learned position embeddings, or infinity with sinusoids."""
    config = model.config
    return config.max_position_embeddings if config.position_embedding == "learned" else math.inf


def check_positions(model: PreTrainedModel, tokens: int, text: str = "this text") -> None:
    """Raise a ValueError if a text of `tokens` tokens exceeds `max_length`; `text` describes it in the message."""
    if tokens > max_length(model):
        raise ValueError(
            f"The model has learned {max_length(model)} positions, and {text} has {tokens} tokens. Please shorten it."
        )
