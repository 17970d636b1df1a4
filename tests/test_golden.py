"""Test that shipped checkpoints reproduce their recorded outputs and scores, however they are loaded.

Record them again with tests/golden.py, but only after training a checkpoint again.
"""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoTokenizer

import vanilla_transformer
from answers import answer
from demo_server import served
from fresh_process import ROOT, run_fresh
from golden import GOLDEN, score
from hub_server import HubServer
from vanilla_transformer.files import shipped_models
from vanilla_transformer.loading import CHECKPOINTS, load_model
from vanilla_transformer.tasks import task_of


NAMES = sorted(path.parent.name for path in CHECKPOINTS.glob("*/config.json"))

translator = pytest.mark.skipif("en-es" not in NAMES, reason="there is no translator here")


def architecture(name: str) -> str:
    """Return the name of the model class from the config of a checkpoint."""
    return json.loads((CHECKPOINTS / name / "config.json").read_text(encoding="utf-8"))["architectures"][0]


@cache
def golden(name: str) -> dict:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def test_every_shipped_checkpoint_has_recorded_outputs():
    assert [path.stem for path in sorted(GOLDEN.glob("*.json"))] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_installed_classes_reproduce_the_recorded_outputs_and_scores(name):
    recorded, folder = golden(name), CHECKPOINTS / name
    model, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)
    assert [answer(model, tokenizer, texts) for texts in recorded["asked"]] == recorded["answers"]
    assert score(folder, recorded["rows"]) == pytest.approx(recorded["scores"], rel=1e-3, abs=1e-4)


EVERYWHERE = f"""
{(ROOT / "tests/answers.py").read_text(encoding="utf-8")}
source, shipped = arguments
print(json.dumps({{name: every_way(source, name, *asked) for name, asked in shipped.items()}}))
"""


def check_every_way(source: str, folder: Path, **environment: str) -> None:
    """Assert that all ways to load the models give the recorded outputs, in a process without this project."""
    shipped = {}
    for name in NAMES:
        config = AutoConfig.from_pretrained(CHECKPOINTS / name)
        task = task_of(getattr(vanilla_transformer, architecture(name)), config)
        shipped[name] = [task.auto_class(), task.pipeline_tag, golden(name)["asked"]]
    for name, ways in run_fresh(EVERYWHERE, folder, source, shipped, cold=True, **environment).items():
        for way, answers in ways.items():
            assert answers == golden(name)["answers"], f"{name}, {way}"


def test_every_way_to_load_a_clone_reproduces_the_recorded_outputs(tmp_path):
    check_every_way(str(ROOT), tmp_path, HF_HUB_OFFLINE="1")


@pytest.mark.slow
def test_every_way_to_load_from_the_hub_reproduces_the_recorded_outputs(tmp_path):
    with HubServer() as hub:
        command = [sys.executable, "-m", "vanilla_transformer", "push", ROOT, "user/all", "--repo"]
        environment = {"PATH": os.environ["PATH"]} | hub.environment(tmp_path / "home")
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert result.returncode == 0, result.stderr
        check_every_way("user/all", tmp_path, **hub.environment(tmp_path / "cache", token=None))


@translator
def test_the_readme_shows_the_recorded_translation():
    (block, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    (text,) = re.findall(r'translate\("(.*)"\)', block)
    answer = golden("en-es")["answers"][golden("en-es")["asked"].index([text])]
    translation = AutoTokenizer.from_pretrained(CHECKPOINTS / "en-es").decode(answer, skip_special_tokens=True)
    assert f"# {[{'translation_text': translation}]}\n" in block


@translator
def test_translate_works_without_options(tmp_path):
    texts = [text for (text,) in golden("en-es")["asked"]]
    command = [sys.executable, "-m", "vanilla_transformer", "translate", *texts]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINTS / "en-es")
    assert result.stdout.splitlines() == tokenizer.batch_decode(golden("en-es")["answers"], skip_special_tokens=True)


def test_the_demo_loads_and_runs_all_checkpoints():
    with served(*shipped_models()) as client:
        for number, name in enumerate(NAMES):
            text, *context = golden(name)["asked"][0]
            answer = client.predict(number, text, None, *context, api_name="/explore")
            assert answer["text"] == text and answer["answer"] and answer["heads"], name


SPACE = """
import json, sys
from vanilla_transformer.app import app
from vanilla_transformer.files import shipped_models
demo = app.Demo(app.find_models(shipped_models()))
explore = next(function.fn for function in demo.api.fns.values() if function.api_name == "explore")
answers = [explore(number, text, None, *context)["answer"] for number, (text, *context) in enumerate(ASKED)]
ours = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0].endswith("vanilla_transformer")]
print(json.dumps([answers, [file for file in ours if "/space/" not in file]]))
"""


@pytest.mark.slow
def test_a_space_contains_and_runs_all_checkpoints(tmp_path):
    with HubServer() as hub:
        command = [sys.executable, "-m", "vanilla_transformer", "push", ROOT / "demo", "user/demo", "--space"]
        environment = {"PATH": os.environ["PATH"]} | hub.environment(tmp_path / "home")
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert result.returncode == 0, result.stderr
        files = hub.repos["spaces", "user/demo"].files("main")
        assert not hub.repos["spaces", "user/demo"].variables
    for name, content in files.items():
        (tmp_path / "space" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "space" / name).write_bytes(content)
    asked = [golden(name)["asked"][0] for name in NAMES]
    (tmp_path / "space/visit.py").write_text(f"ASKED = {asked!r}\n{SPACE}", encoding="utf-8")
    environment |= {"HF_HUB_OFFLINE": "1"}
    visit = subprocess.run(
        [sys.executable, "visit.py"],
        cwd=tmp_path / "space",
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert visit.returncode == 0, visit.stderr
    answers, outside = json.loads(visit.stdout.splitlines()[-1])
    assert len(answers) == len(NAMES) and all(answers) and outside == []
