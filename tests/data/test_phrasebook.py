"""The phrasebook agrees with CLDR, is reproducible by seed, and has splits without common phrases."""

import hashlib
import json
import math
import re
from datetime import datetime, timedelta
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from babel import Locale
from babel.dates import format_date, format_time, format_timedelta
from babel.units import format_unit
from datasets import DatasetDict

from fresh_process import run_python
from vanilla_transformer.data.phrasebook import (
    CLASSIFIED_LOCALES,
    TASKS,
    TEMPLATES,
    TOKEN,
    Example,
    phrasebook,
    unambiguous,
)
from vanilla_transformer.data.phrases import NAMES, UNITS, quantity, say


ENGLISH, SPANISH, HINDI = map(Locale, ("en", "es", "hi"))
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


def rows(data: DatasetDict) -> list[dict]:
    return [row for split in data.values() for row in split]


def fingerprint() -> str:
    data = [split.to_list() for task in TASKS for split in phrasebook(task, size=1000, seed=5).values()]
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{NARROW NO-BREAK SPACE}", " ")


def spans(tokens: list[str], tags: list[str]) -> dict[str, str]:
    """Return the text of each tagged span by tag type. A sentence has at most one span per type."""
    found = {}
    for token, tag in zip(tokens, tags, strict=True):
        position, _, kind = tag.partition("-")
        if position == "B":
            assert kind not in found
            found[kind] = token
        elif position == "I":
            found[kind] += f" {token}"
    return found


# --- Splits


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_the_expected_columns_and_requested_size(task):
    data = drawn(task)
    assert list(data) == ["train", "validation", "test"]
    assert all(split.column_names == COLUMNS[task] for split in data.values())
    assert sum(map(len, data.values())) == 3600
    smallest = 290 if task == "question_answering" else 300  # contexts are not split, and each has 6 to 10 questions
    assert all(smallest <= len(data[split]) <= 300 for split in ("validation", "test"))


def test_the_same_seed_gives_the_same_data_with_a_different_hash_seed():
    code = "import sys; sys.path.append('..'); import test_phrasebook; print(test_phrasebook.fingerprint(), hash('a'))"
    result = run_python(["-c", code], cwd=Path(__file__).parent)
    same, other_order = result.stdout.split()
    assert same == fingerprint() and other_order != str(hash("a"))


def test_different_seeds_give_different_data():
    first, second = (phrasebook("language_modeling", size=1000, seed=seed)["train"]["text"] for seed in (0, 1))
    assert not set(first) & set(second)


@pytest.mark.parametrize(
    ("task", "column", "pair"),
    [("translation", column, pair) for column in ("source", "target") for pair in PAIRS]
    + [(task, "text", PAIRS[0]) for task in ("classification", "regression", "language_modeling")]
    + [("tagging", "tokens", PAIRS[0]), ("question_answering", "context", PAIRS[0])],
)
def test_splits_have_no_phrases_in_common(task, column, pair):
    splits = [set(map(str, split[column])) for split in drawn(task, *pair).values()]
    assert not any(one & other for one, other in combinations(splits, 2))


@pytest.mark.parametrize("pair", PAIRS)
def test_each_source_has_one_target(pair):
    sources = [row["source"] for row in rows(drawn("translation", *pair))]
    assert len(sources) == len(set(sources))


@pytest.mark.parametrize("pair", [("en", "es"), ("hi", "en")])
def test_every_word_of_a_held_out_phrase_occurs_in_training(pair):
    for column in ("source", "target"):
        words = {
            name: {word.strip(",") for text in split[column] for word in text.split() if not re.search(r"\d", word)}
            for name, split in drawn("translation", *pair).items()
        }
        assert words["validation"] <= words["train"]
        assert words["test"] <= words["train"]


def test_bare_names_occur_only_in_training():
    data = drawn("translation")
    train = {row["source"]: row["target"] for row in data["train"]}
    names = {ENGLISH.territories[code]: SPANISH.territories.get(code) for code in NAMES["country"]}
    assert len(names.items() & train.items()) > 0.9 * len(names)  # some names, such as Nauru, are also languages
    assert not names.keys() & {*data["validation"]["source"], *data["test"]["source"]}


# --- Phrases


@pytest.mark.parametrize(
    ("kind", "locale", "expected"),
    [
        ("date", "en", ["February 9, 2024", "Friday, February 9, 2024", "Feb 9, 2024", "2/9/24", "February 9"]),
        ("date", "hi", ["9 फ़रवरी 2024", "शुक्रवार, 9 फ़रवरी 2024", "9 फ़र॰ 2024", "9/2/24", "9 फ़रवरी"]),
        ("month", "es", ["febrero de 2024"]),
        ("month", "hi", ["फ़रवरी 2024"]),
        ("time", "en", ["3:05 PM", "3:05:07 PM"]),
        ("time", "de", ["15:05", "15:05:07"]),
        ("moment", "ar", ["09/02/2024، 3:05:07 م", "9/2/2024، 3:05 م"]),
    ],
)
def test_all_formats_of_dates_and_times_are_generated_simplest_first(kind, locale, expected, monkeypatch):
    monkeypatch.setitem(say.__globals__, "random_moment", lambda rng: datetime(2024, 2, 9, 15, 5, 7))
    assert say(kind, Random(0), Locale(locale)) == expected


def test_translations_match_babel():
    checked = {"date": 0, "time": 0, "past": 0, "weight": 0}
    for row in rows(drawn("translation")):
        source = row["source"]
        if re.fullmatch(r"[A-Z][a-z]{3,} \d+, \d{4}", source):
            kind, expected = "date", format_date(datetime.strptime(source, "%B %d, %Y"), "long", SPANISH)
        elif re.fullmatch(r"\d+:\d\d [AP]M", source):
            kind, expected = "time", format_time(datetime.strptime(source, "%I:%M %p"), "short", locale=SPANISH)
        elif match := re.fullmatch(r"(\d+) hours? ago", source):
            ago = -timedelta(hours=int(match[1]))
            kind, expected = "past", format_timedelta(ago, "hour", 1e9, add_direction=True, locale=SPANISH)
        elif match := re.fullmatch(r"([\d.]+) kilograms", source):
            kind, expected = "weight", format_unit(float(match[1]), "mass-kilogram", "long", locale=SPANISH)
        else:
            continue
        checked[kind] += 1
        assert row["target"] == plain(expected)
    assert min(checked.values()) > 5, checked


def test_units_without_a_long_cldr_name_use_the_short_name():
    """For this unit, Babel itself returns "2.5 mass-pound"."""
    assert quantity(2.5, "mass-pound", "long", HINDI) == "2.5 पौंड"
    assert quantity(2.5, "mass-kilogram", "long", HINDI) == "2.5 किलोग्राम"


@pytest.mark.parametrize("kind", ["past", "future", "duration", "money", "number", "percentage", *UNITS])
def test_the_same_random_state_gives_the_same_numbers_in_every_locale(kind):
    for seed in range(20):
        english, dutch = (say(kind, Random(seed), Locale(locale)) for locale in ("en", "nl"))
        assert [re.findall(r"\d", form) for form in english] == [re.findall(r"\d", form) for form in dutch]


@pytest.mark.parametrize("pair", [("fr", "ar"), ("fa", "ru")])
def test_white_space_is_normalised_and_direction_marks_are_removed(pair):
    text = "".join(text for row in rows(phrasebook("translation", *pair, size=1000)) for text in row.values())
    assert {letter for letter in text if letter.isspace()} == {" "}
    assert not re.search("[\u200e\u200f\u061c]", text)


# --- Tasks other than translation


def test_each_phrase_has_one_locale_and_each_split_has_every_locale():
    data = drawn("classification")
    assert all(set(split["label"]) == set(CLASSIFIED_LOCALES) for split in data.values())
    texts = [row["text"] for row in rows(data)]
    assert len(texts) == len(set(texts))
    assert all(re.search(r"[^\W\d_]", text) for text in texts)


def test_duration_labels_are_log10_of_the_seconds():
    hours = {"s": 1 / 3600, "mi": 1 / 60, "h": 1, "d": 24, "w": 168, "mo": 730, "mt": 730, "y": 8760}
    for row in rows(drawn("regression")):
        parts = re.findall(r"(\d+) (s|mi|h|d|w|mo|mt|y)", row["text"])
        assert len(parts) == len(re.findall(r"\d+", row["text"]))
        assert math.isclose(row["label"], math.log10(3600 * sum(int(n) * hours[unit] for n, unit in parts)))


def test_tags_are_valid_bio_and_cover_exactly_the_inserted_phrases():
    slots = re.compile(r"\\{(\w+)\\}")
    patterns = [slots.sub(r"(?P<\1>.+)", re.escape(re.sub(r"([.,])", r" \1", template))) for template in TEMPLATES]
    for row in rows(drawn("tagging")):
        for before, tag in zip(["O", *row["tags"]], row["tags"], strict=False):
            assert re.fullmatch("O|[BI]-[A-Z]+", tag)
            assert not tag.startswith("I-") or before[2:] == tag[2:]
        text = " ".join(row["tokens"])
        [phrases] = [match.groupdict() for pattern in patterns if (match := re.fullmatch(pattern, text))]
        assert spans(**row) == {slot.upper(): phrase for slot, phrase in phrases.items()}


def test_tagged_countries_and_languages_are_cldr_names():
    names = {
        kind: {" ".join(TOKEN.findall(name)) for name in values.values()}
        for kind, values in (("COUNTRY", ENGLISH.territories), ("LANGUAGE", ENGLISH.languages))
    }
    found = [(kind, span) for row in rows(drawn("tagging")) for kind, span in spans(**row).items() if kind in names]
    assert len(found) > 1000
    assert all(span in names[kind] for kind, span in found)


def test_each_answer_occurs_once_in_its_context_at_the_given_start():
    data = rows(drawn("question_answering"))
    for row in data:
        [text], [start] = row["answers"]["text"], row["answers"]["answer_start"]
        assert row["context"][start : start + len(text)] == text
        assert row["context"].count(text) == 1
    assert len({row["id"] for row in data}) == len(data)
    assert len({row["context"] for row in data}) < len(data) / 5


def test_each_template_slot_has_a_unique_question():
    for template, questions in TEMPLATES.items():
        assert list(questions) == re.findall(r"{(\w+)}", template)
    questions = [question for asked in TEMPLATES.values() for question in asked.values()]
    assert len(questions) == len(set(questions))


def test_documents_have_at_least_four_sentences():
    assert all(len(re.findall(r"[.] [A-Z]|[.]$", row["text"])) >= 4 for row in rows(drawn("language_modeling")))


# --- Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "summarization"}, "Unknown task 'summarization': choose one of translation, classification"),
        ({"task": "translation", "target": "xx"}, "Unknown locale 'xx': choose one of CLDR, such as 'de'"),
        ({"task": "translation", "target": "german"}, "Unknown locale 'german': choose one of CLDR"),
        ({"task": "translation", "source": ""}, "Unknown locale ''"),
        ({"task": "translation", "target": "aa"}, r"only \d+ names of countries in 'aa'"),
        ({"task": "translation", "source": "pt-BR", "target": "pt_BR"}, "target='pt_BR' are the same locale: choose"),
        ({"task": "tagging", "source": "es"}, "source='es' and target='es' are options of the task 'translation'"),
        ({"task": "translation", "size": 999}, "size=999 is out of range: choose from 1000 to 100000"),
        ({"task": "tagging", "size": 100_001}, "size=100001 is out of range"),
    ],
)
def test_error_for_an_invalid_argument_lists_the_valid_choices(arguments, message):
    with pytest.raises(ValueError, match=message):
        phrasebook(**arguments)


def test_a_size_above_the_number_of_phrases_is_rejected():
    example = Example("one", "one", {"text": "one"})
    with pytest.raises(ValueError, match="40 draws gave only 1 of 2 examples: choose a smaller size"):
        unambiguous(iter([example] * 100), 2)


def test_sources_with_two_targets_are_dropped():
    pairs = [("10/11", "11/10"), ("10/11", "10/11"), ("May", "mayo"), ("10/11", "11/10"), ("June", "junio")]
    examples = [Example(one, other, {"source": one, "target": other}) for one, other in pairs]
    assert [example.given for example in unambiguous(iter(examples), 2)] == ["May", "June"]
