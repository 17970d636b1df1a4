"""The embedded data: true to CLDR, the same for the same seed, with nothing shared between the splits."""

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from datetime import datetime, timedelta
from functools import cache
from itertools import combinations
from random import Random

import pytest
from babel import Locale
from babel.dates import format_date, format_time, format_timedelta
from babel.units import format_unit
from datasets import DatasetDict

import phrasebook as phrasebook_module
from phrasebook import CLASSIFIED_LOCALES, TASKS, TEMPLATES, TOKEN, phrasebook, quantity, say, sentence

PAIRS = [("en", "es"), ("hi", "en"), ("zh", "en"), ("en", "ar")]
COLUMNS = {
    "translation": ["source", "target"],
    "classification": ["text", "label"],
    "regression": ["text", "label"],
    "tagging": ["tokens", "tags"],
    "question_answering": ["id", "question", "context", "answers"],
    "language_modeling": ["text"],
}


@cache
def drawn(task: str, source: str = "en", target: str = "es") -> DatasetDict:
    return phrasebook(task, source, target, size=3000)


def column(data: DatasetDict, split: str, name: str) -> list:
    return list(data[split][name])


def rows(data: DatasetDict) -> list[dict]:
    return [row for split in data.values() for row in split]


def fingerprints() -> str:
    data = {task: {split: d.to_list() for split, d in phrasebook(task, size=1000, seed=5).items()} for task in TASKS}
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{NARROW NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("task", TASKS)
def test_a_task_has_its_columns_and_the_size_that_was_asked_for(task):
    data = drawn(task)
    assert list(data) == ["train", "validation", "test"]
    assert all(split.column_names == COLUMNS[task] for split in data.values())
    assert sum(map(len, data.values())) == 3600
    for split in ("validation", "test"):
        # Whole contexts: the most questions that one has are 12.
        assert 300 - 12 < len(data[split]) <= 300 if task == "question_answering" else len(data[split]) == 300


def test_the_same_seed_gives_the_same_data_in_a_process_with_another_hash_order():
    code = "import test_phrasebook; print(test_phrasebook.fingerprints())"
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": path}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == fingerprints()


def test_another_seed_gives_other_data():
    first, second = (phrasebook("regression", size=1000, seed=seed)["train"]["text"] for seed in (0, 1))
    assert len(set(first) & set(second)) < 500


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_no_source_and_no_target_occurs_in_two_splits(source, target):
    data = drawn("translation", source, target)
    for name in ("source", "target"):
        for one, other in combinations(data, 2):
            assert not set(column(data, one, name)) & set(column(data, other, name))


@pytest.mark.parametrize(
    ("task", "shared"),
    [("classification", "text"), ("regression", "text"), ("question_answering", "context"), ("language_modeling", "text")],
)
def test_no_text_occurs_in_two_splits(task, shared):
    for one, other in combinations(drawn(task), 2):
        assert not set(column(drawn(task), one, shared)) & set(column(drawn(task), other, shared))


def test_no_tagged_sentence_occurs_in_two_splits():
    for one, other in combinations(drawn("tagging"), 2):
        sentences = [{" ".join(tokens) for tokens in column(drawn("tagging"), name, "tokens")} for name in (one, other)]
        assert not sentences[0] & sentences[1]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_source_has_one_target(source, target):
    sources = [row["source"] for row in rows(drawn("translation", source, target))]
    assert len(sources) == len(set(sources))


@pytest.mark.parametrize(("source", "target"), [("en", "es"), ("hi", "en")])
def test_every_word_of_a_held_out_phrase_occurs_in_training(source, target):
    data = drawn("translation", source, target)
    for name in ("source", "target"):
        seen = {word.strip(",،") for text in column(data, "train", name) for word in text.split()}
        for split in ("validation", "test"):
            held_out = {word.strip(",،") for text in column(data, split, name) for word in text.split()}
            assert not {word for word in held_out - seen if not re.search(r"\d", word)}


def test_the_name_of_a_country_alone_is_in_training_only():
    data, english, spanish = drawn("translation"), Locale("en").territories, Locale("es").territories
    train = dict(zip(column(data, "train", "source"), column(data, "train", "target"), strict=True))
    assert {code: train[english[code]] for code in ("ES", "DE", "CI", "ZA")} == {
        code: spanish[code] for code in ("ES", "DE", "CI", "ZA")
    }
    assert not set(english.values()) & set(column(data, "test", "source"))


def test_held_out_phrases_are_of_many_kinds():
    for pair in PAIRS:
        text = "\n".join(drawn("translation", *pair)["test"]["source" if pair[0] == "en" else "target"])
        for pattern in (r"^\w+ \d+, \d{4}$", r" ago$", r"^in \d+", r" or ", r"[€$£]", r"\d (AM|PM)$", r"\d (km|kg|MB)$"):
            assert re.search(pattern, text, re.MULTILINE), (pair, pattern)


def test_dates_times_and_relative_times_are_what_babel_says():
    checked = dict.fromkeys(("date", "time", "relative"), 0)
    for row in rows(drawn("translation")):
        source, target = row["source"], row["target"]
        if re.fullmatch(r"[A-Z][a-z]{4,} \d+, \d{4}", source):
            expected, kind = format_date(datetime.strptime(source, "%B %d, %Y"), "long", "es"), "date"
        elif re.fullmatch(r"\d+:\d\d [AP]M", source):
            expected, kind = format_time(datetime.strptime(source, "%I:%M %p"), "short", locale="es"), "time"
        elif match := re.fullmatch(r"(\d+) days ago", source):
            delta = -timedelta(days=int(match[1]))
            expected, kind = format_timedelta(delta, "day", threshold=1e9, add_direction=True, locale="es"), "relative"
        else:
            continue
        assert target == plain(expected)
        checked[kind] += 1
    assert min(checked.values()) > 5


@pytest.mark.parametrize(
    ("source", "target"),
    [("February 29, 2024", "29 de febrero de 2024"), ("Spain", "España"), ("US Dollar", "dólar estadounidense")],
)
def test_known_translations(source, target):
    facts = {
        "February 29, 2024": lambda locale: format_date(datetime(2024, 2, 29), "long", locale),
        "Spain": lambda locale: phrasebook_module.name_of("country", "ES", Locale(locale)),
        "US Dollar": lambda locale: phrasebook_module.name_of("currency", "USD", Locale(locale)),
    }
    assert [facts[source](locale) for locale in ("en", "es")] == [source, target]


@pytest.mark.parametrize("kind", phrasebook_module.KINDS)
def test_a_random_state_says_the_same_in_every_locale(kind):
    """The digits of a fact do not depend on the language, where the locales write them in the same order."""
    english, dutch = (say(kind, Random(7), Locale(code)) for code in ("en", "nl"))
    assert len(english) == len(dutch)
    assert [sorted(re.sub(r"\D", "", form).lstrip("0")) for form in english if kind not in ("time", "moment", "date")] == [
        sorted(re.sub(r"\D", "", form).lstrip("0")) for form in dutch if kind not in ("time", "moment", "date")
    ]
