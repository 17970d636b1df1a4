"""Save tiny models with their own tokenizers in folders, as training does."""

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
    """Return a model built by `make` with reproducible weights, and a tokenizer trained on `texts`."""
    tokenizer = train_tokenizer(texts, template, vocab_size=vocab_size)
    torch.manual_seed(0)
    return make(vocab_size=len(tokenizer), **fields), tokenizer


def save_repeating(folder: Path, p_end: float, letter: str = "o") -> tuple[str, str]:
    """Save a translator that after any prefix ends with probability `p_end`, or repeats its only letter.

    Only the length penalty decides how long its translations are. Return the folder and the letter.
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
    """Return a language model that generates whole words; transformers streams a word when the next one begins."""
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
    """Save the result of `with_tokenizer`, translators with the paper's decoding, and return the folder."""
    model, tokenizer = with_tokenizer(make, template, **options)
    if template == "seq2seq":
        set_paper_decoding(model)
    return write(folder, model, tokenizer)
