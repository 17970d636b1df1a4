"""Provide rows and options for training runs of a few seconds."""

import json
from collections.abc import Iterable
from pathlib import Path

from vanilla_transformer.data.phrasebook import phrasebook


SMALL = [
    "--d_model", "64", "--d_ff", "128", "--num_heads", "4", "--dropout", "0", "--label_smoothing", "0",
    "--vocab_size", "400", "--learning_rate", "3e-3", "--lr_scheduler_type", "constant_with_warmup",
    "--warmup_steps", "20", "--per_device_train_batch_size", "8", "--disable_tqdm", "true", "--use_cpu", "true",
    "--save_strategy", "no", "--logging_steps", "20",
]  # fmt: skip
ONE_STACK = ["--num_layers", "2"]


def write_json_lines(file: Path, rows: Iterable[dict]) -> str:
    """Write rows as JSON Lines and return the path as a string."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def train_and_validate_on(file: str) -> list[str]:
    """Return the options that use `file` for both training and validation."""
    return ["--train_file", file, "--validation_file", file]


def write_rows(task: str, folder: Path) -> list[str]:
    """Write eight rows to a file, and return the options that use it for both training and validation."""
    rows = phrasebook(task, size=1000)["train"].select(range(100, 108))
    return train_and_validate_on(write_json_lines(folder / "rows.jsonl", rows))
