"""The user's columns under our names: what follows knows `COLUMNS[task]` of checks.py alone."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from datasets import ClassLabel, Dataset, Features, LargeList, List, Translation, Value, concatenate_datasets

from vanilla_transformer.data.sources import Source


def member_names(feature: Any) -> Iterable[str]:
    """The names in a column of records, by its feature or one of its values."""
    if isinstance(feature, Translation):
        return feature.languages
    return feature if isinstance(feature, dict) else ()


def take_members(batch: dict[str, list], paths: dict[str, tuple[str, str]]) -> dict[str, list]:
    """For each path such as `translation.de`, the column of that member of the records."""
    return {path: [record and record[member] for record in batch[name]] for path, (name, member) in paths.items()}


def with_plain_strings(feature: Any) -> Any:
    """The feature with the type that most readers give texts and lists, in place of those for larger ones."""
    if isinstance(feature, dict):
        return {name: with_plain_strings(member) for name, member in feature.items()}
    if isinstance(feature, List):
        return List(with_plain_strings(feature.feature), length=feature.length)
    if isinstance(feature, LargeList):
        return List(with_plain_strings(feature.feature))
    return Value("string") if feature in (Value("large_string"), Value("string_view")) else feature


def rename_columns(source: Source, columns: dict[str, str]) -> Source:
    """Give the user's columns our names, and leave all others out; `a.b` is the member b of a column of records.

    Raises:
        ValueError: a column is missing, or to be used as two.
    """
    rows = source.rows
    # A stream may know its columns only by its first row.
    features: Mapping[str, Any] = rows.features or next(iter(rows), {})
    nested = {f"{name}.{member}": (name, member) for name in features for member in member_names(features[name])}
    for yours in columns.values():
        if yours not in features and yours not in nested:
            is_plain = {name: name == name.strip() and name.isprintable() for name in (*features, *nested)}
            available = ", ".join(name if plain else repr(name) for name, plain in is_plain.items())
            is_headed = source.place.lower().removesuffix(".gz").endswith((".csv", ".tsv"))
            remedy = "--columns, or write a first row of names" if is_headed else "--columns"
            raise ValueError(f"{source.place} has no column {yours!r}; it has: {available}. Name yours with {remedy}.")
    if len(set(columns.values())) < len(columns):
        raise ValueError(f"--columns {columns}: each of your columns can be one of ours only.")
    paths = {yours: nested[yours] for yours in columns.values() if yours not in features}
    if paths and isinstance(rows, Dataset):  # its columns of records need not be copied
        members = rows.select_columns(sorted({name for name, _ in paths.values()})).flatten().select_columns([*paths])
        rows = concatenate_datasets([rows, members], axis=1)
    elif paths:
        rows = rows.map(partial(take_members, paths=paths), batched=True)
    renamed = {yours: ours for ours, yours in columns.items() if yours != ours}
    rows = rows.select_columns(list(columns.values())).rename_columns(renamed)
    if rows.features:  # where pandas reads texts as large ones, they are to be one column with those of other files
        plain = {name: with_plain_strings(feature) for name, feature in rows.features.items()}
        rows = rows if plain == rows.features else rows.cast(Features(plain))
    return Source(source.place, rows)


def as_floats(source: Source, column: str) -> Source:
    """The source with numbers of one type, whole or not: those of several files are to be one column."""
    listed = isinstance(source.rows.features[column], List | LargeList)
    feature = List(Value("float64")) if listed else Value("float64")
    return Source(source.place, source.rows.cast_column(column, feature), source.numbers)


def name_classes(source: Source, column: str) -> Source:
    """The source with the names of its classes where it has numbers for them, and None for a number without a name."""
    feature = source.rows.features[column]
    label = getattr(feature, "feature", feature)
    if not isinstance(label, ClassLabel):
        return source
    name = dict(enumerate(label.names)).get
    named = [list(map(name, value)) if isinstance(value, list) else name(value) for value in source.rows[column][:]]
    named_feature = Value("string") if feature is label else List(Value("string"))
    return Source(source.place, source.rows.remove_columns(column).add_column(column, named, feature=named_feature))
