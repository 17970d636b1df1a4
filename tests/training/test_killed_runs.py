"""Runs of every kind that are killed at any moment, and resumed, end with the weights of one that was left alone.

KILLS=200 python -m pytest -m slow tests/training/test_killed_runs.py
"""

import importlib
import json
import math
import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.training.checkpoints import checkpoint_folders


KILLS = int(os.environ.get("KILLS", "10"))

SMALL = [
    "--d_model", "32", "--d_ff", "64", "--num_heads", "2", "--vocab_size", "300", "--warmup_steps", "10",
    "--use_cpu", "true", "--disable_tqdm", "true", "--logging_steps", "4", "--per_device_train_batch_size", "8",
    "--max_steps", "26", "--save_steps", "4", "--save_total_limit", "3",
]  # fmt: skip
TWO_STACKS = [
    *SMALL,
    "--encoder_layers",
    "1",
    "--decoder_layers",
    "1",
    "--num_beams",
    "1",
    "--tokens_per_batch",
    "200",
]
ONE_STACK = [*SMALL, "--num_layers", "1"]
BEST = ["--load_best_model_at_end", "true", "--eval_strategy", "steps", "--eval_steps", "4"]
# Learns so fast that the loss of the held-out rows soon rises.
STOPS_EARLY = [*BEST, "--early_stopping_patience", "2", "--learning_rate_scale", "20", "--max_steps", "200"]
EPOCHS = ["--save_strategy", "epoch", "--eval_strategy", "epoch", "--max_steps", "-1", "--num_train_epochs", "4"]
KINDS = {
    "translation, mean of checkpoints": ("train_translation", "translation", [*TWO_STACKS, "--save_total_limit", "2"]),
    "translation, best": ("train_translation", "translation", [*TWO_STACKS, *BEST, "--save_total_limit", "1"]),
    "translation, stops early": ("train_translation", "translation", [*TWO_STACKS, *STOPS_EARLY]),
    "language model, library's schedule": ("train_language_model", "language_modeling", [
        *ONE_STACK, "--block_size", "32", "--learning_rate", "1e-3", "--lr_scheduler_type", "cosine",
        "--max_grad_norm", "1",
    ]),
    "masked language model, mean": ("train_masked_language_model", "language_modeling", [
        *ONE_STACK, "--max_length", "32", "--average_checkpoints", "3", "--gradient_accumulation_steps", "2",
    ]),
    "classifier, epochs and best": ("train_classifier", "classification", [
        *ONE_STACK, *EPOCHS, "--load_best_model_at_end", "true",
    ]),
    "regression, stops early": ("train_classifier", "regression", [*ONE_STACK, *STOPS_EARLY, "--task", "regression"]),
    "tagger, epochs and mean": ("train_tagger", "tagging", [*ONE_STACK, *EPOCHS, "--average_checkpoints", "3"]),
    "reader, mean": ("train_question_answering", "question_answering", [*ONE_STACK, "--average_checkpoints", "2"]),
    "tagger, no checkpoints": ("train_tagger", "tagging", [
        *ONE_STACK, "--save_strategy", "no", "--average_checkpoints", "3",
    ]),
}  # fmt: skip
# Forked from a process that has the libraries: one does not wait for their import 400 times.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["vanilla_transformer.training.run", "vanilla_transformer.training.recipe", "vanilla_transformer.decoding"]
)


def train(script: str, arguments: list[str], log: Path) -> None:
    with log.open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    importlib.import_module(script).main(arguments)


class Run:
    """A kind of run in a folder: its command can be started as often as one likes."""

    def __init__(self, kind: str, folder: Path, data: Path):
        self.script, _, options = KINDS[kind]
        self.folder, self.log = folder, folder.with_suffix(".log")
        files = ["--train_file", str(data / "train.jsonl"), "--validation_file", str(data / "validation.jsonl")]
        self.arguments = [*files, *options, "--output_dir", str(folder), "--resume_from_checkpoint", "true"]

    def start(self) -> multiprocessing.process.BaseProcess:
        process = PROCESSES.Process(target=train, args=(self.script, self.arguments, self.log))
        process.start()
        return process

    def finish(self) -> bytes:
        """The file of the final weights."""
        process = self.start()
        process.join(300)
        assert process.exitcode == 0, self.log.read_text()[-4000:]
        return (self.folder / "model.safetensors").read_bytes()


@pytest.fixture(params=KINDS)
def kind(request, tmp_path) -> str:
    """A kind of run, whose data lie in `tmp_path`."""
    rows = phrasebook(KINDS[request.param][1], size=1000)["train"]
    for name, part in {"train": range(60), "validation": range(60, 68)}.items():
        lines = [json.dumps(rows[i]) + "\n" for i in part]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    return request.param


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="forks processes")
def test_a_run_that_is_stopped_anywhere_and_resumed_ends_with_the_same_weights(kind, tmp_path):
    whole = Run(kind, tmp_path / "whole", tmp_path)
    weights = whole.finish()
    checkpoints = [folder.name for folder in checkpoint_folders(whole.folder)]
    (whole.folder / "README.md").unlink()  # as if it had been stopped at the very end
    assert whole.finish() == weights
    assert [folder.name for folder in checkpoint_folders(whole.folder)] == checkpoints

    start = time.monotonic()
    Run(kind, tmp_path / "timed", tmp_path).finish()
    duration = time.monotonic() - start
    points = random.Random(f"{kind} {KILLS}")
    kills = math.ceil(KILLS / len(KINDS))
    stops = [signal.SIGTERM] * math.ceil(kills / 5) + [signal.SIGKILL] * kills
    for number in range(5 * len(stops)):
        run, start = Run(kind, tmp_path / f"stopped-{number}", tmp_path), time.monotonic()
        process = run.start()
        process.join(points.uniform(0, duration))
        if process.exitcode == 0:  # it was over sooner: one that is not counted
            duration = min(duration, time.monotonic() - start)
            continue
        os.kill(process.pid, stops[-1])
        process.join(60)
        left = [folder.name for folder in checkpoint_folders(run.folder)]
        print(f"{kind}: {stops.pop().name}, {left} left, status {process.exitcode}", file=sys.stderr, flush=True)
        if not (run.folder / "README.md").exists():
            assert run.finish() == weights, f"{run.folder} held {left} when it was resumed"
            assert [f.name for f in checkpoint_folders(run.folder) if f.name in checkpoints] == checkpoints
        if not stops:
            break
    assert not stops
