"""Data for every task, from the embedded phrasebook, the Hub or local files, checked before any long work begins."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, IterableDatasetDict, load_dataset

from phrasebook import phrasebook
from text_io import read_lines


# The columns that each task works with; the phrasebook has them, other data are renamed to them.
COLUMNS = {
    "translation": ("source", "target"),
    "classification": ("text", "label"),
    "regression": ("text", "label"),
    "tagging": ("tokens", "tags"),
    "question_answering": ("question", "context", "answers"),
    "language_modeling": ("text",),
}
# What `load_dataset` calls the format of a file.
FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet", ".txt": "text"}
SPLITS = ("train", "validation", "test")


@dataclass
class DataArguments:
    dataset: str = field(
        default="phrasebook", metadata={"help": "The embedded phrasebook, or the name of a data set on the Hub."}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    dataset_revision: str | None = field(default=None, metadata={"help": "Revision of a data set on the Hub."})
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

    @property
    def name(self) -> str:
        """What a model card calls the data."""
        if self.train_file:
            return " ".join(Path(file).name for file in self.train_file)
        return self.dataset


def read_parallel(files: list[str]) -> Dataset:
    """Two files whose lines translate each other.

    Raises:
        ValueError: they have different numbers of lines, or one is not UTF-8.
    """
    source, target = (read_lines(file) for file in files)
    if len(source) != len(target):
        raise ValueError(
            f"{files[0]} has {len(source)} lines, but {files[1]} has {len(target)}: they must be parallel."
        )
    return Dataset.from_dict({"source": source, "target": target})


def format_of(file: str) -> str:
    suffixes = [suffix for suffix in Path(file).suffixes if suffix in FORMATS]
    if not suffixes:
        raise ValueError(f"{file}: its name must end in one of {', '.join(FORMATS)} (also with .gz).")
    return FORMATS[suffixes[-1]]


def read_files(files: list[str], task: str, streaming: bool) -> Any:
    """One split from local files."""
    for file in files:
        if not Path(file).is_file():
            raise FileNotFoundError(f"{file}: there is no such file.")
        if not Path(file).stat().st_size:
            raise ValueError(f"{file} is empty.")
    if task == "translation" and len(files) == 2 and Path(files[0]).suffix not in FORMATS:
        return read_parallel(files)
    kind = format_of(files[0])
    options = {"sample_by": "document"} if kind == "text" and task == "language_modeling" else {}
    try:
        return load_dataset(kind, data_files={"train": files}, split="train", streaming=streaming, **options)
    except Exception as error:  # the reader wraps what went wrong in an error of its own; the innermost says it
        cause: BaseException = error
        while cause.__cause__ or cause.__context__:
            cause = cause.__cause__ or cause.__context__
        if isinstance(cause, UnicodeDecodeError):
            raise ValueError(f"{', '.join(files)}: not UTF-8 ({cause.reason} at byte {cause.start}).") from error
        raise ValueError(f"{', '.join(files)}: cannot be read as {kind}: {cause}") from error


def column_names(options: list[str], task: str) -> dict[str, str]:
    """From `["source=en"]` to the user's name for each of the task's columns."""
    names = {name: name for name in COLUMNS[task]}
    for option in options:
        ours, separator, yours = option.partition("=")
        if not separator or ours not in names:
            raise ValueError(f"--columns {option}: give ours=yours, where ours is one of {', '.join(names)}.")
        names[ours] = yours
    return names


def rename_columns(split: Any, names: dict[str, str], where: str) -> Any:
    """Give the user's columns our names, and leave all others out; `a.b` is the member b of a column of records."""
    available = split.column_names or list(next(iter(split)))
    for yours in names.values():
        if yours.split(".")[0] not in available:
            raise ValueError(
                f"{where} has no column {yours!r}; it has: {', '.join(available)}. Name yours with --columns."
            )
    renamed = [name for name in available if name not in names]
    nested = {ours: yours.split(".") for ours, yours in names.items() if "." in yours}
    for ours, (column, member) in nested.items():
        split = split.map(lambda row, ours=ours, column=column, member=member: {ours: row[column][member]})
    plain = {yours: ours for ours, yours in names.items() if ours not in nested and ours != yours}
    if plain:
        split = split.rename_columns(plain)
    return split.remove_columns([name for name in renamed if name not in plain])


def faults(row: dict[str, Any], task: str) -> Iterator[str]:
    """What is wrong with one row."""
    for name in ("source", "target", "text", "question", "context"):
        if name in row and not isinstance(row[name], str):
            yield f"{name} is {row[name]!r}, not a text"
        elif name in row and not row[name].strip():
            yield f"{name} is empty"
    if task == "regression" and not isinstance(row["label"], (int, float, list)):
        yield f"label {row['label']!r} is not a number"
    if task == "classification" and row["label"] is None:
        yield "label is missing"
    if task == "tagging" and len(row["tokens"]) != len(row["tags"]):
        yield f"it has {len(row['tokens'])} tokens, but {len(row['tags'])} tags"
    if task == "question_answering":
        for text, start in zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True):
            if row["context"][start : start + len(text)] != text:
                yield f"the answer {text!r} does not stand at character {start} of its context"


def check(split: Dataset, task: str, where: str) -> None:
    """Raise a ValueError that names the place of the first row with a fault."""
    if not len(split):
        raise ValueError(f"{where} has no rows.")
    for number, row in enumerate(split, start=1):
        for fault in faults(row, task):
            raise ValueError(f"{where}, row {number}: {fault}.")


def hold_out(train: Dataset, args: DataArguments) -> dict[str, Dataset]:
    """Make a validation split: of rows drawn by seed, or, of a single document, its end."""
    if len(train) > 1:
        parts = train.train_test_split(args.validation_fraction, seed=args.data_split_seed)
        return {"train": parts["train"], "validation": parts["test"]}
    if "text" not in train.column_names:
        raise ValueError("There is one training row, and no validation split: give --validation_file.")
    text = train[0]["text"]
    end = int(len(text) * (1 - args.validation_fraction))
    return {
        "train": Dataset.from_dict({"text": [text[:end]]}),
        "validation": Dataset.from_dict({"text": [text[end:]]}),
    }


def label_names(split: Any) -> list[str] | None:
    """The names of a column of class numbers, where the data set knows them."""
    return getattr((split.features or {}).get("label"), "names", None)


def load_splits(args: DataArguments, task: str) -> DatasetDict | IterableDatasetDict:
    """Train, validation and, where there is one, test, with the columns of `COLUMNS[task]`.

    Raises:
        ValueError: whatever of the data the task cannot work with; the message names file and row.
    """
    names = column_names(args.columns, task)
    if args.train_file or args.validation_file or args.test_file:
        files = {split: getattr(args, f"{split}_file") for split in SPLITS}
        splits = {s: read_files(paths, task, args.streaming and s == "train") for s, paths in files.items() if paths}
        places = {split: " ".join(files[split]) for split in splits}
    elif args.dataset == "phrasebook":
        locales = (args.source_locale, args.target_locale) if task == "translation" else ()
        splits = dict(phrasebook(task, *locales, size=args.phrases, seed=args.data_split_seed))
        places = {split: f"phrasebook {split}" for split in splits}
    else:
        loaded = load_dataset(
            args.dataset, args.dataset_config, revision=args.dataset_revision, streaming=args.streaming
        )
        splits = {split: loaded[split] for split in SPLITS if split in loaded}
        places = {split: f"{args.dataset} {split}" for split in splits}

    for split, data in splits.items():
        data = rename_columns(data, names, places[split])
        limit = args.max_train_samples if split == "train" else args.max_eval_samples
        if limit is not None:
            data = data.take(limit) if args.streaming else data.select(range(min(limit, len(data))))
        if isinstance(data, Dataset):
            check(data, task, places[split])
        splits[split] = data

    if "validation" not in splits and isinstance(splits.get("train"), Dataset):
        splits |= hold_out(splits["train"], args)
    return IterableDatasetDict(splits) if args.streaming else DatasetDict(splits)


def check_labels(splits: DatasetDict, known: set[Any]) -> None:
    """Raise a ValueError for a label (or tag) of a held-out split that training never shows."""
    for split, data in splits.items():
        column = "label" if "label" in data.column_names else "tags"
        for number, value in enumerate(data[column], start=1):
            for label in value if isinstance(value, list) else [value]:
                if label not in known:
                    raise ValueError(f"{split}, row {number}: {column} {label!r} never occurs in training.")
