"""The top of README.md, which the Hub reads: valid metadata, whose scores are those of the checkpoints' own cards."""

from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.repocard_data import model_index_to_eval_results

from fresh_process import ROOT
from update_readme import metadata, page


def scores(data: ModelCardData) -> set[tuple]:
    """Each with what it is of: the model, by the folder that it lies in, the split and the metric."""
    return {
        (score.dataset_config, score.task_type, score.dataset_split, score.metric_type, score.metric_value)
        for score in data.eval_results or []
    }


def test_the_readme_has_the_scores_of_the_checkpoints_cards():
    """Else run scripts/update_readme.py."""
    assert (ROOT / "README.md").read_text(encoding="utf-8") == page(ROOT)


def test_the_readmes_metadata_is_what_the_hub_takes():
    data = ModelCard.load(ROOT / "README.md").data
    told = data.to_dict()
    assert (told["library_name"], told["pipeline_tag"], told["license"]) == (
        "transformers",
        "translation",
        "apache-2.0",
    )
    models = {path.parent.name for path in ROOT.glob("checkpoints/*/README.md")}
    assert {name for name, *_ in scores(data)} == models
    if models:
        name, results = model_index_to_eval_results(told["model-index"])
        assert name == "vanilla-transformer" and scores(
            ModelCardData(model_name=name, eval_results=results)
        ) == scores(data)


def write_card(folder: Path, language: list[str], **values: float) -> None:
    folder.mkdir(parents=True)
    results = [
        EvalResult("translation", "phrasebook", "phrasebook", metric, value, dataset_split="test")
        for metric, value in values.items()
    ]
    data = ModelCardData(language=language, model_name=folder.name, eval_results=results, datasets=["tatoeba"])
    ModelCard(f"---\n{data.to_yaml()}\n---\n# A model\n").save(folder / "README.md")


def test_models_that_are_scored_on_the_same_data_keep_their_own_scores(tmp_path):
    write_card(tmp_path / "hi-en", ["hi", "en"], bleu=30.0)
    write_card(tmp_path / "en-es", ["en", "es"], bleu=40.0, chrf=60.0)
    data = metadata(tmp_path)
    assert scores(data) == {
        ("en-es", "translation", "test", "bleu", 40.0),
        ("en-es", "translation", "test", "chrf", 60.0),
        ("hi-en", "translation", "test", "bleu", 30.0),
    }
    again = ModelCard(f"---\n{data.to_yaml()}\n---\n").data
    assert scores(again) == scores(data) and again.to_dict() == data.to_dict()
    assert (again.language, again.datasets) == (["en", "es", "hi"], ["tatoeba"])
    assert again.to_dict()["model-index"][0]["results"][0]["task"]["name"] == "translation: checkpoints/en-es"
