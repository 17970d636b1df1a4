"""Every file format preserves rows exactly: strings stay strings, and only the task's columns are read."""

import datetime
import json
from decimal import Decimal
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from data_files import ANSWERED, NO_SPLIT, PAIRS, TAGGED, compressed, load, refused, rows_of, write
from fresh_process import UNDER_WATCH, run_fresh


pytestmark = pytest.mark.usefixtures("own_folder")

# Strings that many readers convert to dates, numbers, booleans, missing values or line breaks
DATES = ["2029-07-04", "July 4, 2029", "2029-07-04T12:00:00Z", "12:30"]
NUMBERS = ["12345678901234567890123", "007", "1e5", "1,000", "-0.50", "0x1F", "Infinity"]
WORDS = ["true", "no", "NA", "null", "None", "nan", "#N/A", "<NA>"]
SIGNS = [
    'say "no", twice',
    '"',
    "a\rb",
    "\ra",
    "one\u2028two\x85three\x0bfour\x1cfive",
    "हिन्दी 😀",
    "\ufeffa",
    "a\x00b",
]
ODD = {"dates": DATES, "numbers": NUMBERS, "words": WORDS, "signs": SIGNS}


def row(task, text):
    """Return a row with `text` in every string column of the task."""
    label = {"classification": text, "multi_label": [text], "regression": 0.5}
    if task == "translation":
        return {"source": text, "target": text}
    if task == "tagging":
        return {"tokens": [text], "tags": [text]}
    if task == "question_answering":
        return {"question": text, "context": text, "answers": {"text": [text], "answer_start": [0]}}
    return {"text": text} | ({"label": label[task]} if task in label else {})


FLAT = ("translation", "classification", "regression", "language_modeling")
NESTED = ("multi_label", "tagging", "question_answering")
FORMATS = [(task, name) for task in FLAT for name in ("a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet")]
FORMATS += [(task, name) for task in NESTED for name in ("a.jsonl", "a.json", "a.parquet")]


@pytest.mark.parametrize("strings", ODD.values(), ids=ODD)
@pytest.mark.parametrize(("task", "name"), FORMATS)
def test_strings_stay_strings(task, name, strings):
    rows = [row(task, text) for text in strings]
    file = write(name, rows)
    assert rows_of(task, file) == rows
    assert rows_of(task, compressed(file)) == rows


@pytest.mark.parametrize("strings", ODD.values(), ids=ODD)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet"])
@pytest.mark.parametrize("task", ["translation", "language_modeling"])
def test_strings_stay_strings_in_a_stream(task, name, strings):
    rows = [row(task, text) for text in strings]
    assert rows_of(task, write(name, rows), streaming=True) == rows


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "source,target\na\rb,c\nd,e\r\n"), ("a.csv", 'source,target\r\n"a\rb",c\r\nd,e'),
     ("a.tsv", "source\ttarget\na\rb\tc\nd\te\r\n"), ("a.jsonl", '{"source": "a\\rb", "target": "c"}\r\n'
      '{"source": "d", "target": "e"}')],
)  # fmt: skip
@pytest.mark.parametrize("streaming", [False, True])
def test_a_lone_carriage_return_is_an_ordinary_character(name, content, streaming):
    rows = [{"source": "a\rb", "target": "c"}, {"source": "d", "target": "e"}]
    assert rows_of("translation", write(name, content), streaming=streaming) == rows
    assert rows_of("translation", write(name, content), streaming=streaming, drop_empty=True) == rows


@pytest.mark.parametrize("sample_by", ["line", "paragraph", "document"])
@pytest.mark.parametrize("pack", [str, compressed])
def test_a_lone_carriage_return_in_a_text_file_is_an_ordinary_character(sample_by, pack):
    file = pack(write("a.txt", "one\rtwo\r\n\r\nthree\u2028four"))
    texts = ["one\rtwo\n\nthree\u2028four"] if sample_by == "document" else ["one\rtwo", "three\u2028four"]
    assert rows_of("language_modeling", file, sample_by=sample_by) == [{"text": text} for text in texts]


@pytest.mark.parametrize("names", [("train.en", "train.es"), ("en.txt", "es.txt")])
@pytest.mark.parametrize("pack", [str, compressed])
def test_parallel_files_are_paired_line_by_line(names, pack):
    source, target = "one\u2028\x85\rmore\r\ntwo\n  2029-07-04 ", "uno\r\nNA\n tres\n"
    files = [pack(write(names[0], source)), pack(write(names[1], target))]
    rows = load("translation", train_file=files, **NO_SPLIT)["train"]
    assert rows["source"][:] == ["one\u2028\x85\rmore", "two", "  2029-07-04 "]
    assert rows["target"][:] == ["uno", "NA", " tres"]


UNUSED = {"id": 12345678901234567890123, "when": "2029-07-04", "mixed": 1, "": None}
LATER = {"id": "x", "when": 5, "mixed": {"a": [1]}, "": "\ud83d"}


@pytest.mark.parametrize(("task", "name"), [each for each in FORMATS if "parquet" not in each[1]])
def test_columns_that_the_task_does_not_use_are_not_read(task, name):
    rows = [row(task, "a"), row(task, "b")]
    later = LATER if name.endswith(("json", "jsonl")) else UNUSED
    assert rows_of(task, write(name, [UNUSED | rows[0], later | rows[1]])) == rows


@pytest.mark.parametrize("task", [*FLAT, *NESTED])
def test_parquet_columns_that_the_task_does_not_use_are_not_read(task):
    rows = [row(task, "a"), row(task, "b")]
    odd = {
        "id": pa.array([Decimal(12345678901234567890123)] * 2, pa.decimal256(30)),
        "bytes": pa.array([b"\xff"] * 2),
        "period": pa.array([5] * 2, pa.duration("ns")),
        "map": pa.array([[("a", 1)]] * 2, pa.map_(pa.string(), pa.int8())),
    }
    table = pa.Table.from_pylist(rows)
    for name, values in odd.items():
        table = table.append_column(name, values)
    pq.write_table(table.select(["id", "period", *table.column_names[:-4], "map"]), "a.parquet")
    assert rows_of(task, "a.parquet") == rows


def test_every_arrow_string_type_is_supported():
    kinds = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
    for i, kind in enumerate(kinds):
        values = pa.array(["a", "b"]).cast(kind)
        pq.write_table(pa.table({"text": values, "label": values}), f"{i}.parquet")
    files = [*map("{}.parquet".format, range(len(kinds))), write("a.csv", [{"text": "c", "label": "d"}])]
    labels = load("classification", train_file=files, **NO_SPLIT)["train"]["label"][:]
    assert labels == ["a", "b"] * len(kinds) + ["d"]


@pytest.mark.parametrize("streaming", [False, True])
def test_files_of_different_formats_form_one_split(streaming):
    files = [write(f"a.{kind}", PAIRS[:5]) for kind in ("csv", "jsonl", "parquet", "tsv", "json")]
    assert rows_of("translation", *files, streaming=streaming) == PAIRS[:5] * 5
    files = [write("b.csv", [{"text": "a text"}] * 2), write("a.txt", "a line\n"), write("b.txt", "another")]
    texts = [row["text"] for row in rows_of("language_modeling", *files, sample_by="line")]
    assert texts == ["a text", "a text", "a line", "another"]


def test_file_suffixes_are_case_insensitive():
    assert rows_of("translation", write("A.JSONL", PAIRS)) == PAIRS


@pytest.mark.parametrize(
    "content", [json.dumps(PAIRS), json.dumps(PAIRS, indent=2), "\n\n" + json.dumps(PAIRS) + "\n"]
)
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_json_file_can_contain_a_single_list(name, content):
    assert rows_of("translation", write(name, content)) == PAIRS


def test_classes_are_strings_in_every_format():
    rows = [{"text": "a", "label": 7}, {"text": "b", "label": "7"}, {"text": "c", "label": True}]
    files = [write("a.jsonl", rows), write("b.csv", "text,label\na,7\nb,007\n"), write("c.parquet", rows[:1])]
    labels = load("classification", train_file=files, **NO_SPLIT)["train"]["label"][:]
    assert labels == ["7", "7", "True", "7", "007", "7"]
    tagged = [{"tokens": ["a", "b"], "tags": [0, 12]}]
    assert rows_of("tagging", write("a.jsonl", tagged)) == [{"tokens": ["a", "b"], "tags": ["0", "12"]}]


def test_regression_labels_are_floats_in_every_format():
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 2.5}, {"text": "c", "label": "-3e2"}]
    decimals = pa.table({"text": ["e"], "label": pa.array([Decimal("0.5")])})
    pq.write_table(decimals, "b.parquet")
    files = [
        write("a.jsonl", rows),
        "b.parquet",
        write("c.tsv", "text\tlabel\nd\t4\n"),
        write("d.csv", "text,label\nd,.5"),
    ]
    labels = load("regression", train_file=files, **NO_SPLIT)["train"]["label"][:]
    assert labels == [1, 2.5, -300, 0.5, 4, 0.5] and {*map(type, labels)} == {float}


def test_labels_can_be_lists_of_numbers_or_classes():
    rows = [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": []}]
    assert rows_of("multi_label", write("a.jsonl", rows)) == rows
    rows = [{"text": "a", "label": [1, 2.5]}, {"text": "b", "label": [0, -1]}]
    assert rows_of("regression", write("a.jsonl", rows)) == rows


@pytest.mark.parametrize("streaming", [False, True])
def test_quotes_in_tsv_are_ordinary_characters(streaming):
    pairs = [('"Yes," he said.', '"Sí", dijo.'), ('say "no', "NA"), ('"open', "end"), ("a, b", 'a "')]
    lines = [("es", "extra", "en"), *((target, "1", source) for source, target in pairs)]
    file = write("a.tsv", "".join("\t".join(line) + "\r\n" for line in lines))
    rows = rows_of("translation", file, columns=["source=en", "target=es"], streaming=streaming)
    assert [(row["source"], row["target"]) for row in rows] == pairs


def test_csv_supports_blank_lines_and_line_breaks_within_fields():
    file = write("a.csv", '\n\ntext,label\n"one\ntwo\r\nthree",0\n\n"say ""no"", twice",1\n\n')
    texts = [row["text"] for row in rows_of("classification", file)]
    assert texts == ["one\ntwo\r\nthree", 'say "no", twice']


def test_csv_supports_long_fields():
    texts = ["long " * 100_000, "short"]
    assert rows_of("language_modeling", write("a.csv", [{"text": text} for text in texts])) == [
        {"text": text} for text in texts
    ]


# --- Windows files, with a byte order mark and \r\n line endings


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("pack", [str, compressed])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"source": "12 miles", "target": "12 millas"}\r\n{"source": "a", "target": "b"}\r\n'),
        ("a.json", '[{"source": "12 miles", "target": "12 millas"},\r\n{"source": "a", "target": "b"}]\r\n'),
        ("a.csv", '"source",target\r\n12 miles,12 millas\r\n"a",b\r\n'),
        ("a.tsv", "source\ttarget\r\n12 miles\t12 millas\r\na\tb\r\n"),
    ],
)
def test_windows_tables_are_supported(name, content, pack, streaming):
    file = pack(write(name, content.encode("utf-8-sig")))
    rows = rows_of("translation", file, streaming=streaming)
    assert rows == [{"source": "12 miles", "target": "12 millas"}, {"source": "a", "target": "b"}]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("pack", [str, compressed])
def test_windows_text_files_are_supported(pack, streaming):
    files = [pack(write(name, "one\r\ntwo\r\n".encode("utf-8-sig"))) for name in ("a.en", "a.es", "a.txt")]
    pairs = [{"source": word, "target": word} for word in ("one", "two")]
    assert rows_of("translation", *files[:2], streaming=streaming) == pairs
    lines = rows_of("language_modeling", files[2], sample_by="line", streaming=streaming)
    assert [row["text"] for row in lines] == ["one", "two"]


# --- Original SQuAD files

NORWAY = {"text": "Norway", "answer_start": 3}
QUESTIONS = [
    {"id": "1", "question": "Where?", "answers": [NORWAY] * 2},
    {"id": "2", "question": "When?", "answers": [], "is_impossible": True, "plausible_answers": [NORWAY]},
]
DATED = [{"id": "3", "question": "NA", "answers": [{"answer_start": 0, "text": "2029"}]}]
PARAGRAPHS = [{"context": "In Norway.", "qas": QUESTIONS}, {"context": "2029-07-04", "qas": DATED}]
SQUAD = {"version": "v2.0", "data": [{"title": "A", "paragraphs": PARAGRAPHS[:1]}, {"paragraphs": PARAGRAPHS[1:]}]}
SQUAD_ROWS = [
    {"question": "Where?", "context": "In Norway.", "answers": {"text": ["Norway"] * 2, "answer_start": [3, 3]}},
    {"question": "When?", "context": "In Norway.", "answers": {"text": [], "answer_start": []}},
    {"question": "NA", "context": "2029-07-04", "answers": {"text": ["2029"], "answer_start": [0]}},
]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["train-v2.0.json", "train.jsonl"])
@pytest.mark.parametrize("pack", [str, compressed])
def test_the_original_squad_format_is_supported(pack, name, indent):
    file = pack(write(name, json.dumps(SQUAD, indent=indent)))
    assert rows_of("question_answering", file) == SQUAD_ROWS
    files = [file, write("a.jsonl", SQUAD_ROWS), write("b.parquet", SQUAD_ROWS)]
    assert rows_of("question_answering", *files) == SQUAD_ROWS * 3


def test_answers_can_be_lists_of_objects():
    row = {"question": "Where?", "context": "In Norway.", "answers": [{"text": "Norway", "answer_start": 3}]}
    assert rows_of("question_answering", write("a.jsonl", [row])) == [ANSWERED]


def test_error_for_an_incomplete_squad_file_gives_its_name():
    for paragraph in ({"context": "a"}, {"qas": [{"question": "b"}]}, 5):
        file = write("a.json", json.dumps({"data": [{"paragraphs": [paragraph]}]}))
        refused("question_answering", "a.json: not SQuAD's format", train_file=[file])
    test_set = {"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b", "id": "1"}]}]}]}
    refused("question_answering", "a.json has no column 'answers'", train_file=[write("a.json", json.dumps(test_set))])


# --- Struct columns, class names, and data sets in a folder


@pytest.mark.parametrize(
    "feature", [{"en": Value("string"), "de": Value("string")}, datasets.Translation(["en", "de"])]
)
def test_struct_fields_can_be_used_as_columns(feature):
    rows = [{"translation": {"en": "a", "de": "2029-07-04"}, "n": 1}]
    Dataset.from_list(rows, features=Features(translation=feature, n=Value("int8"))).to_parquet("wmt.parquet")
    columns = ["source=translation.de", "target=translation.en"]
    for file in ("wmt.parquet", write("a.jsonl", rows), write("a.json", rows)):
        assert rows_of("translation", file, columns=columns) == [{"source": "2029-07-04", "target": "a"}]


def test_column_names_can_contain_dots():
    rows = [{"a.en": "one", "a.es": "uno"}]
    for name in ("a.jsonl", "a.csv", "a.tsv", "a.parquet"):
        found = rows_of("translation", write(name, rows), columns=["source=a.en", "target=a.es"])
        assert found == [{"source": "one", "target": "uno"}]


LABELS = Features(text=Value("string"), label=ClassLabel(names=["bad", "good"]))
TAGS = Features(tokens=List(Value("string")), tags=List(ClassLabel(names=["O", "B-PLACE"])))
NUMBERED = [{"tokens": ["in", "Norway"], "tags": [0, 1]}, {"tokens": ["now"], "tags": [0]}]
CLASSES = [
    ("classification", LABELS, [{"text": "a", "label": 1}], [{"text": "a", "label": "good"}]),
    ("tagging", TAGS, NUMBERED, TAGGED),
]


@pytest.mark.parametrize(("task", "features", "numbered", "named"), CLASSES)
def test_class_label_ids_are_replaced_by_class_names(task, features, numbered, named):
    Path("folder").mkdir()
    Dataset.from_list(numbered, features=features).to_parquet("folder/train.parquet")
    assert rows_of(task, "folder/train.parquet") == named
    assert list(load(task, dataset="folder", **NO_SPLIT)["train"]) == named


def test_a_withheld_label_is_rejected():
    Dataset.from_dict({"text": ["a", "b"], "label": [1, -1]}, features=LABELS).to_parquet("a.parquet")
    refused("classification", "a.parquet, row 2: label is None; .*withheld", train_file=["a.parquet"])


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_splits_of_a_data_set_in_a_folder_are_selected_by_name(kind):
    Path("folder/data").mkdir(parents=True)
    for split, count in {"train": 5, "validation_matched": 3, "test": 2}.items():
        write(f"folder/data/{split}-00000-of-00001.{kind}", [row("translation", text) for text in DATES * 2][:count])
    splits = load("translation", dataset="folder", splits=["validation=validation_matched", "test=none"])
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 5, "validation": 3}
    assert splits["train"]["source"][:4] == DATES
    refused("translation", "no split 'dev'; it has: .*validation_matched", dataset="folder", splits=["validation=dev"])


LOADING = """
import sys
from vanilla_transformer.data import DataArguments, load_splits
from vanilla_transformer.tasks.language_modeling import LanguageModelingTask
from vanilla_transformer.tasks.translation import TranslationTask
for file in ("a.jsonl", "a.csv", "a.tsv", "a.parquet"):
    for streaming in (False, True):
        load_splits(DataArguments(train_file=[file], streaming=streaming), TranslationTask.data)
load_splits(DataArguments(train_file=["a.en", "a.es"]), TranslationTask.data)
load_splits(DataArguments(train_file=["a.txt"], sample_by="line"), LanguageModelingTask.data)
load_splits(DataArguments(dataset="folder"), TranslationTask.data)
print(json.dumps(asked))
"""


def test_local_data_is_read_without_network_requests(tmp_path):
    Path("folder").mkdir()
    for name in ("a.jsonl", "a.csv", "a.tsv", "a.parquet", "folder/train.jsonl"):
        write(name, PAIRS)
    for name in ("a.en", "a.es", "a.txt"):
        write(name, "one\ntwo\nthree\n")
    assert run_fresh(UNDER_WATCH + LOADING, tmp_path, installed=True) == []


def test_dates_in_a_parquet_text_column_are_rejected():
    rows = [{"source": "a", "target": datetime.date(2029, 7, 4)}]
    message = r"a.parquet, row 1: target is datetime.date\(2029, 7, 4\); it must be a string"
    refused("translation", message, train_file=[write("a.parquet", rows)])
