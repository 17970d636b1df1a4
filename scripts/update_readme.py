"""Update the metadata at the top of README.md, which the Hub reads, with the scores from the checkpoints' cards.

python scripts/update_readme.py
"""

from dataclasses import replace
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from vanilla_transformer.cli.parser import CommandParser, run_command


ROOT = Path(__file__).parents[1]
FIRST = "en-es"  # the model that the page is about first of all


def metadata(checkpoints: Path) -> ModelCardData:
    """The Hub's metadata of a repository that holds these models, each in a folder with its card.

    A score on test data names its model as the `config` of the data and in the task's name: the Hub has one model to a
    repository.

    Raises:
        ValueError: a card has metadata that the Hub does not take.
    """
    names = sorted(
        (path.parent.name for path in checkpoints.glob("*/README.md")), key=lambda name: (name != FIRST, name)
    )
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
        widget=cards[FIRST].get("widget") if FIRST in cards else None,
        model_name="vanilla-transformer",
        eval_results=scores or None,
    )


def union(values) -> list[str] | None:
    """All that is in fields of which each holds one value, a list of them or nothing; None if there is none."""
    found = {one for value in values for one in ([value] if isinstance(value, str) else value or [])}
    return sorted(found) or None


def page(root: Path) -> str:
    """README.md as it should be: with metadata made anew, its text unchanged."""
    card = ModelCard.load(root / "README.md")
    card.data = metadata(root / "checkpoints")
    card.text = "\n" + card.text.lstrip("\n")
    return str(card)


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError: a card has metadata that the Hub does not take.
    """
    CommandParser(description=__doc__).parse_args(arguments)
    (ROOT / "README.md").write_text(page(ROOT), encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
