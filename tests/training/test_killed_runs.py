"""Test that runs killed at any time and resumed end with the weights of an uninterrupted run, for every task.

KILLS=200 python -m pytest -m slow tests/training/test_killed_runs.py
"""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fresh_process import Process
from vanilla_transformer.cli.model_card import MODEL_CARD
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.training.checkpoints import checkpoint_folders, complete_checkpoints


KILLS = int(os.environ.get("KILLS", "22"))

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
# The high learning rate makes the validation loss rise early.
STOPS_EARLY = [*BEST, "--early_stopping_patience", "2", "--learning_rate_scale", "20", "--max_steps", "200"]
EPOCHS = ["--save_strategy", "epoch", "--eval_strategy", "epoch", "--max_steps", "-1", "--num_train_epochs", "4"]
KINDS = {
    "translation, mean of checkpoints": ("translation", "translation", [*TWO_STACKS, "--save_total_limit", "2"]),
    "translation, best": ("translation", "translation", [*TWO_STACKS, *BEST, "--save_total_limit", "1"]),
    "translation, stops early": ("translation", "translation", [*TWO_STACKS, *STOPS_EARLY]),
    "language model, library's schedule": ("language_modeling", "language_modeling", [
        *ONE_STACK, "--block_size", "32", "--learning_rate", "1e-3", "--lr_scheduler_type", "cosine",
        "--max_grad_norm", "1",
    ]),
    "language model, streamed, by workers": ("language_modeling", "language_modeling", [
        *ONE_STACK, "--block_size", "32", "--streaming", "true", "--dataloader_num_workers", "1",
    ]),
    "masked language model, mean": ("masked_language_modeling", "language_modeling", [
        *ONE_STACK, "--max_length", "32", "--average_checkpoints", "3", "--gradient_accumulation_steps", "2",
    ]),
    "classifier, epochs and best": ("classification", "classification", [
        *ONE_STACK, *EPOCHS, "--load_best_model_at_end", "true",
    ]),
    "regression, stops early": ("regression", "regression", [*ONE_STACK, *STOPS_EARLY]),
    "tagger, epochs and mean": ("tagging", "tagging", [*ONE_STACK, *EPOCHS, "--average_checkpoints", "3"]),
    "reader, mean, float32": ("question_answering", "question_answering", [
        *ONE_STACK, "--average_checkpoints", "2", "--bf16", "false",
    ]),
    "tagger, no checkpoints": ("tagging", "tagging", [
        *ONE_STACK, "--save_strategy", "no", "--average_checkpoints", "3",
    ]),
}  # fmt: skip
# Start a new session, so that signals reach only this process and its workers.
TRAIN = """
import os, sys
os.setsid()
from vanilla_transformer.cli.train import main
main(sys.argv[1:])
"""


class Run:
    """A training run in a folder, whose command can be started several times."""

    def __init__(self, kind: str, folder: Path, data: Path, *more: str):
        self.task, _, options = KINDS[kind]
        self.folder, self.log = folder, folder.with_suffix(".log")
        files = ["--train_file", str(data / "train.jsonl"), "--validation_file", str(data / "validation.jsonl")]
        self.arguments = [*files, *options, *more, "--output_dir", str(folder), "--resume_from_checkpoint", "true"]

    @property
    def checkpoints(self) -> list[str]:
        return [folder.name for folder in checkpoint_folders(self.folder)]

    @property
    def is_finished(self) -> bool:
        return (self.folder / MODEL_CARD).exists()

    @property
    def weights(self) -> bytes:
        return (self.folder / "model.safetensors").read_bytes()

    def start(self) -> Process:
        with open(os.devnull) as nothing, self.log.open("w") as log:
            return Process(["-c", TRAIN, self.task, *self.arguments], nothing, log, log)

    def await_checkpoint(self, process: Process) -> None:
        while process.poll() is None and not self.checkpoints:
            time.sleep(0.002)

    def finish(self) -> None:
        self.join(self.start())

    def join(self, process: Process) -> None:
        assert process.wait(300) == 0, self.log.read_text()[-4000:]

    def measure(self) -> tuple[float, float]:
        """Run to the end. Return the total seconds, and the seconds since the first checkpoint."""
        start = time.monotonic()
        process = self.start()
        self.await_checkpoint(process)
        first = time.monotonic()
        self.join(process)
        return time.monotonic() - start, time.monotonic() - first

    def stop(self, how: str, with_checkpoint: bool, delay: float) -> float | None:
        """Start the process and stop it after a delay. If it ends before that, return its duration in seconds.

        Args:
            how: "kill" (SIGKILL) or "terminate" (SIGTERM).
            delay: seconds from the start, or from the first checkpoint.
        """
        process = self.start()
        if with_checkpoint:
            self.await_checkpoint(process)
        start = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(delay)
        seconds = time.monotonic() - start
        getattr(process, how)()
        return seconds if process.wait(60) == 0 else None


def write_data(kind: str, folder: Path) -> None:
    rows = phrasebook(KINDS[kind][1], size=1000)["train"]
    for name, part in {"train": range(60), "validation": range(60, 68)}.items():
        lines = [json.dumps(rows[i]) + "\n" for i in part]
        (folder / f"{name}.jsonl").write_text("".join(lines))


@pytest.fixture(params=KINDS)
def kind(request, tmp_path) -> str:
    """Write the data of this kind of run to `tmp_path`, and return the kind."""
    write_data(request.param, tmp_path)
    return request.param


@pytest.mark.skipif(sys.platform == "win32", reason="forks processes")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("translation, best", ["--dataloader_persistent_workers", "true"]),
        ("language model, streamed, by workers", []),
        ("masked language model, mean", []),
    ],
)
def test_sigterm_to_the_process_group_saves_a_checkpoint_and_ends_all_workers(kind, options, tmp_path):
    write_data(kind, tmp_path)
    options = [*options, "--dataloader_num_workers", "2"]
    run = Run(kind, tmp_path / "run", tmp_path, *options, "--max_steps", "4000")
    process = run.start()
    run.await_checkpoint(process)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(60) == 143, run.log.read_text()[-4000:]
    assert run.checkpoints == [folder.name for folder in complete_checkpoints(run.folder)]
    steps = int(run.checkpoints[-1].removeprefix("checkpoint-"))
    with pytest.raises(ProcessLookupError):  # no worker is left
        os.killpg(process.pid, 0)
    Run(kind, run.folder, tmp_path, *options, "--max_steps", str(steps + 1)).finish()
    assert run.is_finished


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="forks processes")
def test_a_run_stopped_at_any_time_and_resumed_ends_with_the_same_weights(kind, tmp_path):
    whole = Run(kind, tmp_path / "whole", tmp_path)
    life, with_checkpoints = whole.measure()
    weights, checkpoints = whole.weights, whole.checkpoints
    (whole.folder / MODEL_CARD).unlink()  # as if the run had been stopped just before its end
    whole.finish()
    assert whole.weights == weights
    assert whole.checkpoints == checkpoints

    # One in five stops comes at any time in the run, the others after the first checkpoint.
    spans = {False: life, True: with_checkpoints}
    draw = random.Random(f"{kind} {KILLS}")
    count = math.ceil(KILLS / len(KINDS))
    stops = ["terminate" if i % 5 == 1 else "kill" for i in range(count)]
    for number in range(10 * len(stops)):
        run, how = Run(kind, tmp_path / f"stopped-{number}", tmp_path), stops[-1]
        with_checkpoint = bool(checkpoints) and draw.random() < 0.8
        sooner = run.stop(how, with_checkpoint, draw.uniform(0, spans[with_checkpoint]))
        if sooner is not None:  # the run ended before the stop, so do not count it
            spans[with_checkpoint] = min(spans[with_checkpoint], sooner)
            shutil.rmtree(run.folder)
            continue
        left = run.checkpoints
        again = draw.random() < 0.25 and not run.is_finished  # stop the resumed run as well
        if again:
            run.stop(how, False, draw.uniform(0, spans[False]))
        if not run.is_finished:
            run.finish()
        assert run.weights == weights, f"{run.folder} held {left} when it was resumed"
        assert [name for name in run.checkpoints if name in checkpoints] == checkpoints
        shutil.rmtree(run.folder)
        print(f"{kind}: {how}{' twice' * again}, {left} left, then the same", file=sys.stderr, flush=True)
        stops.pop()
        if not stops:
            break
    assert not stops
