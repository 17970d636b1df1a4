"""Test the shipped models: their files, that each model loads and works, and how they are trained."""

import json
import re
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors import safe_open
from transformers import AutoTokenizer, pipeline

import make_checkpoints
from shipping import commands, data
from shipping.package import answers
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


def tags(text: str) -> dict[str, str]:
    tag = pipeline("token-classification", **loaded("tagger"), aggregation_strategy="first")
    return {found["word"].strip(" ."): found["entity_group"] for found in tag(text)}


def intent(text: str) -> str:
    return pipeline("text-classification", **loaded("intents"))(text)[0]["label"]


def found_in(context: str, question: str) -> str:
    return QuestionAnsweringPipeline(**loaded("reader"))(question=question, context=context)["answer"]


FLIGHT = (
    "The flight to Spain leaves on May 3, 2031 at 9:40 AM and costs 120 euros. "
    "The letter in French was sent on June 5, 2019. The tank holds 40 liters at 12°C."
)
WITHOUT_ENTITIES = (
    "The man who lives next door is a teacher.",
    "Barack Obama was born in a small house.",
    "The bird flew over the house.",
    "She opened the window and looked at the garden.",
    "My brother lost his keys yesterday.",
    "Why are you so tired?",
    "Dogs like to chase cats.",
    "He put the book on the table.",
    "I think you are right.",
    "The children are asleep.",
)
# checkpoint -> function that answers, and texts with all answers that are right
ANSWERS = {
    "en-es": (
        lambda text: translation("en-es", text),
        {
            "I like to travel.": {"Me gusta viajar."},
            "I really like to travel": {"Me gusta mucho viajar", "Realmente me gusta viajar"},
            "Hello!": {"¡Hola!"},
            "Good morning!": {"¡Buenos días!"},
            "We should go": {"Deberíamos ir", "Deberíamos irnos"},
            "The man eats a cheese.": {"El hombre come un queso.", "El hombre se come un queso."},
            "The cheese eats a man.": {"El queso come a un hombre.", "El queso se come a un hombre."},
            "The sun rises in the east.": {"El sol sale por el este.", "El sol sale en el este."},
            "Orange is my favorite fruit.": {"La naranja es mi fruta favorita."},
            "The bank approved the loan because it had sufficient funds.": {
                "El banco aprobó el préstamo porque tenía fondos suficientes.",
                "El banco aprobó el préstamo porque tenía suficientes fondos.",
            },
            "Wednesday, July 4, 2029": {"miércoles, 4 de julio de 2029"},
        },
    ),
    "language-id": (
        language,
        {
            "Das Wetter ist heute schön.": {"de"},
            "Ich gehe heute ins Kino.": {"de"},
            "Guten Morgen": {"de"},
            "Bonjour, comment allez-vous ?": {"fr"},
            "Je t'aime": {"fr"},
            "Hello": {"en"},
            "I like to travel.": {"en"},
            "Me gusta viajar.": {"es"},
            "Mittwoch, 4. Juli 2029": {"de"},
            "12 кілометрів і 3 милі": {"uk"},
        },
    ),
    "intents": (
        intent,
        {
            "Play some jazz by Miles Davis": {"PlayMusic"},
            "Will it rain in Paris tomorrow?": {"GetWeather"},
            "Book a table for two at an Italian restaurant": {"BookRestaurant"},
            "Add this song to my workout playlist": {"AddToPlaylist"},
            "Give this novel five stars": {"RateBook"},
        },
    ),
    "tagger": (
        lambda text: " ".join(f"{word}={tag}" for word, tag in tags(text).items()),
        {
            "The letter in French was sent on June 5, 2019.": {"French=LANGUAGE June 5, 2019=DATE"},
            "Book a table for two in Boston": {"two=PARTY_SIZE_NUMBER Boston=CITY"},
            "What will the weather be like in Berlin tomorrow?": {"Berlin=CITY tomorrow?=TIME_RANGE"},
        }
        | {text: {""} for text in WITHOUT_ENTITIES},
    ),
    "reader": (
        lambda question: found_in(FLIGHT, question),
        {
            "How much does the flight cost?": {"120 euros"},
            "How much is the flight?": {"120 euros"},
            "When was the letter sent?": {"June 5, 2019"},
            "How warm is the tank?": {"12°C"},
            "Where does the flight go?": {"Spain"},
            "When does the flight leave?": {"May 3, 2031"},
            "At what time does the flight leave?": {"9:40 AM"},
            "In which language is the letter?": {"French"},
            "How much does the tank hold?": {"40 liters"},
            "How heavy is the parcel?": {""},
        },
    ),
    "masked-lm": (
        lambda text: (
            "to" in {found["token_str"].strip() for found in pipeline("fill-mask", **loaded("masked-lm"))(text)}
        ),
        {"I want<mask> go home.": {True}},
    ),
    "language-model": (
        lambda text: bool(
            re.fullmatch(
                r"What time is .+\?",
                pipeline("text-generation", **loaded("language-model"))(text, do_sample=False, max_new_tokens=20)[0][
                    "generated_text"
                ],
            )
        ),
        {"What time is": {True}},
    ),
}


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
def test_a_checkpoint_is_right_about_what_people_type_first(name):
    assert next(loaded(name)["model"].parameters()).dtype == torch.float32
    answer, expected = ANSWERS[name]
    found = {text: answer(text) for text in expected}
    assert {text: got for text, got in found.items() if got not in expected[text]} == {}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_card_shows_the_answers_that_the_model_gives(name):
    card = ModelCard.load(ROOT / "checkpoints" / name / "README.md")
    table = card.text.partition("## Examples\n")[2].partition("\n## ")[0].strip().splitlines()[2:]
    shown = [line.removeprefix("| ").removesuffix(" |").split(" | ")[1] for line in table]
    facts = card.data.to_dict()
    assert shown == list(answers(facts["pipeline_tag"], **loaded(name), inputs=facts["widget"]))
    assert facts["knows"]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_card_states_scores_data_licence_and_the_recipe(name):
    card = ModelCard.load(ROOT / "checkpoints" / name / "README.md")
    recipe = (ROOT / "recipes" / "checkpoints" / f"{name}.yaml").read_text(encoding="utf-8").strip()
    assert recipe in card.text
    facts = card.data.to_dict()
    assert {"language", "license", "library_name", "pipeline_tag", "widget", "model-index"} <= facts.keys()
    assert card.data.eval_results and "tests" not in facts
    learned_from_tatoeba = name not in ("intents", "reader")
    assert ("www.manythings.org/anki and tatoeba.org" in card.text) == learned_from_tatoeba
    assert (facts["license"] == "cc-by-2.0") == learned_from_tatoeba
    assert all(f"## {part}" in card.text for part in ("Use", "Examples", "Scores", "Training", "Licence"))


# --- How the shipped models are trained


@pytest.mark.parametrize("name", ANSWERS)
def test_a_recipe_has_valid_options_and_names_its_own_data(name, tmp_path):
    recipe = ROOT / "recipes" / "checkpoints" / f"{name}.yaml"
    options = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    arguments = [str(recipe), "--output_dir", str(tmp_path), "--use_cpu", "true"]
    if "model_name_or_path" in options:
        before = yaml.safe_load((recipe.parent / "pretraining" / recipe.name).read_text(encoding="utf-8"))
        assert options["model_name_or_path"] == before["output_dir"]
        arguments += ["--model_name_or_path", str(ROOT / "checkpoints" / name)]
    _, given, _, task = parse(find_task(options["task"]), arguments)
    assert given.files.keys() == {"train", "validation", "test"}
    assert {Path(file).parent for files in given.files.values() for file in files} == {Path(f"runs/data/{name}")}
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
    with pytest.raises(ValueError, match="--names taggr: choose from intents, tagger"):
        make(["taggr"])


def test_a_recipe_may_begin_from_the_model_of_a_pretraining_recipe(workplace, capsys):
    recipe = workplace / "recipes" / "tagger.yaml"
    options = yaml.safe_load(recipe.read_text())
    before = workplace / "recipes" / "pretraining" / "tagger.yaml"
    before.parent.mkdir()
    before.write_text(yaml.safe_dump(options | {"output_dir": "pretrained", "d_ff": 48}))
    of_a_new_model = ("d_model", "d_ff", "num_heads", "num_layers", "vocab_size")
    rest = {name: value for name, value in options.items() if name not in of_a_new_model}
    recipe.write_text(yaml.safe_dump(rest | {"model_name_or_path": "pretrained"}))
    make()
    assert re.findall(r"Training tagger by (\S+) in (\S+)\.", capsys.readouterr().out) == [
        ("recipes/pretraining/tagger.yaml", "pretrained"),
        ("recipes/tagger.yaml", "run"),
    ]
    assert json.loads((workplace / "checkpoints/tagger/config.json").read_text())["d_ff"] == 48
    card = (workplace / "checkpoints/tagger/README.md").read_text()
    assert card.index("output_dir: pretrained") < card.index("output_dir: run")


def test_training_and_test_data_share_no_text():
    splits = data.translator("hi", "en", phrases=1000, bare=100, lower=50)
    trained = {text.casefold() for row in splits["train"] for text in row.values()}
    held_out = [*splits["validation"], *splits["test"], *splits["test_phrasebook"]]
    assert not [row for row in held_out if trained & {text.casefold() for text in row.values()}]
    assert len(held_out) == 150 + 150 + 1000
    assert splits == data.translator("hi", "en", phrases=1000, bare=100, lower=50)


def test_the_translator_is_asked_other_sentences_than_those_written_for_its_training():
    written = {row["source"].strip(".!").casefold() for row in data.first_pairs(1)}
    asked = {text.strip(".!").casefold() for text in ANSWERS["en-es"][1]}
    assert asked & written == {"hello", "good morning"}


def test_commands_with_other_values_keep_their_tags():
    rows = [
        {
            "tokens": ["Play", "some", f"song{i}", *["live"] * (i % 2)],
            "tags": ["O", "B-SORT", "B-TRACK", *["I-TRACK"] * (i % 2)],
        }
        for i in range(150)
    ]
    split = [commands.slots(row) for row in rows]
    assert [commands.tagged(command) for command in split] == rows
    varied = list(commands.with_other_values(split, 2, Random(0)))
    assert len(varied) == 2 * len(rows) and all(row in rows for row in varied)  # each value keeps its own tags
    changed = sum(new != old for new, old in zip(varied, [row for row in rows for _ in range(2)], strict=True))
    assert 0.5 < changed / len(varied) < 0.7


def test_questions_are_answered_in_their_text_or_not_at_all():
    splits = data.PREPARED["reader"].func(phrases=1000)
    rows = splits["test"] + splits["test_unseen"]
    for row in rows:
        for text, start in zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True):
            assert row["context"][start : start + len(text)] == text
    trained = {row["question"] for row in splits["train"]}
    assert not trained & {row["question"] for row in splits["test_unseen"]}
    assert 0.05 < sum(not row["answers"]["text"] for row in rows) / len(rows) < 0.3


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
