"""Data: the phrasebook, the Hub or local files, checked, and tokenizers."""

from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.data.sources import DataArguments
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.data.tokenizer import train_tokenizer


__all__ = ["DataArguments", "load_splits", "phrasebook", "texts_of", "train_tokenizer"]
