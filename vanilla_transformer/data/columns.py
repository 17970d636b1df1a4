"""Define the columns of each task: parse values into a single type, and report invalid values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any

from datasets import List, Value

from vanilla_transformer.data.readers import Row


LARGEST_NUMBER = 1e18  # the squared error must fit into float32


def as_list(value: Any) -> list:
    """Return a list unchanged, and any other value as a list of one item."""
    return value if isinstance(value, list) else [value]


def is_empty(value: Any) -> bool:
    """Whether a value is None, an empty list, or a string of only white space."""
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def parse_string(value: Any, row: Row) -> str:
    """Return a valid Unicode string, which may be empty."""
    if not isinstance(value, str):
        raise ValueError(f"is {short(value)}; it must be a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"is {short(value)}, which is not valid Unicode ({error.reason})") from None
    return value


def parse_text(value: Any, row: Row) -> str:
    """Return a string that is not blank."""
    if is_empty(value):
        raise ValueError("is empty; --drop_empty leaves such rows out")
    return parse_string(value, row)


def parse_class(value: Any, row: Row) -> str:
    """Return a class name; integers are converted to strings."""
    if is_empty(value) or not isinstance(value, str | int):
        raise ValueError(
            f"is {short(value)}; a class must be a string or a whole number (the task multi_label takes lists of "
            "classes). Leave out rows without a class, or with one that is withheld"
        )
    return parse_string(str(value), row)


def parse_classes(value: Any, row: Row) -> list[str]:
    """Return a list of class names, which may be empty."""
    if not isinstance(value, list):
        raise ValueError(f"is {short(value)}; it must be a list of classes (the task classification takes one class)")
    return [parse_class(label, row) for label in value]


def parse_number(value: Any) -> float:
    """Return a finite number; numeric strings, such as those from a CSV file, are converted."""
    try:
        number = float("nan" if isinstance(value, bool | None) else value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not abs(number) <= LARGEST_NUMBER:
        raise ValueError(f"is {short(value)}; it must be a number of at most {LARGEST_NUMBER:g} in size")
    return number


def parse_numbers(value: Any, row: Row) -> float | list[float]:
    """Return a single number, or a list of two or more."""
    if value == []:
        raise ValueError("is []; it must contain a number")
    numbers = [parse_number(number) for number in as_list(value)]
    return numbers[0] if len(numbers) == 1 else numbers


def parse_tokens(value: Any, row: Row) -> list[str]:
    """Return the words of a sentence, each a non-empty string."""
    if is_empty(value):
        raise ValueError("is empty; --drop_empty leaves such rows out")
    if not isinstance(value, list) or any(map(is_empty, value)):
        raise ValueError(f"is {short(value)}; it must be a list of strings that are not empty")
    return [parse_string(token, row) for token in value]


def parse_tags(value: Any, row: Row) -> list[str]:
    """Return one tag for each token of the row."""
    if not isinstance(value, list) or len(value) != len(row["tokens"]):
        raise ValueError(f"is {short(value)}; it must be a list of {len(row['tokens'])} tags, one for each token")
    return parse_classes(value, row)


def parse_answers(value: Any, row: Row) -> dict[str, list]:
    """Return answers in the format of SQuAD on the Hub, after checking each answer's position in the context."""
    if isinstance(value, list) and all(
        isinstance(answer, dict) for answer in value
    ):  # format of the original SQuAD files
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
    """A column that a task requires.

    Args:
        parse: function that returns the converted value, or raises a ValueError whose message continues a sentence
            starting with the column name.
        feature: feature type of `datasets`; None if the first row decides between a number and a list of numbers.
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
    """The columns that a task requires, and how its rows are read and split.

    Args:
        columns: columns by name, in order.
        inputs: columns that form the model's input; by default, the text columns. Rows with the same input are kept in
            the same split.
        classes: name of the class column. Every class in a held-out split must also occur in the training split.
        phrasebook: phrasebook task that generates these columns.
        parallel: whether two files of aligned lines are also accepted.
        documents: whether rows are documents. Empty documents are skipped, and a single document can be split.
    """

    columns: Mapping[str, Column]
    inputs: tuple[str, ...] = ()
    classes: str | None = None
    phrasebook: str | None = None
    parallel: bool = False
    documents: bool = False

    @property
    def texts(self) -> list[str]:
        """Names of the text columns, which the tokenizer is trained on."""
        return [name for name, column in self.columns.items() if column in (TEXT, TOKENS)]

    @property
    def numbers(self) -> str | None:
        """Name of the numeric column, or None."""
        return next((name for name, column in self.columns.items() if column == NUMBERS), None)

    @property
    def streams(self) -> bool:
        """Whether the rows can be streamed instead of being read completely before training."""
        return self.classes is None and set(self.columns) == set(self.texts)

    def features(self, first: Row | None = None) -> dict[str, Any]:
        """Return the feature type of each column. The row `first` determines whether numbers are stored as lists."""
        number = Value("float64")
        numbers = List(number) if first and isinstance(first.get(self.numbers or ""), list) else number
        return {name: column.feature or numbers for name, column in self.columns.items()}
