"""Generate data for every task from Unicode CLDR, the parallel text in hundreds of locales that Babel contains.

`phrasebook(task)` draws phrases from `vanilla_transformer.data.phrases`, alone or inside English sentences. Train,
validation and test share no phrase, but every word of a held-out phrase occurs in training, in other phrases.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from random import Random
from string import Formatter
from typing import Any, NamedTuple

from babel import Locale, UnknownLocaleError
from datasets import Dataset, DatasetDict

from vanilla_transformer.data.arguments import MAX_SIZE, MIN_SIZE
from vanilla_transformer.data.phrases import ENGLISH, NAMES, SECONDS, WEIGHTS, name_of, random_duration, say


DEFAULT_SIZES = {
    "translation": 20_000,
    "classification": 10_000,
    "regression": 10_000,
    "tagging": 5_000,
    "question_answering": 10_000,
    "language_modeling": 5_000,
}
MIN_SEEN = 3  # minimum number of training examples that contain each word of a held-out phrase
MIN_COUNTRIES = 200  # minimum number of country names; locales with fewer have little other text

# Classes of language identification: pairs of related languages, and several languages for one script
CLASSIFIED_LOCALES = ("ar", "de", "en", "es", "fa", "fr", "hi", "mr", "nl", "pt", "ru", "uk")

# English sentences, with a question about each of their facts
TEMPLATES = {
    "The flight to {country} leaves on {date} at {time} and costs {money}.": {
        "country": "Where does the flight go?",
        "date": "On which day does the flight leave?",
        "time": "At what time does the flight leave?",
        "money": "How much does the flight cost?",
    },
    "The course in {language} starts in {month} and takes {duration}.": {
        "language": "Which language does the course teach?",
        "month": "In which month does the course start?",
        "duration": "How long does the course take?",
    },
    "The museum in {country} had {number} visitors in {month}.": {
        "country": "In which country is the museum?",
        "number": "How many visitors did the museum have?",
        "month": "In which month were the visitors counted?",
    },
    "The parcel from {country} weighs {weight} and arrived {past}.": {
        "country": "Where does the parcel come from?",
        "weight": "How much does the parcel weigh?",
        "past": "When did the parcel arrive?",
    },
    "The letter in {language} was sent on {date}.": {
        "language": "In which language is the letter?",
        "date": "When was the letter sent?",
    },
    "The trail is {distance} long, and a guide asks for {money}.": {
        "distance": "How long is the trail?",
        "money": "How much does the guide ask for?",
    },
    "The farm in {country} covers {area} and was sold for {money}.": {
        "country": "Where is the farm?",
        "area": "How large is the farm?",
        "money": "For how much was the farm sold?",
    },
    "The tank holds {volume} at {temperature}.": {
        "volume": "How much does the tank hold?",
        "temperature": "How warm is the tank?",
    },
    "The train passed at {time} with a speed of {speed}.": {
        "time": "At what time did the train pass?",
        "speed": "How fast was the train?",
    },
    "The last backup took {memory} and was made at {moment}.": {
        "memory": "How large is the backup?",
        "moment": "When was the backup made?",
    },
    "Sales rose by {percentage} and will be counted again {future}.": {
        "percentage": "By how much did sales rise?",
        "future": "When will sales be counted again?",
    },
}
# Words stay whole, and so do numbers, times and dates in digits; every other character is its own token.
TOKEN = re.compile(r"\d+(?:[.,:/]\d+)*|[^\W\d]+|\S")
# A word is a run without digits and separators, or a single letter of a script that does not use spaces.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u9fff"
WORD = re.compile(rf"[{UNSPACED}]|[^{UNSPACED}\s\d.,:;/()،]+")


def sentence(template: str, rng: Random) -> tuple[str, dict[str, tuple[int, str]]]:
    """Fill a template with drawn phrases; also return the start and the phrase of each slot."""
    text, spans = "", {}
    for literal, slot, _, _ in Formatter().parse(template):
        text += literal
        if slot:
            spans[slot] = (len(text), rng.choice(say(slot, rng, ENGLISH)))
            text += spans[slot][1]
    return text, spans


# --- Tasks: each function is an endless generator of examples


class Example(NamedTuple):
    """A row of data, with keys that find contradictions and keep splits apart."""

    given: str  # input of the model: examples with the same input must be equal
    group: str  # no two splits share a group
    row: dict[str, Any]
    is_name: bool = False  # names belong to training, because a model cannot infer them


def draw_fact(rng: Random, locales: list[Locale]) -> list[list[str]]:
    """Draw one fact and return all its forms in each of the locales."""
    kind, state = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0], rng.getrandbits(64)
    return [say(kind, Random(state), locale) for locale in locales]


def translation(rng: Random, source: Locale, target: Locale) -> Iterator[Example]:
    """Yield all names of countries, languages and currencies once, and then phrases; one form of each."""

    def pair(one: str, other: str, is_name: bool = False) -> Example:
        return Example(one, other, {"source": one, "target": other}, is_name)

    for kind, codes in NAMES.items():
        for code in codes:
            one, other = (name_of(kind, code, locale) for locale in (source, target))
            if one is not None and other is not None:
                yield pair(one, other, is_name=True)
    while True:
        pairs: dict[str, str] = {}
        for one, other in zip(*draw_fact(rng, [source, target]), strict=False):
            # Keep the plainest form: "May 3, 2024" is both long and medium in English, but not in Spanish.
            pairs.setdefault(one, other)
        if pairs:
            yield pair(*rng.choice(list(pairs.items())))


def classification(rng: Random, names: Sequence[str] = CLASSIFIED_LOCALES) -> Iterator[Example]:
    """Yield phrases that occur in only one of the named locales, with the name of that locale."""
    locales = [Locale.parse(name) for name in names]
    while True:
        fact = draw_fact(rng, locales)
        speakers = Counter(form for forms in fact for form in set(forms))
        for locale, forms in zip(locales, fact, strict=True):
            text = rng.choice(forms or [""])
            if speakers[text] == 1 and any(map(str.isalpha, text)):
                yield Example(text, text, {"text": text, "label": str(locale)})


def regression(rng: Random) -> Iterator[Example]:
    """Yield durations in English, with log10 of their seconds."""
    while True:
        state = rng.getrandbits(64)
        text = rng.choice(say("duration", Random(state), ENGLISH))
        seconds = sum(n * SECONDS[unit] for unit, n in random_duration(Random(state)).items())
        yield Example(text, text, {"text": text, "label": math.log10(seconds)})


def tagging(rng: Random) -> Iterator[Example]:
    """Yield sentences as tokens, with BIO tags for the phrases in them."""
    while True:
        text, spans = sentence(rng.choice(list(TEMPLATES)), rng)
        tokens = list(TOKEN.finditer(text))
        tags = ["O"] * len(tokens)
        for slot, (start, phrase) in spans.items():
            inside = [i for i, token in enumerate(tokens) if start <= token.start() < start + len(phrase)]
            for i in inside:
                tags[i] = f"{'B' if i == inside[0] else 'I'}-{slot.upper()}"
        yield Example(text, text, {"tokens": [token.group() for token in tokens], "tags": tags})


def question_answering(rng: Random) -> Iterator[Example]:
    """Yield each question about texts of three sentences. Every answer occurs once in its text."""
    ids = count()
    while True:
        context, answered = "", []
        for template in rng.sample(list(TEMPLATES), 3):
            text, spans = sentence(template, rng)
            answered += [(TEMPLATES[template][slot], phrase) for slot, (_, phrase) in spans.items()]
            context = f"{context} {text}".strip()
        if any(context.count(answer) > 1 for _, answer in answered):
            continue
        for question, answer in answered:
            answers = {"text": [answer], "answer_start": [context.index(answer)]}
            row = {"id": f"{next(ids):06}", "question": question, "context": context, "answers": answers}
            yield Example(f"{question} {context}", context, row)


def language_modeling(rng: Random) -> Iterator[Example]:
    """Yield documents of three to six sentences and a list."""
    while True:
        templates = [*rng.sample(list(TEMPLATES), rng.randint(3, 6)), "Also on the list: {listing}."]
        text = " ".join(sentence(template, rng)[0] for template in templates)
        yield Example(text, text, {"text": text})


TASKS: dict[str, Callable[..., Iterator[Example]]] = {
    task.__name__: task
    for task in (translation, classification, regression, tagging, question_answering, language_modeling)
}


def unambiguous(examples: Iterator[Example], size: int) -> list[Example]:
    """Return `size` examples with distinct inputs, excluding inputs that were drawn with two different answers."""
    found: dict[str, Example] = {}
    rejected = set()
    for example in islice(examples, 20 * size):
        if example.given not in rejected and found.setdefault(example.given, example).row != example.row:
            rejected.add(example.given)
            del found[example.given]
        if len(found) == size:
            return list(found.values())
    raise ValueError(f"{20 * size} draws gave only {len(found)} of {size} examples: choose a smaller size.")


def words(example: Example) -> set[str]:
    """Return the words of an example, which must occur in training if it is held out."""
    return set(WORD.findall(f"{example.given} {example.group}"))


def split(examples: list[Example], held_out: int) -> dict[str, list[dict[str, Any]]]:
    """Return rows for training, and at most `held_out` rows each for validation and test.

    Groups stay whole. Names go to training, and so does a group with a word that would occur in fewer than MIN_SEEN
    other training examples.
    """
    seen = Counter(word for example in examples for word in words(example))
    groups = defaultdict(list)
    for example in examples:
        groups[example.group].append(example)

    splits: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": []}
    for group in groups.values():
        lost = Counter(word for example in group for word in words(example))
        rare = any(seen[word] - times < MIN_SEEN for word, times in lost.items())
        room = [name for name in ("validation", "test") if len(splits[name]) + len(group) <= held_out]
        if rare or not room or any(example.is_name for example in group):
            chosen = "train"
        else:
            chosen = room[0]
            seen.subtract(lost)
        splits[chosen] += [example.row for example in group]
    return splits


def parse_locale(name: str) -> Locale:
    """Return the locale of a CLDR name such as "en", "pt_BR" or "zh-Hant"."""
    try:
        locale = Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError) as error:
        raise ValueError(
            f"Unknown locale {name!r}: choose one of CLDR, such as 'de', 'pt_BR' or 'zh_Hant'."
        ) from error
    countries = len(locale.territories.keys() & set(NAMES["country"]))
    if countries < MIN_COUNTRIES:
        raise ValueError(f"CLDR has only {countries} names of countries in {name!r}: choose another, such as 'hi'.")
    return locale


def phrasebook(
    task: str, source: str = "en", target: str = "es", size: int | None = None, seed: int = 0
) -> DatasetDict:
    """Generate the data of one task, split into train, validation and test.

    Args:
        task: decides the columns. All texts are English, except for translation and classification.
            "translation": `source` and `target`.
            "classification": `text` and `label`, the name of the locale that it is in, one of `CLASSIFIED_LOCALES`.
            "regression": `text`, a duration such as "2 hours and 5 minutes", and `label`, log10 of its seconds.
            "tagging": `tokens` and `tags`, in BIO: the kinds of `KINDS` in capitals, such as B-DATE and I-DATE.
            "question_answering": `id`, `question`, `context` and `answers`, as in SQuAD.
            "language_modeling": `text`, one document of several sentences.
        source, target: the locales of translation, by their names in CLDR.
        size: rows of the training split, by default `DEFAULT_SIZES[task]`; validation and test each have a tenth of
            it, at most 1000. Question answering keeps contexts whole, so it may hold out a few rows fewer.
        seed: the same seed gives the same data, in any process.

    Raises:
        ValueError: an unknown task or locale; the same locale twice; locales for a task other than translation; a size
            below MIN_SIZE or above MAX_SIZE, or more rows than the locales have phrases for.
    """
    if task not in TASKS:
        raise ValueError(f"Unknown task {task!r}: choose one of {', '.join(TASKS)}.")
    if task != "translation" and (source, target) != ("en", "es"):
        raise ValueError(f"{source=} and {target=} are options of the task 'translation', not of {task!r}: omit them.")
    size = DEFAULT_SIZES[task] if size is None else size
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise ValueError(f"{size=} is out of range: choose from {MIN_SIZE} to {MAX_SIZE} training rows.")
    locales = [parse_locale(source), parse_locale(target)] if task == "translation" else []
    if task == "translation" and locales[0] == locales[1]:
        raise ValueError(f"{source=} and {target=} are the same locale: choose two.")

    rng = Random(f"{seed}-{task}")
    held_out = min(size // 10, 1000)
    splits = split(unambiguous(TASKS[task](rng, *locales), size + 2 * held_out), held_out)
    for rows in splits.values():
        rng.shuffle(rows)
    return DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items()})
