"""Test that each model head has a task, and that the Python API exports the documented names."""

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import transformers
from datasets import Dataset
from torch.nn import functional

import vanilla_transformer
from family import decoder_only, encoder_only
from fresh_process import run_fresh
from saved_models import with_tokenizer, write
from small_data import write_json_lines
from vanilla_transformer import (
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderModel,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForSequenceClassification,
)
from vanilla_transformer.cli import evaluate
from vanilla_transformer.cli.options import model_options
from vanilla_transformer.cli.train import choose_task, parse
from vanilla_transformer.data.tokenizer import TEMPLATES
from vanilla_transformer.tasks import all_tasks, find_task, model_classes, task_names, task_of
from vanilla_transformer.tasks.language_modeling import LanguageModelingArguments, LanguageModelingTask
from vanilla_transformer.tasks.masked_language_modeling import (
    MaskedLanguageModelingArguments,
    MaskedLanguageModelingTask,
    ReproducibleMasking,
)


def test_each_model_head_has_a_task_with_a_data_schema_and_a_tokenizer():
    assert sorted(model_classes()) == sorted(name for name in vanilla_transformer.__all__ if "TransformerFor" in name)
    for name, task in zip(task_names(), all_tasks(), strict=True):
        assert task.name == name and task.template in TEMPLATES
        assert (
            getattr(transformers, task.auto_class())._model_mapping[task.model_class.config_class] is task.model_class
        )


@pytest.mark.parametrize("name", task_names())
def test_every_task_has_its_own_options_and_defaults(name, tmp_path):
    _, _, _, task = parse(find_task(name), ["--output_dir", str(tmp_path / "run"), "--use_cpu", "true"])
    assert type(task.arguments) is task.arguments_class
    by_paper = (25_000, 5) if name == "translation" else (0, 1)
    assert (task.arguments.tokens_per_batch, task.arguments.average_checkpoints) == by_paper


@pytest.mark.parametrize(
    ("problem", "labels", "name"),
    [
        ("single_label_classification", 3, "classification"),
        ("multi_label_classification", 3, "multi_label"),
        ("regression", 3, "regression"),
        (None, 3, "classification"),
        (None, 1, "regression"),  # like the models in transformers
    ],
)
def test_the_config_of_a_saved_classifier_determines_its_task(problem, labels, name):
    model = encoder_only(VanillaTransformerForSequenceClassification, problem_type=problem, num_labels=labels)
    assert task_of(type(model), model.config).name == name


def test_a_model_without_a_head_cannot_be_scored(tmp_path):
    encoder_only(VanillaTransformerEncoderModel).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="class VanillaTransformerEncoderModel; give a VanillaTransformerFor"):
        evaluate.main(["--model", str(tmp_path)])


def test_a_custom_model_class_can_be_evaluated_with_trust_remote_code(tmp_path):
    model, tokenizer = with_tokenizer(partial(encoder_only, VanillaTransformerForMaskedLM), "encoder")
    folder = write(tmp_path / "model", model, tokenizer)
    file = write_json_lines(tmp_path / "rows.jsonl", [{"text": "one " * 30}])
    (tmp_path / "model/modeling_mine.py").write_text(
        "from .modeling_vanilla_transformer import VanillaTransformerForMaskedLM\n\n\n"
        "class Mine(VanillaTransformerForMaskedLM):\n    pass\n"
    )
    settings = json.loads((tmp_path / "model/config.json").read_text())
    settings |= {"architectures": ["Mine"]}
    settings["auto_map"]["AutoModelForMaskedLM"] = "modeling_mine.Mine"
    (tmp_path / "model/config.json").write_text(json.dumps(settings))
    given = ["--model", folder, "--test_file", file, "--use_cpu", "true"]
    with pytest.raises(ValueError, match="Mine"):
        evaluate.main(given)
    assert evaluate.main([*given, "--trust_remote_code"])["test"]["loss"] > 0


def test_an_undocumented_config_field_raises_an_error():
    @dataclass
    class Config(VanillaTransformerEncoderConfig):
        forgotten: int = 3

    with pytest.raises(KeyError, match="forgotten"):
        model_options(Config)


def test_the_python_api_imports_its_names_lazily(tmp_path):
    code = """
import vanilla_transformer.data, vanilla_transformer.training, vanilla_transformer.training.averaging
from vanilla_transformer.conversion import convert
from vanilla_transformer.inside import record
extra = ("datasets", "babel", "matplotlib", "seqeval", "torchmetrics")
before = [name for name in extra if name in sys.modules]
from vanilla_transformer.data import DataArguments, load_splits, texts_of, train_tokenizer
from vanilla_transformer.training import (
    PaperSchedule, RecipeArguments, RecipeSeq2SeqTrainer, RecipeTrainer, TokenBudgetSampler, average_checkpoints,
)
try:
    from vanilla_transformer.training import Recipe
except ImportError as error:
    print(json.dumps([before, str(error).split(" (")[0]]))
"""
    before, error = run_fresh(code, tmp_path, installed=True, cold=True)
    assert before == []
    assert error == "cannot import name 'Recipe' from 'vanilla_transformer.training'"


@pytest.mark.parametrize("batch_size", [1, 3])
def test_loss_of_a_masked_language_model_is_the_mean_over_all_masked_tokens(batch_size, tmp_path):
    texts = [{"text": text} for text in ("three miles", "one", "two", "three miles is a long way to go on foot")]
    model, tokenizer = with_tokenizer(partial(encoder_only, VanillaTransformerForMaskedLM), "encoder")
    folder, file = write(tmp_path / "model", model, tokenizer), write_json_lines(tmp_path / "rows.jsonl", texts)
    total = number = 0
    collate = ReproducibleMasking(tokenizer, mlm_probability=0.15)
    rows = [{"input_ids": tokenizer(row["text"])["input_ids"]} for row in texts]
    for start in range(0, len(rows), batch_size):
        batch = collate(rows[start : start + batch_size])
        masked = batch.pop("labels")
        logits = model.eval()(**batch).logits
        total += functional.cross_entropy(logits.flatten(0, 1), masked.flatten(), reduction="sum").item()
        number += (masked != -100).sum().item()
    options = ["--per_device_eval_batch_size", str(batch_size), "--use_cpu", "true"]
    scores = evaluate.main(["--model", folder, "--test_file", file, *options])["test"]
    assert scores == pytest.approx({"loss": total / number, "perplexity": math.exp(total / number)}, rel=1e-3)

    arguments = MaskedLanguageModelingArguments(
        str(tmp_path / "run"), per_device_eval_batch_size=batch_size, use_cpu=True
    )
    splits = {"validation": Dataset.from_list(texts)}
    measured = MaskedLanguageModelingTask(arguments).make_trainer(model, tokenizer, splits).evaluate()
    assert measured["eval_loss"] == pytest.approx(scores["loss"])  # this metric selects the best checkpoint


def test_loss_of_a_language_model_is_the_mean_over_all_target_tokens(tmp_path):
    texts = [{"text": text} for text in [*["one"] * 12, "three miles is a long way to go on foot " * 6]]
    model, tokenizer = with_tokenizer(decoder_only, "causal")
    splits = {"validation": Dataset.from_list(texts)}
    arguments = LanguageModelingArguments(str(tmp_path), block_size=12, per_device_eval_batch_size=3, use_cpu=True)
    trainer = LanguageModelingTask(arguments).make_trainer(model, tokenizer, splits)
    rows = trainer.eval_dataset.with_format("torch")[:]
    logits = model.eval()(rows["input_ids"], position_ids=rows["position_ids"], use_cache=False).logits
    targets = rows["labels"][:, 1:]
    assert len({*(targets != -100).sum(dim=1).tolist()}) > 1
    expected = functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten()).item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        (["tagging", "--max_steps", "3"], ("tagging", ["--max_steps", "3"])),
        (["recipe.yaml", "--max_steps", "3"], ("regression", ["recipe.yaml", "--max_steps", "3"])),
        (["regression", "recipe.yaml"], ("regression", ["recipe.yaml"])),
        (["language_modeling", "other.yaml"], ("language_modeling", ["other.yaml"])),
    ],
)
def test_a_task_can_be_named_on_the_command_line_or_in_a_recipe(given, chosen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text("task: regression\nmax_length: 9\n")
    (tmp_path / "other.yaml").write_text("max_steps: 9\n")
    assert choose_task(given) == chosen


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "a task .classification, .*translation. or a recipe"),
        (["translate"], "There is no task 'translate'; did you mean translation"),
        (["--max_steps", "3"], "There is no task '--max_steps'; choose from classification, "),
        (["other.yaml"], "other.yaml names no task: add a line such as task: translation"),
        (["tagging", "recipe.yaml"], "recipe.yaml is a recipe for regression, not for tagging"),
    ],
)
def test_a_command_without_a_task_lists_the_tasks(given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text("task: regression\n")
    (tmp_path / "other.yaml").write_text("max_steps: 9\n")
    with pytest.raises(ValueError, match=message):
        choose_task(given)


def test_every_recipe_names_its_task():
    for recipe in Path(__file__).parents[2].glob("recipes/**/*.yaml"):
        assert choose_task([str(recipe)])[0] in task_names()
