"""Invalid data is rejected before training with an error that gives the file, row, value and remedy."""

import datetime
import gzip
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_files import ANSWERED, NO_SPLIT, PAIRS, TAGGED, compressed, load, refused, rows_of, write
from vanilla_transformer.data import DataArguments


pytestmark = pytest.mark.usefixtures("own_folder")

TASKS = {
    "translation": PAIRS[0],
    "classification": {"text": "a", "label": "x"},
    "multi_label": {"text": "a", "label": ["x"]},
    "regression": {"text": "a", "label": 0.5},
    "tagging": TAGGED[0],
    "question_answering": ANSWERED,
    "language_modeling": {"text": "a"},
}
TEXTS = [(task, name) for task, row in TASKS.items() for name in row if name not in ("label", "tags", "answers")]
STREAMED = ("translation", "language_modeling")


# Values that are not strings, in every text column and every file format that supports them


@pytest.mark.parametrize("value", [float("nan"), 5, True, {"a": "b"}, 12345678901234567890123])
@pytest.mark.parametrize(("task", "column"), TEXTS)
def test_error_for_a_non_string_value_gives_its_row(task, column, value):
    rows = [TASKS[task]] * 3 + [TASKS[task] | {column: [value] if column == "tokens" else value}]
    if column == "tokens":
        rows[3] |= {"tags": ["O"]}
    for file in (write("a.jsonl", rows), write("a.json", rows), compressed("a.jsonl")):
        for streaming in {False, task in STREAMED}:
            message = f"^{file}, row 4: {column} is .*; it must be a string"
            refused(task, message, train_file=[file], streaming=streaming)


@pytest.mark.parametrize("value", [float("nan"), 5, True, datetime.date(2029, 7, 4), b"\xff"])
@pytest.mark.parametrize(("task", "column"), TEXTS)
def test_error_for_a_non_string_parquet_value_gives_its_row(task, column, value):
    row = TASKS[task] | ({"tokens": [value], "tags": ["O"]} if column == "tokens" else {column: value})
    file = write("a.parquet", [row] * 2)
    for streaming in {False, task in STREAMED}:
        message = f"^a.parquet, row 1: {column} is .*; it must be a string"
        refused(task, message, train_file=[file], streaming=streaming)


@pytest.mark.parametrize("value", [None, "", " \u3000\t"])
@pytest.mark.parametrize(("task", "column"), TEXTS)
def test_empty_text_is_rejected_or_skipped(task, column, value):
    empty = [] if column == "tokens" and value == "" else value
    rows = [TASKS[task], TASKS[task] | {column: empty}, TASKS[task]]
    for name in ("a.jsonl", "a.json", "a.parquet"):
        if name == "a.parquet" and column == "tokens" and isinstance(empty, str):
            continue  # all values of a Parquet column have one type
        file = write(name, rows)
        for streaming in {False, task in STREAMED}:
            if task != "language_modeling":
                message = f"{name}, row 2: {column} is empty; --drop_empty"
                refused(task, message, train_file=[file], streaming=streaming)
            assert rows_of(task, file, drop_empty=True, streaming=streaming) == [TASKS[task]] * 2


def test_row_numbers_in_errors_include_skipped_rows():
    rows = [{"text": "a", "label": 0}, {"text": " ", "label": 0}, {"text": "b", "label": 1}]
    train, test = write("train.jsonl", rows[:2]), write("test.jsonl", rows[1:])
    message = "test.jsonl, row 2: label '1' never"
    refused("classification", message, train_file=[train], test_file=[test], drop_empty=True)


def test_a_lone_surrogate_is_rejected():
    """Text truncated in the middle of a surrogate pair ends with a lone surrogate."""
    file = write("a.jsonl", [{"text": "\ud83d\ude00"}, {"text": "a\ud83d"}])
    refused("language_modeling", r"a.jsonl, row 2: text is 'a\\ud83d', which is not valid Unicode", train_file=[file])


# --- Unreadable files: each error message is a single sentence


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.jsonl.gz", "a.en"])
def test_an_empty_file_is_rejected(name, streaming):
    files = [write(name, b"")] * (2 if name == "a.en" else 1)
    refused("translation", rf"^{name} is empty\.$", train_file=files, streaming=streaming)


WITHOUT_ROWS = {
    "a.csv": b"source,target\n",
    "a.tsv": b"source\ttarget\r\n",
    "a.json": b"[]",
    "a.jsonl": b"\n\n",
    "b.jsonl.gz": gzip.compress(b""),
    "b.csv.gz": gzip.compress(b""),
}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", [*WITHOUT_ROWS, "a.parquet"])
def test_a_file_without_rows_is_rejected(name, streaming):
    if name == "a.parquet":
        pq.write_table(pa.table({side: pa.array([], pa.string()) for side in ("source", "target")}), name)
    else:
        write(name, WITHOUT_ROWS[name])
    refused("translation", rf"^{name}: there are no rows\.$", train_file=[name], streaming=streaming)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.en"])
def test_a_gzip_file_without_the_gz_suffix_is_rejected(name):
    Path(name).write_bytes(Path(compressed(write(name, PAIRS))).read_bytes())
    files = [name] * (2 if name == "a.en" else 1)
    refused("translation", rf"^{name} is a gzip file: rename it to {name}\.gz, .*\.$", train_file=files)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz"])
@pytest.mark.parametrize("row", [1, 2])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_json_line_with_a_trailing_comma_is_rejected(name, row, streaming):
    lines = ['{"source": "a", "target": "b"}'] * 3
    lines[row - 1] += ", " if row == 2 else ","
    file = write("a.json" if name == "a.json" else "a.jsonl", "\n".join(lines) + "\n")
    file = compressed(file) if name.endswith(".gz") else file
    refused("translation", rf"^{name}, row {row} ends with a comma: .*\.$", train_file=[file], streaming=streaming)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("null\n{}", "is neither"),
        ("5", "holds 5: write one object a line"),
        ('{"source": "a", "target": "b"}\n{', ", row 2 is neither"),
        ('{"source": "a", "target": "b"}\n5', ", row 2 is 5; it must be an object"),
        ("[[1]]", r", row 1 is \[1\]; it must be an object"),
        ('[null, {"source": "a", "target": "b"}]', ", row 1 is None; it must be an object"),
        ('[{"source": "a", "target": "b"}, 5]', ", row 2 is 5; it must be an object"),
        ('[{"source": "a", "target": "b"}]\n[{"source": "a", "target": "b"}]', "is neither"),
        ('{\n  "train": []\n}', "holds {'train'"),
        ("[" * 100_000, "is neither"),
    ],
)
@pytest.mark.parametrize("pack", [str, compressed])
def test_a_json_file_without_objects_is_rejected(content, said, pack):
    file = pack(write("a.json", content))
    refused("translation", f"^{file} ?{said}", train_file=[file])


@pytest.mark.parametrize("damage", ["cut short", "damaged", "another checksum", "not gzipped"])
@pytest.mark.parametrize("name", ["a.en", "a.txt", "a.jsonl", "a.csv", "a.parquet"])
def test_error_for_a_damaged_gzip_file_gives_its_name(name, damage):
    task = "language_modeling" if name == "a.txt" else "translation"
    rows = [{"source": f"line {i} of many", "target": "a"} for i in range(5000)]
    lines = "".join(f"line {i} of many\n" for i in range(5000))
    whole = Path(compressed(write(name, lines if name in ("a.en", "a.txt") else rows)))
    data = whole.read_bytes()
    middle = len(data) // 2
    whole.write_bytes(
        {
            "cut short": data[:middle],
            "damaged": data[:middle] + bytes(20) + data[middle + 20 :],
            "another checksum": data[:-8] + bytes(4) + data[-4:],
            "not gzipped": Path(name).read_bytes(),
        }[damage]
    )
    files = [str(whole)] * (2 if name == "a.en" else 1)
    # a corrupt row may be reported before the end of the gzip stream is reached
    said = "" if damage == "damaged" else " is not a complete gzip file"
    refused(task, f"{whole.name}{said}", train_file=files)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
@pytest.mark.parametrize("fault", ["not UTF-8", "cut short"])
def test_streaming_error_after_valid_rows_names_the_damaged_file(name, fault):
    text = " ".join(str(i) for i in range(250))
    line = (f'{{"text": "{text}"}}\n' if name == "a.jsonl" else f"{text}\n").encode()
    content = (b"text\n" if name == "a.csv" else b"") + line * 22_000 + line.replace(b"249", b"\xff")
    if fault == "cut short":
        name += ".gz"
        content = gzip.compress(content, compresslevel=1)[:-1000]
    write(name, content)
    options = {"train_file": [name], "streaming": True, "sample_by": "line", **NO_SPLIT}
    rows = iter(load("language_modeling", **options)["train"])
    assert {row["text"] for row in islice(rows, 1000)} == {text}
    message = (
        r", line 2200\d: not UTF-8 \(invalid start byte" if fault == "not UTF-8" else " is not a complete gzip file"
    )
    with pytest.raises(ValueError, match=f"^{name}{message}"):
        list(rows)


def test_streaming_error_for_a_late_non_string_value_gives_its_row():
    file = write("a.jsonl", [{"text": "good"}] * 5000 + [{"text": 7}])
    rows = load("language_modeling", train_file=[file], streaming=True, **NO_SPLIT)["train"]
    with pytest.raises(ValueError, match=r"a\.jsonl, row 5001: text is 7; it must be a string"):
        list(rows)


NUMBER = "; it must be a number"
VALUES = [
    ("classification", "label", None, "is None; a class must be"),
    ("classification", "label", 0.5, "is 0.5; a class must be"),
    ("classification", "label", ["pt"], r"is \['pt'\]; .*multi_label"),
    ("multi_label", "label", "uk", "is 'uk'; it must be a list of classes .*classification"),
    ("multi_label", "label", ["uk", None], "is None; a class must be"),
    ("regression", "label", "high", f"is 'high'{NUMBER}"),
    ("regression", "label", True, f"is True{NUMBER}"),
    ("regression", "label", float("nan"), f"is nan{NUMBER}"),
    ("regression", "label", "inf", f"is 'inf'{NUMBER}"),
    ("regression", "label", -1e300, rf"is -1e\+300{NUMBER} of at most 1e\+18"),
    ("regression", "label", 10**400, NUMBER),
    ("regression", "label", [], r"is \[\]; it must contain a number"),
    ("tagging", "tags", ["O"], "is .* list of 2 tags"),
    ("tagging", "tags", ["O", 0.5], "is 0.5; a class must be"),
    ("tagging", "tokens", "a b", "is 'a b'; it must be a list"),
    ("tagging", "tokens", ["a", " "], "is .*; it must be a list of strings that are not empty"),
    *(
        ("question_answering", "answers", answers, said)
        for answers, said in [
            ({"text": ["Norway"], "answer_start": [0]}, "has 'Norway', which is not at character 0 .* 'In Nor'"),
            ({"text": ["Norway"], "answer_start": [-7]}, "has 'Norway', which is not at character -7"),
            ({"text": [""], "answer_start": [10**23]}, "has '', which is not at character 1"),
            ({"text": ["In"], "answer_start": [None]}, "has 'In' at None; these must be"),
            ({"text": ["Norway"], "answer_start": [3.5]}, "has 'Norway' at 3.5; these must be"),
            ({"text": [None], "answer_start": [3]}, "has None at 3; these must be"),
            ({"text": "Norway", "answer_start": 3}, "is .*; it must be {"),
            ({"text": None, "answer_start": None}, "is .*; it must be {"),
            ({"text": ["In", "Norway"], "answer_start": [0]}, "is .*; it must be {.* as many"),
            ([{"text": "Norway"}], "has 'Norway' at None; these"),
            ("Norway", "is 'Norway'; it must be"),
        ]
    ),
]


@pytest.mark.parametrize(("task", "column", "value", "said"), VALUES)
def test_error_for_an_invalid_value_gives_its_row_and_column(task, column, value, said):
    file = write("a.jsonl", [TASKS[task], TASKS[task] | {column: value}])
    refused(task, f"^a.jsonl, row 2: {column} {'.*' if said == NUMBER else ''}{said}", train_file=[file])


FAULTS = {
    "missing file": ("translation", "none.jsonl: there is no such file", {"train_file": ["none.jsonl"]}),
    "folder": ("translation", "folder is a folder: give files, or .* --dataset folder", {"train_file": ["folder"]}),
    "missing column": (
        "translation",
        "a.jsonl has no column 'target'; it has: source, nested, nested.de",
        {"train_file": [("a.jsonl", [{"source": "a", "nested": {"de": "b"}}])]},
    ),
    "missing column of a Parquet file": (
        "translation",
        "a.parquet has no column 'target'; it has: source, nested, nested.de",
        {"train_file": [("a.parquet", [{"source": "a", "nested": {"de": "b"}}])]},
    ),
    "Parquet file of nothing": (
        "translation",
        "a.parquet has no column 'source'; it has: no columns",
        {"train_file": [("a.parquet", [])]},
    ),
    "column used twice": (
        "translation",
        "one of ours only",
        {"train_file": [("a.jsonl", PAIRS)], "columns": ["target=source"]},
    ),
    "unknown column of ours": (
        "translation",
        "--columns text=a: .* source, target",
        {"train_file": [("a.jsonl", PAIRS)], "columns": ["text=a"]},
    ),
    "unknown format": (
        "language_modeling",
        "a.doc: its name must end in one of .json.* Save a table of another kind as one of these, such as .csv",
        {"train_file": [("a.doc", "a")]},
    ),
    "not Parquet": ("translation", "a.parquet cannot be read as Parquet", {"train_file": [("a.parquet", "a")]}),
    "unequal parallel files": (
        "translation",
        "a.en has 2 lines, but a.es has 1",
        {"train_file": [("a.en", "a\nb\n"), ("a.es", "c\n")]},
    ),
    "one parallel file": (
        "translation",
        "a.en: its name .* two files of parallel lines",
        {"train_file": [("a.en", "a\n")]},
    ),
    "empty line": (
        "translation",
        "a.en and a.es, row 2: source is empty",
        {"train_file": [("a.en", "a\n\nc\n"), ("a.es", "a\nb\nc\n")]},
    ),
    "no text at all": ("language_modeling", "there are no rows with a text", {"train_file": [("a.txt", "\n\n")]}),
    "other encoding": (
        "translation",
        "a.csv, line 3: not UTF-8",
        {"train_file": [("a.csv", "source,target\na,b\né,c\n".encode("latin-1"))]},
    ),
    "other encoding in parallel files": (
        "translation",
        "a.es, line 2: not UTF-8 .* byte 4",
        {"train_file": [("a.en", "a\nb\n"), ("a.es", "a\nniño\n".encode("cp1252").replace(b"\xf1o", b"oo\xf1o"))]},
    ),
    "two bytes a character": (
        "translation",
        "a.csv is UTF-16",
        {"train_file": [("a.csv", "source,target\r\na,b\r\n".encode("utf-16"))]},
    ),
    "fault in the second file": (
        "translation",
        "b.jsonl, row 1: source is empty",
        {"train_file": [("a.jsonl", PAIRS), ("b.jsonl", [{"source": "", "target": "a"}])]},
    ),
    # --- Headers and fields of CSV and TSV
    "rows without names above them": (
        "translation",
        "a.tsv has no column 'source'; it has: Hello!, ¡Hola!. Name yours with --columns, or write a first row",
        {"train_file": [("a.tsv", "Hello!\t¡Hola!\nThank you.\tGracias.\n")]},
    ),
    "tabs in a file of commas": (
        "translation",
        r"a.csv has no column 'source'; it has: 'source\\ttarget'",
        {"train_file": [("a.csv", "source\ttarget\na\tb\n")]},
    ),
    "column name given twice": (
        "translation",
        "a.csv has two columns named 'source'",
        {"train_file": [("a.csv", "source,target,source\na,b,c\n")]},
    ),
    "more fields than columns": (
        "classification",
        r"a.csv, row 2: there are 3 fields for 2 columns \(text, label\): put a text with a comma in quotes ",
        {"train_file": [("a.csv", "text,label\n\"good, really\",1\nbad, really,0\n")]},
    ),
    "fewer fields than columns": (
        "translation",
        r"a.tsv, row 1: there are 1 fields for 2 columns \(source, target\): leave tabs out of texts, and give",
        {"train_file": [("a.tsv", "source\ttarget\na\n")]},
    ),
    "a quote that does not end": (
        "translation",
        "a.csv, line 4: unexpected end of data",
        {"train_file": [("a.csv", 'source,target\na,b\n"c,d\ne,f\n')]},
    ),
    "quotes inside a quoted text": (
        "translation",
        "a.csv, line 2: .* expected after .*double",
        {"train_file": [("a.csv", 'source,target\n"Yes" he said,"Sí"\n')]},
    ),
    # --- Labels
    "the phrasebook for several classes": ("multi_label", "phrasebook has no data for this task", {}),
    "unseen class": (
        "classification",
        "b.jsonl, row 2: label 'y' never occurs in training",
        {
            "train_file": [("a.jsonl", [{"text": "a", "label": "x"}])],
            "test_file": [("b.jsonl", [{"text": "a", "label": "x"}, {"text": "a", "label": "y"}])],
        },
    ),
    "unseen class among several": (
        "multi_label",
        "b.jsonl, row 1: label 'y' never occurs in training",
        {
            "train_file": [("a.jsonl", [{"text": "a", "label": ["x", "z"]}])],
            "test_file": [("b.jsonl", [{"text": "a", "label": ["z", "y"]}])],
        },
    ),
    "unseen tag": (
        "tagging",
        "b.jsonl, row 1: tags 'B-TIME' never occurs in training",
        {
            "train_file": [("a.jsonl", TAGGED)],
            "validation_file": [("b.jsonl", [{"tokens": ["now"], "tags": ["B-TIME"]}])],
        },
    ),
    "blank for a number": (
        "regression",
        "a.csv, row 3: label is ''; it must be a number",
        {"train_file": [("a.csv", "text,label\na,0.5\nb,1\nc,\n")]},
    ),
    "more numbers than in another row": (
        "regression",
        "a.jsonl, row 2: label: there are 1 numbers, but 2 in a.jsonl, row 1",
        {"train_file": [("a.jsonl", [{"text": "a", "label": [1.0, 2.0]}, {"text": "b", "label": 1.0}])]},
    ),
    "more numbers than in training": (
        "regression",
        "b.jsonl, row 1: label: there are 2 numbers, but 1 in a.jsonl, row 1",
        {
            "train_file": [("a.jsonl", [{"text": "a", "label": 1}])],
            "test_file": [("b.jsonl", [{"text": "a", "label": [1, 2]}])],
        },
    ),
    # --- Validation rows
    "one row to split": (
        "translation",
        "a.jsonl: there is one training row, and there is no validation split",
        {"train_file": [("a.jsonl", PAIRS[:1])]},
    ),
    "copies of one row to split": (
        "classification",
        "a.jsonl: all 30 rows have the same input, and there is no validation split: give",
        {"train_file": [("a.jsonl", [{"text": "a", "label": 1}, {"text": "a", "label": 0}] * 15)]},
    ),
    "all rows held out": (
        "translation",
        "a.jsonl: --validation_fraction 0.999 of 20 rows leaves none to train on",
        {"train_file": [("a.jsonl", PAIRS)], "validation_fraction": 0.999},
    ),
    "all of a document held out": (
        "language_modeling",
        "a.txt: --validation_fraction 0.999 of 3 characters leaves none on one side",
        {"train_file": [("a.txt", "abc")], "validation_fraction": 0.999},
    ),
    "each class once": (
        "classification",
        "a.jsonl: no row can be held out, since each has the only example of a class",
        {"train_file": [("a.jsonl", [{"text": name, "label": name} for name in "abc"])]},
    ),
    # --- Streams
    "stream of empty rows": (
        "translation",
        "a.jsonl: there are no rows",
        {"train_file": [("a.jsonl", [{"source": "a", "target": ""}] * 300)], "streaming": True, "drop_empty": True},
    ),
    "stream for another task": (
        "tagging",
        "--streaming is for language models and translation",
        {"train_file": [("a.jsonl", TAGGED)], "streaming": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("task", "message", "options"), FAULTS.values(), ids=FAULTS)
def test_errors_give_the_location_of_the_fault(task, message, options):
    Path("folder").mkdir()
    written = {
        name: [write(*file) if isinstance(file, tuple) else file for file in files]
        if name.endswith("_file")
        else files
        for name, files in options.items()
    }
    refused(task, message, **written)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "squad", "train_file": ["a.jsonl"]}, "--dataset squad and --train_file exclude each other"),
        ({"dataset_config": "plain"}, "--dataset_config belongs to a data set on the Hub"),
        ({"splits": ["test=none"], "train_file": ["a.jsonl"]}, "--splits belongs to a data set on the Hub"),
        ({"validation_fraction": 1.0}, "--validation_fraction 1.0 must be"),
        ({"max_train_samples": 0}, "--max_train_samples 0 must be at least 1"),
        ({"max_eval_samples": -1}, "--max_eval_samples -1 must be at least 1"),
        ({"phrases": 200}, "--phrases 200 is out of range: choose from 1000 to 100000"),
    ],
)
def test_invalid_data_options_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        DataArguments(**options)
