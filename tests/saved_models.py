"""Save tiny models together with their own tokenizers, like training does."""

import re
from math import log
from pathlib import Path

import torch

from family import decoder_only, encoder_decoder
from vanilla_transformer.data.tokenizer import train_tokenizer
from vanilla_transformer.decoding import set_paper_decoding


TEXT = "one two three"
TEXTS = [TEXT, "uno dos tres"] * 3


def with_tokenizer(make=encoder_decoder, template="seq2seq", *, texts=TEXTS, vocab_size=300, **fields):
    """Build a model with `make` and seeded weights, and train a tokenizer on `texts`."""
    tokenizer = train_tokenizer(texts, template, vocab_size=vocab_size)
    torch.manual_seed(0)
    return make(vocab_size=len(tokenizer), **fields), tokenizer


def save_repeating(folder: Path, p_end: float, letter: str = "o") -> tuple[str, str]:
    """Save a translation model that always predicts the end token with probability `p_end`, and otherwise a letter.

    The length of its translations depends only on the length penalty. Return the folder and the letter.
    """
    model, tokenizer = with_tokenizer(output_bias=True)
    word = tokenizer.convert_tokens_to_ids(letter)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.fill_(-30)
        model.lm_head.bias[word] = log(1 - p_end)
        model.lm_head.bias[tokenizer.eos_token_id] = log(p_end)
    set_paper_decoding(model)
    return write(folder, model, tokenizer), tokenizer.decode([word])


def save_talkative(folder: Path, **fields) -> str:
    """Save a language model that generates only whole words, and return the folder.

    Streamers of transformers print a word as soon as the next one begins.
    """
    model, tokenizer = with_tokenizer(decoder_only, "causal", output_bias=True, **fields)
    words = [i for token, i in tokenizer.get_vocab().items() if re.fullmatch(r"Ġ\w+", token)]
    with torch.no_grad():
        model.lm_head.bias[words] = 30
    return write(folder, model, tokenizer)


def write(folder: Path, *parts) -> str:
    """Save a model, a tokenizer, or both, and return the folder as a string."""
    for part in parts:
        part.save_pretrained(folder)
    return str(folder)


def save(folder: Path, make, template: str, **options) -> str:
    """Save the result of `with_tokenizer` and return the folder. Translation models use the decoding of the paper."""
    model, tokenizer = with_tokenizer(make, template, **options)
    if template == "seq2seq":
        set_paper_decoding(model)
    return write(folder, model, tokenizer)
