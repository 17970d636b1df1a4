"""Each head has its task; options and names that the scripts and a user's own share."""

from dataclasses import dataclass

import pytest

import vanilla_transformer
from family import encoder_only
from fresh_process import run_fresh
from vanilla_transformer import VanillaTransformerEncoderConfig, VanillaTransformerEncoderModel
from vanilla_transformer.commands import evaluate
from vanilla_transformer.data.checks import COLUMNS
from vanilla_transformer.data.tokenizer import TEMPLATES
from vanilla_transformer.tasks import TASKS
from vanilla_transformer.training.options import model_options
from vanilla_transformer.training.run import parse


def test_each_head_of_the_library_has_one_task_that_its_data_and_tokenizer_know():
    assert sorted(TASKS) == sorted(name for name in vanilla_transformer.__all__ if "TransformerFor" in name)
    for task in TASKS.values():
        assert task.data in COLUMNS and task.template in TEMPLATES


@pytest.mark.parametrize("name", TASKS)
def test_every_task_takes_its_options_and_has_defaults_of_its_own(name, tmp_path):
    task = TASKS[name]
    _, _, _, arguments = parse(task, ["--output_dir", str(tmp_path / "run"), "--use_cpu", "true"])
    assert type(arguments) is task.arguments_class
    by_paper = (25_000, 5) if task.data == "translation" else (0, 1)
    assert (arguments.tokens_per_batch, arguments.average_checkpoints) == by_paper


def test_a_model_without_a_head_cannot_be_scored(tmp_path):
    encoder_only(VanillaTransformerEncoderModel).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is an encoder without head .VanillaTransformerEncoderModel.; needed is"):
        evaluate.main(["--model", str(tmp_path)])


def test_a_config_field_that_no_docstring_explains_has_no_silent_gap():
    @dataclass
    class Config(VanillaTransformerEncoderConfig):
        forgotten: int = 3

    with pytest.raises(TypeError, match="The docstrings of Config do not explain: forgotten"):
        model_options(Config)


def test_names_for_a_users_own_script_are_there_and_cost_nothing_until_they_are_asked_for(tmp_path):
    code = """
import vanilla_transformer.data, vanilla_transformer.training, vanilla_transformer.training.averaging
from vanilla_transformer.conversion import convert
from vanilla_transformer.inside import record
extra = ("datasets", "babel", "matplotlib", "seqeval", "torchmetrics")
before = [name for name in extra if name in sys.modules]
from vanilla_transformer.data import DataArguments, load_splits, texts_of, train_tokenizer
from vanilla_transformer.training import (
    PaperSchedule, RecipeArguments, RecipeSeq2SeqTrainer, RecipeTrainer, Task, TokenBudgetSampler, average_checkpoints,
    make_fast,
)
try:
    from vanilla_transformer.training import Recipe
except ImportError as error:
    print(json.dumps([before, str(error).split(" (")[0]]))
"""
    before, error = run_fresh(code, tmp_path, installed=True)
    assert before == []
    assert error == "cannot import name 'Recipe' from 'vanilla_transformer.training'"
