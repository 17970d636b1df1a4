"""Tiny models, each with a tokenizer of its own, in folders as a training leaves them."""

from pathlib import Path

import torch

from family import encoder_decoder
from vanilla_transformer.data.tokenizer import train_tokenizer
from vanilla_transformer.decoding import decode_like_the_paper


TEXT = "one two three"
TEXTS = [TEXT, "uno dos tres"] * 3


def with_tokenizer(make=encoder_decoder, template="seq2seq", *, texts=TEXTS, vocab_size=300, **fields):
    """A model that `make` builds, always with the same weights, and a tokenizer that has learned from `texts`."""
    tokenizer = train_tokenizer(texts, template, vocab_size=vocab_size)
    torch.manual_seed(0)
    return make(vocab_size=len(tokenizer), **fields), tokenizer


def write(folder: Path, *parts) -> str:
    """Save a model, a tokenizer, or both. Returns the folder as commands take it."""
    for part in parts:
        part.save_pretrained(folder)
    return str(folder)


def save(folder: Path, make, template: str, **options) -> str:
    """Save what `with_tokenizer` makes; what translates does so as in the paper. Returns the folder."""
    model, tokenizer = with_tokenizer(make, template, **options)
    if template == "seq2seq":
        decode_like_the_paper(model)
    return write(folder, model, tokenizer)
