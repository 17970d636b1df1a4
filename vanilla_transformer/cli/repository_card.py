"""Build the Hub metadata of a repository that contains several models, from the model cards of its checkpoints.

README.md has no metadata of its own, because GitHub would display 200 lines of it above the title.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData


MAIN_MODEL = "en-es"  # the repository page shows the examples of this model


def repository_card(folder: Path) -> ModelCard:
    """Return the README of a clone with Hub metadata: languages, licence, and test scores of each checkpoint.

    Raises:
        ValueError: the metadata of a checkpoint's card is not valid.
    """
    card = ModelCard.load(folder / "README.md", ignore_metadata_errors=True)
    card.data = repository_metadata(folder / "checkpoints")
    card.text = "\n" + card.text.lstrip("\n")
    return card


def repository_metadata(checkpoints: Path) -> ModelCardData:
    """Merge the metadata of the cards in `checkpoints`/*/README.md.

    The Hub expects one model per repository, so the name of a score's checkpoint is stored as the dataset's `config`
    and in the task name.

    Raises:
        ValueError: the metadata of a card is not valid.
    """
    names = sorted((path.parent.name for path in checkpoints.glob("*/README.md")), key=lambda n: (n != MAIN_MODEL, n))
    cards = {name: ModelCard.load(checkpoints / name / "README.md").data for name in names}
    scores = [
        replace(score, task_name=f"{score.task_type}: checkpoints/{name}", dataset_config=name)
        for name, card in cards.items()
        for score in card.eval_results or []
        if score.dataset_split != "validation"
    ]
    return ModelCardData(
        language=union(card.language for card in cards.values()),
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="translation",
        datasets=union(card.datasets for card in cards.values()),
        metrics=union(card.metrics for card in cards.values()),
        tags=["vanilla-transformer", "attention-is-all-you-need", "custom_code"],
        widget=cards[MAIN_MODEL].get("widget") if MAIN_MODEL in cards else None,
        model_name="vanilla-transformer",
        eval_results=scores or None,
    )


def union(fields: Iterable[str | list[str] | None]) -> list[str] | None:
    """Return the sorted union of metadata fields (each a value, a list or None), or None if all are empty."""
    values = {value for field in fields for value in ([field] if isinstance(field, str) else field or [])}
    return sorted(values) or None
