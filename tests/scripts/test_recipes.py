"""Test that each recipe trains as written and on other data, and that command-line options override it."""

import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from transformers import AutoConfig

from small_data import train_and_validate_on, write_json_lines
from vanilla_transformer.cli import train
from vanilla_transformer.cli.options import parse_options
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.tasks import find_task
from vanilla_transformer.tasks.task import TruncatingArguments


ROOT = Path(__file__).parents[2]
RECIPES = {path.stem: path for path in sorted((ROOT / "recipes").glob("*.yaml"))}
# options that shorten any recipe to a run of seconds
SMALL = (
    "--d_model 32 --d_ff 64 --num_heads 2 --vocab_size 400 --max_steps 2 --use_cpu true --disable_tqdm true".split()
)


def header(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))])


def rows_of(task: str, columns: dict[str, str]) -> list[dict]:
    """Return phrasebook rows with the column names of a recipe; `a.b` means field b of the struct column a."""
    rows = []
    for row in phrasebook(task, size=1000)["train"].select(range(40)):
        given = {}
        for ours, yours in columns.items():
            name, _, member = yours.partition(".")
            given[name] = given.get(name, {}) | {member: row[ours]} if member else row[ours]
        rows.append(given)
    return rows


@pytest.mark.parametrize("path", sorted((ROOT / "recipes/checkpoints").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_recipe_of_a_checkpoint_states_the_scores_of_its_card(path):
    """Each number in the "Reaches" line of the recipe is a rounded score from the card."""
    said = re.search(r"^# Reaches: (.*)$", header(path), re.M)[1]
    card = ModelCard.load(ROOT / "checkpoints" / path.stem / "README.md")
    scores = [result.metric_value for result in card.data.eval_results]
    for number in re.findall(r"\d+\.\d+|\b100\b", said):
        digits = len(number.partition(".")[2])
        assert any(abs(score - float(number)) <= 0.5 * 10**-digits + 1e-9 for score in scores), number
    assert "# Data: " in header(path)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_states_its_score_and_trains_on_files_with_its_columns(name, tmp_path):
    said = header(RECIPES[name])
    assert all(f"# {word}: " in said for word in ("Reaches", "Time", "Data"))
    file = re.search(r"vanilla-transformer train (?:\\\n# +)?(\S+)", said)[1]
    assert ROOT / file == RECIPES[name]

    options = yaml.safe_load(RECIPES[name].read_text(encoding="utf-8"))
    task = options["task"]
    columns = {column: column for column in find_task(task).data.columns}
    columns |= dict(column.split("=") for column in options.get("columns", []))
    rows = write_json_lines(tmp_path / "rows.jsonl", rows_of(task, columns))
    layers = ["--encoder_layers", "1", "--decoder_layers", "1"] if task == "translation" else ["--num_layers", "1"]
    data = [*train_and_validate_on(rows), "--test_file", rows]
    folder = tmp_path / "run"
    scores = train.main([str(RECIPES[name]), *data, *SMALL, *layers, "--output_dir", str(folder)])
    assert scores.keys() == {"validation", "test"}
    config = AutoConfig.from_pretrained(folder)
    assert config.d_model == 32
    assert config.norm_position == options.get("norm_position", "post")
    card = (folder / "README.md").read_text(encoding="utf-8")
    rate = "learning_rate" if "learning_rate" in options else "learning_rate_scale"
    assert "| `max_steps` | 2 |" in card and f"| `{rate}` | {float(options.get(rate, 1))} |" in card
    assert "rows.jsonl" in card and str(options.get("dataset")) not in card


@pytest.mark.parametrize(
    ("given", "dataset", "train_file"),
    [
        ([], "user/name", []),
        (["--train_file", "a.jsonl"], "phrasebook", ["a.jsonl"]),
        (["--test_file=a.jsonl"], "phrasebook", []),
        (["--train-file", "a.jsonl"], "phrasebook", ["a.jsonl"]),
        (["--train_fil=a.jsonl"], "phrasebook", ["a.jsonl"]),
        (["--max_train_samples", "3"], "user/name", []),
    ],
)
def test_file_options_replace_the_data_set_of_a_recipe(given, dataset, train_file, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("dataset: user/name\ndataset_config: de-en\nsplits: [validation=dev]\ncolumns: [source=en]\n")
    (data,) = parse_options([DataArguments], [str(recipe), *given])
    assert (data.dataset, data.train_file, data.columns) == (dataset, train_file, ["source=en"])
    assert bool(data.dataset_config and data.splits) == (dataset == "user/name")


def test_a_data_set_option_replaces_the_files_or_data_set_of_a_recipe(tmp_path):
    for name, text in {"files": "train_file: [a.jsonl]\n", "hub": "dataset: a/b\nsplits: [validation=dev]\n"}.items():
        recipe = tmp_path / f"{name}.yml"
        recipe.write_text(text)
        (data,) = parse_options([DataArguments], [str(recipe), "--dataset", "user/name"])
        assert (data.dataset, data.train_file, data.splits) == ("user/name", [], [])


def test_a_file_option_overrides_only_the_corresponding_file_of_a_recipe(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("train_file: [a.jsonl]\ntest_file: [b.jsonl]\n")
    (data,) = parse_options([DataArguments], [str(recipe), "--train_file", "mine.jsonl"])
    assert data.files == {"train": ["mine.jsonl"], "test": ["b.jsonl"]}


def test_option_names_in_a_recipe_may_contain_dashes(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("dataset: user/name\ndataset-config: de-en\n")
    (data,) = parse_options([DataArguments], [str(recipe), "--train_file", "a.jsonl"])
    assert (data.dataset, data.dataset_config, data.train_file) == ("phrasebook", None, ["a.jsonl"])


def test_a_date_in_a_recipe_is_read_as_a_string(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("dataset: user/name\ndataset_revision: 2026-11-26\nsplits: [test=none, 2026-11-26T10:00:00]\n")
    (data,) = parse_options([DataArguments], [str(recipe)])
    assert (data.dataset_revision, data.splits) == ("2026-11-26", ["test=none", "2026-11-26T10:00:00"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_lenght: 9\n", "recipe.yaml: there is no option max_lenght; did you mean --max_length?"),
        ("- max_length\n", "recipe.yaml holds no options: give one a line"),
        ("max_length: [\n", "recipe.yaml cannot be read: "),
    ],
)
def test_an_invalid_recipe_gives_a_one_line_error(text, message, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_options([DataArguments, TruncatingArguments], [str(recipe), "--max_length", "9"])
