"""Data options. This module imports only the standard library, so that `--help` is fast."""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


SPLITS = ("train", "validation", "test")
# File name suffix -> file format
FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".txt": "text"}
# Suffixes of unsupported tables and archives. For translation, two files with any other unknown suffix are treated as
# parallel text.
OTHER_FORMATS = set(
    ".tab .ndjson .jsonlines .xlsx .xls .ods .arrow .feather .avro .xml .tmx .yaml .yml "
    ".zip .bz2 .xz .zst .7z .tar".split()
)
MIN_SIZE, MAX_SIZE = 1_000, 100_000  # limits on the number of training rows that the phrasebook can generate


@dataclass
class DataArguments:
    """Options that select the data source, the column names and the number of rows.

    Raises:
        ValueError: two options are mutually exclusive, or a number is out of range.
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
            "help": "Names of the data set's splits, as ours=yours, such as validation=dev. test=none leaves a split "
            "out, for example because its labels are withheld."
        },
    )
    train_file: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Local training data instead of --dataset: .jsonl, .json (also SQuAD's own), .csv, .tsv, .parquet "
            "or .txt, optionally gzipped. For translation, two files of parallel lines also work, such as train.en "
            "train.de."
        },
    )
    validation_file: list[str] = field(
        default_factory=list, metadata={"help": "Local validation data, in the same formats."}
    )
    test_file: list[str] = field(default_factory=list, metadata={"help": "Local test data, in the same formats."})
    columns: list[str] = field(
        default_factory=list,
        metadata={"help": "Names of your columns, as ours=yours, such as source=en target=translation.de."},
    )
    sample_by: Literal["line", "paragraph", "document"] = field(
        default="document",
        metadata={"help": "For language models: one document is each line, each paragraph, or all of a .txt file."},
    )
    drop_empty: bool = field(
        default=False,
        metadata={"help": "Skip rows with an empty text instead of refusing them. Language models always skip them."},
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
        default=None, metadata={"help": f"Training rows that the phrasebook generates: {MIN_SIZE} to {MAX_SIZE}."}
    )
    streaming: bool = field(
        default=False,
        metadata={"help": "Stream the training data instead of loading all of it (language models and translation)."},
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
        """Local files by split, without the splits that have none."""
        files = {split: getattr(self, f"{split}_file") for split in SPLITS}
        return {split: paths for split, paths in files.items() if paths}

    @property
    def name(self) -> str:
        """Name of the data for the model card. Local paths are private, so only file or folder names are used."""
        files = next(iter(self.files.values()), [self.dataset] if Path(self.dataset).is_dir() else [])
        return " ".join(Path(file).absolute().name for file in files) or self.dataset

    @property
    def languages(self) -> list[str] | None:
        """Language codes of the phrasebook's translations, as used on the Hub; None for other data."""
        if self.files or self.dataset != "phrasebook":
            return None
        return [locale.replace("-", "_").split("_")[0] for locale in (self.source_locale, self.target_locale)]


def replaced_options(given: Set[str]) -> Set[str]:
    """Return the data options of a recipe that are dropped because `given` (option names) selects different data.

    Given files replace the recipe's data set; a given data set replaces the recipe's data set and its files. The
    recipe's `columns` are kept.
    """
    of_dataset = {"dataset", "dataset_config", "dataset_revision", "splits"}
    of_files = {f"{split}_file" for split in SPLITS}
    if "dataset" in given:
        return of_dataset | of_files
    return of_dataset if given & of_files else set()


def parse_renaming(options: list[str], ours: Iterable[str], flag: str) -> dict[str, str]:
    """Parse renaming options, such as `["source=en"]`, into a dictionary, such as `{"source": "en"}`."""
    given = {}
    for option in options:
        name, separator, yours = option.partition("=")
        if not separator or name not in ours:
            raise ValueError(f"{flag} {option}: give ours=yours, where ours is one of {', '.join(ours)}.")
        given[name] = yours
    return given


def suffix_of(file: str) -> str:
    """Return the lower-case file suffix that indicates the format, ignoring a trailing ".gz"."""
    return Path(file.removesuffix(".gz")).suffix.lower()


def file_formats(files: list[str], parallel: bool) -> list[str]:
    """Return the format of each file of a split: "parallel" for files of aligned lines, or a value of `FORMATS`.

    Args:
        files: local paths, or URLs of files on the Hub.
        parallel: whether two files may contain aligned lines, as in translation data.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: a path is a folder, a file is empty, or a suffix is unknown.
    """
    for file in (file for file in files if not file.startswith("hf://")):
        if Path(file).is_dir():
            raise ValueError(f"{file} is a folder: give files, or a folder with a data set as --dataset {file}.")
        if not Path(file).is_file():
            raise FileNotFoundError(f"{file}: there is no such file.")
        if not Path(file).stat().st_size:
            raise ValueError(f"{file} is empty.")
    known = {suffix: kind for suffix, kind in FORMATS.items() if not (parallel and kind == "text")}
    suffixes = [suffix_of(file) for file in files]
    formats = [known.get(suffix, "") for suffix in suffixes]
    if parallel and formats == ["", ""] and not OTHER_FORMATS & {*suffixes}:
        return ["parallel"] * 2
    if "" in formats:
        file = files[formats.index("")]
        pairs = ", or give two files of parallel lines, source and target" if parallel else ""
        raise ValueError(
            f"{file}: its name must end in one of {', '.join(known)} (also with .gz). Save a table of another kind "
            f"as one of these, such as .csv{pairs}."
        )
    return formats
