"""The class that a saved tokenizer of this project names."""

from transformers import TokenizersBackend


class PreTrainedTokenizerFast(TokenizersBackend):
    """The library's class by the name that transformers 4 knows too: a saved folder names its class."""
