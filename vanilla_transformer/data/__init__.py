"""Data: the phrasebook, the Hub or local files, checked, and tokenizers.

A tokenizer can be trained as it is; the rest needs the extra `train`. The phrasebook by itself is
`vanilla_transformer.data.phrasebook.phrasebook`.
"""

from typing import TYPE_CHECKING

from vanilla_transformer.lazy import lazy_names


if TYPE_CHECKING:
    from vanilla_transformer.data.arguments import DataArguments
    from vanilla_transformer.data.splits import load_splits, texts_of
    from vanilla_transformer.data.tokenizer import train_tokenizer

__all__ = ["DataArguments", "load_splits", "texts_of", "train_tokenizer"]

__getattr__ = lazy_names(
    __name__,
    {
        "arguments": ("DataArguments",),
        "splits": ("load_splits", "texts_of"),
        "tokenizer": ("train_tokenizer",),
    },
)
