"""Prepare the data of the intents, tagger and reader checkpoints: voice commands (SNIPS) and the phrasebook."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import yaml

from shipping.rows import Row, Splits, read, tatoeba
from vanilla_transformer.data.phrasebook import phrasebook


WORD = re.compile(r"\w+|[^\w\s]")
# Everyday sentences with one of these may contain a phrase to tag, so they are no examples of sentences without any.
TAGGED = re.compile(
    r"""\d|mon|tue|wed|thu|fri|sat|sun|o'clock|minute|hour|year|month|week|day|night|morning|tomorrow|tonight|soon|now
    |dollar|song|music|book|movie|film|weather|restaurant|album|play|rain|snow|warm|hot|cold|one|two|three|four|five
    |six|seven|eight|nine|ten|hundred|thousand|million""",
    re.IGNORECASE | re.VERBOSE,
)
FIRST_NAMES = {"Tom", "Mary"}  # in many of Tatoeba's sentences
# Maps each kind of question to its wordings. The last wording is used only in test_unseen.
QUESTIONS = yaml.safe_load((Path(__file__).parent / "questions.yaml").read_text(encoding="utf-8"))

Slot = tuple[str | None, list[str]]  # name of a slot, or None outside of slots, and its tokens


def tag_name(tag: str) -> str:
    """Return a tag in the phrasebook's style: B-object_name and B-timeRange become B-OBJECT_NAME and B-TIME_RANGE."""
    return tag[:2] + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", tag[2:]).upper() if tag != "O" else tag


def slots(row: Row) -> list[Slot]:
    """Split a tagged command into its slots and the tokens between them."""
    found: list[Slot] = []
    for token, tag in zip(row["tokens"], row["tags"], strict=True):
        if tag.startswith("I-") and found:
            found[-1][1].append(token)
        else:
            found.append((None if tag == "O" else tag[2:], [token]))
    return found


def tagged(command: Iterable[Slot]) -> Row:
    """Return the row of a command that `slots` split."""
    row: Row = {"tokens": [], "tags": []}
    for slot, tokens in command:
        row["tokens"] += tokens
        row["tags"] += [f"B-{slot}", *[f"I-{slot}"] * (len(tokens) - 1)] if slot else ["O"] * len(tokens)
    return row


def with_other_values(commands: list[list[Slot]], copies: int, rng: Random) -> Iterator[Row]:
    """Yield each command `copies` times, with most of its slots filled by values of the same slot elsewhere."""
    values = defaultdict(list)
    for command in commands:
        for slot, tokens in command:
            if slot:
                values[slot].append(tokens)
    different = {slot: sorted({tuple(tokens) for tokens in found}) for slot, found in values.items()}
    for command in commands:
        for _ in range(copies):
            yield tagged(
                (slot, list(rng.choice(rng.choice((different, values))[slot])) if slot and rng.random() < 0.6 else old)
                for slot, old in command
            )


def without_phrases(number: int, names: list[list[str]], rng: Random) -> list[Row]:
    """Sample everyday sentences without anything to tag, some of them with another name for Tom and Mary."""
    rows = []
    for text in sorted({row["en"] for row in tatoeba("es")["train"]}):
        tokens = WORD.findall(text)
        capitals = {token for token in tokens[1:] if token[0].isupper()}
        if len(tokens) < 2 or TAGGED.search(text) or capitals - FIRST_NAMES - {"I"}:
            continue
        if rng.random() < 0.5:
            tokens = [new for old in tokens for new in (rng.choice(names) if old in FIRST_NAMES else [old])]
        rows.append({"tokens": tokens, "tags": ["O"] * len(tokens)})
    return rng.sample(rows, number)


def tagger(phrases: int, copies: int, everyday: int, seed: int = 0) -> Splits:
    """Return splits with `tokens` and `tags`: validation and test are commands, test_phrasebook is the phrasebook's.

    Args:
        phrases: number of training sentences from the phrasebook.
        copies: number of variants of each training command, with other values in its slots.
        everyday: number of everyday sentences to add, without any tags.
    """
    rng = Random(seed)
    splits = {
        name: [{"tokens": row["tokens"], "tags": [tag_name(tag) for tag in row["tags"]]} for row in rows]
        for name, rows in read("snips").items()
    }
    commands = [slots(row) for row in splits["train"]]
    names = [
        [token.title() for token in tokens] for command in commands for slot, tokens in command if slot == "ARTIST"
    ]
    said = phrasebook("tagging", size=phrases, seed=seed)
    train = splits["train"] + list(with_other_values(commands, copies, rng)) + list(said["train"])
    train += without_phrases(everyday, names, rng)
    rng.shuffle(train)
    return splits | {"train": train, "test_phrasebook": list(said["test"])}


def intents(copies: int, seed: int = 0) -> Splits:
    """Return splits with `text` and `label`, one of seven intents.

    Args:
        copies: number of variants of each training command, with other values in its slots.
    """
    rng = Random(seed)
    commands = read("snips")
    splits = {name: [{"text": row["text"], "label": row["label"]} for row in rows] for name, rows in commands.items()}
    variants = with_other_values([slots(row) for row in commands["train"]], copies, rng)
    labels = (row["label"] for row in commands["train"] for _ in range(copies))
    splits["train"] += [
        {"text": " ".join(row["tokens"]), "label": label} for row, label in zip(variants, labels, strict=True)
    ]
    rng.shuffle(splits["train"])
    return splits


def asked(
    context: str, kinds: dict[str, str], absent: list[str], wordings: dict[str, list[str]], rng: Random
) -> Iterator[Row]:
    """Yield a question for each answer in a context, and now and then one that it does not answer.

    Args:
        kinds: kind of question -> its answer in the context.
        absent: kinds of questions that the context does not answer.
        wordings: kind of question -> the wordings to draw from.
    """
    for kind, answer in kinds.items():
        answers = {"text": [answer], "answer_start": [context.index(answer)]}
        yield {"question": rng.choice(wordings[kind]), "context": context, "answers": answers}
    if absent and rng.random() < 0.5:
        question = rng.choice(wordings[rng.choice(absent)])
        yield {"question": question, "context": context, "answers": {"text": [], "answer_start": []}}


def answers_in(row: Row) -> dict[str, str]:
    """Return the slots of a command that can be asked about: their value occurs once in the text."""
    found, place = defaultdict(list), 0
    for slot, tokens in slots(row):
        starts = []
        for token in tokens:
            starts.append(row["text"].index(token, place))
            place = starts[-1] + len(token)
        found[slot].append(row["text"][starts[0] : place])
    return {
        slot: values[0]
        for slot, values in found.items()
        if slot in QUESTIONS["commands"] and len(values) == 1 and row["text"].count(values[0]) == 1
    }


def questions(rows: list[Row], said: list[Row], wordings: dict[str, dict[str, list[str]]], rng: Random) -> list[Row]:
    """Return questions about commands and about the phrasebook's texts, in the given wordings."""
    found = []
    of_intent = defaultdict(set)
    for row in rows:
        of_intent[row["label"]] |= answers_in(row).keys()
    for row in rows:
        kinds = answers_in(row)
        tagged_slots = {slot for slot, _ in slots(row)}
        absent = sorted(of_intent[row["label"]] - tagged_slots)
        found += asked(row["text"], kinds, absent, wordings["commands"], rng)
    texts = defaultdict(dict)
    for row in said:
        texts[row["context"]][row["question"]] = row["answers"]["text"][0]
    for context, kinds in texts.items():
        absent = sorted(QUESTIONS["phrasebook"].keys() - kinds.keys())
        found += asked(context, kinds, absent, wordings["phrasebook"], rng)
    rng.shuffle(found)
    return [{"id": f"{number:06}"} | row for number, row in enumerate(found)]


def reader(phrases: int, seed: int = 0) -> Splits:
    """Return splits with `id`, `question`, `context` and `answers`; answers are empty where the context has none.

    In test_unseen the test questions are asked in a wording that does not occur in training.

    Args:
        phrases: number of training questions to draw from the phrasebook.
    """
    rng = Random(seed)
    commands, said = read("snips"), phrasebook("question_answering", size=phrases, seed=seed)
    seen, unseen = (
        {source: {kind: list(cut(asked)) for kind, asked in kinds.items()} for source, kinds in QUESTIONS.items()}
        for cut in (lambda asked: asked[:-1], lambda asked: asked[-1:])
    )
    splits = {name: questions(commands[name], list(said[name]), seen, rng) for name in commands}
    return splits | {"test_unseen": questions(commands["test"], list(said["test"]), unseen, rng)}
