"""Test `concatenate_pairs`, which adds rows that concatenate the sources and targets of two rows."""

from collections import Counter

import pytest
from datasets import Dataset

from vanilla_transformer.tasks.translation import TranslationArguments, TranslationTask, concatenate_pairs


END = 2
ROWS = [{"input_ids": [10 + i] * (1 + i % 3) + [END], "labels": [50 + i] * (1 + i % 4) + [END]} for i in range(20)]


def joined(share: float, max_length: int = 100, seed: int = 0) -> list[dict]:
    rows = concatenate_pairs(Dataset.from_list(ROWS), share, max_length, seed).to_list()
    assert rows[: len(ROWS)] == ROWS
    return rows[len(ROWS) :]


def halves(row: dict) -> list[tuple[int, int]]:
    """Return the indices of the two concatenated rows, once from the source and once from the target."""
    return [
        (i, j)
        for i, first in enumerate(ROWS)
        for j, second in enumerate(ROWS)
        if all(row[side] == first[side][:-1] + second[side] for side in row)
    ]


def test_half_as_many_pairs_as_rows_use_each_row_once():
    numbers = [number for row in joined(0.5) for pair in halves(row) for number in pair]
    assert sorted(numbers) == list(range(20))


def test_more_pairs_reuse_all_rows_equally_often():
    rows = joined(1.75)
    counts = Counter(number for row in rows for pair in halves(row) for number in pair)
    assert len(rows) == 35 and set(counts.values()) == {3, 4} and counts.total() == 70


def test_pairs_depend_on_the_seed():
    assert joined(0.5) == joined(0.5) != joined(0.5, seed=1)


def test_pairs_of_a_run_depend_on_data_seed(tmp_path):
    def made(**seeds):
        args = TranslationArguments(output_dir=str(tmp_path), concat_pairs=0.5, use_cpu=True, **seeds)
        return TranslationTask(args).augment(Dataset.from_list(ROWS)).to_list()

    assert made(seed=1) != made(seed=2) and made(seed=1, data_seed=3) == made(seed=3)


def test_pairs_longer_than_max_length_are_left_out():
    longest = [max(len(side) for side in row.values()) for row in joined(0.5)]
    kept = joined(0.5, max_length=6)
    assert len(kept) == sum(length <= 6 for length in longest) < len(longest)
    assert all(len(side) <= 6 for row in kept for side in row.values())


def test_pairs_are_concatenated_only_on_request():
    rows = Dataset.from_list(ROWS)
    assert concatenate_pairs(rows, 0.0, 100, 0) is rows
    assert concatenate_pairs(rows, 0.01, 100, 0) is rows  # a share of 0.01 gives 0.2 pairs, rounded to 0


def test_concatenated_pairs_with_a_stream_raise_an_error():
    with pytest.raises(ValueError, match=r"concat_pairs=0\.5 draws rows at random, which a stream does not allow"):
        concatenate_pairs(Dataset.from_list(ROWS).to_iterable_dataset(), 0.5, 100, 0)
