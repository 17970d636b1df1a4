"""The task is inferred from the columns of a file; if it is ambiguous, the error asks for the task."""

import gzip
import json

import pytest

from vanilla_transformer.data.recognition import recognise


def table(folder, name: str, rows: list[dict]) -> str:
    """Write rows in the format given by the file suffix, and return the path."""
    file = folder / name
    if name.endswith((".tsv", ".csv")):
        separator = "\t" if name.endswith(".tsv") else ","
        lines = [rows[0].keys(), *(row.values() for row in rows)]
        text = "".join(separator.join(map(str, line)) + "\n" for line in lines)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    if name.endswith(".gz"):
        file.write_bytes(gzip.compress(text.encode()))
    else:
        file.write_text(text, encoding="utf-8")
    return str(file)


def words(number: int) -> str:
    return f"a sentence that says {number} and ends"


PAIRS = [{"id": n, "english": words(n), "spanish": f"una frase que dice {n}"} for n in range(40)]
REVIEWS = [{"review": words(n), "stars": 1 + n % 5} for n in range(40)]
MOODS = [{"mood": ["good", "bad"][n % 2], "review": words(n)} for n in range(40)]
EASE = [{"text": words(n), "ease": n / 7} for n in range(40)]
TOPICS = [{"text": words(n), "topics": ["a", "b"][: n % 3]} for n in range(40)]
NAMES = [{"words": ["Ada", f"met{n}", "Bob"], "ner": ["B", "O", "B"]} for n in range(40)]
NESTED = [{"translation": {"en": words(n), "de": f"ein Satz mit {n}"}} for n in range(40)]
INTENTS = [{"utterance": words(n), "intent": f"intent {n % 25}"} for n in range(40)]
NUMBERED = [{"text": words(n), "label": n % 25} for n in range(40)]
LETTERS = [{"letter": "abcde"[n % 5], "kind": "xy"[n % 2]} for n in range(40)]
TITLED = [{"title": f"number {n}", "text": words(n), "stars": 1 + n % 5, "label": "xy"[n % 2]} for n in range(40)]
QUESTIONS = [
    {"id": f"q{n}", "question": f"Who is {n}?", "context": words(n), "answers": {"text": ["a"], "answer_start": [0]}}
    for n in range(40)
]


@pytest.mark.parametrize(
    ("name", "rows", "task", "columns"),
    [
        ("pairs.tsv", PAIRS, "translation", {"source": "english", "target": "spanish"}),
        ("pairs.jsonl.gz", PAIRS, "translation", {"source": "english", "target": "spanish"}),
        ("nested.jsonl", NESTED, "translation", {"source": "translation.en", "target": "translation.de"}),
        ("reviews.csv", REVIEWS, "classification", {"text": "review", "label": "stars"}),
        ("moods.jsonl", MOODS, "classification", {"text": "review", "label": "mood"}),
        ("ease.csv", EASE, "regression", {"text": "text", "label": "ease"}),
        ("topics.jsonl", TOPICS, "multi_label", {"text": "text", "label": "topics"}),
        ("names.jsonl", NAMES, "tagging", {"tokens": "words", "tags": "ner"}),
        ("intents.csv", INTENTS, "classification", {"text": "utterance", "label": "intent"}),
        ("numbered.jsonl", NUMBERED, "classification", {"text": "text", "label": "label"}),
        ("letters.csv", LETTERS, "classification", {"text": "letter", "label": "kind"}),
        ("titled.csv", TITLED, "classification", {"text": "text", "label": "label"}),
        ("text.jsonl", [{"text": words(n)} for n in range(9)], "language_modeling", {"text": "text"}),
        ("letters.jsonl", [{"text": "ab"[n % 2]} for n in range(9)], "language_modeling", {"text": "text"}),
        (
            "questions.jsonl", QUESTIONS, "question_answering",
            {"question": "question", "context": "context", "answers": "answers"},
        ),
    ],
)  # fmt: skip
def test_the_task_is_inferred_from_the_columns(tmp_path, name, rows, task, columns):
    found = recognise([table(tmp_path, name, rows)])
    assert (found.task, found.columns) == (task, columns)


def test_text_files_are_parallel_or_plain_text(tmp_path):
    for name in ("train.en", "train.de", "book.txt"):
        (tmp_path / name).write_text("a line\nanother\n")
    files = [str(tmp_path / name) for name in ("train.en", "train.de")]
    assert recognise(files).task == "translation"
    assert recognise([str(tmp_path / "book.txt")]).task == "language_modeling"


def test_user_options_take_precedence(tmp_path):
    reviews, pairs = table(tmp_path, "reviews.csv", REVIEWS), table(tmp_path, "pairs.tsv", PAIRS)
    assert recognise([reviews], "regression").columns == {"text": "review", "label": "stars"}
    turned = {"source": "spanish", "target": "english"}
    assert recognise([pairs], columns=turned).columns == recognise([pairs], "translation", turned).columns == turned
    text = recognise([pairs], columns={"text": "english"})
    assert (text.task, text.columns) == ("language_modeling", {"text": "english"})


def test_error_for_unrecognised_data_lists_its_columns_and_the_known_layouts(tmp_path):
    three = [{**pair, "french": f"une phrase qui dit {n}"} for n, pair in enumerate(PAIRS)]
    with pytest.raises(ValueError, match=r"english .*spanish .*french .*fit no task.*two columns of text.*--columns"):
        recognise([table(tmp_path, "three.tsv", three)])
    both = [{**name, **mood} for name, mood in zip(NAMES, MOODS, strict=True)]
    file = table(tmp_path, "both.jsonl", both)
    with pytest.raises(ValueError, match=r"tagging \(words, ner\) or classification \(review, mood\): name the task"):
        recognise([file])
    assert recognise([file], "classification").columns == {"text": "review", "label": "mood"}
    with pytest.raises(ValueError, match=r"no column 'german'.*english"):
        recognise([table(tmp_path, "pairs.tsv", PAIRS)], columns={"source": "english", "target": "german"})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("spa.txt", "Go.\tVe.\nRun.\tCorre.\n", r"spa\.txt has tabs in every line.*rename it to \.tsv"),
        ("moods.csv", "text;mood\nfine;up\nsad;down\n", r"moods\.csv has one column, 'text;mood'.*semicolons"),
        ("pairs.tsv", "en\tes\n", r"pairs\.tsv has no rows"),
        ("moods.tsv", "text,mood\nfine,up\nsad,down\n", r"moods\.tsv has one column, 'text,mood'.*commas"),
    ],
)
def test_an_empty_table_or_a_wrong_suffix_is_rejected(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        recognise([str(tmp_path / name)])
