"""Test which models the demo accepts, how it rejects others, and when it runs code from a model folder."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from demo_server import served
from family import decoder_only, encoder_decoder, encoder_only
from saved_models import save
from vanilla_transformer import VanillaTransformerEncoderModel, VanillaTransformerForSequenceClassification
from vanilla_transformer.app import app
from vanilla_transformer.app.loading import EXAMPLES, DemoModel
from vanilla_transformer.cli import demo
from vanilla_transformer.cli.report import write_examples
from vanilla_transformer.tasks.task import Example


INSTALLED = VanillaTransformerEncoderModel.__module__


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(save(tmp_path / "translator", encoder_decoder, "seq2seq"))


# --- Concurrent visitors


def test_concurrent_visitors_do_not_change_each_others_tokenizer_settings(folder):
    tokenizer = DemoModel(str(folder)).tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    ways = [{"split_special_tokens": True}, {"split_special_tokens": False, "truncation": True, "max_length": 3}]

    def read(options: dict) -> list[int]:
        return tokenizer("one two.</s> three" * 20, **options)["input_ids"]

    alone = [read(options) for options in ways]
    assert len(alone[0]) > len(alone[1])
    with ThreadPoolExecutor(2) as visitors:
        together = visitors.map(lambda options: [read(options) for _ in range(300)], ways)
    for expected, found in zip(alone, together, strict=True):
        assert found == [expected] * 300


# --- Code in a model folder


def loaded_module(folder: Path, trust: bool = False) -> str:
    """Return the name of the module that defines the loaded model's class."""
    return type(DemoModel(str(folder), trust).model).__module__


def append(file: Path, line: str) -> None:
    with file.open("a") as stream:
        stream.write(f"\n{line}\n")


@pytest.mark.parametrize("file", ["modeling_vanilla_transformer.py", "generation_vanilla_transformer.py"])
def test_code_next_to_the_weights_runs_only_with_trust_remote_code(file, folder, tmp_path):
    append(folder / file, f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert loaded_module(folder) == INSTALLED and not (tmp_path / "ran").exists()
    assert loaded_module(folder, trust=True).startswith("transformers_modules.") and (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "reference", ["evil.Model", "sub/modeling_vanilla_transformer.Model", "other/repo--evil.Model"]
)
def test_code_referenced_by_the_config_does_not_run_by_default(reference, folder, tmp_path):
    (folder / "sub").mkdir()
    for name in ("evil.py", "sub/modeling_vanilla_transformer.py", "custom_generate/generate.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Model: pass\ndef generate(): pass\n")
    change_json(folder / "config.json", auto_map={"AutoConfig": reference, "AutoModelForSeq2SeqLM": reference})
    assert loaded_module(folder) == INSTALLED
    assert not (tmp_path / "ran").exists()


def test_a_tokenizers_code_runs_only_if_it_is_trusted(folder, tmp_path):
    code = f"open({str(tmp_path / 'ran')!r}, 'w')\nimport transformers\n"
    # AutoTokenizer calls `register_for_auto_class` on the class
    code += "class Mine(transformers.PreTrainedTokenizerFast):\n    pass\n"
    (folder / "tok.py").write_text(code)
    change_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "tok.Mine"]})
    loaded_module(folder)
    assert not (tmp_path / "ran").exists()
    loaded_module(folder, trust=True)
    assert (tmp_path / "ran").exists()


# --- Rejected models


def change_json(file: Path, **fields) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def change_weights(folder: Path, change) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


def cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


BROKEN = {
    "cut short": (cut_short, "the file with its weights is damaged or truncated"),
    "no weights at all": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"not these"),
        "the file with its weights is damaged or truncated",
    ),
    "a weight missing": (
        lambda folder: change_weights(folder, lambda w: w.pop("model.decoder.layers.1.feed_forward.fc1.weight")),
        "lacks weights that its config requires: model.decoder.layers.1.feed_forward.fc1.weight",
    ),
    "a weight not a number": (
        lambda folder: change_weights(
            folder, lambda w: w["model.decoder.layers.0.feed_forward.fc2.bias"].fill_(float("nan"))
        ),
        "has weights that are not finite numbers: model.decoder.layers.0.feed_forward.fc2.bias",
    ),
    "another width": (
        lambda folder: change_json(folder / "config.json", d_model=64),
        "has weights of other shapes than its config requires",
    ),
    "a negative number of heads": (lambda folder: change_json(folder / "config.json", num_heads=-3), "num_heads"),
    "a width in words": (lambda folder: change_json(folder / "config.json", d_model="big"), "d_model"),
    "settings that are no JSON": (lambda folder: (folder / "config.json").write_text("{"), "not a valid JSON file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_incomplete_model_gives_a_one_line_error(name, folder):
    spoil, message = BROKEN[name]
    spoil(folder)
    with pytest.raises(ValueError, match="translator") as caught:
        app.load_all(app.find_models([str(folder)]))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_model_without_a_task_head_is_rejected(tmp_path):
    save(tmp_path / "plain", lambda **fields: encoder_only(VanillaTransformerEncoderModel, **fields), "encoder")
    with pytest.raises(ValueError, match="VanillaTransformerEncoderModel has no head"):
        DemoModel(str(tmp_path / "plain"))


SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20}
BART = {
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "vocab_size": 20,
}
FOREIGN = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SMALL)),
    "bart": lambda: BartForConditionalGeneration(BartConfig(**BART)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_error_for_another_architecture_names_the_import_command(kind, tmp_path):
    model = FOREIGN[kind]()
    model.save_pretrained(tmp_path / kind)
    with pytest.raises(ValueError, match=f"{kind} is a model of class {type(model).__name__}; .*transformer import`"):
        DemoModel(str(tmp_path / kind))


def refused(*arguments: str) -> str:
    """Run the demo command and return its error message."""
    with pytest.raises((ValueError, OSError)) as caught:
        demo.main(list(arguments))
    return str(caught.value)


@pytest.mark.parametrize("source", ["runs/none/of/these", "nothing-here"])
def test_error_for_a_missing_folder_names_it(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = "there is no such folder. Give the folder of a trained model, or a name on the Hub, such as owner/model."
    assert refused("--model", source) == f"{source}: {told}"


def test_invalid_port_is_rejected(folder):
    assert refused("--model", str(folder), "--port", "99999") == "--port 99999 must be from 1 to 65535."


def test_error_for_a_port_in_use_names_it(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert port in refused("--model", str(folder), "--port", port)


# --- Several models


def test_one_invalid_model_does_not_prevent_loading_the_others(folder, tmp_path, capsys):
    cut_short(folder)
    other = save(tmp_path / "writer", decoder_only, "causal")
    models = app.find_models([str(folder), other, str(tmp_path / "nothing")])
    assert [model.name for model in app.load_all(models)] == ["writer"]
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Left out: ")]
    assert len(told) == 2 and "no such folder" in told[0] and "damaged" in told[1]


def test_request_for_a_damaged_model_gives_an_error_without_its_path(folder):
    cut_short(folder)
    with served(str(folder)) as client, pytest.raises(Exception, match="translator cannot be loaded"):
        client.predict("one", api_name="/translate")


DAMAGED_JSON = {
    "auto_map": ("config.json", {"auto_map": None}),
    "architectures": ("config.json", {"architectures": [5]}),
    "architectures as text": ("config.json", {"architectures": "Mine"}),
    "model type": ("config.json", {"model_type": 5}),
    "token": ("config.json", {"eos_token_id": "</s>"}),
    "labels": ("config.json", {"id2label": 5}),
    "tokenizer": ("tokenizer.json", None),
    "tokenizer settings": ("tokenizer_config.json", {"tokenizer_class": 5}),
    "pipelines": ("config.json", {"custom_pipelines": 5}),
    "special token": ("tokenizer_config.json", {"eos_token": 5}),
}


@pytest.mark.parametrize("name", DAMAGED_JSON)
def test_a_model_with_malformed_json_is_skipped_with_one_line(name, folder, tmp_path, capsys):
    file, fields = DAMAGED_JSON[name]
    (folder / file).write_text("{}") if fields is None else change_json(folder / file, **fields)
    other = save(tmp_path / "writer", decoder_only, "causal")
    (loaded,) = app.load_all(app.find_models([str(folder), other]))
    assert loaded.name == "writer"
    (told,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("Left out: "))
    assert str(folder) in told and Path(file).stem.split("_")[0] in told


def test_models_of_the_same_task_get_distinct_names(tmp_path):
    def classifier(**fields):
        return encoder_only(VanillaTransformerForSequenceClassification, **fields)

    models = [save(tmp_path / name, decoder_only, "causal") for name in ("young", "old", "again/old")]
    models += [
        save(tmp_path / "language", classifier, "encoder", num_labels=3),
        save(tmp_path / "duration", classifier, "encoder", num_labels=1, problem_type="regression"),
    ]
    with served(*models) as client:
        found = [(each["name"], each["task"]) for each in client.predict(api_name="/models")["models"]]
        endpoints = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert found == [("young", "generate"), ("old", "generate"), ("old (2)", "generate"), ("language", "classify"),
                     ("duration", "classify")]  # fmt: skip
    assert {"/generate", "/classify", "/regress"} <= set(endpoints)


def test_loaded_weights_equal_the_saved_ones(folder):
    saved = load_file(folder / "model.safetensors")
    held = DemoModel(str(folder)).model.state_dict()
    assert all(torch.equal(held[name], weight) for name, weight in saved.items())


# --- Examples


@pytest.mark.parametrize("name", ["en-es", "language-model", "masked-lm", "tagger"])
def test_page_shows_the_examples_of_the_model_card(name):
    shipped = Path(__file__).parents[2] / "checkpoints" / name
    texts = [widget["text"].replace("<mask>", "___") for widget in ModelCard.load(shipped / "README.md").data.widget]
    with served(str(shipped)) as client:
        page = httpx.get(client.src).text
    assert [example["text"] for example in DemoModel(str(shipped)).examples] == texts
    assert all(text in page for text in texts)


def test_page_shows_the_examples_of_a_training_run(tmp_path):
    folder = save(tmp_path / "translator", encoder_decoder, "seq2seq")
    inputs = ["play jazz", "play | pause", "jazz, please", "rain?" + " and snow?" * 20]
    targets = ["toca jazz", "toca | para", "toca jazz", "¿lluvia?"]
    rows = [Example(text, target, target, 1.0) for text, target in zip(inputs, targets, strict=True)]
    write_examples(Path(folder, "examples.md"), [*rows, *rows, *rows])
    examples = [example["text"] for example in DemoModel(folder).examples]
    assert examples == ["play jazz", "play | pause", "rain?" + " and snow?" * 9 + " and"]


@pytest.mark.parametrize("card", [None, "no metadata", "---\nwidget: [a\n---\n", "---\nwidget:\n- src: a.png\n---\n"])
def test_default_examples_are_used_if_the_model_card_has_none(card, tmp_path):
    folder = Path(save(tmp_path / "writer", decoder_only, "causal"))
    (folder / "README.md").unlink(missing_ok=True)
    if card is not None:
        (folder / "README.md").write_text(card)
    assert [example["text"] for example in DemoModel(str(folder)).examples] == EXAMPLES["generate"]
