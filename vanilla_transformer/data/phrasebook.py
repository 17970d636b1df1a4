"""Generate data for most tasks from Unicode CLDR, which provides Babel with parallel text in hundreds of locales.

`phrasebook(task)` samples phrases from `vanilla_transformer.data.phrases`, either alone or inside English sentences.
The train, validation and test splits share no phrases, but every word of a held-out phrase occurs in other training
phrases.
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
MIN_SEEN = 3  # each word of a held-out phrase must occur in at least this many training examples
MIN_COUNTRIES = 200  # locales with fewer country names are too incomplete to use

# Classes for language identification, including pairs of related languages and languages that share a script
CLASSIFIED_LOCALES = ("ar", "de", "en", "es", "fa", "fr", "hi", "mr", "nl", "pt", "ru", "uk")

# English sentence templates, with a question about each slot
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
# A token is a word, a number (including times and dates in digits), or any other single character.
TOKEN = re.compile(r"\d+(?:[.,:/]\d+)*|[^\W\d]+|\S")
# A word is a run of characters without digits or separators, or one character of a script written without spaces.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u9fff"
WORD = re.compile(rf"[{UNSPACED}]|[^{UNSPACED}\s\d.,:;/()،]+")


def sentence(template: str, rng: Random) -> tuple[str, dict[str, tuple[int, str]]]:
    """Fill a template with random phrases; return the sentence, and the start and phrase of each slot."""
    text, spans = "", {}
    for literal, slot, _, _ in Formatter().parse(template):
        text += literal
        if slot:
            spans[slot] = (len(text), rng.choice(say(slot, rng, ENGLISH)))
            text += spans[slot][1]
    return text, spans


# --- Tasks: each function is an endless generator of examples


class Example(NamedTuple):
    """A row of data, with keys to find equal inputs with different labels, and to keep the splits disjoint."""

    given: str  # model input: examples with the same input must have the same row
    group: str  # examples of a group stay in the same split
    row: dict[str, Any]
    is_name: bool = False  # bare names go to the training split, because a model cannot infer their translation


def draw_fact(rng: Random, locales: list[Locale]) -> list[list[str]]:
    """Draw a random fact and return all of its forms in each locale."""
    kind, state = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0], rng.getrandbits(64)
    return [say(kind, Random(state), locale) for locale in locales]


def translation(rng: Random, source: Locale, target: Locale) -> Iterator[Example]:
    """Yield each country, language and currency name once, then random phrases, in one form per phrase."""

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
    """Yield phrases that are unique to one of the named locales, labelled with that locale."""
    locales = [Locale.parse(name) for name in names]
    while True:
        fact = draw_fact(rng, locales)
        speakers = Counter(form for forms in fact for form in set(forms))
        for locale, forms in zip(locales, fact, strict=True):
            text = rng.choice(forms or [""])
            if speakers[text] == 1 and any(map(str.isalpha, text)):
                yield Example(text, text, {"text": text, "label": str(locale)})


def regression(rng: Random) -> Iterator[Example]:
    """Yield English durations, labelled with log10 of their length in seconds."""
    while True:
        state = rng.getrandbits(64)
        text = rng.choice(say("duration", Random(state), ENGLISH))
        seconds = sum(n * SECONDS[unit] for unit, n in random_duration(Random(state)).items())
        yield Example(text, text, {"text": text, "label": math.log10(seconds)})


def tagging(rng: Random) -> Iterator[Example]:
    """Yield tokenized sentences with BIO tags for the phrases they contain."""
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
    """Yield all questions about contexts of three sentences. Each answer occurs exactly once in its context."""
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
    """Yield documents of three to six sentences, followed by a list."""
    while True:
        templates = [*rng.sample(list(TEMPLATES), rng.randint(3, 6)), "Also on the list: {listing}."]
        text = " ".join(sentence(template, rng)[0] for template in templates)
        yield Example(text, text, {"text": text})


TASKS: dict[str, Callable[..., Iterator[Example]]] = {
    task.__name__: task
    for task in (translation, classification, regression, tagging, question_answering, language_modeling)
}


def unambiguous(examples: Iterator[Example], size: int) -> list[Example]:
    """Return `size` examples with distinct inputs, dropping any input drawn with conflicting rows."""
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
    """Return the words of an example. If it is held out, these words must also occur in training."""
    return set(WORD.findall(f"{example.given} {example.group}"))


def split(examples: list[Example], held_out: int) -> dict[str, list[dict[str, Any]]]:
    """Split examples into training rows and at most `held_out` rows each for validation and test.

    Groups are not split. A group goes to training if it contains a bare name, or a word that would be left in fewer
    than MIN_SEEN other training examples.
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
    """Return the Babel locale for a CLDR name such as "en", "pt_BR" or "zh-Hant"."""
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
    """Generate train, validation and test splits for one task.

    Args:
        task: determines the columns. All text is English, except for translation and classification.
            "translation": `source` and `target`.
            "classification": `text` and `label`, the locale of the text, one of `CLASSIFIED_LOCALES`.
            "regression": `text`, a duration such as "2 hours and 5 minutes", and `label`, log10 of its seconds.
            "tagging": `tokens` and `tags`, BIO tags with the names in `KINDS` in capitals, such as B-DATE and I-DATE.
            "question_answering": `id`, `question`, `context` and `answers`, as in SQuAD.
            "language_modeling": `text`, a document of several sentences.
        source, target: CLDR names of the source and target locales, for translation only.
        size: number of training rows, by default `DEFAULT_SIZES[task]`. Validation and test each have a tenth as many,
            up to 1000. For question answering they can be slightly smaller, because contexts are not split.
        seed: random seed. The same seed gives the same data in any process.

    Raises:
        ValueError: the task or a locale is unknown; both locales are the same; locales are given for a task other than
            translation; the size is outside MIN_SIZE to MAX_SIZE, or larger than the number of available phrases.
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
