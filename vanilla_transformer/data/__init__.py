"""Read, check and split data from files, the Hub or the phrasebook, and train tokenizers.

`train_tokenizer` works without extras; everything else requires the `train` extra. To generate only the phrasebook,
call `vanilla_transformer.data.phrasebook.phrasebook`.
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
