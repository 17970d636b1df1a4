# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""A tokenizer is trained once on rows that lie on disk, as they are encoded once."""

import os
from collections.abc import Callable
from importlib.metadata import version
from inspect import getsource
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset
from datasets.fingerprint import Hasher
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.configuration_vanilla_transformer import require_private_names
from vanilla_transformer.data import tokenizer


require_private_names(Dataset.from_dict({}), "_fingerprint")


def trained_once(
    train: Callable[[], PreTrainedTokenizerBase], rows: Any, template: str, *options: Any
) -> PreTrainedTokenizerBase:
    """What `train` gives, or gave an earlier run; from rows in memory, and from a stream, it is trained each time.

    Args:
        rows: the data set that it is trained on.
        template: see `train_tokenizer`; options: all else that it depends on.
    """
    if not isinstance(rows, Dataset) or not rows.cache_files:
        return train()
    facts = Hasher.hash([rows._fingerprint, template, options, version("tokenizers"), getsource(tokenizer)])
    file = Path(datasets.config.HF_DATASETS_CACHE) / "vanilla_transformer_tokenizers" / f"{facts}.json"
    if not file.exists():
        trained = train()
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")  # another run may be writing it as well
        trained.backend_tokenizer.save(str(part))
        part.replace(file)
    return tokenizer.in_library(Tokenizer.from_file(str(file)), template)
