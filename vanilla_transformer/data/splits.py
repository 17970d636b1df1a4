"""Train, validation and test for every task, checked before any long work begins.

`load_splits(args, task)` gives each column the name that the phrasebook has for it, whatever the user calls it.
"""

import math
import zlib
from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, concatenate_datasets

from vanilla_transformer.data.checks import (
    CLASS_COLUMNS,
    COLUMNS,
    INPUT_COLUMNS,
    TEXT_COLUMNS,
    as_list,
    check_classes_known,
    check_rows,
    check_widths,
    classes_of,
    each_row,
)
from vanilla_transformer.data.columns import as_floats, name_classes, rename_columns
from vanilla_transformer.data.sources import (
    CHECKED_ROWS_OF_STREAM,
    DataArguments,
    Row,
    Rows,
    Source,
    parse_renaming,
    read_sources,
)


def is_held_out(row: Row, column: str, fraction: float, seed: int) -> bool:
    """Whether a row of a stream belongs to validation, by the hash of its text."""
    return zlib.crc32(f"{seed} {row[column]}".encode()) < fraction * 2**32


def is_kept(row: Row, column: str, fraction: float, seed: int) -> bool:
    """Whether a row of a stream belongs to training."""
    return not is_held_out(row, column, fraction, seed)


def input_hashes(rows: Dataset, task: str) -> np.ndarray:
    """A number for the input of each row, which is the same for the same texts: (rows,)."""
    hashes = []
    for table in rows.select_columns(INPUT_COLUMNS[task]).with_format("arrow").iter(batch_size=100_000):
        texts = [
            column if pa.types.is_string(column.type) else pc.binary_join(column, " ") for column in table.columns
        ]
        inputs = pc.binary_join_element_wise(*texts, "\0").to_numpy(zero_copy_only=False)
        hashes.append(pandas.util.hash_array(inputs, categorize=False))
    return np.concatenate(hashes)


def draw(place: str, train: Dataset, args: DataArguments, task: str) -> tuple[Dataset, Dataset]:
    """Rows to train on, and rows drawn by seed to hold out. Those with the same input are on one side.

    Raises:
        ValueError: nothing can be held out, or nothing would be left; the message begins with `place`.
    """
    fraction, seed = args.validation_fraction, args.data_split_seed
    _, inputs = np.unique(input_hashes(train, task), return_inverse=True)
    distinct = int(inputs.max()) + 1
    if distinct == 1:
        found = f"all {len(train)} rows have the same input" if len(train) > 1 else "there is one training row"
        raise ValueError(
            f"{place}: {found}, and there is no validation split: give --validation_file, or --validation_fraction 0."
        )
    if math.ceil(fraction * distinct) == distinct:
        raise ValueError(f"{place}: --validation_fraction {fraction} of {distinct} rows leaves none to train on.")
    if distinct == len(train):
        kept, held_out = train.train_test_split(fraction, seed=seed).values()
        return kept, held_out
    random = np.random.default_rng(seed)
    drawn = np.isin(inputs, random.permutation(distinct)[: math.ceil(fraction * distinct)])
    rows = random.permutation(len(train))
    return train.select(rows[~drawn[rows]]), train.select(rows[drawn[rows]])


def hold_out(place: str, train: Rows, args: DataArguments, task: str) -> dict[str, Rows]:
    """Make a validation split: of inputs drawn by seed, of a stream's by their hash, of a single document its end.

    A stream that ends within the rows that are checked is split as any other rows: the hash might choose none of them.

    A row with the only examples of a class stays in training.

    Raises:
        ValueError: nothing can be held out, or nothing would be left; the message begins with `place`.
    """
    fraction, seed = args.validation_fraction, args.data_split_seed
    if isinstance(train, IterableDataset):
        first = list(train.take(CHECKED_ROWS_OF_STREAM))
        if len(first) < CHECKED_ROWS_OF_STREAM:
            splits = hold_out(place, Dataset.from_list(first, features=train.features), args, task)
            return {split: rows.to_iterable_dataset() for split, rows in splits.items()}
        sides = {"train": is_kept, "validation": is_held_out}
        text_column = INPUT_COLUMNS[task][0]
        return {
            split: train.filter(partial(side, column=text_column, fraction=fraction, seed=seed))
            for split, side in sides.items()
        }
    if len(train) == 1 and task == "language_modeling":
        text = train[0]["text"]
        end = int(len(text) * (1 - fraction))
        if not 0 < end < len(text):
            raise ValueError(
                f"{place}: --validation_fraction {fraction} of {len(text)} characters leaves none on one side."
            )
        texts = {"train": text[:end], "validation": text[end:]}
        return {split: Dataset.from_dict({"text": [text]}) for split, text in texts.items()}
    kept, held_out = draw(place, train, args, task)
    if column := CLASS_COLUMNS.get(task):
        known = set().union(*classes_of(kept, column))
        is_known = [classes <= known for classes in classes_of(held_out, column)]
        only = held_out.select([i for i, fine in enumerate(is_known) if not fine])
        kept = concatenate_datasets([kept, only])
        held_out = held_out.select([i for i, fine in enumerate(is_known) if fine])
        if not len(held_out):
            raise ValueError(
                f"{place}: no row can be held out, since each has the only example of a class: "
                "give --validation_file, or --validation_fraction 0."
            )
    return {"train": kept, "validation": held_out}


def first_rows(rows: Rows, limit: int | None) -> Rows:
    """The first `limit` rows; all of them where that is None."""
    if limit is None or (isinstance(rows, Dataset) and limit >= len(rows)):
        return rows
    return rows.take(limit)


def join(sources: list[Source]) -> Rows:
    """The rows of all sources, one source after the other.

    Raises:
        ValueError: their columns are of different types.
    """
    try:
        return concatenate_datasets([source.rows for source in sources])
    except ValueError as error:
        types = "; ".join(f"{source.place} has {dict(source.rows.features)}" for source in sources)
        raise ValueError(f"The columns of one split must have one type: {types}.") from error


def load_splits(
    args: DataArguments, task: str, known_classes: set[str] | None = None
) -> DatasetDict | IterableDatasetDict:
    """Train, validation and test, as far as there are data for them, with the columns of `COLUMNS[task]`.

    A held-out split may have the classes of the training split, or `known_classes` where these are given.
    Classes are texts or whole numbers, as in the data; or their names, where a data set has names for its numbers.

    Raises:
        ValueError: data that the task cannot use; the message names the file and the row.
        FileNotFoundError: a local file is missing.
    """
    streams = task in ("language_modeling", "translation")
    if args.streaming and (not streams or (args.dataset == "phrasebook" and not args.files)):
        raise ValueError(
            "--streaming is for language models and translation, on files or a data set on the Hub: leave it out."
        )
    columns = {name: name for name in COLUMNS[task]} | parse_renaming(args.columns, COLUMNS[task], "--columns")
    drop_empty = args.drop_empty or task == "language_modeling"
    texts = [columns[name] for name in TEXT_COLUMNS[task]]
    splits = {}
    for split, sources in read_sources(args, task, columns, texts).items():
        sources = [rename_columns(source, columns) for source in sources]
        if task in CLASS_COLUMNS:
            sources = [name_classes(source, CLASS_COLUMNS[task]) for source in sources]
        splits[split] = [check_rows(source, task, drop_empty) for source in sources]

    if task == "regression":
        check_widths([source for sources in splits.values() for source in sources], "label")
        splits = {split: [as_floats(source, "label") for source in sources] for split, sources in splits.items()}

    data = {split: join(sources) for split, sources in splits.items()}
    if "train" in data:
        data["train"] = first_rows(data["train"], args.max_train_samples)
    if column := CLASS_COLUMNS.get(task):
        if known_classes is None and "train" in data:
            known_classes = {str(name) for classes in classes_of(data["train"], column) for name in classes}
        for source in (source for split, sources in splits.items() if split != "train" for source in sources):
            if known_classes is not None:
                check_classes_known(source, column, known_classes)
    if "train" in data and "validation" not in data and args.validation_fraction:
        place = " and ".join(source.place for source in splits["train"])
        data |= hold_out(place, data["train"], args, task)
    for split in data.keys() - {"train"}:
        data[split] = first_rows(data[split], args.max_eval_samples)
    return IterableDatasetDict(data) if args.streaming else DatasetDict(data)


def texts_of(rows: Rows, task: str) -> Iterator[str]:
    """Everything that a tokenizer has to read: each text of each row, with tokens joined by spaces."""
    for row in each_row(rows):
        for name in TEXT_COLUMNS[task]:
            yield " ".join(as_list(row[name]))
