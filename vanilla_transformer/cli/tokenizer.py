"""Train a tokenizer on the training texts of a task and save it where AutoTokenizer finds it.

vanilla-transformer tokenizer --train_file train.en train.de --vocab_size 10000 --output_dir runs/tokenizer
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from vanilla_transformer.cli.options import parse_options
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.data.columns import Schema
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.data.tokenizer import KINDS, TEMPLATES, train_tokenizer
from vanilla_transformer.tasks import find_task, task_names


MEASURED_TEXTS = 10_000


@dataclass
class NewTokenizerArguments:
    """Options of a new tokenizer."""

    vocab_size: int = field(default=8000, metadata={"help": "Maximum vocabulary size of a newly trained tokenizer."})
    tokenizer_kind: str = field(
        default="byte_bpe", metadata={"help": f"How a newly trained tokenizer splits text: {', '.join(KINDS)}."}
    )
    lowercase: bool = field(default=False, metadata={"help": "Lower-case all text."})

    def train(self, texts: Iterable[str], template: str) -> PreTrainedTokenizerBase:
        """Train a tokenizer on `texts`; see `train_tokenizer`."""
        return train_tokenizer(texts, template, self.tokenizer_kind, self.vocab_size, self.lowercase)


@dataclass
class TokenizerArguments(NewTokenizerArguments):
    """Options of the tokenizer: a saved tokenizer, or settings for a new one."""

    tokenizer_name_or_path: str | None = field(
        default=None, metadata={"help": "Use this tokenizer (a folder or a Hub name) instead of training one."}
    )


@dataclass
class TokenizerFolderArguments(NewTokenizerArguments):
    output_dir: str = field(default="runs/tokenizer", metadata={"help": "Folder for the tokenizer."})
    overwrite: bool = field(default=False, metadata={"help": "Write into the folder even if it is not empty."})
    task: str = field(
        default="translation", metadata={"help": f"Task to prepare the data for: {', '.join(task_names())}."}
    )
    template: str | None = field(
        default=None,
        metadata={"help": f"Family of the model: {', '.join(TEMPLATES)}; by default, the one for the task."},
    )

    def __post_init__(self):
        if self.task not in task_names():
            raise ValueError(f"task={self.task!r} must be one of: {', '.join(task_names())}.")
        folder = Path(self.output_dir)
        if not self.overwrite and folder.is_dir() and any(folder.iterdir()):
            raise ValueError(f"output_dir={folder} is not empty: choose another, or write into it with --overwrite.")


def describe(tokenizer: PreTrainedTokenizerBase, rows: Any, schema: Schema) -> str:
    """Return a line with the mean tokens per text and bytes per token, without special tokens."""
    texts = list(islice(texts_of(rows, schema), MEASURED_TEXTS))
    tokens = sum(map(len, tokenizer(texts, add_special_tokens=False)["input_ids"]))
    size = sum(len(text.encode()) for text in texts)
    return f"{tokens / len(texts):.2f} tokens per text, {size / tokens:.2f} bytes per token"


def main(arguments: list[str] | None = None) -> None:
    data, args = parse_options([DataArguments, TokenizerFolderArguments], arguments or [], __doc__)
    task = find_task(args.task)
    splits = load_splits(data, task.data)
    tokenizer = args.train(texts_of(splits["train"], task.data), args.template or task.template)
    tokenizer.save_pretrained(args.output_dir)
    print(f"{args.output_dir}: {len(tokenizer)} tokens")
    for split, rows in splits.items():
        print(f"{split}: {describe(tokenizer, rows, task.data)}")
