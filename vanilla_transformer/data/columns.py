"""Define columns: parse their values into one type, or report what is wrong with a value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any

from datasets import List, Value

from vanilla_transformer.data.readers import Row


LARGEST_NUMBER = 1e18  # the squared error must fit into float32


def as_list(value: Any) -> list:
    """Return the value as a list; a single value becomes a list of one item."""
    return value if isinstance(value, list) else [value]


def is_empty(value: Any) -> bool:
    """Whether a value is empty: None, no items, or only white space."""
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def parse_string(value: Any, row: Row) -> str:
    """Return a string, which may be empty."""
    if not isinstance(value, str):
        raise ValueError(f"is {short(value)}; it must be a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"is {short(value)}, which is not valid Unicode ({error.reason})") from None
    return value


def parse_text(value: Any, row: Row) -> str:
    """Return a string that contains more than white space."""
    if is_empty(value):
        raise ValueError("is empty; --drop_empty leaves such rows out")
    return parse_string(value, row)


def parse_class(value: Any, row: Row) -> str:
    """Return the name of a class, which may be an integer in the data."""
    if is_empty(value) or not isinstance(value, str | int):
        raise ValueError(
            f"is {short(value)}; a class must be a string or a whole number (the task multi_label takes lists of "
            "classes). Leave out rows without a class, or with one that is withheld"
        )
    return parse_string(str(value), row)


def parse_classes(value: Any, row: Row) -> list[str]:
    """Return a list of classes, which may be empty."""
    if not isinstance(value, list):
        raise ValueError(f"is {short(value)}; it must be a list of classes (the task classification takes one class)")
    return [parse_class(label, row) for label in value]


def parse_number(value: Any) -> float:
    """Return a finite number, which may be a string in the data, as in a CSV file."""
    try:
        number = float("nan" if isinstance(value, bool | None) else value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not abs(number) <= LARGEST_NUMBER:
        raise ValueError(f"is {short(value)}; it must be a number of at most {LARGEST_NUMBER:g} in size")
    return number


def parse_numbers(value: Any, row: Row) -> float | list[float]:
    """Return a number, or a list of several."""
    if value == []:
        raise ValueError("is []; it must contain a number")
    numbers = [parse_number(number) for number in as_list(value)]
    return numbers[0] if len(numbers) == 1 else numbers


def parse_tokens(value: Any, row: Row) -> list[str]:
    """Return the words of a sentence, none of them empty."""
    if is_empty(value):
        raise ValueError("is empty; --drop_empty leaves such rows out")
    if not isinstance(value, list) or any(map(is_empty, value)):
        raise ValueError(f"is {short(value)}; it must be a list of strings that are not empty")
    return [parse_string(token, row) for token in value]


def parse_tags(value: Any, row: Row) -> list[str]:
    """Return a class for each of the row's tokens."""
    if not isinstance(value, list) or len(value) != len(row["tokens"]):
        raise ValueError(f"is {short(value)}; it must be a list of {len(row['tokens'])} tags, one for each token")
    return parse_classes(value, row)


def parse_answers(value: Any, row: Row) -> dict[str, list]:
    """Return answers in SQuAD's format on the Hub, after checking that each occurs at its start in the context."""
    if isinstance(value, list) and all(isinstance(answer, dict) for answer in value):  # format of SQuAD's own file
        value = {name: [answer.get(name) for answer in value] for name in ("text", "answer_start")}
    texts, starts = (value.get(name) if isinstance(value, dict) else None for name in ("text", "answer_start"))
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise ValueError(f'is {short(value)}; it must be {{"text": [...], "answer_start": [...]}}, as many of each')
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str) or type(start) is not int:
            raise ValueError(f"has {short(text)} at {short(start)}; these must be a string and a whole number")
        if not 0 <= start <= len(row["context"]) or not row["context"].startswith(text, start):
            found = row["context"][max(start, 0) :][: len(text)]
            raise ValueError(
                f"has {short(text)}, which is not at character {start} of the context; there is {short(found)}"
            )
    return {"text": texts, "answer_start": starts}


@dataclass(frozen=True)
class Column:
    """A column of a task.

    Args:
        parse: function that returns the value with its type, or raises a ValueError whose message follows the column's
            name.
        feature: the type of `datasets`; None for a number or a list of numbers, which the first row decides.
    """

    parse: Callable[[Any, Row], Any]
    feature: Any


STRINGS = List(Value("string"))
TEXT = Column(parse_text, Value("string"))
TOKENS = Column(parse_tokens, STRINGS)
TAGS = Column(parse_tags, STRINGS)
CLASS = Column(parse_class, Value("string"))
CLASSES = Column(parse_classes, STRINGS)
NUMBERS = Column(parse_numbers, None)
ANSWERS = Column(parse_answers, {"text": STRINGS, "answer_start": List(Value("int64"))})


@dataclass(frozen=True)
class Schema:
    """The columns of a task's data, and rules for reading and splitting its rows.

    Args:
        columns: columns by name, in order.
        inputs: columns that a model reads before it answers; by default, the text columns. Rows with the same input
    stay
            in the same split.
        classes: column of classes. Every class in a held-out split must occur in training.
        phrasebook: name of the phrasebook's data with these columns.
        parallel: whether two files of parallel lines are accepted too.
        documents: whether rows are documents: empty ones are skipped, and a single one can be split.
    """

    columns: Mapping[str, Column]
    inputs: tuple[str, ...] = ()
    classes: str | None = None
    phrasebook: str | None = None
    parallel: bool = False
    documents: bool = False

    @property
    def texts(self) -> list[str]:
        """The text columns, which a tokenizer is trained on."""
        return [name for name, column in self.columns.items() if column in (TEXT, TOKENS)]

    @property
    def numbers(self) -> str | None:
        """The column of numbers, or None."""
        return next((name for name, column in self.columns.items() if column == NUMBERS), None)

    @property
    def streams(self) -> bool:
        """Whether rows may be streamed, without reading all of them first."""
        return self.classes is None and set(self.columns) == set(self.texts)

    def features(self, first: Row | None = None) -> dict[str, Any]:
        """Return the types of the columns; `first` is a row that shows whether numbers are lists."""
        number = Value("float64")
        numbers = List(number) if first and isinstance(first.get(self.numbers or ""), list) else number
        return {name: column.feature or numbers for name, column in self.columns.items()}
