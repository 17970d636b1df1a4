"""Where rows come from, with the columns that they have there: the phrasebook, a data set of the Hub, local files."""

import csv
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import pandas
from datasets import Dataset, Features, IterableDataset, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

from vanilla_transformer.data.parallel_text import read_pairs
from vanilla_transformer.data.phrasebook import MAX_SIZE, MIN_SIZE, TASKS, phrasebook
from vanilla_transformer.files import named_if_damaged, utf8_lines


SPLITS = ("train", "validation", "test")
# What the data sets library calls the format of a file; but for "tsv", to which it is a kind of csv.
FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".txt": "text"}

# Tables and archives that are not read: they are no lines of text, as files of other names are for translation.
OTHER_FORMATS = set(
    ".tab .ndjson .jsonlines .xlsx .xls .ods .arrow .feather .avro .xml .tmx .yaml .yml "
    ".zip .bz2 .xz .zst .7z .tar".split()
)

# A text may say "NA" or "null"; and where tabs part texts, quotes are characters as any others.
CSV_OPTIONS: dict[str, dict[str, Any]] = {
    "csv": {"keep_default_na": False, "sep": ",", "quoting": csv.QUOTE_MINIMAL},
    "tsv": {"keep_default_na": False, "sep": "\t", "quoting": csv.QUOTE_NONE},
}
CHECKED_ROWS_OF_STREAM = 100
ROWS_OF_READER = 10_000  # which the reader of CSV files takes at a time
BYTE_ORDER_MARK = "\ufeff"  # which editors on Windows put before a text

Row = dict[str, Any]
Rows: TypeAlias = Dataset | IterableDataset


@dataclass
class DataArguments:
    """Options of the data: where they come from, what their columns are called, and how many rows are used.

    Raises:
        ValueError: options that exclude each other, or a number that is out of range.
    """

    dataset: str = field(
        default="phrasebook",
        metadata={"help": "The built-in phrasebook, the name of a data set on the Hub, or a folder with one."},
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    dataset_revision: str | None = field(default=None, metadata={"help": "Revision of a data set on the Hub."})
    splits: list[str] = field(
        default_factory=list,
        metadata={
            "help": "What the splits of a data set on the Hub are called, as ours=yours, such as "
            "validation=dev. test=none leaves a split out, for example because its labels are "
            "withheld."
        },
    )
    train_file: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Local training data instead of --dataset: .jsonl, .json, .csv, .tsv, .parquet or .txt, "
            "optionally gzipped. For translation, two files of parallel lines also work, such as "
            "train.en train.de."
        },
    )
    validation_file: list[str] = field(
        default_factory=list, metadata={"help": "Local validation data, in the same formats."}
    )
    test_file: list[str] = field(default_factory=list, metadata={"help": "Local test data, in the same formats."})
    columns: list[str] = field(
        default_factory=list,
        metadata={"help": "What your columns are called, as ours=yours, such as source=en target=translation.de."},
    )
    sample_by: Literal["line", "paragraph", "document"] = field(
        default="document",
        metadata={
            "help": "What counts as one document in a .txt file, for language models: each line, each "
            "paragraph, or the whole file."
        },
    )
    drop_empty: bool = field(
        default=False,
        metadata={
            "help": "Skip rows with an empty text, which are an error otherwise; language models always skip them."
        },
    )
    validation_fraction: float = field(
        default=0.05, metadata={"help": "Share of the training rows to hold out if there is no validation split."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use only this many training rows."})
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Use only this many rows of each of the other splits."}
    )
    source_locale: str = field(default="en", metadata={"help": "Source language of the phrasebook's translations."})
    target_locale: str = field(default="es", metadata={"help": "Target language of the phrasebook's translations."})
    phrases: int | None = field(
        default=None, metadata={"help": f"How many training rows the phrasebook generates: {MIN_SIZE} to {MAX_SIZE}."}
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read the training text as it arrives (language models and translation)."}
    )
    data_split_seed: int = field(
        default=0, metadata={"help": "Seed for the phrasebook and for choosing held-out rows."}
    )

    def __post_init__(self):
        if self.files and self.dataset != "phrasebook":
            raise ValueError(f"--dataset {self.dataset} and --train_file exclude each other: give only one.")
        if self.files or self.dataset == "phrasebook":
            for name in ("dataset_config", "dataset_revision", "splits"):
                if getattr(self, name):
                    raise ValueError(f"--{name} belongs to a data set on the Hub: give its name with --dataset.")
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"--validation_fraction {self.validation_fraction} must be at least 0 and below 1.")
        for name in ("max_train_samples", "max_eval_samples"):
            if (limit := getattr(self, name)) is not None and limit < 1:
                raise ValueError(f"--{name} {limit} must be at least 1; without it, all rows are used.")
        if self.phrases is not None and not MIN_SIZE <= self.phrases <= MAX_SIZE:
            raise ValueError(f"--phrases {self.phrases} is out of range: choose from {MIN_SIZE} to {MAX_SIZE}.")

    @property
    def files(self) -> dict[str, list[str]]:
        """The local files of each split that has some."""
        files = {split: getattr(self, f"{split}_file") for split in SPLITS}
        return {split: paths for split, paths in files.items() if paths}

    @property
    def name(self) -> str:
        """What a model card calls the data: files and folders without the path to them, which is nobody else's."""
        files = next(iter(self.files.values()), [self.dataset] if Path(self.dataset).is_dir() else [])
        return " ".join(Path(file).absolute().name for file in files) or self.dataset

    def languages(self, kind: str) -> list[str] | None:
        """The languages of the phrasebook's translations, as the Hub has them; None of data that name none."""
        if kind != "translation" or self.files or self.dataset != "phrasebook":
            return None
        return [locale.replace("-", "_").split("_")[0] for locale in (self.source_locale, self.target_locale)]


def replaced_options(given: Set[str]) -> Set[str]:
    """The options of a recipe that say where its data lie, where those `given` beside it say otherwise.

    Local files take the place of a data set, and another data set that of both; `columns` stay.
    """
    of_dataset = {"dataset", "dataset_config", "dataset_revision", "splits"}
    of_files = {f"{split}_file" for split in SPLITS}
    if "dataset" in given:
        return of_dataset | of_files
    return of_dataset if given & of_files else set()


@dataclass
class Source:
    """Rows from one place, a file or a split of a data set; and the number that each has there, from 1 on."""

    place: str
    rows: Rows
    numbers: Sequence[int] = ()


def parse_renaming(options: list[str], ours: Iterable[str], flag: str) -> dict[str, str]:
    """From `["source=en"]` to `{"source": "en"}`."""
    given = {}
    for option in options:
        name, separator, yours = option.partition("=")
        if not separator or name not in ours:
            raise ValueError(f"{flag} {option}: give ours=yours, where ours is one of {', '.join(ours)}.")
        given[name] = yours
    return given


def read_parallel(files: list[str], columns: list[str], streaming: bool) -> Source:
    """Two files whose lines translate each other.

    Raises:
        ValueError: they have different numbers of lines, or one is not UTF-8 or damaged.
    """
    if len(files) != 2:
        raise ValueError(
            f"{', '.join(files)}: text for translation is two files of parallel lines, source and target."
        )
    return Source(" and ".join(files), read_pairs(files, columns, streaming))


def check_header(file: str, kind: str, lines: Iterator[str], limit: int | None) -> None:
    """Look at the header of a CSV or TSV file, and at the lengths of its rows: of the first `limit`, or where that is
    None of all.

    Raises:
        ValueError: two columns have one name, of which the file's reader would take the first; or a row has more
            fields than there are columns, of which the reader would take the first for an index.
    """
    separator, quoting = CSV_OPTIONS[kind]["sep"], CSV_OPTIONS[kind]["quoting"]
    texts = (record for line in lines for record in line.split("\r"))
    records = csv.reader(texts, delimiter=separator, quoting=quoting)
    rows = (row for row in records if len(row) > 1 or "".join(row).strip())  # the reader skips blank lines
    try:
        header = next(rows, [])
    except csv.Error as error:
        raise ValueError(f"{file} has no header that can be read as {kind}: {error}.") from error
    if twice := [name for name, times in Counter(header).items() if name and times > 1]:
        raise ValueError(f"{file} has two columns named {twice[0]!r}: rename one.")
    remedy = "leave tabs out of texts" if kind == "tsv" else 'put a text with a comma in quotes (")'
    with suppress(csv.Error):  # of a text that is too long for this module, but not for the reader
        for number, row in enumerate(islice(rows, limit), start=1):
            if len(row) > len(header):
                raise ValueError(
                    f"{file}, row {number}: there are {len(row)} fields for {len(header)} columns "
                    f"({', '.join(header)}): {remedy}, and give each column a name above it."
                )


def steady_features(file: str, **options: Any) -> Features | None:
    """The columns of a CSV or TSV file whose reader gives some another type further down; None where it does not.

    The reader goes by the first rows. Whole numbers with fractions below them are fractions, and all else is text.
    """
    kinds: dict[str, set[str]] = defaultdict(set)
    for table in pandas.read_csv(file, chunksize=ROWS_OF_READER, **options):
        for name, column in table.items():
            kinds[name].add(column.dtype.kind)
    if all(len(kinds_of_column) == 1 for kinds_of_column in kinds.values()):
        return None
    types = {frozenset("i"): "int64", frozenset("u"): "uint64", frozenset("f"): "float64", frozenset("b"): "bool"}
    types[frozenset("if")] = "float64"
    return Features({name: Value(types.get(frozenset(found), "string")) for name, found in kinds.items()})


def check_first_object(file: str, lines: Iterator[str]) -> None:
    """Raise a ValueError where the first row of a JSON file is no object: null there would crash its reader."""
    start = "".join(islice((char for line in lines for char in line if not char.isspace()), 2))
    if not start.startswith(("{", "[{")):
        raise ValueError(f'{file}: its first row is not an object, such as {{"column": "text", ...}}.')


def check_file(file: str, kind: str, streaming: bool) -> None:
    """Look at what the readers of text files pass over, or fail at without a word on the place.

    Raises:
        ValueError: the file is empty, not UTF-8 or damaged (of a stream: its beginning), or see the checks above.
    """
    lines = utf8_lines(file)
    first = next(lines, None)
    if first is None:
        raise ValueError(f"{file} is empty.")
    lines = chain([first], lines)
    if kind in CSV_OPTIONS:
        check_header(file, kind, lines, CHECKED_ROWS_OF_STREAM if streaming else None)
    elif kind == "json":
        check_first_object(file, lines)
    if not streaming:
        deque(lines, maxlen=0)


def without_mark(batch: dict[str, list[str]]) -> dict[str, list[str]]:
    """Texts without the byte order mark that a file may begin with."""
    return {"text": [text.removeprefix(BYTE_ORDER_MARK) for text in batch["text"]]}


def rows_of_stream(file: str, rows: IterableDataset) -> Iterator[Row]:
    """The rows of a file; the error names it where damage shows only after rows that could be read."""
    with named_if_damaged(file):
        try:
            yield from rows
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: not UTF-8 ({error.reason} after the rows that were read).") from error


def read_table(file: str, kind: str, streaming: bool, **options: Any) -> Source:
    """A file of rows.

    Raises:
        ValueError: it has no rows, is not UTF-8, or cannot be read.
    """
    if kind != "parquet":
        check_file(file, kind, streaming)
    # These readers stay on this machine: `load_dataset` tells a server that a file is read.
    reader = getattr(IterableDataset if streaming else Dataset, f"from_{'csv' if kind in CSV_OPTIONS else kind}")
    options |= CSV_OPTIONS.get(kind, {})
    with named_if_damaged(file):
        try:
            try:
                rows = reader(file, **options)
            except DatasetGenerationError:
                if kind not in CSV_OPTIONS or (features := steady_features(file, **options)) is None:
                    raise
                rows = reader(file, features=features, **CSV_OPTIONS[kind])
            first: Row = next(iter(rows), {})
            if kind == "text" and first.get("text", "").startswith(BYTE_ORDER_MARK):
                rows = rows.map(without_mark, batched=True)
        except (DatasetGenerationError, ValueError) as error:
            raise ValueError(f"{file} has no rows that can be read as {kind}: {error.__cause__ or error}") from error
    if streaming:
        rows = IterableDataset.from_generator(rows_of_stream, rows.features, gen_kwargs={"file": file, "rows": rows})
    return Source(file, rows)


def read_files(
    files: list[str], args: DataArguments, task: str, columns: dict[str, str], texts: list[str]
) -> list[Source]:
    """The local files of one split; two files of parallel lines are one source.

    Args:
        columns: what the file calls our columns; texts: those of its columns that hold texts, be they numerals.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a folder, a name that tells no format, or a file that cannot be read, or whose classes would be
            merged.
    """
    for file in files:
        if Path(file).is_dir():
            raise ValueError(f"{file} is a folder: give files, or a folder with a data set as --dataset {file}.")
        if not Path(file).is_file():
            raise FileNotFoundError(f"{file}: there is no such file.")
    suffixes = [Path(file.removesuffix(".gz")).suffix.lower() for file in files]
    kinds = [FORMATS.get(suffix) for suffix in suffixes]
    if task == "translation" and not OTHER_FORMATS & {*suffixes} and {*kinds} <= {None, "text"}:
        return [read_parallel(files, list(columns.values()), args.streaming)]
    if None in kinds:
        file = files[kinds.index(None)]
        raise ValueError(
            f"{file}: its name must end in one of {', '.join(FORMATS)} (also with .gz). Save a table of another kind "
            "as one of these, such as .csv."
        )
    options: dict[str, Row] = {kind: {"converters": dict.fromkeys(texts, str)} for kind in CSV_OPTIONS}
    if task == "language_modeling":
        options["text"] = {"sample_by": args.sample_by}
    sources = []
    for file, kind in zip(files, cast(list[str], kinds), strict=True):
        source = read_table(file, kind, args.streaming, **options.get(kind, {}))
        if kind in CSV_OPTIONS and task == "classification":
            check_no_class_is_merged(source, kind, columns["label"])
        sources.append(source)
    return sources


def check_no_class_is_merged(source: Source, kind: str, column: str) -> None:
    """Raise a ValueError if two classes of a CSV or TSV file are one number to its reader, as 007 and 7 are."""
    rows = cast(Dataset, source.rows)
    if not getattr(rows.features.get(column), "dtype", "").startswith("int"):
        return
    features = Features(rows.features | {column: Value("string")})
    texts = cast(Dataset, read_table(source.place, kind, False, features=features).rows)
    names: dict[int, str] = {}
    for number, text in zip(rows[column][:], texts[column][:], strict=True):
        if names.setdefault(number, text.strip()) != text.strip():
            raise ValueError(
                f"{source.place}: {column} has {names[number]!r} and {text.strip()!r}, which a {kind.upper()} file's "
                "reader takes for one number: give such classes other names, or write them as texts in JSON lines."
            )


def read_hub(args: DataArguments) -> dict[str, list[Source]]:
    """The splits of a data set on the Hub, under our names.

    Raises:
        ValueError: it has no split of a name that was given.
    """
    available = load_dataset(
        args.dataset, args.dataset_config, revision=args.dataset_revision, streaming=args.streaming
    )
    chosen = parse_renaming(args.splits, SPLITS, "--splits")
    sources = {}
    for split in SPLITS:
        name = chosen.get(split, split)
        if name in available:
            sources[split] = [Source(f"{args.dataset} {name}", available[name])]
        elif split in chosen and name != "none":
            raise ValueError(f"{args.dataset} has no split {name!r}; it has: {', '.join(available)}.")
    return sources


def read_sources(args: DataArguments, task: str, columns: dict[str, str], texts: list[str]) -> dict[str, list[Source]]:
    """Where each split comes from, with the columns that it has there; for `columns` and `texts` see `read_files`.

    Raises:
        FileNotFoundError, ValueError: see `read_files` and `read_hub`; or the phrasebook has no data for the task.
    """
    if args.files:
        return {split: read_files(files, args, task, columns, texts) for split, files in args.files.items()}
    if args.dataset != "phrasebook":
        return read_hub(args)
    if task not in TASKS:
        raise ValueError(f"The phrasebook has no data for {task}: give --train_file or --dataset.")
    is_translation = task == "translation"
    locales: dict[str, Any] = {"source": args.source_locale, "target": args.target_locale} if is_translation else {}
    phrases = phrasebook(task, **locales, size=args.phrases, seed=args.data_split_seed)
    return {split: [Source(f"phrasebook {split}", rows)] for split, rows in phrases.items()}
