"""Prepare the data of the shipped checkpoints as JSON Lines, shuffled by seed."""

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from random import Random

import yaml

from shipping import commands
from shipping.languages import language_id
from shipping.rows import Row, Splits, tatoeba
from vanilla_transformer.data.phrasebook import phrasebook


FULL_STOPS = (".", "।")
FIRST_PAIRS = Path(__file__).parent / "first_pairs.yaml"  # English to Spanish
LONGEST_BARE = 40  # maximum length, in characters, of sentences to copy without their full stop


def without_full_stop(rows: Iterable[Row], number: int, seed: int) -> list[Row]:
    """Sample up to `number` short pairs with full stops on both sides, and remove the full stops."""
    bare = [
        {side: text[:-1] for side, text in row.items()}
        for row in rows
        if all(
            text.endswith(FULL_STOPS) and not text.endswith("..") and len(text) <= LONGEST_BARE
            for text in row.values()
        )
    ]
    return Random(seed).sample(bare, min(number, len(bare)))


def in_lower_case(rows: Iterable[Row], number: int, seed: int) -> list[Row]:
    """Sample up to `number` pairs, and write their source in lower case, as many people type."""
    rows = list(rows)
    return [row | {"source": row["source"].lower()} for row in Random(seed).sample(rows, min(number, len(rows)))]


def first_pairs(repeated: int, seed: int = 0) -> list[Row]:
    """Return the pairs of first_pairs.yaml, also without their full stop and in lower case, `repeated` times."""
    pairs = yaml.safe_load(FIRST_PAIRS.read_text(encoding="utf-8"))
    rows = [{"source": source, "target": target} for source, target in pairs.items()]
    return repeated * (rows + without_full_stop(rows, len(rows), seed) + in_lower_case(rows, len(rows), seed))


def translator(source: str, target: str, phrases: int, bare: int, lower: int, seed: int = 0) -> Splits:
    """Return translation splits: sentences, copies of some (without full stop, in lower case), and phrases.

    Validation contains only sentences. No held-out sentence or phrase occurs in training, on either side.

    Args:
        source, target: language codes, one of them "en".
        phrases: number of training pairs from the phrasebook.
        bare: number of sentences to copy without their full stop.
        lower: number of those that are copied once more with their source in lower case.
    """
    sentences = {
        name: [{"source": row[source], "target": row[target]} for row in rows]
        for name, rows in tatoeba(target if source == "en" else source).items()
    }
    # Use the default size, as users do when they evaluate: other sizes hold out other rows.
    scored = phrasebook("translation", source, target, seed=seed)
    held_out = [*sentences["validation"], *sentences["test"], *scored["validation"], *scored["test"]]
    unseen = {text.casefold() for row in held_out for text in row.values()}
    copies = without_full_stop(sentences["train"], bare, seed)
    train = sentences["train"] + copies + in_lower_case(copies, lower, seed)
    train += phrasebook("translation", source, target, phrases, seed)["train"]
    train = [row for row in train if not unseen & {text.casefold() for text in row.values()}]
    Random(seed).shuffle(train)
    return sentences | {"train": train, "test_phrasebook": list(scored["test"])}


def english_to_spanish() -> Splits:
    """Return the splits of `translator`, and `first` with what people type first, for the second training."""
    splits = translator("en", "es", phrases=36_000, bare=20_000, lower=8_000)
    held_out = {row["source"].casefold() for name in splits for row in splits[name] if name != "train"}
    return splits | {"first": [row for row in first_pairs(8) if row["source"].casefold() not in held_out]}


def texts(*languages: str, seed: int = 0) -> Splits:
    """Return splits with `text`: the distinct sentences of the English-Spanish pairs in the given languages."""
    splits = {}
    for name, rows in tatoeba("es").items():
        different = sorted({row[language] for row in rows for language in languages})
        Random(seed).shuffle(different)
        splits[name] = [{"text": text} for text in different]
    return splits


# checkpoint -> function that prepares its data
PREPARED: dict[str, Callable[[], Splits]] = {
    "en-es": english_to_spanish,
    "language-id": partial(language_id, phrases=40_000, everyday=2_000),
    "intents": partial(commands.intents, copies=2),
    "tagger": partial(commands.tagger, phrases=10_000, copies=4, everyday=6_000),
    "reader": partial(commands.reader, phrases=10_000),
    "masked-lm": partial(texts, "en", "es"),
    "language-model": partial(texts, "en"),
}


def prepare(name: str, folder: Path) -> None:
    """Write the data of a checkpoint to `folder`, one file per split. train.jsonl is last, to mark completion."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = PREPARED[name]()
    for split_name in sorted(splits, key="train".__eq__):
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in splits[split_name])
        new = folder / f".{split_name}.jsonl"
        new.write_text("".join(lines), encoding="utf-8")
        new.rename(folder / f"{split_name}.jsonl")
