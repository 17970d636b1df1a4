"""Two files of parallel lines as rows: read once into Arrow on disk, which all processes map; or as a stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import cast

import pyarrow as pa
from datasets import (
    ArrowBasedBuilder,
    BuilderConfig,
    Dataset,
    DatasetInfo,
    Features,
    IterableDataset,
    Split,
    SplitGenerator,
    Value,
)
from datasets.exceptions import DatasetGenerationError

from vanilla_transformer.files import utf8_lines


LINES_AT_ONCE = 100_000


def line_pairs(files: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """The lines that translate each other.

    Raises:
        ValueError: the files have different numbers of lines, or one is not UTF-8 or damaged.
    """
    for pair in zip_longest(*map(utf8_lines, files)):
        if None in pair:
            counts = [sum(1 for _ in utf8_lines(file)) for file in files]
            raise ValueError(
                f"{files[0]} has {counts[0]} lines, but {files[1]} has {counts[1]}: they must be parallel."
            )
        yield cast(tuple[str, str], pair)


@dataclass
class ParallelTextConfig(BuilderConfig):
    """What rows are made of: with any of it changed, they are made anew.

    Args:
        files, columns: paths of source and target, and what their columns are called.
        states: where each file lies, its size, and when it was changed.
    """

    files: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    states: tuple[tuple[str, int, int], ...] = ()


class ParallelText(ArrowBasedBuilder):
    """Makes a data set of two files of parallel lines, or finds the one that was made before."""

    BUILDER_CONFIG_CLASS = ParallelTextConfig
    config: ParallelTextConfig

    def _info(self) -> DatasetInfo:
        return DatasetInfo(features=Features({name: Value("string") for name in self.config.columns}))

    def _split_generators(self, dl_manager) -> list[SplitGenerator]:
        return [SplitGenerator(name=str(Split.TRAIN))]

    def _generate_tables(self) -> Iterator[tuple[int, pa.Table]]:
        pairs = line_pairs(cast(tuple[str, str], self.config.files))
        number = 0
        while some := list(islice(pairs, LINES_AT_ONCE)):
            yield number, pa.table(dict(zip(self.config.columns, map(pa.array, zip(*some, strict=True)), strict=True)))
            number += 1


def rows_of_pairs(source: str, target: str, columns: tuple[str, str]) -> Iterator[dict[str, str]]:
    """The rows of a stream."""
    for pair in line_pairs((source, target)):
        yield dict(zip(columns, pair, strict=True))


def read_pairs(files: list[str], columns: list[str], streaming: bool = False) -> Dataset | IterableDataset:
    """A row for each line of two files.

    Raises:
        ValueError: see `line_pairs`; of a stream only once it is read so far. Or the files are empty.
    """
    source, target = files
    if streaming:
        features = Features({name: Value("string") for name in columns})
        given = {"source": source, "target": target, "columns": tuple(columns)}
        return IterableDataset.from_generator(rows_of_pairs, features, gen_kwargs=given)
    if not any(Path(file).stat().st_size for file in files):
        return Dataset.from_dict({name: [] for name in columns})
    found = [(str(Path(file).absolute()), Path(file).stat()) for file in files]
    states = tuple((path, state.st_size, state.st_mtime_ns) for path, state in found)
    builder = ParallelText(files=tuple(files), columns=tuple(columns), states=states)
    try:
        builder.download_and_prepare()
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None
    return cast(Dataset, builder.as_dataset(split=Split.TRAIN))
