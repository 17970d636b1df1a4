"""Load and check the train, validation and test splits of any task.

`load_splits(args, schema)` renames the user's columns to the names in the schema.
"""

import math
import zlib
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, concatenate_datasets

from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.data.columns import Schema, as_list
from vanilla_transformer.data.sources import (
    CHECKED_ROWS_OF_STREAM,
    NUMBER,
    Row,
    Rows,
    Source,
    check_width,
    each_row,
    find_sources,
    stream,
)


def has_side(row: Row, held_out: bool, column: str, fraction: float, seed: int) -> bool:
    """Whether the hash of a row's text puts it in the held-out split (or, if `held_out` is False, in training)."""
    return (zlib.crc32(f"{seed} {row[column]}".encode()) < fraction * 2**32) is held_out


def split_stream(train: IterableDataset, args: DataArguments, schema: Schema) -> dict[str, Rows]:
    """Hold out rows of a stream by their hash; hold out at least one random row of a short stream."""
    first = list(train.take(CHECKED_ROWS_OF_STREAM))
    if len(first) < CHECKED_ROWS_OF_STREAM:
        splits = draw(Dataset.from_list(first, features=train.features), args, schema)
        return {split: rows.to_iterable_dataset() for split, rows in splits.items()}
    options = {"column": inputs_of(schema)[0], "fraction": args.validation_fraction, "seed": args.data_split_seed}
    sides = {"train": False, "validation": True}
    return {split: train.filter(has_side, fn_kwargs={"held_out": side, **options}) for split, side in sides.items()}


def split_document(train: Dataset, fraction: float) -> dict[str, Dataset]:
    """Hold out the end of the only document."""
    (name,) = train.column_names
    text = train[0][name]
    end = int(len(text) * (1 - fraction))
    if not 0 < end < len(text):
        raise ValueError(f"--validation_fraction {fraction} of {len(text)} characters leaves none on one side.")
    texts = {"train": text[:end], "validation": text[end:]}
    return {split: Dataset.from_dict({name: [text]}) for split, text in texts.items()}


def inputs_of(schema: Schema) -> list[str]:
    """Return the input columns. Rows with equal inputs are kept in the same split."""
    return list(schema.inputs or schema.texts)


def input_hashes(rows: Dataset, schema: Schema) -> np.ndarray:
    """Return a hash of each row's input, as an array of shape (rows,)."""
    hashes = []
    for table in rows.select_columns(inputs_of(schema)).with_format("arrow").iter(batch_size=100_000):
        texts = [
            column if pa.types.is_string(column.type) else pc.binary_join(column, " ") for column in table.columns
        ]
        inputs = pc.binary_join_element_wise(*texts, "\0").to_numpy(zero_copy_only=False)
        hashes.append(pandas.util.hash_array(inputs, categorize=False))
    return np.concatenate(hashes)


def draw(train: Dataset, args: DataArguments, schema: Schema) -> dict[str, Dataset]:
    """Hold out random rows, reproducibly. Rows with the same input stay in the same split."""
    fraction, seed = args.validation_fraction, args.data_split_seed
    _, inputs = np.unique(input_hashes(train, schema), return_inverse=True)
    distinct = int(inputs.max()) + 1
    if distinct == 1:
        found = f"all {len(train)} rows have the same input" if len(train) > 1 else "there is one training row"
        raise ValueError(
            f"{found}, and there is no validation split: give --validation_file, or --validation_fraction 0."
        )
    if math.ceil(fraction * distinct) == distinct:
        raise ValueError(f"--validation_fraction {fraction} of {distinct} rows leaves none to train on.")
    if distinct == len(train):
        kept, held_out = train.train_test_split(fraction, seed=seed).values()
    else:
        random = np.random.default_rng(seed)
        drawn = np.isin(inputs, random.permutation(distinct)[: math.ceil(fraction * distinct)])
        rows = random.permutation(len(train))
        kept, held_out = train.select(rows[~drawn[rows]]), train.select(rows[drawn[rows]])
    return {"train": kept, "validation": held_out}


def keep_rare_classes(train: Dataset, validation: Dataset, column: str) -> dict[str, Dataset]:
    """Move held-out rows back to training if their classes do not occur there."""
    known = classes_of(train, column)
    is_known = np.array([known.issuperset(as_list(value)) for value in validation[column]])
    if not is_known.any():
        raise ValueError(
            "no row can be held out, since each has the only example of a class: "
            "give --validation_file, or --validation_fraction 0."
        )
    rare = validation.select(np.flatnonzero(~is_known))
    return {"train": concatenate_datasets([train, rare]), "validation": validation.select(np.flatnonzero(is_known))}


def hold_out(place: str, train: Rows, args: DataArguments, schema: Schema) -> dict[str, Rows]:
    """Hold out training rows as a validation split.

    Raises:
        ValueError: no rows can be held out, or none would be left; the message begins with `place`.
    """
    try:
        if isinstance(train, IterableDataset):
            return split_stream(train, args, schema)
        if len(train) == 1 and schema.documents:
            return split_document(train, args.validation_fraction)
        splits = draw(train, args, schema)
        return keep_rare_classes(**splits, column=schema.classes) if schema.classes else splits
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def first_rows(rows: Rows, limit: int | None) -> Rows:
    """Return the first `limit` rows, or all rows if `limit` is None."""
    if limit is None or (isinstance(rows, Dataset) and limit >= len(rows)):
        return rows
    return rows.take(limit)


def classes_of(rows: Dataset, column: str) -> set[str]:
    """Return all classes in a column."""
    values = rows.select_columns(column).with_format("arrow")[:][column]
    return set(pc.unique(values if pa.types.is_string(values.type) else pc.list_flatten(values)).to_pylist())


def check_classes(place: str, rows: Dataset, column: str, known: set[str]) -> None:
    """Raise a ValueError that gives the first row whose class is not in `known`."""
    if classes_of(rows, column) <= known:
        return
    for row in each_row(rows):
        for label in as_list(row[column]):
            if label not in known:
                raise ValueError(f"{place}, row {row[NUMBER]}: {column} {label!r} never occurs in training.")


def load_rows(
    found: dict[str, list[Source]], args: DataArguments, schema: Schema, known_classes: set[str] | None
) -> dict[str, Dataset]:
    """Return the rows of each split, after checking that all sources agree in label width and classes.

    Raises:
        ValueError: a source has a different number of values per label, or an unknown class; or see `Source.load`.
    """
    loaded = {split: [(source.place, source.load()) for source in sources] for split, sources in found.items()}
    if numbers := schema.numbers:
        parts = [(place, rows[0]) for each in loaded.values() for place, rows in each]
        firsts = [(f"{place}, row {row[NUMBER]}", row[numbers]) for place, row in parts]
        for first in firsts:
            check_width(numbers, *first, *firsts[0])
    data = {split: concatenate_datasets([rows for _, rows in each]) for split, each in loaded.items()}
    if (column := schema.classes) and (known_classes is not None or "train" in data):
        if known_classes is None:
            known_classes = classes_of(first_rows(data["train"], args.max_train_samples), column)
        for place, rows in chain.from_iterable(loaded[split] for split in loaded.keys() - {"train"}):
            check_classes(place, rows, column, known_classes)
    return {split: rows.select_columns(list(schema.columns)) for split, rows in data.items()}


def load_splits(
    args: DataArguments, schema: Schema, known_classes: set[str] | None = None
) -> DatasetDict | IterableDatasetDict:
    """Return the available splits (train, validation, test) with the columns of the schema.

    Held-out splits may contain only the classes of the training split, or `known_classes` if given. Classes are
    strings: the class names that a data set declares, or else its integer labels as strings.

    Raises:
        ValueError: the data is not valid for the task; the message gives the file and the row.
        FileNotFoundError: a local file does not exist.
    """
    if args.streaming and (not schema.streams or (args.dataset == "phrasebook" and not args.files)):
        raise ValueError(
            "--streaming is for language models and translation, on files or a data set on the Hub: leave it out."
        )
    found = find_sources(args, schema)
    data: dict[str, Any]
    if args.streaming:
        data = {split: stream(sources) for split, sources in found.items()}
    else:
        data = load_rows(found, args, schema, known_classes)
    if "train" in data:
        data["train"] = first_rows(data["train"], args.max_train_samples)
        if "validation" not in data and args.validation_fraction:
            place = " and ".join(source.place for source in found["train"])
            data |= hold_out(place, data["train"], args, schema)
    for split in data.keys() - {"train"}:
        data[split] = first_rows(data[split], args.max_eval_samples)
    return IterableDatasetDict(data) if args.streaming else DatasetDict(data)


def texts_of(rows: Rows, schema: Schema) -> Iterator[str]:
    """Yield the strings to train a tokenizer on. Lists of tokens are concatenated, with a space before each token."""
    for row in each_row(rows):
        for name in schema.texts:
            yield row[name] if isinstance(row[name], str) else "".join(f" {token}" for token in row[name])
