"""Data for every task: the phrasebook, a data set of the Hub, or local files, checked before any long work begins.

`load_splits(args, task)` gives each column the name that the phrasebook has for it, whatever the user calls it: what
follows knows `COLUMNS[task]` alone.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal

from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    IterableDataset,
    IterableDatasetDict,
    List,
    Translation,
    Value,
    concatenate_datasets,
    load_dataset,
)
from datasets.exceptions import DatasetGenerationError

from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.files import utf8_lines


SPLITS = ("train", "validation", "test")
# What `load_dataset` calls the format of a file.
FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet", ".txt": "text"}
# The column with classes: what a held-out split has there, training has to have too.
CLASS_COLUMNS = {"classification": "label", "tagging": "tags"}
BATCH_SIZE = 1000
CHECKED_ROWS_OF_STREAM = 100

Row = dict[str, Any]
Rows = Dataset | IterableDataset


@dataclass
class DataArguments:
    dataset: str = field(
        default="phrasebook",
        metadata={"help": "The embedded phrasebook, or a data set on the Hub by its name, or in a folder."},
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    dataset_revision: str | None = field(default=None, metadata={"help": "Revision of a data set on the Hub."})
    splits: list[str] = field(
        default_factory=list,
        metadata={
            "help": "What the splits of a data set on the Hub are called, as ours=yours: validation=dev. "
            "test=none leaves one out, as where its labels are withheld."
        },
    )
    train_file: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Local training data in place of --dataset: .jsonl, .json, .csv, .parquet or .txt, also gzipped; "
            "for translation also two files of parallel lines, such as train.en train.de."
        },
    )
    validation_file: list[str] = field(default_factory=list, metadata={"help": "Local validation data, likewise."})
    test_file: list[str] = field(default_factory=list, metadata={"help": "Local test data, likewise."})
    columns: list[str] = field(
        default_factory=list,
        metadata={"help": "What your columns are called, as ours=yours, such as source=en target=translation.de."},
    )
    sample_by: Literal["line", "paragraph", "document"] = field(
        default="document",
        metadata={"help": "For language models, what is one document in a .txt file: the whole file, or each part."},
    )
    drop_empty: bool = field(
        default=False,
        metadata={"help": "Leave out rows with an empty text, an error otherwise; language models always do."},
    )
    validation_fraction: float = field(
        default=0.05, metadata={"help": "Share of the training rows held out where there is no validation split."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use so many training rows only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use so many rows of other splits only."})
    source_locale: str = field(default="en", metadata={"help": "Source language of the phrasebook's translations."})
    target_locale: str = field(default="es", metadata={"help": "Target language of the phrasebook's translations."})
    phrases: int | None = field(default=None, metadata={"help": "Training rows of the phrasebook."})
    streaming: bool = field(default=False, metadata={"help": "Read the training text as it comes (language models)."})
    data_split_seed: int = field(default=0, metadata={"help": "Seed of the phrasebook and of held-out rows."})

    def __post_init__(self):
        if self.files and self.dataset != "phrasebook":
            raise ValueError(f"--dataset {self.dataset} and --train_file exclude each other: give one of them.")
        if self.files or self.dataset == "phrasebook":
            for name in ("dataset_config", "dataset_revision", "splits"):
                if getattr(self, name):
                    raise ValueError(f"--{name} belongs to a data set on the Hub: give its name with --dataset.")
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"--validation_fraction {self.validation_fraction} must be at least 0 and below 1.")

    @property
    def files(self) -> dict[str, list[str]]:
        """The local files of each split that has some."""
        files = {split: getattr(self, f"{split}_file") for split in SPLITS}
        return {split: paths for split, paths in files.items() if paths}

    @property
    def name(self) -> str:
        """What a model card calls the data."""
        files = next(iter(self.files.values()), [])
        return " ".join(Path(file).name for file in files) or self.dataset


@dataclass
class Part:
    """Rows from one place, and the number that each has there; the first is 1."""

    place: str
    rows: Rows
    numbers: Sequence[int] = ()


# Sources: the parts of each split, with the columns that they come with.


def read_parallel(files: list[str], columns: list[str]) -> Part:
    """Two files whose lines translate each other.

    Raises:
        ValueError: they have different numbers of lines, or one is not UTF-8.
    """
    if len(files) != 2:
        raise ValueError(
            f"{', '.join(files)}: text for translation is two files of parallel lines, source and target."
        )
    source, target = (list(utf8_lines(file)) for file in files)
    if len(source) != len(target):
        raise ValueError(
            f"{files[0]} has {len(source)} lines, but {files[1]} has {len(target)}: they must be parallel."
        )
    return Part(" and ".join(files), Dataset.from_dict(dict(zip(columns, (source, target), strict=True))))


def read_table(file: str, kind: str, streaming: bool, **options: Any) -> Part:
    """A file that `load_dataset` reads.

    Raises:
        ValueError: it has no rows, is not UTF-8, or cannot be read.
    """
    if not streaming and kind != "parquet" and not sum(1 for _ in utf8_lines(file)):
        raise ValueError(f"{file} is empty.")
    try:
        rows = load_dataset(kind, data_files={"train": file}, split="train", streaming=streaming, **options)
    except (DatasetGenerationError, ValueError) as error:
        raise ValueError(f"{file} has no rows that can be read as {kind}: {error.__cause__ or error}") from error
    return Part(file, rows)


def read_files(files: list[str], args: DataArguments, task: str, columns: dict[str, str]) -> list[Part]:
    for file in files:
        if not Path(file).is_file():
            raise FileNotFoundError(f"{file}: there is no such file.")
    kinds = [FORMATS.get(Path(file.removesuffix(".gz")).suffix) for file in files]
    if task == "translation" and all(kind in (None, "text") for kind in kinds):
        return [read_parallel(files, list(columns.values()))]
    if None in kinds:
        file = files[kinds.index(None)]
        raise ValueError(f"{file}: its name must end in one of {', '.join(FORMATS)} (also with .gz).")
    options: dict[str | None, Row] = {"csv": {"keep_default_na": False}}  # a text may say "NA" or "null"
    if task == "language_modeling":
        options["text"] = {"sample_by": args.sample_by}
    return [
        read_table(file, kind, args.streaming, **options.get(kind, {}))
        for file, kind in zip(files, kinds, strict=True)
    ]


def read_hub(args: DataArguments) -> dict[str, list[Part]]:
    available = load_dataset(
        args.dataset, args.dataset_config, revision=args.dataset_revision, streaming=args.streaming
    )
    chosen = names_given(args.splits, SPLITS, "--splits")
    parts = {}
    for split in SPLITS:
        name = chosen.get(split, split)
        if name in available:
            parts[split] = [Part(f"{args.dataset} {name}", available[name])]
        elif split in chosen and name != "none":
            raise ValueError(f"{args.dataset} has no split {name!r}; it has: {', '.join(available)}.")
    return parts


def read_parts(args: DataArguments, task: str, columns: dict[str, str]) -> dict[str, list[Part]]:
    if args.files:
        return {split: read_files(files, args, task, columns) for split, files in args.files.items()}
    if args.dataset != "phrasebook":
        return read_hub(args)
    locales = (args.source_locale, args.target_locale) if task == "translation" else ()
    phrases = phrasebook(task, *locales, size=args.phrases, seed=args.data_split_seed)
    return {split: [Part(f"phrasebook {split}", rows)] for split, rows in phrases.items()}


# Columns.


def names_given(options: list[str], ours: Iterable[str], flag: str) -> dict[str, str]:
    """From `["source=en"]` to `{"source": "en"}`."""
    given = {}
    for option in options:
        name, separator, yours = option.partition("=")
        if not separator or name not in ours:
            raise ValueError(f"{flag} {option}: give ours=yours, where ours is one of {', '.join(ours)}.")
        given[name] = yours
    return given


def members(feature: Any) -> Iterable[str]:
    """The names in a column of records, by its feature or one of its values."""
    if isinstance(feature, Translation):
        return feature.languages
    return feature if isinstance(feature, dict) else ()


def lift(batch: dict[str, list], paths: dict[str, tuple[str, str]]) -> dict[str, list]:
    return {path: [record and record[member] for record in batch[name]] for path, (name, member) in paths.items()}


def rename_columns(part: Part, columns: dict[str, str]) -> Part:
    """Give the user's columns our names, and leave all others out; `a.b` is the member b of a column of records.

    Raises:
        ValueError: a column is missing, or to be used as two.
    """
    rows = part.rows
    # A stream may know its columns only by its first row.
    features = rows.features or next(iter(rows), {})
    nested = {f"{name}.{member}": (name, member) for name in features for member in members(features[name])}
    for yours in columns.values():
        if yours not in features and yours not in nested:
            available = ", ".join([*features, *nested])
            raise ValueError(f"{part.place} has no column {yours!r}; it has: {available}. Name yours with --columns.")
    if len(set(columns.values())) < len(columns):
        raise ValueError(f"--columns {columns}: each of your columns can be one of ours only.")
    paths = {yours: nested[yours] for yours in columns.values() if yours not in features}
    if paths:
        rows = rows.map(partial(lift, paths=paths), batched=True)
    renamed = {yours: ours for ours, yours in columns.items() if yours != ours}
    return Part(part.place, rows.select_columns(list(columns.values())).rename_columns(renamed))


def name_classes(part: Part, column: str) -> Part:
    """The part with the names of its classes where it has numbers for them, and None for a number without a name."""
    feature = part.rows.features[column]
    label = getattr(feature, "feature", feature)
    if not isinstance(label, ClassLabel):
        return part
    name = dict(enumerate(label.names)).get
    named = [list(map(name, value)) if isinstance(value, list) else name(value) for value in part.rows[column][:]]
    named_feature = Value("string") if feature is label else List(Value("string"))
    return Part(part.place, part.rows.remove_columns(column).add_column(column, named, feature=named_feature))


# Rows. A check gives what is wrong with a value, or None.


def as_list(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def is_empty(value: Any) -> bool:
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def check_text(value: Any, row: Row) -> str | None:
    return None if isinstance(value, str) else f"{short(value)} is not a text"


def check_classes(value: Any, row: Row) -> str | None:
    wrong = [label for label in as_list(value) if is_empty(label) or not isinstance(label, str | int)]
    return (
        f"{short(wrong[0])} is not a class; leave out rows without one, or with one that is withheld"
        if wrong
        else None
    )


def check_numbers(value: Any, row: Row) -> str | None:
    wrong = [
        n for n in as_list(value) if isinstance(n, bool) or not isinstance(n, int | float) or not math.isfinite(n)
    ]
    return f"{short(wrong[0])} is not a number" if wrong else None


def check_tokens(value: Any, row: Row) -> str | None:
    if not isinstance(value, list):
        return f"{short(value)} is not a list of tokens"
    wrong = [token for token in value if is_empty(token) or not isinstance(token, str)]
    return f"{short(wrong[0])} is not a token" if wrong else None


def check_tags(value: Any, row: Row) -> str | None:
    if not isinstance(value, list) or len(value) != len(row["tokens"]):
        return f"{short(value)} is not a list of {len(row['tokens'])} tags, one for each token"
    return check_classes(value, row)


def check_answers(value: Any, row: Row) -> str | None:
    if not isinstance(value, dict) or not {"text", "answer_start"} <= value.keys():
        return f'{short(value)} is not {{"text": [...], "answer_start": [...]}}'
    if len(value["text"]) != len(value["answer_start"]):
        return f"there are {len(value['text'])} texts for {len(value['answer_start'])} starts"
    for text, start in zip(value["text"], value["answer_start"], strict=True):
        found = row["context"][start : start + len(text)]
        if found != text:
            return f"{short(text)} does not stand at character {start} of its context, where there is {short(found)}"
    return None


CHECKS: dict[str, dict[str, Callable[[Any, Row], str | None]]] = {
    "translation": {"source": check_text, "target": check_text},
    "classification": {"text": check_text, "label": check_classes},
    "regression": {"text": check_text, "label": check_numbers},
    "tagging": {"tokens": check_tokens, "tags": check_tags},
    "question_answering": {"question": check_text, "context": check_text, "answers": check_answers},
    "language_modeling": {"text": check_text},
}
COLUMNS = {task: tuple(checks) for task, checks in CHECKS.items()}
TEXT_COLUMNS = {
    task: [name for name, check in checks.items() if check in (check_text, check_tokens)]
    for task, checks in CHECKS.items()
}


def has_text(row: Row, task: str) -> bool:
    return not any(is_empty(row[name]) for name in TEXT_COLUMNS[task])


def faults(row: Row, task: str) -> Iterator[tuple[str, str]]:
    """Each column with something wrong, and what that is."""
    for name in TEXT_COLUMNS[task]:
        if is_empty(row[name]):
            yield name, "is empty (--drop_empty leaves such rows out)"
    for name, check in CHECKS[task].items():
        if fault := check(row[name], row):
            yield name, fault


def each_row(rows: Rows) -> Iterator[Row]:
    for batch in rows.iter(BATCH_SIZE):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def check_rows(part: Part, task: str, drop_empty: bool) -> Part:
    """The part without empty rows, if those are to be dropped. Of a stream, only the first rows are checked.

    Raises:
        ValueError: there is a fault, and the message names its place; or no row is left.
    """
    streaming = isinstance(part.rows, IterableDataset)
    rows = part.rows.take(CHECKED_ROWS_OF_STREAM) if streaming else part.rows
    kept = []
    for number, row in enumerate(each_row(rows), start=1):
        if drop_empty and not has_text(row, task):
            continue
        for column, fault in faults(row, task):
            raise ValueError(f"{part.place}, row {number}: {column}: {fault}.")
        kept.append(number)
    if streaming and len(kept) < 2:
        raise ValueError(
            f"{part.place}: a stream of one document cannot be mixed or split: choose another --sample_by."
        )
    if streaming:
        return Part(part.place, part.rows.filter(partial(has_text, task=task)) if drop_empty else part.rows)
    if not kept:
        raise ValueError(f"{part.place} has no rows.")
    full = len(kept) == len(part.rows)
    return Part(part.place, part.rows if full else part.rows.select([number - 1 for number in kept]), kept)


def classes_of(rows: Dataset, column: str) -> list[set]:
    """The classes of each row."""
    return [set(as_list(value)) for value in rows[column][:]]


def check_classes_known(part: Part, column: str, known: set) -> None:
    """Raise a ValueError that names the first row of the part with a class that is not in `known`."""
    for number, classes in zip(part.numbers, classes_of(part.rows, column), strict=True):
        for label in classes - known:
            raise ValueError(f"{part.place}, row {number}: {column} {label!r} never occurs in training.")


# Splits.


def is_in_half(row: Row, held_out: bool, fraction: float, seed: int) -> bool:
    return (zlib.crc32(f"{seed} {row['text']}".encode()) < fraction * 2**32) == held_out


def hold_out(train: Rows, args: DataArguments, task: str) -> dict[str, Rows]:
    """Make a validation split: of rows drawn by seed, of a stream's texts by their hash, of a single document its end.

    A row with the only examples of a class stays in training.

    Raises:
        ValueError: there is only one row, and it is not a document that can be cut.
    """
    fraction, seed = args.validation_fraction, args.data_split_seed
    if isinstance(train, IterableDataset):
        half = partial(is_in_half, fraction=fraction, seed=seed)
        halves = {"train": False, "validation": True}
        return {split: train.filter(partial(half, held_out=held_out)) for split, held_out in halves.items()}
    if len(train) == 1 and task == "language_modeling":
        text = train[0]["text"]
        end = int(len(text) * (1 - fraction))
        texts = {"train": text[:end], "validation": text[end:]}
        return {split: Dataset.from_dict({"text": [part]}) for split, part in texts.items()}
    if len(train) == 1:
        raise ValueError("There is one training row, and no validation split: give --validation_file.")
    kept, held_out = train.train_test_split(fraction, seed=seed).values()
    if column := CLASS_COLUMNS.get(task):
        known = set().union(*classes_of(kept, column))
        is_known = [classes <= known for classes in classes_of(held_out, column)]
        only = held_out.select([i for i, fine in enumerate(is_known) if not fine])
        kept = concatenate_datasets([kept, only])
        held_out = held_out.select([i for i, fine in enumerate(is_known) if fine])
    return {"train": kept, "validation": held_out}


def first_rows(rows: Rows, limit: int | None) -> Rows:
    if limit is None or (isinstance(rows, Dataset) and limit >= len(rows)):
        return rows
    return rows.take(limit)


def load_splits(args: DataArguments, task: str, known_classes: set | None = None) -> DatasetDict | IterableDatasetDict:
    """Train, validation and test, as far as there are data for them, with the columns of `COLUMNS[task]`.

    A held-out split may have the classes of the training split, or `known_classes` where these are given.
    Classes are texts or whole numbers, as in the data; or their names, where a data set has names for its numbers.

    Raises:
        ValueError: whatever of the data the task cannot work with; the message names file and row.
        FileNotFoundError: a local file is missing.
    """
    if args.streaming and (task != "language_modeling" or (args.dataset == "phrasebook" and not args.files)):
        raise ValueError("--streaming is for language models, on files or a data set on the Hub: leave it out.")
    columns = {name: name for name in COLUMNS[task]} | names_given(args.columns, COLUMNS[task], "--columns")
    drop_empty = args.drop_empty or task == "language_modeling"
    splits = {}
    for split, parts in read_parts(args, task, columns).items():
        parts = [rename_columns(part, columns) for part in parts]
        if task in CLASS_COLUMNS:
            parts = [name_classes(part, CLASS_COLUMNS[task]) for part in parts]
        splits[split] = [check_rows(part, task, drop_empty) for part in parts]

    data = {split: concatenate_datasets([part.rows for part in parts]) for split, parts in splits.items()}
    if "train" in data:
        data["train"] = first_rows(data["train"], args.max_train_samples)
    if column := CLASS_COLUMNS.get(task):
        if known_classes is None and "train" in data:
            known_classes = set().union(*classes_of(data["train"], column))
        for part in (part for split, parts in splits.items() if split != "train" for part in parts):
            if known_classes is not None:
                check_classes_known(part, column, known_classes)
    if "train" in data and "validation" not in data and args.validation_fraction:
        data |= hold_out(data["train"], args, task)
    for split in data.keys() - {"train"}:
        data[split] = first_rows(data[split], args.max_eval_samples)
    return IterableDatasetDict(data) if args.streaming else DatasetDict(data)


def texts_of(rows: Rows, task: str) -> Iterator[str]:
    """All that a tokenizer has to read: each text of each row, tokens as a sentence with spaces between."""
    for row in each_row(rows):
        for name in TEXT_COLUMNS[task]:
            yield " ".join(as_list(row[name]))
