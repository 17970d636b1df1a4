"""What a task can work with. Each check of a value gives what is wrong with it, or None."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from reprlib import repr as short
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, IterableDataset, Value

from vanilla_transformer.data.sources import CHECKED_ROWS_OF_STREAM, Row, Rows, Source


# The column with classes: what a held-out split has there, training has to have too.
CLASS_COLUMNS = {"classification": "label", "multi_label": "label", "tagging": "tags"}
# Its square, the loss, is far from the largest number of 32 bits.
LARGEST_NUMBER = 1e18
BATCH_SIZE = 1000


def as_list(value: Any) -> list:
    """The value, in a list unless it is one."""
    return value if isinstance(value, list) else [value]


def is_empty(value: Any) -> bool:
    """Whether there is nothing to learn from: None, no items, or a text of white space."""
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def check_text(value: Any, row: Row) -> str | None:
    """A text, empty or not."""
    return None if isinstance(value, str) else f"{short(value)} is not a text"


def check_class(value: Any, row: Row) -> str | None:
    """The class of a text: a text or a whole number."""
    if isinstance(value, list):
        return f"{short(value)} is a list, where each text has one class; for lists of classes there is multi_label"
    if is_empty(value) or not isinstance(value, str | int):
        return (
            f"{short(value)} is not a class, a text or a whole number; leave out rows without one, or with one that "
            "is withheld"
        )
    return None


def check_classes(value: Any, row: Row) -> str | None:
    """The classes of a text: a list, which may be empty."""
    if not isinstance(value, list):
        return f"{short(value)} is not a list of classes; for one class to a text there is classification"
    return next(filter(None, (check_class(label, row) for label in value)), None)


def is_numeral(value: Any) -> bool:
    """Whether it is a text that can be read as a finite number."""
    try:
        return isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return False


def check_numbers(value: Any, row: Row) -> str | None:
    """A finite number, or a list of them."""
    if value == []:
        return "[] holds no number"
    for number in as_list(value):
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            return f"{short(number)} is not a number"
        if abs(number) > LARGEST_NUMBER:
            return f"{number} is too large to learn from: scale the numbers, {LARGEST_NUMBER:g} is the limit"
    return None


def check_tokens(value: Any, row: Row) -> str | None:
    """The words of a sentence: texts, none of them empty."""
    if not isinstance(value, list):
        return f"{short(value)} is not a list of tokens"
    wrong = [token for token in value if is_empty(token) or not isinstance(token, str)]
    return f"{short(wrong[0])} is not a token" if wrong else None


def check_tags(value: Any, row: Row) -> str | None:
    """A class for each of the row's tokens."""
    if not isinstance(value, list) or len(value) != len(row["tokens"]):
        return f"{short(value)} is not a list of {len(row['tokens'])} tags, one for each token"
    return check_classes(value, row)


def check_answers(value: Any, row: Row) -> str | None:
    """Answers as in SQuAD, each of which stands in the row's context where it says."""
    texts, starts = (value.get(name) if isinstance(value, dict) else None for name in ("text", "answer_start"))
    if not isinstance(texts, list) or not isinstance(starts, list):
        return f'{short(value)} is not {{"text": [...], "answer_start": [...]}}'
    if len(texts) != len(starts):
        return f"there are {len(texts)} texts for {len(starts)} starts"
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str):
            return f"{short(text)} is not a text"
        if isinstance(start, bool) or not isinstance(start, int):
            return f"{short(start)} is not the number of a character"
        found = row["context"][max(start, 0) : max(start + len(text), 0)]
        if found != text:
            return f"{short(text)} does not stand at character {start} of its context, where there is {short(found)}"
    return None


CHECKS: dict[str, dict[str, Callable[[Any, Row], str | None]]] = {
    "translation": {"source": check_text, "target": check_text},
    "classification": {"text": check_text, "label": check_class},
    "multi_label": {"text": check_text, "label": check_classes},
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
INPUT_COLUMNS = TEXT_COLUMNS | {"translation": ["source"]}  # those of which a model reads all before it answers


def has_text(row: Row, task: str) -> bool:
    """Whether no text of the row is empty."""
    return not any(is_empty(row[name]) for name in TEXT_COLUMNS[task])


def faults(row: Row, task: str) -> Iterator[tuple[str, str]]:
    """Each column with something wrong, and what that is."""
    for name in TEXT_COLUMNS[task]:
        if is_empty(row[name]):
            yield name, "is empty (--drop_empty leaves such rows out)"
    for name, check in CHECKS[task].items():
        if fault := check(row[name], row):
            yield name, fault


def each_row(rows: Rows, batch_size: int = BATCH_SIZE) -> Iterator[Row]:
    """The rows one by one, read in batches."""
    for batch in rows.iter(batch_size):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def is_plain_text(rows: Dataset, task: str) -> bool:
    """Whether the columns of a task are texts and hold texts, so that only empty ones can be wrong."""
    return all(check is check_text and rows.features[name] == Value("string") for name, check in CHECKS[task].items())


def check_texts(source: Source, task: str, drop_empty: bool) -> Source:
    """As `check_rows`, of columns of texts: only the rows with an empty one are looked at."""
    names = TEXT_COLUMNS[task]
    empty = [np.zeros(0, dtype=bool)]
    for table in source.rows.select_columns(names).with_format("arrow").iter(10 * BATCH_SIZE):
        lengths = [pc.fill_null(pc.utf8_length(pc.utf8_trim_whitespace(table[name])), 0) for name in names]
        empty.append(np.stack([length.to_numpy() for length in lengths]).min(axis=0) == 0)
    is_empty_row = np.concatenate(empty)
    if is_empty_row.any() and not drop_empty:
        number = int(is_empty_row.argmax())
        for column, fault in faults(source.rows[number], task):
            raise ValueError(f"{source.place}, row {number + 1}: {column}: {fault}.")
    if is_empty_row.all():
        raise ValueError(f"{source.place}: there are no rows.")
    if not is_empty_row.any():
        return Source(source.place, source.rows, range(1, len(is_empty_row) + 1))
    kept = np.flatnonzero(~is_empty_row)
    return Source(source.place, source.rows.select(kept), (kept + 1).tolist())


def check_rows(source: Source, task: str, drop_empty: bool) -> Source:
    """The source without empty rows, if those are to be dropped. Of a stream, only the first others are checked.

    Raises:
        ValueError: there is a fault, and the message names its place; or no row is left.
    """
    if isinstance(source.rows, Dataset) and is_plain_text(source.rows, task):
        return check_texts(source, task, drop_empty)
    streaming = isinstance(source.rows, IterableDataset)
    kept: list[int] = []
    quoted = ""
    for number, row in enumerate(each_row(source.rows, CHECKED_ROWS_OF_STREAM if streaming else BATCH_SIZE), start=1):
        if drop_empty and not has_text(row, task):
            continue
        for column, fault in faults(row, task):
            message = f"{source.place}, row {number}: {column}: {fault}."
            if not is_numeral(row[column]):
                raise ValueError(message)
            quoted = quoted or message  # a CSV file has texts for numbers where another row has none: that is to blame
        kept.append(number)
        if streaming and len(kept) == CHECKED_ROWS_OF_STREAM:
            break
    if quoted:
        raise ValueError(quoted)
    if not kept:
        raise ValueError(f"{source.place}: there are no rows.")
    if streaming and len(kept) == 1:
        what = "document" if task == "language_modeling" else "row"
        remedy = "choose another --sample_by" if task == "language_modeling" else "leave out --streaming"
        raise ValueError(f"{source.place}: a stream of one {what} cannot be mixed or split: {remedy}.")
    if streaming:
        return Source(source.place, source.rows.filter(partial(has_text, task=task)) if drop_empty else source.rows)
    full = len(kept) == len(source.rows)
    return Source(source.place, source.rows if full else source.rows.select([number - 1 for number in kept]), kept)


def classes_of(rows: Dataset, column: str) -> list[set]:
    """The classes of each row."""
    return [set(as_list(value)) for value in rows[column][:]]


def check_classes_known(source: Source, column: str, known: set[str]) -> None:
    """Raise a ValueError that names the first row of the source with a class whose name is not in `known`."""
    for number, classes in zip(source.numbers, classes_of(source.rows, column), strict=True):
        for label in (label for label in classes if str(label) not in known):
            raise ValueError(f"{source.place}, row {number}: {column} {label!r} never occurs in training.")


def check_widths(sources: list[Source], column: str) -> None:
    """Raise a ValueError that names the first row with more or fewer numbers than the first row of all."""
    widths = [
        (f"{source.place}, row {number}", len(as_list(value)))
        for source in sources
        for number, value in zip(source.numbers, source.rows[column][:], strict=True)
    ]
    first, expected = widths[0]
    for place, width in widths:
        if width != expected:
            raise ValueError(f"{place}: {column}: there are {width} numbers, but {expected} in {first}.")
