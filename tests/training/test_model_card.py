"""Test the model card: options that affect the result, loss curve, and limitations of the model."""

import ast
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from matplotlib.image import imread
from transformers import TrainerState

from code_blocks import blocks
from family import decoder_only, encoder_decoder, encoder_only
from fresh_process import run_fresh
from vanilla_transformer import VanillaTransformerForSequenceClassification
from vanilla_transformer.cli.model_card import CardFacts, plot_curves, write_model_card
from vanilla_transformer.data import DataArguments
from vanilla_transformer.tasks import find_task
from vanilla_transformer.tasks.task import Task


DRAW_A_CURVE = """
import sys
from pathlib import Path
sys.modules.pop("matplotlib.pyplot", None)
from vanilla_transformer.cli.model_card import plot_curves
plot_curves([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}, {"step": 2, "eval_f1": 5.0}], "f1", Path("a.png"))
print(json.dumps([Path("a.png").stat().st_size > 1000, "matplotlib.pyplot" in sys.modules]))
"""


def task(name: str, folder: Path, **options) -> Task:
    """Return a task with its training arguments."""
    task_class = find_task(name)
    return task_class(task_class.arguments_class(output_dir=str(folder), use_cpu=True, **options))


def test_plotting_the_training_curve_does_not_import_pyplot(tmp_path):
    """In a notebook, pyplot holds the user's own figures."""
    assert run_fresh(DRAW_A_CURVE, tmp_path, installed=True) == [True, False]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("logged", "drawn"), [([], False), ([{"step": 3, "train_loss": 2.0, "epoch": 1.0}], True)])
def test_loss_curve_of_a_short_run_shows_the_mean_loss(logged, drawn, tmp_path):
    plot_curves(logged, "loss", tmp_path / "curve.png")
    red, _, blue = imread(tmp_path / "curve.png")[..., :3].transpose(2, 0, 1)
    assert (blue > red + 0.4).any() == drawn  # blue is matplotlib's first colour


@pytest.mark.parametrize(
    ("make", "name", "said"),
    [
        (encoder_decoder, "translation", True),
        (lambda: decoder_only(label_smoothing=0.2), "language_modeling", True),
        (lambda: encoder_decoder(label_smoothing=0.0), "translation", False),
        (lambda: encoder_only(VanillaTransformerForSequenceClassification), "classification", False),
    ],
)
def test_a_card_mentions_label_smoothing_in_the_config(make, name, said, tmp_path):
    model = make()
    write_model_card(tmp_path, model, task(name, tmp_path), TrainerState(), CardFacts("phrasebook", {}))
    sentence = f"`label_smoothing={model.config.label_smoothing}`" if said else "label_smoothing"
    assert (sentence in ModelCard.load(tmp_path / "README.md").text) == said


@pytest.mark.parametrize(("norm", "said"), [("post", "Post-norm, as in the paper"), ("pre", "Pre-norm, unlike")])
def test_a_card_says_where_the_model_normalises(norm, said, tmp_path):
    model = encoder_decoder(norm_position=norm)
    write_model_card(tmp_path, model, task("translation", tmp_path), TrainerState(), CardFacts("phrasebook", {}))
    assert said in ModelCard.load(tmp_path / "README.md").text


def test_python_code_in_a_card_is_valid_for_any_folder_name(tmp_path):
    folder = tmp_path / 'a "big" run \\ señal'
    folder.mkdir()
    facts = CardFacts("phrasebook", {})
    write_model_card(folder, encoder_decoder(), task("translation", folder), TrainerState(), facts)
    (block,) = blocks(folder / "README.md", "python")
    _, assignment, *_ = ast.parse(block.code).body
    assert ast.literal_eval(assignment.value) == folder.name


def test_a_card_lists_data_files_without_their_folders(tmp_path):
    (tmp_path / "reviews").mkdir()
    assert DataArguments(dataset=str(tmp_path / "reviews")).name == "reviews"
    assert DataArguments(train_file=[str(tmp_path / "a.jsonl"), "b/c.csv"]).name == "a.jsonl c.csv"
    assert DataArguments(dataset="user/name").name == "user/name"


def test_a_card_states_the_languages_of_the_phrasebook_and_the_limitations_of_the_model(tmp_path):
    data = DataArguments(source_locale="pt_BR", target_locale="en")
    facts = CardFacts(data.name, {}, {}, data.languages)
    write_model_card(tmp_path, encoder_decoder(), task("translation", tmp_path), TrainerState(), facts)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.language == ["pt", "en"]
    assert "## Limits\n\nThe model knows only its training data" in card.text
    for unnamed in (DataArguments(train_file=["a.jsonl"]), DataArguments(dataset="user/name")):
        assert unnamed.languages is None


@pytest.mark.parametrize(
    ("options", "said", "left_out"),
    [
        (
            {"learning_rate": 1e-3, "max_steps": 9, "tokens_per_batch": 700, "seed": 0},
            (
                "| `learning_rate` | 0.001 |",
                "| `lr_scheduler_type` | linear |",
                "| `max_steps` | 9 |",
                "| `seed` | 0 |",
            ),
            ("learning_rate_scale", "num_train_epochs", "per_device_train_batch_size", "weight_decay"),
        ),
        (
            {"learning_rate_scale": 0.4, "num_train_epochs": 2},
            ("| `learning_rate_scale` | 0.4 |", "| `num_train_epochs` | 2 |", "| `per_device_train_batch_size` | 8 |"),
            ("learning_rate`", "lr_scheduler_type", "max_steps", "tokens_per_batch"),
        ),
    ],
)
def test_a_card_lists_exactly_the_options_that_affect_the_result(options, said, left_out, tmp_path):
    trained = task("language_modeling", tmp_path, **options)
    write_model_card(tmp_path, decoder_only(), trained, TrainerState(), CardFacts("phrasebook", {}))
    text = ModelCard.load(tmp_path / "README.md").text
    assert [line for line in said if line not in text] == []
    assert [name for name in left_out if f"`{name}" in text] == []
