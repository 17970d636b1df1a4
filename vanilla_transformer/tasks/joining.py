"""Concatenated pairs: two random translations, one after the other, as one more row of training."""

import numpy as np
from datasets import Dataset, IterableDataset, concatenate_datasets

from vanilla_transformer.training.batching import SIDES


def concatenate_pairs(
    rows: Dataset | IterableDataset, share: float, max_length: int, seed: int
) -> Dataset | IterableDataset:
    """Add `share` concatenated rows per row, which have other positions and contexts than the data.

    Nguyen et al. (2021, arXiv 2105.01691) do so for small datasets. A share of 0.5 uses each row once more.

    Args:
        rows: encoded `input_ids` and `labels`, each with its end token. The first of two rows loses it.
        max_length: maximum number of tokens of a side; longer rows are not added.

    Raises:
        ValueError: the rows are a stream, from which none can be drawn at random.
    """
    if not share:
        return rows
    if isinstance(rows, IterableDataset):
        raise ValueError(f"concat_pairs={share} draws rows at random, which a stream does not allow: leave out one.")
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
        join, batched=True, remove_columns=seconds.column_names, features=rows.features, desc="concatenating pairs"
    )
    return concatenate_datasets([rows, joined.filter(fits, batched=True, desc="dropping long pairs")])
