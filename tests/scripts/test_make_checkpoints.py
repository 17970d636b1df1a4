"""Test the shipped models: their files, that each model loads and works, and how they are trained."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors import safe_open
from transformers import AutoTokenizer, pipeline

import make_checkpoints
from shipping import data
from small_data import write_json_lines
from vanilla_transformer.cli.train import parse
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.decoding import translate
from vanilla_transformer.loading import load_model
from vanilla_transformer.pipeline_vanilla_transformer import QuestionAnsweringPipeline
from vanilla_transformer.tasks import find_task


ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.name for path in (ROOT / "checkpoints").glob("*") if path.is_dir())
FILES = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@cache
def loaded(name: str) -> dict:
    folder = ROOT / "checkpoints" / name
    model = load_model(folder)
    return {"model": model, "tokenizer": AutoTokenizer.from_pretrained(folder)}


def translation(name: str, text: str) -> str:
    return translate([text], **loaded(name))[0]


def language(text: str) -> str:
    return pipeline("text-classification", **loaded("language-id"))(text)[0]["label"]


ANSWERS = {
    "en-es": [
        (lambda: translation("en-es", "I like to travel."), "Me gusta viajar."),
        (lambda: translation("en-es", "Wednesday, July 4, 2029"), "miércoles, 4 de julio de 2029"),
    ],
    "language-id": [
        (lambda: language("Mittwoch, 4. Juli 2029"), "de"),
        (lambda: language("12 кілометрів і 3 милі"), "uk"),
        (lambda: language("Me gusta viajar."), "es"),
    ],
    "tagger": [
        (
            lambda: {
                found["word"].strip(" ."): found["entity_group"]
                for found in pipeline("token-classification", **loaded("tagger"), aggregation_strategy="first")(
                    "The letter in French was sent on June 5, 2019."
                )
            },
            {"French": "LANGUAGE", "June 5, 2019": "DATE"},
        )
    ],
    "reader": [
        (
            lambda: QuestionAnsweringPipeline(**loaded("reader"))(
                question="When was the letter sent?",
                context="The tank holds 40 liters at 12°C. The letter in French was sent on June 5, 2019.",
            )["answer"],
            "June 5, 2019",
        )
    ],
    "masked-lm": [
        (
            lambda: "to" in {
                found["token_str"].strip()
                for found in pipeline("fill-mask", **loaded("masked-lm"))("I want<mask> go home.")
            },
            True,
        )
    ],
    "language-model": [
        (
            lambda: bool(
                re.fullmatch(
                    r"What time is .+\?",
                    pipeline("text-generation", **loaded("language-model"))(
                        "What time is", do_sample=False, max_new_tokens=20
                    )[0]["generated_text"],
                )
            ),
            True,
        )
    ],
}  # fmt: skip


def test_every_checkpoint_has_a_recipe_and_a_description():
    for ending in ("yaml", "md"):
        assert {path.stem for path in (ROOT / "recipes" / "checkpoints").glob(f"*.{ending}")} == ANSWERS.keys()
    assert {*make_checkpoints.CHECKPOINTS} == data.PREPARED.keys() == ANSWERS.keys()
    assert set(SHIPPED) <= ANSWERS.keys()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_checkpoint_has_exactly_the_expected_files_and_loads_in_float32(name):
    folder = ROOT / "checkpoints" / name
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    optional = {"generation_config.json", "chat_template.jinja"}
    assert FILES <= names <= FILES | optional
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["dtype"] == "float32"
    assert all((ROOT / f"{reference.split('.')[0]}.py").is_file() for reference in config["auto_map"].values())
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        assert {weights.get_tensor(key).dtype for key in weights.keys()} <= {torch.bfloat16, torch.float32}  # noqa: SIM118


@pytest.mark.parametrize("name", SHIPPED)
def test_a_checkpoint_loads_and_predicts_correctly(name):
    assert next(loaded(name)["model"].parameters()).dtype == torch.float32
    for answer, right in ANSWERS[name]:
        assert answer() == right


@pytest.mark.parametrize("name", SHIPPED)
def test_a_card_states_scores_data_licence_and_the_recipe(name):
    card = ModelCard.load(ROOT / "checkpoints" / name / "README.md")
    recipe = (ROOT / "recipes" / "checkpoints" / f"{name}.yaml").read_text(encoding="utf-8").strip()
    assert recipe in card.text
    facts = card.data.to_dict()
    assert {"language", "license", "library_name", "pipeline_tag", "widget", "model-index"} <= facts.keys()
    assert card.data.eval_results and "tests" not in facts
    learned_from_tatoeba = name not in ("tagger", "reader")
    assert ("www.manythings.org/anki and tatoeba.org" in card.text) == learned_from_tatoeba
    assert (facts["license"] == "cc-by-2.0") == learned_from_tatoeba
    assert all(f"## {part}" in card.text for part in ("Use", "Examples", "Scores", "Training", "Licence"))


# --- How the shipped models are trained


@pytest.mark.parametrize("name", ANSWERS)
def test_a_recipe_has_valid_options_and_names_its_own_data(name, tmp_path):
    recipe = ROOT / "recipes" / "checkpoints" / f"{name}.yaml"
    options = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    arguments = [str(recipe), "--output_dir", str(tmp_path), "--use_cpu", "true"]
    _, given, _, task = parse(find_task(options["task"]), arguments)
    assert given.files == {split: [f"runs/data/{name}/{split}.jsonl"] for split in ("train", "validation", "test")}
    assert options["output_dir"] == f"runs/checkpoints/{name}"
    assert task.arguments.seed == options["seed"]  # the seed in the recipe, which the card states, is used


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    """Prepare a working folder with the data of the tagger and a recipe that trains within seconds."""
    monkeypatch.chdir(tmp_path)
    rows = list(phrasebook("tagging", size=1000)["train"].select(range(16)))
    for name in ("train", "validation", "test"):
        (tmp_path / "data" / "tagger").mkdir(parents=True, exist_ok=True)
        write_json_lines(tmp_path / "data" / "tagger" / f"{name}.jsonl", rows)
    options = {f"{name}_file": [f"data/tagger/{name}.jsonl"] for name in ("train", "validation", "test")}
    options |= {"task": "tagging", "output_dir": "run"}
    options |= {"d_model": 32, "d_ff": 64, "num_heads": 2, "num_layers": 1, "max_steps": 3}
    options |= {
        "vocab_size": 300,
        "dropout": 0,
        "save_strategy": "no",
        "disable_tqdm": True,
        "warmup_steps": 1,
        "seed": 7,
    }
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "tagger.yaml").write_text(yaml.safe_dump(options))
    described = (ROOT / "recipes" / "checkpoints" / "tagger.md").read_text(encoding="utf-8")
    (tmp_path / "recipes" / "tagger.md").write_text(described, encoding="utf-8")
    return tmp_path


def make(names=("tagger",)) -> None:
    make_checkpoints.main(["--names", *names, "--recipes", "recipes", "--data", "data", "--output", "checkpoints"])


def test_a_checkpoint_is_trained_once_converted_to_16_bits_and_scored(workplace, capsys):
    make()
    folder = workplace / "checkpoints" / "tagger"
    assert {path.name for path in folder.iterdir()} == FILES
    assert "Training tagger" in capsys.readouterr().out
    halved, whole = folder / "model.safetensors", workplace / "run" / "model.safetensors"
    assert halved.stat().st_size < 0.6 * whole.stat().st_size
    card = ModelCard.load(folder / "README.md")
    assert "with seed 7" in card.text and {result.metric_type for result in card.data.eval_results} >= {"f1", "loss"}
    (folder / "README.md").unlink()
    make()
    assert "Training tagger" not in capsys.readouterr().out
    assert (folder / "README.md").is_file()

    recipe = workplace / "recipes" / "tagger.yaml"
    recipe.write_text(recipe.read_text().replace("d_ff: 64", "d_ff: 128"))
    with pytest.raises(ValueError, match="run was trained with d_ff=64, but its recipe has 128"):
        make()
    assert {path.name for path in folder.iterdir()} == FILES  # the folder is unchanged
    with pytest.raises(ValueError, match="--names taggr: choose from tagger"):
        make(["taggr"])


def test_training_and_test_data_share_no_text():
    splits = data.translator("hi", "en", phrases=1000, bare=100)
    trained = {text.casefold() for row in splits["train"] for text in row.values()}
    held_out = [*splits["validation"], *splits["test"], *splits["test_phrasebook"]]
    assert not [row for row in held_out if trained & {text.casefold() for text in row.values()}]
    assert len(held_out) == 150 + 150 + 1000
    assert splits == data.translator("hi", "en", phrases=1000, bare=100)


def test_full_stops_are_removed_on_both_sides_of_a_pair():
    rows = [
        {"source": "I run.", "target": "Corro."},
        {"source": "Do I?", "target": "¿Sí?"},
        {"source": "Well...", "target": "Bueno..."},
        {"source": "मैं दौड़ता हूँ।", "target": "I run."},
        {"source": "x" * 60 + ".", "target": "y."},
    ]
    bare = data.without_full_stop(rows, 10, seed=0)
    assert sorted(row["target"] for row in bare) == ["Corro", "I run"]
    assert {"source": "मैं दौड़ता हूँ", "target": "I run"} in bare
