"""Test the log of `train`, its final report, and its handling of signals."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoTokenizer

from small_data import ONE_STACK, SMALL, train_and_validate_on, write_json_lines, write_rows
from vanilla_transformer.app.loading import DemoModel
from vanilla_transformer.cli import progress, train
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.loading import load_model
from vanilla_transformer.training.checkpoints import complete_checkpoints


TWO_STACKS = ["--encoder_layers", "1", "--decoder_layers", "1", "--tokens_per_batch", "400"]
TASKS = {
    "translation": TWO_STACKS,
    "classification": ONE_STACK,
    "multi_label": ONE_STACK,
    "regression": ONE_STACK,
    "tagging": ONE_STACK,
    "question_answering": ONE_STACK,
    "language_modeling": [*ONE_STACK, "--block_size", "16"],
    "masked_language_modeling": ONE_STACK,
}
LINE = r"\[[#-]{20}\] step (\d) of 4, loss \d+\.\d{3}, [\d,]+ tokens/s, 0:\d\d:\d\d left"
BASELINES = {
    "translation": "copying the source",
    "classification": "TF-IDF with logistic regression",
    "multi_label": "TF-IDF with logistic regression",
    "regression": "TF-IDF with ridge regression",
    "tagging": "most frequent tag of each word",
    "question_answering": "most frequent answer in the text",
    "language_modeling": "unigram model",
    "masked_language_modeling": "unigram model",
}
TOPICS = [
    {"text": "warm and dry", "label": ["warm", "dry"]}, {"text": "neither", "label": []},
    {"text": "warm and wet", "label": ["warm"]}, {"text": "cold and dry", "label": ["dry"]},
]  # fmt: skip


@pytest.fixture
def looking_at_every_step(monkeypatch):
    for name in ("LINE_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(progress, name, 0.0)
    monkeypatch.setattr(progress, "LOOK_SHARE", 1e9)


def options_of(task: str, folder, *more: str) -> list[str]:
    if task == "multi_label":
        data = train_and_validate_on(write_json_lines(folder / "rows.jsonl", TOPICS))
    else:
        data = write_rows(task.removeprefix("masked_"), folder)
    given = [*data, *SMALL, *TASKS[task], "--max_steps", "4", "--dropout", "0.1", "--output_dir", str(folder / "run")]
    return [task, *given, *more]


@pytest.mark.parametrize("task", TASKS)
def test_a_run_prints_progress_and_ends_with_scores_and_suggested_commands(
    task, tmp_path, capfd, looking_at_every_step
):
    scores = train.main(options_of(task, tmp_path))["validation"]
    said, errors = capfd.readouterr()
    assert [int(step) for step in re.findall(LINE, said)] == [1, 2, 3, 4]
    assert re.search(r"^\d+ rows of validation: .*\d", said, re.M)
    shown = re.findall(r"^    source  (.*)\n    target  (.*)\n    output  ", said, re.M)
    assert len(shown) == 2 * 4
    assert not re.search(r"\{'|it/s|\d%\|", said + errors)

    name, value = next(iter(scores.items()))
    assert f"validation: {name} {value:.4g}" in said
    assert re.search(rf"^  {BASELINES[task]}: \w+ -?\d", said, re.M)
    folder = tmp_path / "run"
    assert f"{folder} YOUR_NAME/run" in said and f"  vanilla-transformer demo {folder}" in said
    assert (folder / "curves.png").stat().st_size > 1000
    table = (folder / "examples.md").read_text()
    assert "## The ten best" in table and len(re.findall(r"^\| .* \| -?[\d.e-]+ \|$", table, re.M)) >= 2
    assert BASELINES[task] in (folder / "README.md").read_text()
    assert DemoModel(str(folder)).loaded  # the demo can load the model


def test_scoring_during_training_does_not_change_the_weights(tmp_path, monkeypatch):
    weights = {}
    for name, seconds in (("quiet", 1e9), ("looked at", 0.0)):
        monkeypatch.setattr(progress, "LOOK_SECONDS", seconds)
        monkeypatch.setattr(progress, "LOOK_SHARE", 1e9)
        (tmp_path / name).mkdir()
        train.main(options_of("translation", tmp_path / name))
        weights[name] = load_file(tmp_path / name / "run/model.safetensors")
    torch.testing.assert_close(weights["looked at"], weights["quiet"], rtol=0, atol=0)


def test_the_first_suggested_command_can_be_run_as_printed(tmp_path, capsys):
    train.main(options_of("classification", tmp_path))
    command = re.search(r"^  (python -c .*)$", capsys.readouterr().out, re.M)[1]
    exec(shlex.split(command)[2], {})
    (answer,) = yaml.safe_load(capsys.readouterr().out)
    assert answer["label"] and 0 < answer["score"] <= 1


def test_baselines_have_the_expected_scores(tmp_path, capsys):
    train.main(options_of("classification", tmp_path))
    labels = [json.loads(line)["label"] for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    share = 100 * Counter(labels).most_common(1)[0][1] / len(labels)
    assert f"  majority class: accuracy {share:.4g}," in capsys.readouterr().out


def test_a_run_that_made_the_model_worse_prints_a_warning(tmp_path, capsys):
    rows = phrasebook("classification", size=1000)["train"].select(range(100, 108))
    data = train_and_validate_on(write_json_lines(tmp_path / "rows.jsonl", rows))
    good = str(tmp_path / "good")
    before = train.main(["classification", *data, *SMALL, *ONE_STACK, "--max_steps", "40", "--output_dir", good])
    assert "made the model worse" not in capsys.readouterr().out
    bad = ["--learning_rate", "3", "--max_steps", "3", "--output_dir", str(tmp_path / "bad")]
    scores = train.main(["classification", *data, *SMALL, "--model_name_or_path", good, *bad])
    assert scores["validation"]["accuracy"] < before["validation"]["accuracy"]
    said = capsys.readouterr().out
    assert f"  before this training: loss {before['validation']['loss']:.4g}" in said
    assert f"This training made the model worse on validation: {good} is better." in said


def test_ctrl_c_saves_a_checkpoint_and_prints_the_command_to_continue(tmp_path, capsys, monkeypatch):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    options = options_of("classification", tmp_path)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    interrupt = lambda *_, **__: signal.raise_signal(signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(progress.ProgressLog, "on_step_begin", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train.main(options)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    said = capsys.readouterr().out
    checkpoint = tmp_path / "run/checkpoint-1"
    assert f"Stopped at step 1 of 4. The model so far is in {checkpoint}. Continue with:" in said
    assert load_model(str(checkpoint)) and AutoTokenizer.from_pretrained(checkpoint)
    train.main(shlex.split(said.splitlines()[-1])[2:])
    resumed = load_file(tmp_path / "run/model.safetensors")
    (tmp_path / "whole").mkdir()
    train.main(options_of("classification", tmp_path / "whole"))
    torch.testing.assert_close(resumed, load_file(tmp_path / "whole/run/model.safetensors"), rtol=0, atol=0)


LONG_STEP = """
import sys
import time
from pathlib import Path
from tiny_training import tiny_trainer
from vanilla_transformer.training import callbacks
callbacks.PATIENCE = 1.0
trainer = tiny_trainer(Path(sys.argv[1]))

def hang(*_):
    if trainer.state.global_step == 3:
        print("now", flush=True)
        time.sleep(100)

trainer.model.register_forward_pre_hook(hang)
trainer.train()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_an_endless_step_saves_the_weights_from_before_the_step(number, tmp_path):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    command = [sys.executable, "-c", LONG_STEP, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1], text=True) as process:
        assert "now\n" in process.stdout  # the output starts with the log of earlier steps
        begin = time.monotonic()
        process.send_signal(number)
        assert process.wait(30) == 128 + number and time.monotonic() - begin < 10
    (checkpoint,) = complete_checkpoints(tmp_path / "run")
    saved, three = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run", checkpoint))
    torch.testing.assert_close(saved, three, rtol=0, atol=0)
