"""Saved models: damaged files give precise errors, and code in a model folder runs only with permission."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, BertConfig, BertForMaskedLM

from family import decoder_only, encoder_decoder
from fresh_process import run_python
from saved_models import with_tokenizer, write
from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli import evaluate, export, generate, translate, walk
from vanilla_transformer.files import check_source, shipped_models
from vanilla_transformer.loading import (
    load_model,
    load_tokenizer,
    match_tokenizer,
    model_class,
    vocabulary_hash,
)


FC1 = "model.encoder.layers.0.feed_forward.fc1.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "translator"
    write(folder, *with_tokenizer(texts=["three miles", "tres millas"] * 3, vocab_size=280))
    return folder


@pytest.fixture
def translator(saved, tmp_path) -> Path:
    """Return a copy of the saved model for a test to damage."""
    return shutil.copytree(saved, tmp_path / "translator")


def change_weights(folder: Path, **weights: torch.Tensor | None) -> None:
    """Replace saved weights by name; None deletes a weight."""
    changed = load_file(folder / "model.safetensors") | weights
    kept = {name: weight for name, weight in changed.items() if weight is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder: Path, **fields) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | fields), encoding="utf-8")


def cut(folder: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])


DAMAGES = {
    "missing": (lambda folder: change_weights(folder, **{FC1: None}), f"lacks weights.*{FC1}"),
    "one more layer": (
        lambda folder: change_config(folder, encoder_layers=3),
        r"lacks.*layers\.2.*and 7 more",
    ),
    "untied": (lambda folder: change_config(folder, tie_word_embeddings=False), r"lacks weights.*lm_head\.weight"),
    "unexpected": (lambda folder: change_weights(folder, pooler=torch.ones(2)), "its config does not have: pooler"),
    "one layer less": (lambda folder: change_config(folder, decoder_layers=1), r"does not have: .*layers\.1"),
    "shape": (lambda folder: change_weights(folder, **{FC1: torch.ones(3, 3)}), rf"{FC1} is \(3, 3\), not \(64, 32\)"),
    "nan": (lambda folder: change_weights(folder, **{FC1: torch.full((64, 32), torch.nan)}), f"not finite.*{FC1}"),
    "inf": (lambda folder: change_weights(folder, **{FC1: torch.full((64, 32), torch.inf)}), f"not finite.*{FC1}"),
    "cut short": (cut, "the file with its weights is damaged or truncated"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no file named model.safetensors"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "holds no model: it has no config.json"),
    "config cut short": (lambda folder: (folder / "config.json").write_text("{"), "not a valid JSON file"),
    "impossible config": (lambda folder: change_config(folder, num_heads=-3), "num_heads=-3 must be greater than 0"),
    "other class": (
        lambda folder: change_config(folder, architectures=["Other"]),
        "class Other; give one .* `vanilla-transformer import`",
    ),
    "no class": (lambda folder: change_config(folder, architectures=None), "class none; give one of this project"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_error_for_a_damaged_model_describes_the_damage(name, translator, capfd):
    damage, message = DAMAGES[name]
    damage(translator)
    with pytest.raises((ValueError, OSError), match=message) as caught:
        load_model(translator)
    assert str(translator) in str(caught.value)
    assert "LOAD REPORT" not in capfd.readouterr().err  # transformers does not print its own report as well


@pytest.mark.parametrize("make", [encoder_decoder, decoder_only])
def test_a_complete_model_folder_loads_with_its_weights(make, tmp_path):
    torch.manual_seed(0)
    model = make()
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, attn_implementation="eager")
    assert type(loaded) is type(model) and not loaded.training and loaded.config._attn_implementation == "eager"
    assert all(torch.equal(weight, loaded.state_dict()[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize(
    "source", ["{folder}/nothing", "nothing", "runs/some/where", "{folder}/translator/config.json"]
)
def test_a_missing_folder_is_rejected_without_a_request_to_the_hub(source, translator):
    source = source.format(folder=translator.parent)
    with pytest.raises(
        FileNotFoundError, match=f"^{source}: there is no such folder. Give the folder of a trained model"
    ):
        load_model(source)


def test_a_possible_hub_name_is_accepted():
    check_source("user/name")
    check_source("gpt2", short_names=True)


def test_error_for_a_model_of_the_wrong_task_names_both_classes(translator, tmp_path):
    wrong = "is a model of class VanillaTransformerForConditionalGeneration; give a VanillaTransformerForCausalLM."
    with pytest.raises(ValueError, match=f"{wrong}$"):
        generate.main(["--model", str(translator)])
    decoder_only().save_pretrained(tmp_path / "lm")
    with pytest.raises(ValueError, match=r"ForCausalLM; give a \w+ForConditionalGeneration\.$"):
        translate.main(["--model", str(tmp_path / "lm")])


def test_error_for_a_transformers_model_names_the_import_command(tmp_path):
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertForMaskedLM(BertConfig(**sizes, intermediate_size=8)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"BertForMaskedLM.*`vanilla-transformer import`"):
        load_model(tmp_path)


COMMANDS = {
    "evaluate": lambda folder, out: evaluate.main(["--model", str(folder), "--phrases", "1000", "--scores", str(out)]),
    "translate": lambda folder, out: translate.main(["--model", str(folder), "--output", str(out)]),
    "export": lambda folder, out: export.main(["--source", str(folder), "--output", str(out), "--to", "onnx"]),
    "walk": lambda folder, out: walk.main(["--model", str(folder), "--text", "three", "--html", str(out)]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_rejects_missing_weights(command, translator, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"three miles\n")))
    change_weights(translator, **{FC1: None})
    with pytest.raises(ValueError, match=FC1):
        COMMANDS[command](translator, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- Tokenizers that match their models


def test_a_tokenizer_from_another_model_gives_a_warning(translator, tmp_path, caplog):
    model, tokenizer = load_model(translator), load_tokenizer(translator)
    match_tokenizer(model, tokenizer)
    write(tmp_path / "matched", model, tokenizer)
    load_tokenizer(tmp_path / "matched")
    assert caplog.text == ""
    _, other = with_tokenizer(texts=["drei Meilen", "trois milles"] * 3, vocab_size=len(tokenizer))
    assert len(other) <= len(tokenizer)
    other.save_pretrained(tmp_path / "matched")
    translate.main(["--model", str(tmp_path / "matched"), "three miles"])
    (warning,) = {record.getMessage() for record in caplog.records}
    assert warning.startswith(f"{tmp_path / 'matched'} was not trained with this tokenizer")


@pytest.mark.parametrize("folder", shipped_models())
def test_shipped_tokenizers_match_the_vocabulary_and_length_of_their_models(folder):
    config, tokenizer = AutoConfig.from_pretrained(folder), load_tokenizer(folder)
    assert config.tokenizer_hash == vocabulary_hash(tokenizer)
    assert tokenizer.model_max_length == config.max_position_embeddings
    assert len(tokenizer("miles " * 5000, truncation=True)["input_ids"]) == config.max_position_embeddings


# --- Code in a model folder


def plant(folder: Path) -> None:
    """Instrument every file that transformers may run, so that running it is recorded."""
    code = f'open({str(folder.parent / "ran")!r}, "a").write(__file__ + "\\n")\n'
    for path in folder.glob("*_vanilla_transformer.py"):
        path.write_text(code + path.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate/generate.py").write_text(
        code + "import torch\ndef generate(model, **options): return torch.tensor([[5, 6]])\n"
    )
    (folder / "tok.py").write_text(
        code + "import transformers\nclass Tok(transformers.PreTrainedTokenizerFast):\n    pass\n"
    )
    settings = folder / "tokenizer_config.json"
    told = json.loads(settings.read_text(encoding="utf-8")) | {"auto_map": {"AutoTokenizer": [None, "tok.Tok"]}}
    settings.write_text(json.dumps(told), encoding="utf-8")


def run_translate(folder: Path, *options: str) -> subprocess.CompletedProcess:
    """Run the command `translate` in a new process, where prompts cannot be answered."""
    return run_python(
        ["-m", "vanilla_transformer", "translate", "--model", folder, *options],
        cwd=folder.parent,
        env={"PATH": "", "HF_HOME": str(folder.parent / "home"), "HF_HUB_OFFLINE": "1"},
        input="three miles\n",
    )


def test_translate_runs_code_in_a_model_folder_only_with_trust_remote_code(translator):
    plant(translator)
    ran = translator.parent / "ran"
    plain = run_translate(translator)
    assert (plain.returncode, plain.stdout.count("\n")) == (0, 1), plain.stderr
    assert not ran.exists()
    trusting = run_translate(translator, "--trust_remote_code")
    assert trusting.returncode == 0, trusting.stderr
    assert all(name in ran.read_text() for name in ("modeling_vanilla_transformer.py", "generate.py", "tok.py"))


def test_an_unknown_model_type_runs_no_code_and_does_not_prompt(translator):
    plant(translator)
    change_config(translator, model_type="something_else")
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_model(translator)
    assert not (translator.parent / "ran").exists()


def test_trust_remote_code_loads_the_class_next_to_the_weights(translator):
    assert model_class(translator) is VanillaTransformerForConditionalGeneration
    beside = model_class(translator, trust_remote_code=True)
    assert beside.__module__.startswith("transformers_modules.") and beside is not model_class(translator)
    ids = torch.tensor([[5, 6, 7]])
    expected = load_model(translator)(ids, decoder_input_ids=ids).logits
    found = load_model(translator, trust_remote_code=True)(ids, decoder_input_ids=ids).logits
    torch.testing.assert_close(found, expected)
