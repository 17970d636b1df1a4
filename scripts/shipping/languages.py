"""Prepare the data of the language-id checkpoint: sentences, pieces of sentences, and phrases."""

from collections import defaultdict
from pathlib import Path
from random import Random

import yaml

from shipping.rows import Row, Splits, read, tatoeba
from vanilla_transformer.data.phrasebook import classification, split, unambiguous


# Bosnian cannot be told from Croatian in single sentences: a linear model confuses every second one.
LEFT_OUT = {"bs"}
# Pairs that people, too, confuse: their test sentences are also scored apart.
CONFUSABLE = {"da", "nb", "nn", "hr", "sr", "id", "ms"}
UNSPACED = {"ja", "th", "zh"}  # languages written without spaces between words
CLDR_NAMES = {"tl": "fil"}  # where CLDR's code differs from ISO 639-1
NOT_IN_CLDR = {"st", "tn", "ts"}
FIRST_WORDS = yaml.safe_load((Path(__file__).parent / "first_words.yaml").read_text(encoding="utf-8"))
COPIES = 40  # number of times that training has each of the first words
PUNCTUATION = ' ,;:.()"“”«»-–'


def piece(text: str, label: str, rng: Random) -> str:
    """Cut one to six words (two to eight characters without spaces) out of a sentence, as people type them."""
    if label in UNSPACED:
        length = rng.randint(2, 8)
        start = rng.randrange(max(1, len(text) - length))
        return text[start : start + length]
    words = text.split()
    number = rng.choice((1, 2, 2, 3, 3, 4, 5, 6))
    start = rng.randrange(max(1, len(words) - number))
    return as_typed(" ".join(words[start : start + number]), rng)


def as_typed(text: str, rng: Random) -> str:
    """Change the case of the first letter or of all, and the punctuation at the end, as people do."""
    text = text.strip(PUNCTUATION)
    case = rng.random()
    if case < 0.3:
        text = text[:1].upper() + text[1:]
    elif case < 0.5:
        text = text.lower()
    return text + rng.choice(("", "", "", ".", "!", "?"))


def pieces(rows: list[Row], rng: Random) -> list[Row]:
    """Cut three pieces out of each row, and drop those without letters or found in two languages."""
    cut = [{"text": piece(row["text"], row["label"], rng), "label": row["label"]} for row in rows for _ in range(3)]
    languages = defaultdict(set)
    for row in cut:
        languages[row["text"].lower()].add(row["label"])
    return [row for row in cut if sum(map(str.isalpha, row["text"])) >= 2 and len(languages[row["text"].lower()]) == 1]


def language_id(phrases: int, everyday: int, seed: int = 0) -> Splits:
    """Return splits with `text` and `label`, an ISO 639-1 code. test_confusable and test_others are the parts of test.

    Args:
        phrases: number of training phrases from the phrasebook, in all languages that it knows.
        everyday: number of Tatoeba's sentences to add per language, half of them shorter than 16 characters.
    """
    rng = Random(seed)
    splits = {name: [row for row in rows if row["label"] not in LEFT_OUT] for name, rows in read("languages").items()}
    held_out = {row["text"] for name in ("validation", "test") for row in splits[name]}
    sentences = [row for row in splits["train"] if row["text"] not in held_out]
    names = {CLDR_NAMES.get(label, label): label for label in sorted({row["label"] for row in sentences})}
    known = [name for name in names if name not in NOT_IN_CLDR]
    said = split(unambiguous(classification(rng, known), phrases + phrases // 10), phrases // 20)
    said = {name: [row | {"label": names[row["label"].split("_")[0]]} for row in rows] for name, rows in said.items()}
    train = sentences + pieces(sentences, rng) + said["train"]
    for label, texts in FIRST_WORDS.items():
        train += [{"text": as_typed(text, rng), "label": label} for text in texts.split(" | ") for _ in range(COPIES)]
    for label, pairs in {"en": tatoeba("es"), "es": tatoeba("es"), "hi": tatoeba("hi")}.items():
        texts = sorted({row[label] for row in pairs["train"]})
        short = [text for text in texts if len(text) < 16]
        chosen = [text for some in (texts, short) for text in rng.sample(some, min(everyday // 2, len(some)))]
        train += [{"text": text, "label": label} for text in chosen]
    rng.shuffle(train)
    parts: Splits = {"test_confusable": [], "test_others": []}
    for row in splits["test"]:
        parts["test_confusable" if row["label"] in CONFUSABLE else "test_others"].append(row)
    return splits | parts | {"train": train, "test_phrasebook": said["test"]}
