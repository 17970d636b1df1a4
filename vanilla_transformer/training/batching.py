"""Batches filled with tokens: of sequences of similar length, up to a budget (section 5.1), or of packed documents."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, IterableDataset
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import IterableDataset as TorchIterableDataset

from vanilla_transformer.losses_vanilla_transformer import IGNORED_LABEL


SIDES = ("input_ids", "labels")
BUFFER_SIZE = 50_000  # rows of a stream that are sorted by length together


class TokenBudgetSampler(Sampler[list[int]]):
    """Batches of row numbers, of similar length, whose padded size stays within a budget.

    Rows are drawn anew each epoch: shuffled by seed and epoch, sorted by length (so that rows of one length keep their
    shuffled order), cut into batches, and the batches shuffled. Where to cut is found once, over the sorted lengths,
    which are the same in each epoch: so is the number of batches.

    With `mixed_lengths` rows stay shuffled, and a batch has as many tokens as the next, which are counted without
    padding. What is alike in sentences of one length, such as where they end, is not all that a step is about.

    A batch is that of a whole step: each process gets its share of every one, in `accumulation_steps` parts of about
    as many tokens. So a step has the same rows on however many devices it runs, unless these are fewer than the parts
    (see `shared_batches`). With `per_device`, the budget is that of one device: each process takes every n-th batch,
    whole.

    Args:
        lengths: (rows, sides) tokens of each row on each side, such as source and target.
        tokens_per_batch: largest number of tokens on any one side of a batch, padding included. With `mixed_lengths`
            the number of tokens that batches have at most in the mean, each row as long as its longest side.
        accumulation_steps: passes of each process whose gradients make one step.

    Raises:
        ValueError: a row alone is longer than the budget, or the rows are too few to share out.
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
        mixed_lengths: bool = False,
    ):
        self.lengths = np.asarray(lengths).reshape(len(lengths), -1)
        longest = self.lengths.max(axis=1)
        if longest.max() > tokens_per_batch:
            row = int(longest.argmax())
            raise ValueError(
                f"Row {row} has {longest[row]} tokens, more than tokens_per_batch={tokens_per_batch}: raise that, "
                "or leave out or cut such rows."
            )
        self.seed = seed
        self.epoch = 0
        self.process_index, self.num_processes = process_index, num_processes
        self.accumulation_steps, self.per_device, self.mixed_lengths = accumulation_steps, per_device, mixed_lengths
        if mixed_lengths:
            self.batches = self.even_batches(longest, tokens_per_batch)
            return
        longest = np.sort(longest)
        share_out = self.whole_batches if per_device else self.shared_batches
        self.cuts = share_out(self.cut(longest, tokens_per_batch), longest, tokens_per_batch)
        self.batches = len(self.cuts)

    def order(self, rows: np.ndarray) -> np.ndarray:
        """Sort rows by their lengths, stably: by the longest side first, then by each side."""
        lengths = self.lengths[rows]
        return rows[np.lexsort((*lengths.T, lengths.max(axis=1)))]

    @staticmethod
    def cut(longest: np.ndarray, budget: int) -> list[int]:
        """Where batches end, over the longest side of each row, in order, so that the last row of a batch is as wide
        as the batch.
        """
        ends = [0]
        while (start := ends[-1]) < len(longest):
            # As many rows as there may be if all were as short as the first, and the tokens up to each of them.
            widths = longest[start : start + (budget // longest[start] if longest[start] else len(longest))]
            tokens = widths * np.arange(1, len(widths) + 1)
            ends.append(start + int(np.searchsorted(tokens, budget, side="right")))
        return ends[1:]

    @staticmethod
    def cut_evenly(longest: np.ndarray, batches: int) -> list[int]:
        """Where so many batches end that have about as many tokens each: a row is where the middle of it falls."""
        tokens = longest.cumsum()
        return [*np.searchsorted(2 * tokens - longest, 2 * tokens[-1] * np.arange(1, batches) / batches), len(longest)]

    def even_batches(self, longest: np.ndarray, budget: int) -> int:
        """How many batches of mixed lengths there are, such that each has a row for each part, whatever the order."""
        devices = self.num_processes if self.per_device else 1
        parts = 1 if self.per_device else self.num_processes * self.accumulation_steps
        batches = -(-int(longest.sum()) // (budget * devices)) * devices
        if parts * batches * longest.max() > longest.sum():
            raise ValueError(
                f"tokens_per_batch={budget} would make of {len(longest)} rows {batches} batches of "
                f"{longest.sum() // batches} tokens. With mixed_lengths each needs {parts} x {longest.max()}, the "
                "longest row for each of its parts: raise it, or give more rows."
            )
        return batches

    def shared_batches(self, ends: list[int], longest: np.ndarray, budget: int) -> list[int]:
        """The same ends, but that each batch has a row for each part: where one has too few, as the last with the rows
        that are left, it takes some of the one before.
        """
        ends = [0, *ends]
        parts = self.num_processes * self.accumulation_steps
        if parts * longest[-1] <= budget:
            for i in reversed(range(1, len(ends) - 1)):
                ends[i] = min(ends[i], max(ends[i + 1] - parts, 0))
        if (fewest := int(np.diff(ends).min())) < parts:
            enough = len(longest) >= parts
            remedy = f"raise it, such as to {2 * parts * int(longest[-1])}" if enough else "give more rows"
            raise ValueError(
                f"tokens_per_batch={budget} is that of a whole step. Here that may be {fewest} rows, which cannot be "
                f"shared out among {self.num_processes} processes x {self.accumulation_steps} accumulation steps: "
                f"{remedy}, or accumulate fewer steps."
            )
        return ends[1:]

    def whole_batches(self, ends: list[int], longest: np.ndarray, budget: int) -> list[int]:
        """So many batches that every process gets as many: the largest are halved. No row is left out or twice."""
        ends = list(ends)
        while len(ends) % self.num_processes:
            starts = [0, *ends[:-1]]
            largest = max(range(len(ends)), key=lambda i: ends[i] - starts[i])
            if ends[largest] - starts[largest] < 2:
                raise ValueError(
                    f"{len(longest)} rows, each a batch of its own, cannot be shared out evenly among "
                    f"{self.num_processes} processes: raise tokens_per_batch={budget}, or give more rows."
                )
            ends.insert(largest, (starts[largest] + ends[largest]) // 2)
        return ends

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, counted from 0, whose order the next pass gives."""
        self.epoch = epoch

    def __len__(self) -> int:
        if self.per_device:
            return self.batches // self.num_processes
        return self.batches * self.accumulation_steps

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng((self.seed, self.epoch))
        rows = random.permutation(len(self.lengths))
        if self.mixed_lengths:
            cuts = self.cut_evenly(self.lengths[rows].max(axis=1), self.batches)
        else:
            rows, cuts = self.order(rows), self.cuts
        batches = np.split(rows, cuts[:-1])
        numbers = random.permutation(len(batches))
        if self.per_device:
            for number in numbers[self.process_index :: self.num_processes]:
                yield batches[number].tolist()
            return
        parts = self.num_processes * self.accumulation_steps
        for number in numbers:
            for part in range(self.process_index, parts, self.num_processes):
                yield batches[number][part::parts].tolist()


class TokenBudgetLoader(DataLoader):
    """A DataLoader over a `TokenBudgetSampler` that hands the Trainer's epoch on to it."""

    batch_sampler: TokenBudgetSampler

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches the next pass gives."""
        self.batch_sampler.set_epoch(epoch)


class TokenBudgetStream(TorchIterableDataset):
    """Batches of rows that come as a stream, without an end: what `TokenBudgetSampler` does, in a buffer of rows.

    Rows of the buffer are shuffled, sorted by length, cut into batches within the budget, and the batches shuffled.
    What fills no batch stays for the next buffer. After its last row, the stream begins again.

    Args:
        rows: with sequences `input_ids`, and `labels` or not; labels that are real numbers are no tokens.
        tokens_per_batch, mixed_lengths: see `TokenBudgetSampler`.

    Raises:
        ValueError: a row alone is longer than the budget.
    """

    def __init__(
        self,
        rows: IterableDataset,
        tokens_per_batch: int,
        seed: int = 0,
        buffer_size: int = BUFFER_SIZE,
        mixed_lengths: bool = False,
    ):
        self.rows, self.tokens_per_batch, self.mixed_lengths = rows, tokens_per_batch, mixed_lengths
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
                return  # no row at all, as in a worker without a share of the stream
            yield left
            left = []

    def batches(self, rows: list[dict], random: np.random.Generator) -> list[list[dict]]:
        """All rows in batches, from the shortest rows to the longest, or of mixed lengths."""
        lengths = np.array([[len(row[name]) for name in SIDES if holds_tokens(row.get(name))] for row in rows])
        longest = lengths.max(axis=1)
        if longest.max() > self.tokens_per_batch:
            raise ValueError(
                f"A row has {longest.max()} tokens, more than the {self.tokens_per_batch} of a batch: raise "
                "--tokens_per_batch, or cut such rows."
            )
        order = random.permutation(len(rows))
        if self.mixed_lengths:
            ends = TokenBudgetSampler.cut_evenly(longest[order], -(-int(longest.sum()) // self.tokens_per_batch))
        else:
            order = order[np.lexsort((*lengths[order].T, longest[order]))]
            ends = TokenBudgetSampler.cut(longest[order], self.tokens_per_batch)
        return [[rows[i] for i in batch] for batch in np.split(order, ends[:-1]) if len(batch)]


def holds_tokens(values: Any) -> bool:
    """Whether they are a sequence of tokens, not the real numbers that stand for several classes or outputs."""
    return isinstance(values, list) and (not values or type(values[0]) is int)


def row_lengths(dataset: Dataset) -> np.ndarray:
    """Tokens of each row: (rows, 1) of input_ids, or (rows, 2) where labels are sequences of tokens as well."""
    types = {field.name: getattr(field.type, "value_type", pa.null()) for field in dataset.features.arrow_schema}
    names = [name for name in SIDES if name in types and pa.types.is_integer(types[name])]  # lists of integers
    tables = dataset.select_columns(names).with_format("arrow").iter(batch_size=10_000)
    return np.concatenate(
        [np.stack([pc.list_value_length(table[name]) for name in names], axis=1) for table in tables]
    )


def pack_documents(
    documents: Sequence[Sequence[int]], block_size: int, eos_token_id: int | None
) -> dict[str, list[list[int]]]:
    """Put documents one after another into full blocks; a document that does not fit goes on in the next block.

    Positions restart with each document, by which the model keeps attention inside it, and its first token in a block
    is not a target (-100), since nothing before it in the block belongs to it. What does not fill the last block is
    left out: give many documents at once.

    Returns:
        `input_ids`, `position_ids` and `labels`, each (blocks, block_size).
    """
    end = [] if eos_token_id is None else [eos_token_id]  # GPT-1's tokenizer has none
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
