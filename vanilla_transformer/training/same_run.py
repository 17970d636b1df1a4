"""Whether a checkpoint belongs to the run that goes on from it: the same data, order, architecture and tokenizer."""

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, IterableDataset
from transformers import PreTrainedConfig

from vanilla_transformer.training.checkpoints import read_run_file
from vanilla_transformer.training.same_model import config_differences, tokenizer_differences


FIRST_ROWS = 100  # of a stream, which tell it from another


def digest(rows: Any) -> str | None:
    """A hash of encoded rows, in their order; of a stream, of its first, or None where they are others each time."""
    if isinstance(rows, IterableDataset):
        hashes = {digest(Dataset.from_list([*rows.take(FIRST_ROWS)])) for _ in range(2)}
        return hashes.pop() if len(hashes) == 1 else None
    if not isinstance(rows, Dataset):
        return None
    total = hashlib.blake2b(digest_size=8)
    for table in rows.with_format("arrow").iter(batch_size=10_000):
        for name in sorted(table.column_names):
            values = table[name].combine_chunks()
            while pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
                total.update(pc.list_value_length(values).to_numpy(zero_copy_only=False).tobytes())
                values = pc.list_flatten(values)
            plain = values.to_numpy(zero_copy_only=False)
            total.update(repr(plain.tolist()).encode() if plain.dtype == object else plain.tobytes())
    return total.hexdigest()


# Options that are off unless they are given, with what they are then. Run files of earlier versions may leave one out,
# which says that it was off.
OFF = {
    "tokens_per_batch": 0,
    "mixed_lengths": False,
    "embedding_decay": 0.0,
    "initial_dropout": None,
}


def check_same_run(folder: Path, facts: dict[str, Any], config: PreTrainedConfig, tokenizer: Any) -> None:
    """Refuse to go on from a checkpoint with another architecture, tokenizer, data or order of them.

    Args:
        facts: what the run is started with now, to be compared with the checkpoint's `RUN_FILE`.

    Raises:
        ValueError: names all that differs.
    """
    written = read_run_file(folder)
    then = OFF | written if written else {}  # of another program's checkpoint nothing is known
    differences = config_differences(folder, config)
    differences += tokenizer_differences(folder, getattr(tokenizer, "backend_tokenizer", None))
    differences += [
        f"{name} is {value}, and was {then[name]}" for name, value in facts.items() if then.get(name, value) != value
    ]
    if differences:
        raise ValueError(
            f"{folder} is a checkpoint of another run: {'; '.join(differences)}. Resume with what that run was "
            "started with, or start a new one in another --output_dir."
        )
