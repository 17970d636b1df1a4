"""Read rows from the phrasebook, a data set on the Hub or in a folder, or local files."""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from reprlib import repr as short
from typing import Any, TypeAlias, cast

import datasets
import pyarrow as pa
from datasets import (
    Dataset,
    DownloadManager,
    Features,
    IterableDataset,
    Value,
    load_dataset,
    load_dataset_builder,
)

from vanilla_transformer.data.arguments import FORMATS, SPLITS, DataArguments, file_formats, parse_renaming, suffix_of
from vanilla_transformer.data.columns import Schema, as_list, is_empty
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.data.readers import (
    BATCH_SIZE,
    Row,
    check_columns,
    class_names,
    columns_to_read,
    names_in,
    read_json,
    read_parallel,
    read_parquet,
    read_table,
    read_text,
    value_at,
)
from vanilla_transformer.files import temporary_sibling


CHECKED_ROWS_OF_STREAM = 100
NUMBER = "row"  # column with the number of each row in its source, starting at 1
CACHE_VERSION = 1  # increment when the same files produce different rows

Rows: TypeAlias = Dataset | IterableDataset


def cache_folder() -> Path:
    """Return the folder in the `datasets` cache that holds parsed files and trained tokenizers."""
    return Path(datasets.config.HF_DATASETS_CACHE) / "vanilla_transformer"


def each_row(rows: Rows) -> Iterator[Row]:
    """Yield the rows one by one, reading them in batches."""
    for batch in rows.iter(BATCH_SIZE):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def check_width(column: str, place: str, value: Any, first_place: str, first: Any) -> None:
    """Raise a ValueError if a value does not have as many numbers as the first value."""
    width, expected = len(as_list(value)), len(as_list(first))
    if width != expected:
        raise ValueError(f"{place}: {column}: there are {width} numbers, but {expected} in {first_place}.")


@dataclass(frozen=True)
class Source:
    """A file, pair of files or split of a data set, and how to read its rows.

    Args:
        place: name of the source in error messages.
        schema: the columns of the task.
        columns: maps each of the task's columns to the user's column.
        drop_empty: skip rows with an empty text column.
        sample_by: unit of a document in text files: "line", "paragraph" or "document".
        kind: file format: a value of `FORMATS` in `arguments`, or "parallel" for two files of aligned lines.
        files: the file, or the two parallel files.
        rows: a split of a loaded data set, instead of files.
    """

    place: str
    schema: Schema
    columns: dict[str, str]
    drop_empty: bool
    sample_by: str
    kind: str = ""
    files: tuple[str, ...] = ()
    rows: Rows | None = None

    def read(self) -> Iterator[Any]:
        """Return the unparsed rows of the source. Columns that are not needed may be omitted."""
        wanted = list(self.columns.values())
        if self.rows is not None:
            if self.rows.features is None:  # a stream may not declare its columns
                return each_row(self.rows)
            columns = columns_to_read(self.place, self.rows.features.arrow_schema, wanted)
            rows = self.rows.select_columns(columns)
            return class_names(each_row(rows), rows.features)
        file = self.files[0]
        if self.kind == "parallel":
            return read_parallel(cast(tuple[str, str], self.files), wanted)
        if self.kind in ("csv", "tsv"):
            return read_table(file, self.kind, wanted)
        if self.kind == "parquet":
            return read_parquet(file, wanted)
        return read_text(file, self.sample_by) if self.kind == "text" else read_json(file)

    def parse(self) -> Iterator[tuple[int, Row]]:
        """Yield each row's number and its parsed values, under the task's column names.

        Raises:
            ValueError: a value is invalid; the message gives the source, row, column and value.
        """
        first, texts, numbers = None, self.schema.texts, self.schema.numbers
        for number, row in enumerate(self.read(), start=1):
            place = f"{self.place}, row {number}"
            if not isinstance(row, dict):
                raise ValueError(f'{place} is {short(row)}; it must be an object, such as {{"column": "text", ...}}.')
            if number == 1:
                check_columns(self.place, names_in(row), self.columns.values())
            values = {ours: value_at(row, yours) for ours, yours in self.columns.items()}
            if self.drop_empty and any(is_empty(values[name]) for name in texts):
                continue
            for name, column in self.schema.columns.items():
                try:
                    values[name] = column.parse(values[name], values)
                except ValueError as error:
                    raise ValueError(f"{place}: {name} {error}.") from None
            if numbers:
                first = first or (place, values[numbers])
                check_width(numbers, place, values[numbers], *first)
            yield number, values

    def load(self) -> Dataset:
        """Return the rows with a column of row numbers. Files are parsed once and cached as Arrow.

        Raises:
            ValueError: there are no rows, or see `parse`.
        """
        file = self.cache_file()
        if file is not None and file.exists():
            return Dataset.from_file(str(file))
        rows: Iterator[Row] = ({NUMBER: number, **row} for number, row in self.parse())
        if (first := next(rows, None)) is None:
            raise self.without_rows()
        features = Features({NUMBER: Value("int64")} | self.schema.features(first))
        if file is None:
            return Dataset.from_list([first, *rows], features)
        rows = chain([first], rows)
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary_sibling(file) as folder:
            part, schema = folder / file.name, features.arrow_schema
            with pa.OSFile(str(part), "wb") as stream, pa.ipc.new_stream(stream, schema) as writer:
                while batch := list(islice(rows, BATCH_SIZE)):
                    writer.write_table(pa.Table.from_pylist(batch, schema))
            os.replace(part, file)
        return Dataset.from_file(str(file))

    def without_rows(self) -> ValueError:
        """Return the ValueError to raise if the source has no rows."""
        return ValueError(f"{self.place}: there are no rows{' with a text' if self.drop_empty else ''}.")

    def cache_file(self) -> Path | None:
        """Return the path of the Arrow cache, which depends on the content of the files; None for rows in memory."""
        cached = self.rows.cache_files if isinstance(self.rows, Dataset) else []
        files = self.files or [file["filename"] for file in cached]
        parsers = {name: column.parse.__qualname__ for name, column in self.schema.columns.items()}
        options = (CACHE_VERSION, self.kind, parsers, self.columns, self.drop_empty, self.sample_by)
        digest = hashlib.sha256(repr(options).encode())
        for file in files:
            with open(file, "rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return cache_folder() / digest.hexdigest() / "rows.arrow" if files else None


def stream(sources: list[Source]) -> IterableDataset:
    """Return the rows of a split as a stream. The first rows are parsed immediately to check them.

    Raises:
        ValueError: there are no rows, or see `Source.parse`. Errors in later rows are raised when they are read.
    """
    shards = []
    for source in sources:
        if isinstance(source.rows, IterableDataset):
            count = source.rows.num_shards
            shards += [replace(source, rows=source.rows.shard(count, index)) for index in range(count)]
        else:
            shards.append(source)
    # `from_generator` treats the items of a list as shards and distributes them among dataloader workers.
    rows = IterableDataset.from_generator(parsed_rows, Features(sources[0].schema.features()), {"shards": shards})
    if not list(rows.take(CHECKED_ROWS_OF_STREAM)):
        raise sources[0].without_rows()
    return rows


def parsed_rows(shards: list[Source]) -> Iterator[Row]:
    """Yield the parsed rows of all shards."""
    for source in shards:
        for _, row in source.parse():
            yield row


def file_sources(files: list[str], make: Callable[..., Source], schema: Schema) -> list[Source]:
    """Return the sources of one split; two parallel files form one source. For errors, see `file_formats`."""
    formats = file_formats(files, schema.parallel)
    if formats[0] == "parallel":
        return [make(" and ".join(files), kind="parallel", files=tuple(files))]
    return [make(file, kind=kind, files=(file,)) for file, kind in zip(files, formats, strict=True)]


def data_set_sources(args: DataArguments, make: Callable[..., Source], schema: Schema) -> dict[str, list[Source]]:
    """Return the sources of each split of a data set. Data files without declared types are read like local files.

    Raises:
        ValueError: the data set lacks a requested split, or needs a loading script.
    """
    try:
        builder = load_dataset_builder(args.dataset, args.dataset_config, revision=args.dataset_revision)
    except RuntimeError as error:  # datasets no longer supports loading scripts
        raise ValueError(f"{args.dataset} cannot be loaded: {error}") from error
    available: Any = {split: list(map(str, files)) for split, files in (builder.config.data_files or {}).items()}
    has_formats = {*map(suffix_of, chain.from_iterable(available.values()))} <= {*FORMATS}
    if not Path(args.dataset).is_dir() and (builder.info.features or not has_formats):
        available = load_dataset(
            args.dataset, args.dataset_config, revision=args.dataset_revision, streaming=args.streaming
        )
    chosen = parse_renaming(args.splits, SPLITS, "--splits")
    sources = {}
    for split in SPLITS:
        name = chosen.get(split, split)
        if name not in available:
            if split in chosen and name != "none":
                raise ValueError(f"{args.dataset} has no split {name!r}; it has: {', '.join(available)}.")
        elif isinstance(available[name], list):
            files = available[name] if args.streaming else DownloadManager().download(available[name])
            sources[split] = file_sources([str(file).removeprefix(f"{Path.cwd()}/") for file in files], make, schema)
        else:
            sources[split] = [make(f"{args.dataset} {name}", rows=available[name])]
    return sources


def find_sources(args: DataArguments, schema: Schema) -> dict[str, list[Source]]:
    """Return the sources of each split.

    Raises:
        FileNotFoundError: a local file does not exist.
        ValueError: see `file_sources` and `data_set_sources`; or the phrasebook has no data for this task; or
            --columns uses a column twice.
    """
    names = tuple(schema.columns)
    columns = {name: name for name in names} | parse_renaming(args.columns, names, "--columns")
    if len(set(columns.values())) < len(columns):
        raise ValueError(f"--columns {columns}: each of your columns can be one of ours only.")
    drop_empty = args.drop_empty or schema.documents
    make = partial(Source, schema=schema, columns=columns, drop_empty=drop_empty, sample_by=args.sample_by)
    if args.files:
        return {split: file_sources(files, make, schema) for split, files in args.files.items()}
    if args.dataset != "phrasebook":
        return data_set_sources(args, make, schema)
    if schema.phrasebook is None:
        raise ValueError("The phrasebook has no data for this task: give --train_file or --dataset.")
    locales: dict[str, Any] = {"source": args.source_locale, "target": args.target_locale} if schema.parallel else {}
    phrases = phrasebook(schema.phrasebook, **locales, size=args.phrases, seed=args.data_split_seed)
    return {split: [make(f"phrasebook {split}", rows=rows)] for split, rows in phrases.items()}
