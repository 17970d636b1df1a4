"""Joined pairs: two translations at random, one behind the other, as one more row to learn from."""

import numpy as np
from datasets import Dataset, IterableDataset, concatenate_datasets

from vanilla_transformer.training.batching import SIDES


def with_joined_pairs(
    rows: Dataset | IterableDataset, share: float, max_length: int, seed: int
) -> Dataset | IterableDataset:
    """The rows, and `share` joined ones for each, in which places and neighbours are others than in the data.

    As Nguyen et al. (2021, arXiv 2105.01691) do where data are few. A share of 0.5 has each row in one joined row.

    Args:
        rows: encoded: `input_ids` and `labels`, each with its end token, which the first of two loses.
        max_length: tokens of a side; what would be longer is not joined.

    Raises:
        ValueError: rows that come as a stream, in which none can be drawn.
    """
    if not share:
        return rows
    if isinstance(rows, IterableDataset):
        raise ValueError(f"joined_pairs={share} draws rows at random, which a stream does not allow: leave out one.")
    random, count = np.random.default_rng(seed), round(share * len(rows))
    if not count:
        return rows
    drawn = np.concatenate([random.permutation(len(rows)) for _ in range(-(-2 * count // len(rows)))])
    firsts, seconds = (rows.select(drawn[part : 2 * count : 2]) for part in (0, 1))
    seconds = seconds.select_columns(list(SIDES)).rename_columns({side: f"second_{side}" for side in SIDES})

    def join(batch: dict) -> dict:
        pairs = {side: zip(batch[side], batch[f"second_{side}"], strict=True) for side in SIDES}
        return {side: [first[:-1] + second for first, second in pairs[side]] for side in SIDES}

    def fits(batch: dict) -> list[bool]:
        return [max(map(len, sides)) <= max_length for sides in zip(*(batch[side] for side in SIDES), strict=True)]

    both = concatenate_datasets([firsts, seconds], axis=1)
    joined = both.map(
        join, batched=True, remove_columns=seconds.column_names, features=rows.features, desc="joining pairs"
    )
    return concatenate_datasets([rows, joined.filter(fits, batched=True, desc="leaving out what is too long")])
