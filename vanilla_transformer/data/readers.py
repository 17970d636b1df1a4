"""Read JSON, CSV, TSV, Parquet, text files and pairs of parallel files row by row.

Readers do not infer types: strings are always returned as strings. A lone "\\r" is an ordinary character.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby, zip_longest
from reprlib import repr as short
from typing import Any, cast

import pyarrow as pa
from datasets import ClassLabel, Features
from pyarrow import parquet

from vanilla_transformer.files import open_bytes, utf8_lines


Row = dict[str, Any]

REMEDIES = {"csv": 'put a text with a comma in quotes (")', "tsv": "leave tabs out of texts"}
BATCH_SIZE = 1000
# The csv module ends a row at a lone "\r". This placeholder, which cannot occur in UTF-8, protects it during parsing.
LONE_RETURN = "\udc0d"


def check_columns(place: str, available: Iterable[str], wanted: Iterable[str]) -> None:
    """Raise a ValueError that names the first missing column of `wanted`."""
    available = list(available)
    for name in wanted:
        if name not in available:
            names = ", ".join(
                each if each == each.strip() and each.isprintable() else repr(each) for each in available
            )
            header = ", or write a first row of names" if re.search(r"\.[ct]sv(\.gz)?$", place.lower()) else ""
            raise ValueError(
                f"{place} has no column {name!r}; it has: {names or 'no columns'}. Name yours with --columns{header}."
            )


def names_in(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the column names of a row, and `a.b` for each field b of a struct column a."""
    for name, value in row.items():
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{field}" for field in value)


def value_at(row: Row, name: str) -> Any:
    """Return the value of a column, where `a.b` is the field b of the struct column a."""
    if name in row:
        return row[name]
    outer, _, field = name.partition(".")
    record = row.get(outer)
    return record.get(field) if isinstance(record, dict) else None


def is_squad(value: dict[str, Any]) -> bool:
    """Whether a JSON object has the nested structure of the original SQuAD files."""
    articles = value.get("data")
    return isinstance(articles, list) and all(isinstance(each, dict) and "paragraphs" in each for each in articles)


def squad_rows(file: str, articles: list[dict[str, Any]]) -> Iterator[Row]:
    """Yield a row for each question in a SQuAD file (version 1.1 or 2.0)."""
    try:
        for paragraph in chain.from_iterable(article["paragraphs"] for article in articles):
            for question in paragraph["qas"]:
                yield {**question, "context": paragraph["context"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file}: not SQuAD's format, a paragraph lacks context or qas ({error}).") from None


def parse_json(text: str, place: str) -> Any:
    """Parse a JSON string, or raise a ValueError whose message begins with `place`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.rstrip().endswith(","):
            raise ValueError(f"{place} ends with a comma: JSON Lines has one object a line, and no commas.") from None
        raise ValueError(f"{place} is neither an object on one line nor a list of objects: {error}.") from None


def read_json(file: str) -> Iterator[Any]:
    """Yield the rows of a file in JSON Lines, a single JSON list, or SQuAD's format."""
    lines = filter(str.strip, utf8_lines(file))
    first = next(lines, "[]")
    try:
        value = json.loads(first.rstrip().removesuffix(","))
    except (ValueError, RecursionError):
        value = None  # the JSON value spans several lines
    if isinstance(value, dict) and not is_squad(value):
        for number, line in enumerate(chain([first], lines), start=1):
            yield parse_json(line, f"{file}, row {number}")
        return
    value = parse_json("\n".join([first, *lines]), file)
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict) and is_squad(value):
        yield from squad_rows(file, value["data"])
    else:
        raise ValueError(f"{file} holds {short(value)}: write one object a line, or one list of objects.")


def csv_records(file: str) -> Iterator[list[str]]:
    """Yield the fields of each record of a CSV file.

    Raises:
        ValueError: quotes are not balanced; the message gives the line number.
    """
    csv.field_size_limit(2**31 - 1)
    lines = (re.sub(r"\r(?!\n|\Z)", LONE_RETURN, line) for line in utf8_lines(file, keep_ends=True))
    records = csv.reader(lines, strict=True)
    try:
        for record in records:
            yield [field.replace(LONE_RETURN, "\r") for field in record]
    except csv.Error as error:
        remedy = 'put a text with quotes in quotes, and double its own ("")'
        raise ValueError(f"{file}, line {records.line_num}: {error}: {remedy}.") from error


def read_table(file: str, kind: str, wanted: list[str]) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV file. In TSV, quotes are ordinary characters.

    Raises:
        ValueError: two columns have the same name, or the number of fields in a row differs from the header.
    """
    records = csv_records(file) if kind == "csv" else (line.split("\t") for line in utf8_lines(file))
    filled = (record for record in records if record not in ([], [""]))
    header = next(filled, [])
    if twice := [name for name in wanted if header.count(name) > 1]:
        raise ValueError(f"{file} has two columns named {twice[0]!r}: rename one.")
    for number, record in enumerate(filled, start=1):
        if len(record) != len(header):
            raise ValueError(
                f"{file}, row {number}: there are {len(record)} fields for {len(header)} columns "
                f"({', '.join(header)}): {REMEDIES[kind]}, and give each column a name above it."
            )
        yield dict(zip(header, record, strict=True))


def class_names(rows: Iterable[Row], features: Features) -> Iterator[Row]:
    """Yield the rows with the integers of `ClassLabel` columns replaced by class names, or None if out of range."""
    labels = {name: getattr(feature, "feature", feature) for name, feature in features.items()}
    names = {name: dict(enumerate(each.names)) for name, each in labels.items() if isinstance(each, ClassLabel)}
    for row in rows:
        for column, known in names.items():
            value = row[column]
            row[column] = [known.get(each) for each in value] if isinstance(value, list) else known.get(value)
        yield row


def columns_to_read(place: str, schema: pa.Schema, wanted: list[str]) -> list[str]:
    """Return the top-level columns to read for `wanted`, where `a.b` is the field b of the struct column a."""
    fields = {field.name: {inner.name: None for inner in field.type} if pa.types.is_struct(field.type) else None
              for field in schema}  # fmt: skip
    check_columns(place, names_in(fields), wanted)
    return list(dict.fromkeys(name if name in fields else name.partition(".")[0] for name in wanted))


def read_parquet(file: str, wanted: list[str]) -> Iterator[Row]:
    """Yield the rows of a Parquet file, reading only the columns needed for `wanted`."""
    try:
        with open_bytes(file) as stream:
            table = parquet.ParquetFile(stream)
            schema = table.schema_arrow
            columns = columns_to_read(file, schema, wanted)
            features = Features.from_arrow_schema(pa.schema(map(schema.field, columns), schema.metadata))
            batches = table.iter_batches(BATCH_SIZE, columns=columns)
            yield from class_names(chain.from_iterable(batch.to_pylist() for batch in batches), features)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read as Parquet: {error}") from error


def read_text(file: str, sample_by: str) -> Iterator[Row]:
    """Yield the documents of a text file: each line, each paragraph (separated by empty lines), or the whole file."""
    if sample_by == "document":
        texts: Iterable[str] = ["".join(utf8_lines(file, keep_ends=True)).replace("\r\n", "\n")]
    elif sample_by == "paragraph":
        texts = ("\n".join(lines) for filled, lines in groupby(utf8_lines(file), bool) if filled)
    else:
        texts = utf8_lines(file)
    yield from ({"text": text} for text in texts)


def read_parallel(files: tuple[str, str], columns: list[str]) -> Iterator[Row]:
    """Yield a row for each pair of aligned lines in two parallel files.

    Raises:
        ValueError: the files have different numbers of lines.
    """
    for pair in zip_longest(*map(utf8_lines, files)):
        if None in pair:
            counts = [sum(1 for _ in utf8_lines(file)) for file in files]
            raise ValueError(
                f"{files[0]} has {counts[0]} lines, but {files[1]} has {counts[1]}: they must be parallel."
            )
        yield dict(zip(columns, cast(tuple[str, str], pair), strict=True))
