"""Test that two processes get the same losses and weights as one, for the same global batch."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from fresh_process import ROOT
from small_data import ONE_STACK, SMALL, write_json_lines, write_rows
from vanilla_transformer.cli import evaluate
from vanilla_transformer.data.phrasebook import phrasebook


SCRIPTS = ROOT / "scripts"
OPTIONS = [
    str(SCRIPTS / "train.py"), "translation", "--preset", "tiny", "--d_model", "32", "--d_ff", "32", "--dropout", "0",
    "--phrases", "1000", "--vocab_size", "400", "--use_cpu", "true", "--max_steps", "6", "--logging_steps", "1",
    "--warmup_steps", "10", "--save_steps", "6", "--average_checkpoints", "1", "--max_eval_samples", "4",
    "--num_beams", "1",
]  # fmt: skip
BATCHES = {
    "fixed": ["--tokens_per_batch", "0", "--per_device_train_batch_size", "8"],
    "token budget": ["--tokens_per_batch", "620"],
    # This budget makes 34 batches. Of an odd number of batches, one would be split in two.
    "token budget per device": ["--tokens_per_batch", "340", "--tokens_per_batch_of", "device"],
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def train(folder: Path, launcher: list[str], *options: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train a model; return the loss of each step and the final weights."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, *OPTIONS, "--output_dir", str(folder), *options]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    state = json.loads((folder / "checkpoint-6" / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    return losses, load_file(folder / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("batches", BATCHES)
def test_two_processes_give_the_same_model_as_one_with_two_accumulation_steps(batches, tmp_path):
    options = BATCHES[batches]
    one = train(tmp_path / "one", [], *options, "--gradient_accumulation_steps", "2")
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    two = train(tmp_path / "two", torchrun, *options, "--ddp_backend", "gloo")
    assert len(one[0]) == 6 and two[0] == pytest.approx(one[0], rel=1e-4)
    for name, weight in one[1].items():
        torch.testing.assert_close(two[1][name], weight, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_two_processes_give_the_same_scores_as_one(tmp_path):
    """Only the main process predicts answers and scores them."""
    run = tmp_path / "run"
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    options = [*write_rows("question_answering", tmp_path), *SMALL, *ONE_STACK, "--max_steps", "100"]
    options += ["--average_checkpoints", "2"]
    command = [sys.executable, *launcher, str(SCRIPTS / "train.py"), "question_answering", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, "--output_dir", str(run)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("Found 0 of average_checkpoints=2") == 1, "one process warns"
    rows = str(tmp_path / "rows.jsonl")
    alone = evaluate.main(["--model", str(run), "--test_file", rows])["test"]
    assert alone["exact_match"] > 50 and f"validation: exact_match {alone['exact_match']:.4g}, " in result.stdout
    assert (run / "README.md").exists()


@pytest.mark.slow
def test_two_processes_give_the_same_model_as_one_for_the_same_token_budget(tmp_path):
    # Use float32, because bfloat16 rounding depends on the batch shape.
    options = ["--tokens_per_batch", "620", "--bf16", "false"]
    one = train(tmp_path / "one", [], *options)
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    two = train(tmp_path / "two", torchrun, *options, "--ddp_backend", "gloo")
    assert len(one[0]) == 6 and two[0] == pytest.approx(one[0], rel=1e-4)
    for name, weight in one[1].items():  # Adam amplifies the rounding of gradients near zero
        torch.testing.assert_close(two[1][name], weight, atol=1e-3, rtol=0)


@pytest.mark.slow
def test_two_processes_share_the_batch_of_a_plan(tmp_path):
    rows = write_json_lines(
        tmp_path / "rows.jsonl", phrasebook("classification", size=1000)["train"].select(range(200))
    )
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    command = [
        sys.executable,
        *launcher,
        str(SCRIPTS / "train.py"),
        str(rows),
        "--max_steps",
        "8",
        "--use_cpu",
        "true",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("saved as runs/rows/recipe.yaml") == 1, "one process speaks"
    plan = yaml.safe_load((tmp_path / "runs/rows/recipe.yaml").read_text())
    assert 2 * plan["per_device_train_batch_size"] == 32
    assert evaluate.main(["--model", str(tmp_path / "runs/rows"), "--test_file", rows])["test"]["accuracy"] > 0
