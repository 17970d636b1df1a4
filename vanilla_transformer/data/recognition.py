"""Infer the task of a user's files from their column names and values."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pyarrow import parquet

from vanilla_transformer.data.arguments import file_formats
from vanilla_transformer.data.columns import is_empty
from vanilla_transformer.data.readers import (
    Row,
    check_columns,
    names_in,
    read_json,
    read_parquet,
    read_table,
    value_at,
)
from vanilla_transformer.files import open_bytes, utf8_lines


SAMPLE = 2000  # number of rows to inspect
LONGEST_CLASS = 60  # maximum number of characters of a class name; longer values are text
MOST_NUMBERED_CLASSES = 20  # integer labels with more distinct values are regression targets
FORMS = {
    "translation": "two columns of text, or two files of parallel lines",
    "classification": "a text and a label that repeats",
    "regression": "a text and a number",
    "multi_label": "a text and a list of labels",
    "tagging": "a list of tokens and a list of tags",
    "question_answering": "question, context and answers",
    "language_modeling": "one column of text, or a .txt file",
}
# tasks that use the same columns
ALIKE = ({"classification", "regression", "multi_label"}, {"language_modeling", "masked_language_modeling"})
INDEX_NAMES = {"", "id", "idx", "index", "split", "url"}
# Column names that resolve the ambiguity when the values alone do not identify the text or label column
TEXT_NAMES = {"text", "sentence", "review", "utterance"}
LABEL_NAMES = {"label", "class", "category", "intent", "topic", "sentiment"}
SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas", "|": "bars"}

Values = list[Any]


@dataclass(frozen=True)
class Recognised:
    """A task inferred from files, with its columns.

    Args:
        task: the task's name on the command line.
        columns: maps each of the task's columns to the user's column; empty for text files.
    """

    task: str
    columns: dict[str, str]

    @property
    def options(self) -> list[str]:
        """Values of `--columns` for this mapping."""
        return [f"{ours}={yours}" for ours, yours in self.columns.items()]


def recognise(files: Sequence[str], task: str | None = None, columns: dict[str, str] | None = None) -> Recognised:
    """Infer the task of files and the mapping of their columns.

    Args:
        task, columns: the user's choice, which takes precedence; None or empty if not given.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: see `file_formats`; or the columns fit no task or several tasks (the message lists the columns and
            either the known layouts or the tasks); or the content of a table does not match its suffix.
    """
    kinds = set(file_formats(list(files), parallel=len(files) == 2 and task in (None, "translation")))
    if task is not None and columns:
        return Recognised(task, columns)
    if kinds <= {"parallel", "text"}:
        if task is None and "text" in kinds:
            check_lines(files[0])
        return Recognised(task or ("translation" if "parallel" in kinds else "language_modeling"), {})
    table = read_columns(files[0], *kinds - {"text"})
    if not table:
        raise ValueError(f"{files[0]} has no rows with values.")
    if columns:
        check_columns(files[0], table, columns.values())
        table = {ours: table[yours] for ours, yours in columns.items()}
    elif len(table) == 1:
        check_separator(files[0], *table.items())
    found = candidates(table)
    if task is not None:
        return Recognised(task, columns_for(task, found, table))
    if len(found) == 1:
        return Recognised(found[0].task, columns or found[0].columns)
    seen = ", ".join(f"{name} ({describe(values)})" for name, values in table.items())
    if found:
        tasks = " or ".join(f"{each.task} ({', '.join(each.columns.values())})" for each in found)
        raise ValueError(f"{files[0]} has the columns {seen}, which are for {tasks}: name the task before the file.")
    forms = "; ".join(f"{form}: {name}" for name, form in FORMS.items())
    raise ValueError(
        f"{files[0]} has the columns {seen}, which fit no task. Known layouts are {forms}. "
        "Name task and columns, such as: "
        "train translation FILE --columns source=english target=spanish"
    )


def read_columns(file: str, *kinds: str) -> dict[str, Values]:
    """Return the first values of each column of a table, where `a.b` is the field b of a struct column a."""
    kind = kinds[0]
    if kind == "parquet":
        with open_bytes(file) as stream:
            names = parquet.ParquetFile(stream).schema_arrow.names
        found = read_parquet(file, names)
    else:
        found = read_json(file) if kind == "json" else read_table(file, kind, [])
    rows: list[Row] = [row for row in islice(found, SAMPLE) if isinstance(row, dict)]
    names = list(dict.fromkeys(name for row in rows for name in names_in(row)))
    table = {name: [value for row in rows if not is_empty(value := value_at(row, name))] for name in names}
    return {name: values for name, values in table.items() if values}


def check_lines(file: str) -> None:
    """Raise a ValueError if a text file looks like a tab-separated table."""
    lines = [line for line in islice(utf8_lines(file), SAMPLE) if line.strip()]
    if len(lines) > 1 and min(line.count("\t") for line in lines) > 0:
        raise ValueError(
            f"{file} has tabs in every line, like a table: rename it to .tsv and name its columns in a first line, or "
            "put language_modeling before the file to learn its lines as they are."
        )


def check_separator(file: str, column: tuple[str, Values]) -> None:
    """Raise a ValueError if the only column of a CSV or TSV file seems to use a different separator."""
    name, values = column
    for character, word in SEPARATORS.items():
        if character in name and all(character in str(value) for value in values):
            raise ValueError(
                f"{file} has one column, {name!r}, which seems to be several between {word}: save the table with "
                "commas as .csv, or with tabs as .tsv."
            )


def candidates(table: dict[str, Values]) -> list[Recognised]:
    """Return every task that fits the columns of a table."""
    names = {name.lower(): name for name in table}
    for task, wanted in (
        ("question_answering", ("question", "context", "answers")),
        ("translation", ("source", "target")),
    ):
        if names.keys() >= {*wanted}:
            return [Recognised(task, {ours: names[ours] for ours in wanted})]
    found = []
    lists = [name for name, values in table.items() if all(isinstance(value, list) for value in values)]
    if len(lists) == 2 and [*map(len, table[lists[0]])] == [*map(len, table[lists[1]])]:
        tags, tokens = sorted(lists, key=lambda name: len({str(item) for value in table[name] for item in value}))
        found.append(Recognised("tagging", {"tokens": tokens, "tags": tags}))
        table = {name: values for name, values in table.items() if name not in lists}
    kinds = {name: kind for name, values in table.items() if (kind := kind_of(name, values))}
    texts = [name for name, kind in kinds.items() if kind == "text"]
    labels = [name for name, kind in kinds.items() if kind != "text"]
    words = [name for name in labels if kinds[name] == "classification" and as_numbers(table[name]) is None]
    if words and not texts:  # short strings can repeat as often as labels
        texts = [max(words, key=lambda name: len({*table[name]}))]
        labels.remove(texts[0])
    if len(text := named(texts, TEXT_NAMES)) == 1 and len(label := named(labels, LABEL_NAMES)) == 1:
        found.append(Recognised(kinds[label[0]], {"text": text[0], "label": label[0]}))
    elif len(texts) == 2 and not labels:
        found.append(Recognised("translation", {"source": texts[0], "target": texts[1]}))
    elif len(texts) == 1 and not labels and not found:
        found.append(Recognised("language_modeling", {"text": texts[0]}))
    return found


def named(columns: list[str], names: set[str]) -> list[str]:
    """Return the only column whose name is in `names`, or all columns if there is not exactly one."""
    chosen = [column for column in columns if column.lower() in names]
    return chosen if len(chosen) == 1 else columns


def columns_for(task: str, found: list[Recognised], table: dict[str, Values]) -> dict[str, str]:
    """Return the columns for the user's task; empty if they have the default names or are ambiguous."""
    alike = next((tasks for tasks in ALIKE if task in tasks), {task})
    for each in found:
        if each.task in alike:
            return each.columns
    strings = [name for name, values in table.items() if all(isinstance(value, str) for value in values)]
    if task == "translation" and len(strings) == 2:
        return {"source": strings[0], "target": strings[1]}
    return {}


def kind_of(name: str, values: Values) -> str | None:
    """Return "text" for a text column, the task of a label column, and None for a column of row numbers."""
    name = name.lower()
    if name in INDEX_NAMES or name.endswith("_id") or all(isinstance(value, dict) for value in values):
        return None
    if all(isinstance(value, list) for value in values):
        return "multi_label"
    distinct = len({str(value) for value in values})
    numbers = as_numbers(values)
    if numbers is not None:
        whole = all(number.is_integer() for number in numbers) and not any(isinstance(each, float) for each in values)
        if whole and numbers == [number + numbers[0] for number in range(len(numbers))] and len(numbers) > 2:
            return None
        # class ids have no large gaps
        numbered = name in LABEL_NAMES and distinct < len(values) and 0 <= min(numbers) <= max(numbers) <= 2 * distinct
        return "classification" if whole and (distinct <= MOST_NUMBERED_CLASSES or numbered) else "regression"
    repeats = distinct <= max(2, 0.3 * len(values)) or name in LABEL_NAMES
    short = max(len(str(value)) for value in values) <= LONGEST_CLASS
    is_class = short and repeats and distinct < len(values) and name not in TEXT_NAMES
    return "classification" if is_class else "text"


def as_numbers(values: Values) -> list[float] | None:
    """Return the values as finite numbers, or None if any value is not one."""
    try:
        numbers = [float(value) for value in values if not isinstance(value, bool)]
    except (TypeError, ValueError):
        return None
    return numbers if len(numbers) == len(values) and all(abs(number) < 1e18 for number in numbers) else None


def describe(values: Values) -> str:
    """Return a short description of the values of a column."""
    if all(isinstance(value, list) for value in values):
        return "lists"
    kind = "numbers" if as_numbers(values) is not None else "texts"
    return f"{kind}, {len({str(value) for value in values})} of {len(values)} different"
