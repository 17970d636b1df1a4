"""Test uploads and downloads with the real client and commands, over HTTP, against a small local Hub."""

import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoTokenizer
from transformers.trainer_callback import TrainerState

from family import decoder_only, encoder_decoder, encoder_only
from fresh_process import MODULES, ROOT, run_fresh, run_python
from hub_server import TOKEN, HubServer, Repo
from saved_models import save, with_tokenizer, write
from vanilla_transformer import (
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer.cli.errors import run_command
from vanilla_transformer.cli.model_card import CardFacts, write_model_card
from vanilla_transformer.cli.push import collect, main
from vanilla_transformer.datastore import build_datastore
from vanilla_transformer.decoding import translate
from vanilla_transformer.loading import HUB_NAME, load_model
from vanilla_transformer.tasks.translation import TranslationTask


IDS = list(range(3, 12))
MODEL_FILES = {
    "README.md",
    "config.json",
    "configuration_vanilla_transformer.py",
    "generation_config.json",
    "generation_vanilla_transformer.py",
    "model.safetensors",
    "modeling_vanilla_transformer.py",
    "pipeline_vanilla_transformer.py",
    "tokenizer.json",
    "tokenizer_config.json",
    "curves.png",
}

OTHERS = (
    ".env", "credentials.json", "model_notes.safetensors", "notes.py", "optimizer.pt", "rng_state.pth", "scheduler.pt",
    "secret.png", "tokenizer_secret.json", "trainer_state.json", "training_args.bin",
)  # fmt: skip


@pytest.fixture
def hub():
    with HubServer() as server:
        yield server


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Create a folder like the output of a training run: a complete model, and private files."""
    folder = tmp_path_factory.mktemp("hub") / "run"
    model, tokenizer = with_tokenizer(texts=["one two three, one two three"], vocab_size=270)
    write(folder, model, tokenizer)
    task = TranslationTask(TranslationTask.arguments_class(output_dir=str(folder), use_cpu=True))
    state = TrainerState(log_history=[{"step": 1, "loss": 5.0}])
    facts = CardFacts("phrasebook", {"test": {"bleu": 12.5}}, languages=["en", "es"])
    write_model_card(folder, model, task, state, facts)
    (folder / "checkpoint-5").mkdir()
    for name in (*OTHERS, "checkpoint-5/model.safetensors"):
        (folder / name).write_bytes(b"private")
    return folder


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def push(hub: HubServer, *arguments, token: str | None = TOKEN) -> subprocess.CompletedProcess:
    """Run `push` in its own process, against the local Hub."""
    environment = hub.environment(Path(arguments[0]).parent / "home", token)
    command = ["-m", "vanilla_transformer", "push", *arguments]
    return run_python(command, cwd=ROOT, env={"PATH": os.environ["PATH"]} | environment)


@pytest.fixture
def refused(monkeypatch, capsys):
    """Return a function that runs a failing `push --dry_run` in this process and returns its one line on stderr."""

    def run(*arguments) -> str:
        monkeypatch.setattr(sys, "argv", ["push", *map(str, arguments), "--dry_run"])
        capsys.readouterr()  # discard earlier output of the test
        with pytest.raises(SystemExit) as stop:
            run_command(main)
        printed = capsys.readouterr()
        assert (stop.value.code, printed.out) == (2, "")
        (line,) = printed.err.splitlines()
        return line

    return run


def model_files(folder: Path) -> set[str]:
    """Return the names of the files in a model folder that should be uploaded."""
    return set(collect(Namespace(folder=folder, repo=False, space=False, models=[])))


def logits_of(folder: Path) -> list[float]:
    model = VanillaTransformerForConditionalGeneration.from_pretrained(folder).eval()
    with torch.inference_mode():
        return model(torch.tensor([IDS]), decoder_input_ids=torch.tensor([IDS])).logits[0, -1].tolist()


DOWNLOAD = """
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
ids, revisions = arguments
results = {"tokens": AutoTokenizer.from_pretrained("user/name", trust_remote_code=True)("one two")["input_ids"]}
for revision in revisions:
    model = AutoModelForSeq2SeqLM.from_pretrained("user/name", revision=revision, trust_remote_code=True).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([ids]), decoder_input_ids=torch.tensor([ids])).logits[0, -1]
    results[revision] = [type(model).__module__.split(".")[0], logits.tolist()]
translate = pipeline("translation", model="user/name", trust_remote_code=True)
results["translation"] = translate("one two", max_new_tokens=4)
print(json.dumps(results))
"""


def test_a_model_or_pinned_revision_can_be_downloaded_in_another_process(hub, folder, tmp_path):
    old = logits_of(folder)
    assert push(hub, folder, "user/name", "--commit_message", "The first").returncode == 0
    repo = hub.repos["models", "user/name"]
    assert set(repo.files("main")) == MODEL_FILES
    assert repo.lfs_paths == {"model.safetensors", "curves.png"} and not repo.private
    first = repo.resolve("main")

    (folder / "model.safetensors").unlink()
    torch.manual_seed(7)
    encoder_decoder(vocab_size=len(old)).save_pretrained(folder, max_shard_size="50KB")
    second = push(hub, folder, "user/name")
    assert second.returncode == 0 and second.stdout.splitlines()[-1].endswith(f"/commit/{repo.resolve('main')}")
    new = logits_of(folder)
    assert new != pytest.approx(old, rel=0.01)

    found = run_fresh(DOWNLOAD, tmp_path, IDS, ["main", first], **hub.environment(tmp_path / "cache", token=None))
    assert found["main"] == ["transformers_modules", pytest.approx(new, rel=1e-5, abs=1e-6)]
    assert found[first] == ["transformers_modules", pytest.approx(old, rel=1e-5, abs=1e-6)]
    assert found["tokens"] and "translation_text" in found["translation"][0]


def test_an_upload_replaces_the_previous_model_and_keeps_other_files(hub, folder):
    """Old weight files or generation settings must go, or `from_pretrained` would load them with the new model."""
    model = VanillaTransformerForConditionalGeneration.from_pretrained(folder)
    own = {"picture.png": b"", "docs/model.safetensors": b"", "notes.md": b""}
    hub.repos["models", "user/name"] = repo = Repo(private=False, sdk=None)
    repo.commit("main", own)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="50KB")
    assert push(hub, folder, "user/name").returncode == 0
    assert set(repo.files("main")) == model_files(folder) | own.keys()

    for name in ("generation_config.json", "model.safetensors.index.json"):
        (folder / name).unlink()
    VanillaTransformerForConditionalGeneration(model.config).model.save_pretrained(folder)
    result = push(hub, folder, "user/name")
    assert "Weights and settings on the Hub that this model does not have will be deleted" in result.stdout
    assert set(repo.files("main")) == MODEL_FILES - {"generation_config.json"} | own.keys()


def test_a_datastore_is_uploaded_only_on_request_and_works_after_download(hub, folder, tmp_path):
    model, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(["one two"], text_target=["three, one two"], return_tensors="pt")
    store = build_datastore(model, [batch], share=1.0)
    store.save(folder)
    assert push(hub, folder, "user/name").returncode == 0
    repo = hub.repos["models", "user/name"]
    assert set(repo.files("main")) == MODEL_FILES

    hf = "from huggingface_hub.cli.hf import main; main()"
    send = ["-c", hf, "upload", "user/name", folder / "datastore", "datastore"]
    sent = run_python(send, env=os.environ | hub.environment(tmp_path / "home", TOKEN))
    assert sent.returncode == 0, sent.stderr
    assert set(repo.files("main")) - MODEL_FILES == {"datastore/index.faiss", "datastore/settings.json"}
    translated = run_python(
        ["-m", "vanilla_transformer", "translate", "one two", "--model", "user/name", "--datastore"],
        env=os.environ | hub.environment(tmp_path / "elsewhere", token=None),
    )
    assert translated.stdout == "three, one two\n", translated.stderr


def test_a_dry_run_lists_the_files_and_uploads_nothing(hub, folder):
    result = push(hub, folder, "user/name", "--dry_run", token=None)
    assert result.returncode == 0 and not hub.repos
    listed = {line.split()[1]: line.split()[0] for line in result.stdout.splitlines() if line.startswith("   ")}
    assert set(listed) - {"bytes"} == MODEL_FILES
    assert listed["model.safetensors"] == f"{(folder / 'model.safetensors').stat().st_size:,}"
    assert f"left out: {', '.join(sorted([*OTHERS, 'checkpoint-5']))}\n" in result.stdout


def test_a_tokenizer_without_tokenizer_json_is_uploaded_completely(folder):
    """FSMT, BERT and SentencePiece tokenizers have vocabulary files instead of tokenizer.json."""
    kept = {"vocab-src.json", "vocab-tgt.json", "merges.txt", "vocab.txt", "vocab.json", "source.spm", "spiece.model"}
    for name in kept:
        (folder / name).write_text("tokens")
    assert model_files(folder) == MODEL_FILES | kept


def test_custom_tokenizer_code_is_uploaded(folder):
    (folder / "tok.py").write_text("from .letters import LETTERS\n")
    (folder / "letters.py").write_text("LETTERS = 26\n")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["tok.Slow", None]}  # transformers saves [slow class, fast class]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert model_files(folder) == MODEL_FILES | {"tok.py", "letters.py"}


def test_a_private_model_can_be_downloaded_only_with_a_token(hub, folder, tmp_path):
    assert push(hub, folder, "user/secret", "--private").returncode == 0
    assert hub.repos["models", "user/secret"].private
    download = """
from huggingface_hub import hf_hub_download
try:
    print(json.dumps(open(hf_hub_download("user/secret", "README.md")).read()[:4]))
except Exception as error:
    print(json.dumps(type(error).__name__))
"""
    assert run_fresh(download, tmp_path, **hub.environment(tmp_path / "a")) == "---\n"
    assert run_fresh(download, tmp_path, **hub.environment(tmp_path / "b", token=None)) == "RepositoryNotFoundError"


def test_a_private_upload_to_a_public_repository_is_rejected(hub, folder):
    assert push(hub, folder, "user/name").returncode == 0
    before = hub.repos["models", "user/name"].resolve("main")
    result = push(hub, folder, "user/name", "--private")
    assert result.returncode == 2 and "user/name exists already and is public" in result.stderr
    assert hub.repos["models", "user/name"].resolve("main") == before


def test_uploading_to_a_branch_does_not_change_main(hub, folder):
    assert push(hub, folder, "user/name", "--revision", "experiment").returncode == 0
    repo = hub.repos["models", "user/name"]
    assert set(repo.files("experiment")) == MODEL_FILES and not repo.files("main")


def test_the_error_for_a_missing_token_says_what_to_do(hub, folder):
    result = push(hub, folder, "user/name", token=None)
    assert result.returncode == 2 and not hub.repos
    assert "There is no Hub token: run `hf auth login`, or set HF_TOKEN" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wrong_token_is_reported_without_a_traceback(hub, folder):
    result = push(hub, folder, "user/name", token="hf_wrong")
    assert result.returncode == 2 and not hub.repos
    assert "401" in result.stderr and "Traceback" not in result.stderr


def test_an_unreachable_hub_gives_a_one_line_error(folder):
    with HubServer() as gone:
        pass
    result = push(gone, folder, "user/name")
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("vanilla-transformer push: error: ")
    assert "Connection refused" in result.stderr.splitlines()[-1]


def test_even_a_dry_run_rejects_an_invalid_repository_name(folder, refused):
    assert "Repo id must use alphanumeric chars" in refused(folder, "user/my model")


def change(folder: Path, name: str, text: str | None) -> None:
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("README.md", None, "has no README.md"),
        ("README.md", "# A model\n", "has no metadata"),
        ("README.md", "---\nlicense: [\n---\n", "README.md cannot be loaded (ParserError)"),
        ("config.json", None, "has no config.json"),
        ("config.json", "[]", "config.json holds []; it must be an object"),
        ("config.json", "{", "config.json is not a valid JSON file"),
        ("config.json", '{"auto_map": [1]}', "config.json: auto_map is [1]; it must be an object"),
        ("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": ["tok.Slow", null]}}', "No such file or directory"),
        ("model.safetensors", None, "lacks model.safetensors: save"),
        ("modeling_vanilla_transformer.py", None, "No such file or directory"),
        ("pipeline_vanilla_transformer.py", None, "No such file or directory"),
    ],
)  # fmt: skip
def test_an_incomplete_model_is_not_uploaded(name, text, message, folder, refused):
    change(folder, name, text)
    assert message in refused(folder, "user/name")


def test_an_invalid_card_or_model_prevents_the_upload(hub, folder):
    change(folder, "README.md", "---\nlicense: 7\n---\n# A model\n")
    result = push(hub, folder, "user/name")
    assert result.returncode == 2 and not hub.repos
    assert "license must be a string" in result.stderr and "Traceback" not in result.stderr
    change(folder, "config.json", None)
    result = push(hub, folder, "user/name")
    assert result.returncode == 2 and not hub.repos and "has no config.json" in result.stderr


def test_a_model_with_a_missing_shard_is_rejected(folder, refused):
    (folder / "model.safetensors").unlink()
    encoder_decoder().save_pretrained(folder, max_shard_size="20KB")
    gone = sorted(folder.glob("model-*"))[1]
    gone.unlink()
    assert f"{folder} lacks {gone.name}: save the model again" in refused(folder, "user/name")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ('{"weight_map": ["a"]}', 'weight_map is ["a"]; it must be an object'),
        ('{"weight_map": {"lm_head.weight": [1]}}', "weight_map must name the file of each weight"),
    ],
)
def test_a_model_with_a_damaged_shard_index_is_rejected(index, message, folder, refused):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    line = refused(folder, "user/name")
    assert "model.safetensors.index.json" in line and message in line


def test_a_symbolic_link_that_leaves_the_folder_is_rejected(folder, tmp_path, refused):
    secret = tmp_path / "secret.txt"
    secret.write_text("not yours")
    (folder / "curves.png").unlink()
    (folder / "curves.png").symlink_to(secret)
    assert f"is a link to {secret}, outside" in refused(folder, "user/name")


# --- Uploading this repository: the code at its root is shared by all models in checkpoints/


ROOT_MODULES = {path.name for path in ROOT.glob("*.py")}
# name -> (function that builds the model, tokenizer template, task, pipeline options and input)
SHIPPED = {
    "en-es": (encoder_decoder, "seq2seq", "translation", {"max_new_tokens": 4}, "one two"),
    "language-model": (decoder_only, "causal", "text-generation", {"max_new_tokens": 4, "do_sample": False}, "one"),
    "masked-lm": (VanillaTransformerForMaskedLM, "encoder", "fill-mask", {}, "one <mask> three"),
    "language-id": (VanillaTransformerForSequenceClassification, "encoder", "text-classification", {}, "one two"),
    "tagger": (VanillaTransformerForTokenClassification, "encoder", "token-classification", {}, "one two"),
    "reader": (VanillaTransformerForQuestionAnswering, "encoder", "question-answering", {},
               {"question": "one?", "context": "two three"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole_clone(tmp_path_factory) -> Path:
    """Create a clone with tiny checkpoints and with private files that developers may have."""
    clone = tmp_path_factory.mktemp("work") / "clone"
    for name, (make, template, *_) in SHIPPED.items():
        folder = clone / "checkpoints" / name
        if isinstance(make, type):
            save(folder, lambda make=make, **fields: encoder_only(make, **fields), template)
        else:
            save(folder, make, template)
        for code in folder.glob("*.py"):
            code.unlink()
    for name in ROOT_MODULES:
        shutil.copy(ROOT / name, clone)
    shutil.copytree(ROOT / "vanilla_transformer", clone / "vanilla_transformer")
    (clone / "README.md").write_text("---\nlicense: apache-2.0\n---\n# All\n")
    for private in PRIVATE:
        (clone / private).parent.mkdir(parents=True, exist_ok=True)
        (clone / private).write_bytes(b"private")
    return clone


PRIVATE = (
    ".env", ".git/config", "checkpoints/en-es/notes.py", "checkpoints/en-es/checkpoint-5/model.safetensors",
    "checkpoints/en-es/training_args.bin", "docs/secret.txt", "notes.md", "runs/mine/model.safetensors",
    "vanilla_transformer/__pycache__/x.cpython-311.pyc", "tests/test_mine.py",
)  # fmt: skip


@pytest.fixture
def clone(whole_clone, tmp_path) -> Path:
    return shutil.copytree(whole_clone, tmp_path / "clone")


LOAD_FROM_ONE_REPOSITORY = """
import torch, transformers
from transformers import AutoTokenizer, pipeline
shipped, ids = arguments
found = {}
for name, (auto_class, task, options, question) in shipped.items():
    where = {"subfolder": f"checkpoints/{name}", "trust_remote_code": True}
    model = getattr(transformers, auto_class).from_pretrained("user/all", **where).eval()
    tokens = AutoTokenizer.from_pretrained("user/all", **where)("one two")["input_ids"]
    decoder = {"decoder_input_ids": torch.tensor([ids])} if model.config.is_encoder_decoder else {}
    with torch.inference_mode():
        output = model(torch.tensor([ids]), **decoder)[0].tolist()
    module = type(model).__module__.split(".")[0]
    ask = pipeline(task, model="user/all", model_kwargs={"subfolder": where["subfolder"]}, trust_remote_code=True)
    answer = ask(question, **options)
    model.save_pretrained(f"again/{name}")  # by itself, a model takes its code along
    again = getattr(transformers, auto_class).from_pretrained(f"again/{name}", trust_remote_code=True).eval()
    same = all(torch.equal(again.state_dict()[key], weight) for key, weight in model.state_dict().items())
    found[name] = [module, tokens, output, str(answer), same]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_every_checkpoint_of_the_repository_loads_from_its_subfolder(hub, clone, tmp_path):
    result = push(hub, clone, "user/all", "--repo")
    assert result.returncode == 0, result.stderr
    names = set(hub.repos["models", "user/all"].files("main"))
    assert names >= ROOT_MODULES | {"README.md", "vanilla_transformer/py.typed", "vanilla_transformer/loading.py"}
    assert not names & set(PRIVATE)
    assert {Path(name).suffix for name in names if name.startswith("checkpoints/")} == {
        ".json",
        ".jinja",
        ".safetensors",
    }

    models = {name: load_model(clone / "checkpoints" / name) for name in SHIPPED}
    asked = {}
    for name, (_, _, task, options, question) in SHIPPED.items():
        classes = {model_class: auto for auto, model_class in models[name].config.auto_classes.items()}
        asked[name] = [classes[type(models[name]).__name__], task, options, question]
    everybody = hub.environment(tmp_path / "cache", token=None)
    found = run_fresh(LOAD_FROM_ONE_REPOSITORY, tmp_path, asked, IDS, **everybody)
    for name, (module, tokens, output, answer, same) in found.items():
        assert module == "transformers_modules" and same
        assert tokens == AutoTokenizer.from_pretrained(clone / "checkpoints" / name)("one two")["input_ids"]
        ids = torch.tensor([IDS])
        decoder = {"decoder_input_ids": ids} if models[name].config.is_encoder_decoder else {}
        with torch.inference_mode():
            torch.testing.assert_close(torch.tensor(output), models[name](ids, **decoder)[0], msg=name)
        key = {"translation": "translation_text", "text-generation": "generated_text", "fill-mask": "token_str",
               "question-answering": "answer"}.get(SHIPPED[name][2], "score")  # fmt: skip
        assert key in answer


@pytest.mark.slow
def test_an_installed_package_translates_with_a_model_from_the_hub(hub, clone, tmp_path):
    assert push(hub, clone, HUB_NAME, "--repo").returncode == 0
    installed = tmp_path / "installed"
    shutil.copytree(clone, installed, ignore=shutil.ignore_patterns("checkpoints"))
    command = [sys.executable, "-m", "vanilla_transformer", "translate", "one two", "three"]
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"} | hub.environment(tmp_path / "cache", None)
    run = subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    folder = clone / "checkpoints/en-es"
    expected = translate(["one two", "three"], load_model(folder), AutoTokenizer.from_pretrained(folder))
    assert run.stdout.splitlines() == expected

    empty = HubServer()
    with empty:
        environment |= empty.environment(tmp_path / "empty", None)
        run = subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 2 and "Traceback" not in run.stderr
    error = run.stderr.splitlines()[-1]  # skip the import warning of torchao, which other tests need
    assert f"There is no {installed}/checkpoints/en-es, and {HUB_NAME} could not be fetched" in error


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("checkpoints", "There are no models in"),
        ("checkpoints/tagger/model.safetensors", "lacks model.safetensors"),
        ("checkpoints/tagger/config.json", "has no config.json"),
        ("generation_vanilla_transformer.py", "No such file"),
        ("modeling_vanilla_transformer.py", "No such file or directory"),
    ],
)
def test_a_clone_with_a_broken_model_is_not_uploaded(gone, message, clone, refused):
    path = clone / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert message in refused(clone, "user/all", "--repo")


# --- Uploading the demo as a Space


SPACE_CARD = """\
---
title: Vanilla Transformer
sdk: gradio
sdk_version: 6.31.0
app_file: app.py
---
# Demo
"""


def test_an_installed_package_needs_a_model_to_create_a_space(hub, clone, tmp_path):
    """Unlike a clone, an installed package contains no checkpoints."""
    shutil.rmtree(clone / "checkpoints")
    command = ["-m", "vanilla_transformer", "push", ROOT / "demo", "user/demo", "--space"]
    environment = {"PATH": os.environ["PATH"]} | hub.environment(tmp_path / "home")
    result = run_python(command, cwd=clone, env=environment)
    assert result.returncode == 2 and not hub.repos
    assert f"There are no models in {clone}/checkpoints: push from a clone" in result.stderr


def test_the_demo_is_uploaded_as_a_space_that_lists_its_models(hub, tmp_path):
    demo = tmp_path / "demo"
    (demo / "assets").mkdir(parents=True)
    for name, text in {"README.md": SPACE_CARD, "app.py": "import gradio\n", "requirements.txt": "torch\n"}.items():
        (demo / name).write_text(text)
    (demo / "assets/thumbnail.png").write_bytes(b"picture")
    for private in ("notes.txt", "credentials.json", ".env", "flagged/log.json", "data/private.json", "venv/lib/x.py"):
        (demo / private).parent.mkdir(parents=True, exist_ok=True)
        (demo / private).write_text("not for a Space")
    result = push(hub, demo, "user/demo", "--space", "--models", "user/one", "user/two", "--private")
    assert result.returncode == 0, result.stderr
    space = hub.repos["spaces", "user/demo"]
    names = set(space.files("main"))
    library = {name for name in names if name.startswith("vanilla_transformer/") or name in ROOT_MODULES}
    assert names - library == {"README.md", "app.py", "requirements.txt", "assets/thumbnail.png"}
    assert library >= ROOT_MODULES and "vanilla_transformer/inside/recorder.py" in library
    assert (space.sdk, space.private, space.variables) == ("gradio", True, {"MODEL_ID": "user/one user/two"})
    card = ModelCard(space.files("main")["README.md"].decode())
    for field in ("models", "preload_from_hub"):
        assert card.data.to_dict()[field] == ["user/one", "user/two"]
    assert card.data.to_dict()["thumbnail"].endswith("/spaces/user/demo/resolve/main/assets/thumbnail.png")
    assert card.text.strip() == "# Demo"
    assert (demo / "README.md").read_text() == SPACE_CARD

    change(demo, "README.md", SPACE_CARD.replace("gradio", "docker"))
    result = push(hub, demo, "user/other", "--space")
    assert result.returncode == 2 and "must say sdk: gradio" in result.stderr


PUSH_BY_THE_LIBRARY = """
from transformers import Trainer, TrainingArguments
from vanilla_transformer import VanillaTransformerForConditionalGeneration as Model
model = Model.from_pretrained(arguments[0])
model.push_to_hub("user/from-model", private=True)
arguments = TrainingArguments("trained", hub_model_id="user/from-trainer", report_to="none", use_cpu=True)
trainer = Trainer(model, arguments)
trainer.push_to_hub()
print(json.dumps(True))
"""


def test_push_to_hub_of_models_and_trainers_uploads_the_code(hub, folder, tmp_path):
    run_fresh(PUSH_BY_THE_LIBRARY, tmp_path, str(folder), installed=True, **hub.environment(tmp_path / "home"))
    weights = load_file(folder / "model.safetensors")
    for name, private in (("user/from-model", True), ("user/from-trainer", False)):
        repo = hub.repos["models", name]
        files = repo.files("main")
        assert {file for file in files if file.endswith(".py")} == {
            file for file in MODEL_FILES if file.endswith(".py")
        }
        assert {"config.json", "generation_config.json", "model.safetensors"} <= set(files) and repo.private == private
        (tmp_path / "pushed.safetensors").write_bytes(files["model.safetensors"])
        torch.testing.assert_close(load_file(tmp_path / "pushed.safetensors"), weights)


SPACE = """
import json, os, sys, threading, time
import httpx
from vanilla_transformer.app import app
from vanilla_transformer.cli import demo
from gradio_client import Client
address = app.Demo(app.find_models(["user/name"])).serve(prevent_thread_lock=True, quiet=True)
client = Client(address, verbose=False)
answer = client.predict(text="one two", api_name="/translate")["translation"]
elsewhere = [name for name in sys.argv[1:] if name in sys.modules and os.getcwd() not in sys.modules[name].__file__]
port = int(address.rstrip("/").split(":")[-1]) + 40
threading.Thread(target=demo.main, args=(["--port", str(port)],), daemon=True).start()  # without a model
while True:
    try:
        bare = Client(f"http://127.0.0.1:{port}", verbose=False)
        break
    except Exception:
        time.sleep(0.5)
shown = httpx.get(bare.src).text
found = [answer, elsewhere, "MODEL_ID" in shown]
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_the_space_is_self_contained_and_runs_a_model_from_the_hub(hub, folder, tmp_path):
    assert push(hub, folder, "user/name").returncode == 0
    result = push(hub, ROOT / "demo", "user/real-demo", "--space", "--models", "user/name")
    assert result.returncode == 0, result.stderr
    space = tmp_path / "space"
    for name, content in hub.repos["spaces", "user/real-demo"].files("main").items():
        (space / name).parent.mkdir(parents=True, exist_ok=True)
        (space / name).write_bytes(content)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = VanillaTransformerForConditionalGeneration.from_pretrained(folder).eval()
    expected = translate(["one two"], model, tokenizer, num_beams=4)
    (space / "visit.py").write_text(SPACE)  # so that imports resolve to the Space first
    environment = {"PATH": os.environ["PATH"]} | hub.environment(tmp_path / "cache", token=None)
    command = [sys.executable, "visit.py", *MODULES]
    visit = subprocess.run(command, cwd=space, env=environment, capture_output=True, text=True, timeout=300)
    assert visit.returncode == 0, visit.stderr
    assert json.loads(visit.stdout.splitlines()[-1]) == [*expected, [], True]
