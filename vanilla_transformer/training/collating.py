"""Batches made of Arrow tables: whole columns are padded at once, with no Python object for any row or token."""

from collections.abc import Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import DataCollatorForSeq2Seq

from vanilla_transformer.losses_vanilla_transformer import IGNORED_LABEL


class ArrowRows(Dataset):
    """The rows of a data set for a DataLoader, which gets those of a batch as one table."""

    def __init__(self, rows: datasets.Dataset):
        self.rows = rows.with_format("arrow")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> pa.Table:
        return self.rows[number]

    def __getitems__(self, numbers: Sequence[int]) -> pa.Table:
        return self.rows[numbers]


def padded(column: pa.ChunkedArray, padding: int, left: bool = False) -> tuple[Tensor, Tensor]:
    """Sequences as a matrix, and where in it real tokens are: each (rows, length), of int64 and of bool."""
    lists = column.combine_chunks()
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)[:, None]
    places = np.arange(lengths.max(initial=0))
    real = places >= lengths.max(initial=0) - lengths if left else places < lengths
    ids = np.full(real.shape, padding, dtype=np.int64)
    ids[real] = pc.list_flatten(lists).to_numpy(zero_copy_only=False)
    return torch.from_numpy(ids), torch.from_numpy(real)


class PairCollator(DataCollatorForSeq2Seq):
    """The library's collator of translations, which takes tables as well."""

    def takes_tables_of(self, columns: Sequence[str]) -> bool:
        """Whether `collate_table` knows all that it is to do: there is no other column, and no option of padding."""
        return set(columns) == {"input_ids", "labels"} and self == PairCollator(self.tokenizer, self.model)

    def collate_table(self, table: pa.Table) -> dict[str, Any]:
        """The same batch as of the table's rows one by one."""
        left = self.tokenizer.padding_side == "left"
        input_ids, real = padded(table["input_ids"], self.tokenizer.pad_token_id, left)
        labels, _ = padded(table["labels"], IGNORED_LABEL, left)
        batch = {"input_ids": input_ids, "attention_mask": real.long(), "labels": labels}
        if self.model is not None:
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=labels)
        return batch
