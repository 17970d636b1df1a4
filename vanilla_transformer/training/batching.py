"""Build batches within a token budget (section 5.1), pack documents into blocks, and check the rows of a dataset."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, IterableDataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset as TorchIterableDataset
from transformers import PreTrainedModel

from vanilla_transformer.modeling_vanilla_transformer import IGNORED_LABEL
from vanilla_transformer.training.arguments import RecipeArguments


SIDES = ("input_ids", "labels")
BUFFER_SIZE = 50_000  # number of rows of a stream that are buffered and sorted by length together
FIRST_ROWS = 100  # number of rows from which the fingerprint of a stream is computed

Bucketing = Literal["length", "none"]


class TokenBudgetSampler(Sampler[list[int]]):
    """Yield batches of row indices whose padded size stays within a token budget.

    Each epoch shuffles the rows (reproducibly, from the seed and the epoch), sorts them by length with a stable sort,
    splits them into batches, and shuffles the batches. The sorted lengths are the same in each epoch, so the batch
    boundaries are computed only once.

    With `bucketing="none"`, the rows stay shuffled, and all batches have about the same number of tokens without
    padding. A step then contains sentences of all lengths. Otherwise, features that sentences of equal length share,
    such as the position of the last token, could dominate a step.

    A batch holds the rows of one optimizer step. Each process gets its share of every batch, in `accumulation_steps`
    parts with about the same number of tokens. A step therefore has the same rows for any number of devices, unless a
    batch has fewer rows than parts (see `shared_batches`). With `per_device`, the budget applies to a single device,
    and each of n processes gets every n-th batch as a whole.

    Args:
        lengths: (rows, sides) number of tokens of each row on each side, such as source and target.
        tokens_per_batch: maximum number of tokens on either side of a batch, including padding. With
            `bucketing="none"`, a limit for the mean over all batches; the longest side of a row counts.
        accumulation_steps: number of forward and backward passes of each process per optimizer step.

    Raises:
        ValueError: a single row exceeds the budget, or there are too few rows for the processes.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        tokens_per_batch: int,
        seed: int = 0,
        process_index: int = 0,
        num_processes: int = 1,
        accumulation_steps: int = 1,
        per_device: bool = False,
        bucketing: Bucketing = "length",
    ):
        self.lengths = np.asarray(lengths).reshape(len(lengths), -1)
        longest = self.lengths.max(axis=1)
        if longest.max() > tokens_per_batch:
            row = int(longest.argmax())
            raise ValueError(
                f"Row {row} has {longest[row]} tokens, more than tokens_per_batch={tokens_per_batch}: raise that, "
                "or leave out or truncate such rows."
            )
        self.seed = seed
        self.epoch = 0
        self.process_index, self.num_processes = process_index, num_processes
        self.accumulation_steps, self.per_device, self.bucketing = accumulation_steps, per_device, bucketing
        if bucketing == "none":
            self.batches = self.count_even_batches(longest, tokens_per_batch)
            return
        longest = np.sort(longest)
        distribute = self.whole_batches if per_device else self.shared_batches
        self.ends = distribute(self.split(longest, tokens_per_batch), longest, tokens_per_batch)
        self.batches = len(self.ends)

    def order(self, rows: np.ndarray) -> np.ndarray:
        """Sort row indices by the longest side, then by each side, with a stable sort."""
        lengths = self.lengths[rows]
        return rows[np.lexsort((*lengths.T, lengths.max(axis=1)))]

    @staticmethod
    def split(longest: np.ndarray, budget: int) -> list[int]:
        """Return the end index of each batch, given the longest side of each row in ascending order.

        The last row of a batch determines its padded width.
        """
        ends = [0]
        while (start := ends[-1]) < len(longest):
            # Upper bound: the number of rows that would fit if all were as short as the first
            widths = longest[start : start + (budget // longest[start] if longest[start] else len(longest))]
            tokens = widths * np.arange(1, len(widths) + 1)
            ends.append(start + int(np.searchsorted(tokens, budget, side="right")))
        return ends[1:]

    @staticmethod
    def split_evenly(longest: np.ndarray, batches: int) -> list[int]:
        """Return the end indices of `batches` batches with about the same number of tokens.

        A row that crosses a boundary belongs to the batch that contains its middle token.
        """
        tokens = longest.cumsum()
        return [*np.searchsorted(2 * tokens - longest, 2 * tokens[-1] * np.arange(1, batches) / batches), len(longest)]

    def count_even_batches(self, longest: np.ndarray, budget: int) -> int:
        """Return the number of batches for `bucketing="none"`.

        Raises:
            ValueError: in some order of the rows, a part of a batch could be empty.
        """
        devices = self.num_processes if self.per_device else 1
        parts = 1 if self.per_device else self.num_processes * self.accumulation_steps
        batches = -(-int(longest.sum()) // (budget * devices)) * devices
        if parts * batches * longest.max() > longest.sum():
            raise ValueError(
                f"tokens_per_batch={budget} would make {batches} batches of {longest.sum() // batches} tokens from "
                f"{len(longest)} rows. With bucketing=none each needs {parts} x {longest.max()}, the longest row for "
                "each of its parts: raise it, or give more rows."
            )
        return batches

    def shared_batches(self, ends: list[int], longest: np.ndarray, budget: int) -> list[int]:
        """Return the end indices of batches that have at least one row for each part.

        A batch with too few rows, such as the last one, takes rows from the previous batch.
        """
        ends = [0, *ends]
        parts = self.num_processes * self.accumulation_steps
        if parts * longest[-1] <= budget:
            for i in reversed(range(1, len(ends) - 1)):
                ends[i] = min(ends[i], max(ends[i + 1] - parts, 0))
        if (fewest := int(np.diff(ends).min())) < parts:
            raise ValueError(
                f"tokens_per_batch={budget} is for a whole step, which can be as few as {fewest} rows. They cannot be "
                f"distributed to {self.num_processes} processes x {self.accumulation_steps} accumulation steps: "
                f"raise it, such as to {2 * parts * int(longest[-1])}, give more rows, or accumulate fewer steps."
            )
        return ends[1:]

    def whole_batches(self, ends: list[int], longest: np.ndarray, budget: int) -> list[int]:
        """Split the largest batches in half until each process gets the same number of batches. No row is repeated."""
        ends = list(ends)
        while len(ends) % self.num_processes:
            starts = [0, *ends[:-1]]
            largest = max(range(len(ends)), key=lambda i: ends[i] - starts[i])
            if ends[largest] - starts[largest] < 2:
                raise ValueError(
                    f"{len(longest)} rows, each a batch of its own, cannot be distributed evenly to "
                    f"{self.num_processes} processes: raise tokens_per_batch={budget}, or give more rows."
                )
            ends.insert(largest, (starts[largest] + ends[largest]) // 2)
        return ends

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        if self.per_device:
            return self.batches // self.num_processes
        return self.batches * self.accumulation_steps

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng((self.seed, self.epoch))
        rows = random.permutation(len(self.lengths))
        if self.bucketing == "none":
            ends = self.split_evenly(self.lengths[rows].max(axis=1), self.batches)
        else:
            rows, ends = self.order(rows), self.ends
        batches = np.split(rows, ends[:-1])
        numbers = random.permutation(len(batches))
        if self.per_device:
            for number in numbers[self.process_index :: self.num_processes]:
                yield batches[number].tolist()
            return
        parts = self.num_processes * self.accumulation_steps
        for number in numbers:
            for part in range(self.process_index, parts, self.num_processes):
                yield batches[number][part::parts].tolist()


class TokenBudgetStream(TorchIterableDataset):
    """Yield an infinite stream of batches from a stream of rows; see `TokenBudgetSampler`.

    Rows are read into a buffer, shuffled, sorted by length, and split into batches within the budget. The batches are
    then shuffled. An incomplete batch stays in the buffer. After its last row, the stream starts again.

    Args:
        rows: rows with `input_ids` and optional `labels`. Real-valued labels do not count as tokens.
        tokens_per_batch, bucketing: see `TokenBudgetSampler`.

    Raises:
        ValueError: a single row exceeds the budget.
    """

    def __init__(
        self,
        rows: IterableDataset,
        tokens_per_batch: int,
        seed: int = 0,
        buffer_size: int = BUFFER_SIZE,
        bucketing: Bucketing = "length",
    ):
        self.rows, self.tokens_per_batch, self.bucketing = rows, tokens_per_batch, bucketing
        self.seed, self.buffer_size = seed, buffer_size

    def __iter__(self) -> Iterator[list[dict]]:
        random = np.random.default_rng(self.seed)
        left: list[dict] = []
        while True:
            rows = iter(self.rows)
            while new := list(islice(rows, self.buffer_size)):
                *batches, left = self.batches([*left, *new], random)
                random.shuffle(batches)
                yield from batches
            if not left:
                return  # no rows at all, as in a worker without a share of the stream
            yield left
            left = []

    def batches(self, rows: list[dict], random: np.random.Generator) -> list[list[dict]]:
        """Split all rows into batches, sorted by length unless `bucketing` is "none"."""
        lengths = np.array([[len(row[name]) for name in SIDES if holds_tokens(row.get(name))] for row in rows])
        longest = lengths.max(axis=1)
        if longest.max() > self.tokens_per_batch:
            raise ValueError(
                f"A row has {longest.max()} tokens, more than the {self.tokens_per_batch} of a batch: raise "
                "--tokens_per_batch, or truncate such rows."
            )
        order = random.permutation(len(rows))
        if self.bucketing == "none":
            ends = TokenBudgetSampler.split_evenly(longest[order], -(-int(longest.sum()) // self.tokens_per_batch))
        else:
            order = order[np.lexsort((*lengths[order].T, longest[order]))]
            ends = TokenBudgetSampler.split(longest[order], self.tokens_per_batch)
        return [[rows[i] for i in batch] for batch in np.split(order, ends[:-1]) if len(batch)]


def holds_tokens(values: Any) -> bool:
    """Whether `values` is a list of token ids, not of multi-label or regression targets."""
    return isinstance(values, list) and (not values or type(values[0]) is int)


def row_lengths(dataset: Dataset) -> np.ndarray:
    """Return the number of tokens of each row: (rows, 1), or (rows, 2) if the labels are token sequences too."""
    types = {field.name: getattr(field.type, "value_type", pa.null()) for field in dataset.features.arrow_schema}
    names = [name for name in SIDES if name in types and pa.types.is_integer(types[name])]  # columns of integer lists
    tables = dataset.select_columns(names).with_format("arrow").iter(batch_size=10_000)
    return np.concatenate(
        [np.stack([pc.list_value_length(table[name]) for name in names], axis=1) for table in tables]
    )


def check_positions(model: PreTrainedModel, rows: Any) -> None:
    """Raise a ValueError before training if a row is longer than the table of learned position embeddings."""
    config = getattr(model, "config", None)
    if config is None or getattr(config, "position_embedding", None) != "learned" or not isinstance(rows, Dataset):
        return
    sides = SIDES if config.is_encoder_decoder else ("input_ids",)
    if "position_ids" in rows.features:  # rows are packed documents
        tables = rows.select_columns(["position_ids"]).with_format("arrow").iter(batch_size=10_000)
        longest = 1 + max(pc.max(pc.list_flatten(table["position_ids"])).as_py() for table in tables)
    else:
        tables = rows.select_columns(list(sides)).with_format("arrow").iter(batch_size=10_000)
        longest = max(pc.max(pc.list_value_length(table[side])).as_py() for table in tables for side in sides)
    if longest > config.max_position_embeddings:
        raise ValueError(
            f"A row has {longest} tokens, and the table of position_embedding='learned' has "
            f"max_position_embeddings={config.max_position_embeddings} rows: raise that, or truncate the rows."
        )


EMPTY_STREAM = (
    "the held-out stream is empty, or too short to fill a row of a language model: give a longer one, hold out more "
    "(--validation_fraction), or lower --block_size."
)


def is_empty_stream(rows: Any) -> bool:
    """Whether `rows` is a stream without rows. Reads at most the first batch."""
    return isinstance(rows, IterableDataset) and next(iter(rows), None) is None


def dataset_fingerprint(rows: Any) -> str | None:
    """Return a hash of the encoded rows (of a stream, the first ones), or None if a stream is not deterministic."""
    if isinstance(rows, IterableDataset):
        hashes = {dataset_fingerprint(Dataset.from_list([*rows.take(FIRST_ROWS)])) for _ in range(2)}
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


def pack_documents(
    documents: Sequence[Sequence[int]], block_size: int, eos_token_id: int | None
) -> dict[str, list[list[int]]]:
    """Concatenate documents and split them into full blocks. A document may continue in the next block.

    Position ids restart at each document, so attention does not cross document boundaries. The first token of a
    document in a block gets the label -100, because the block contains no context for it. An incomplete last block is
    dropped, so pass many documents at once.

    Returns:
        `input_ids`, `position_ids` and `labels`, each (blocks, block_size).
    """
    end = [] if eos_token_id is None else [eos_token_id]  # GPT-1's tokenizer has no end-of-text token
    tokens: list[int] = []
    firsts = []
    for document in documents:
        if len(document):
            firsts.append(len(tokens))
            tokens += [*document, *end]
    input_ids = np.array(tokens[: len(tokens) // block_size * block_size], dtype=np.int64)
    starts = np.union1d(firsts, np.arange(0, len(input_ids), block_size)).astype(np.int64)
    starts = starts[starts < len(input_ids)]
    position_ids = np.arange(len(input_ids)) - np.repeat(starts, np.diff(starts, append=len(input_ids)))
    labels = np.where(position_ids == 0, IGNORED_LABEL, input_ids)
    columns = {"input_ids": input_ids, "position_ids": position_ids, "labels": labels}
    return {name: values.reshape(-1, block_size).tolist() for name, values in columns.items()}


def token_budget_loader(rows: Dataset, args: RecipeArguments, options: dict[str, Any]) -> DataLoader:
    """Build the loader of a dataset whose columns are all model inputs."""
    sampler = TokenBudgetSampler(
        row_lengths(rows),
        args.tokens_per_batch,
        seed=args.seed if args.data_seed is None else args.data_seed,
        process_index=args.process_index,
        num_processes=args.world_size,
        accumulation_steps=args.gradient_accumulation_steps,
        per_device=args.tokens_per_batch_of == "device",
        bucketing=args.bucketing,
    )
    loader = DataLoader(cast(TorchDataset, rows), batch_sampler=sampler, **options)
    loader.set_epoch = sampler.set_epoch  # type: ignore[attr-defined]  # called by Trainer
    return loader


def stream_loader(rows: IterableDataset, args: RecipeArguments, options: dict[str, Any]) -> DataLoader:
    """Build the loader for this process's part of a stream."""
    share, parts = split_dataset_by_node(rows, args.process_index, args.world_size), 1
    if not args.tokens_per_batch:
        # Repeat the stream forever; otherwise a resumed run would continue its next pass at a different batch.
        return DataLoader(share.repeat(None), args.train_batch_size, **options)
    if args.tokens_per_batch_of == "step":
        parts = args.world_size * args.gradient_accumulation_steps
    seed = args.seed if args.data_seed is None else args.data_seed
    batches = TokenBudgetStream(share, args.tokens_per_batch // parts, seed, bucketing=args.bucketing)
    return DataLoader(batches, batch_size=None, **options)
