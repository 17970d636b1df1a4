"""Test that the Hub metadata of the repository is valid and contains the scores from the cards of the checkpoints."""

from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.repocard_data import model_index_to_eval_results

from fresh_process import ROOT
from vanilla_transformer.cli.repository_card import repository_card, repository_metadata


def scores(data: ModelCardData) -> set[tuple]:
    """Return all scores as tuples that include checkpoint, task, split and metric."""
    return {
        (score.dataset_config, score.task_type, score.dataset_split, score.metric_type, score.metric_value)
        for score in data.eval_results or []
    }


def test_the_repository_card_is_the_readme_with_metadata_for_the_hub():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# Vanilla Transformer\n")
    card = repository_card(ROOT)
    assert str(card).startswith("---\n") and str(card).endswith(text)
    told = card.data.to_dict()
    assert (told["library_name"], told["pipeline_tag"], told["license"]) == (
        "transformers",
        "translation",
        "apache-2.0",
    )
    assert {name for name, *_ in scores(card.data)} == {
        path.parent.name for path in ROOT.glob("checkpoints/*/README.md")
    }
    name, results = model_index_to_eval_results(told["model-index"])
    assert name == "vanilla-transformer"
    assert scores(ModelCardData(model_name=name, eval_results=results)) == scores(card.data)


def write_card(folder: Path, language: list[str], **values: float) -> None:
    folder.mkdir(parents=True)
    results = [
        EvalResult("translation", "phrasebook", "phrasebook", metric, value, dataset_split="test")
        for metric, value in values.items()
    ]
    data = ModelCardData(language=language, model_name=folder.name, eval_results=results, datasets=["tatoeba"])
    ModelCard(f"---\n{data.to_yaml()}\n---\n# A model\n").save(folder / "README.md")


def test_models_scored_on_the_same_data_keep_their_own_scores(tmp_path):
    write_card(tmp_path / "fi-en", ["fi", "en"], bleu=30.0)
    write_card(tmp_path / "en-es", ["en", "es"], bleu=40.0, chrf=60.0)
    data = repository_metadata(tmp_path)
    assert scores(data) == {
        ("en-es", "translation", "test", "bleu", 40.0),
        ("en-es", "translation", "test", "chrf", 60.0),
        ("fi-en", "translation", "test", "bleu", 30.0),
    }
    again = ModelCard(f"---\n{data.to_yaml()}\n---\n").data
    assert scores(again) == scores(data) and again.to_dict() == data.to_dict()
    assert (again.language, again.datasets) == (["en", "es", "fi"], ["tatoeba"])
    assert again.to_dict()["model-index"][0]["results"][0]["task"]["name"] == "translation: checkpoints/en-es"
