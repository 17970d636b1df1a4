"""The training recipe: the paper's schedule, batches by tokens, packing, averaging, and runs that resume exactly."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerBase

from batching import TokenBudgetSampler, pack_documents
from checkpoint_averaging import average_checkpoints, complete_checkpoints, save_average
from family import decoder_only, encoder_decoder
from recipe import PaperSchedule, RecipeArguments, RecipeSeq2SeqTrainer
from tokenizer_training import train_tokenizer


SCRIPTS = Path(__file__).parents[1] / "scripts"


def test_the_schedule_is_equation_3():
    schedule = PaperSchedule(d_model=512, warmup_steps=4000)
    for step in (1, 2, 3999, 4000, 4001, 100_000):
        assert schedule(step - 1) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))
    assert max(map(schedule, range(10_000))) == schedule(3999) == pytest.approx(6.99e-4, rel=1e-3)


def lengths() -> np.ndarray:
    return np.random.default_rng(0).integers(1, 40, size=(500, 2))


def test_batches_hold_every_row_once_within_the_budget():
    sampler = TokenBudgetSampler(lengths(), tokens_per_batch=200, seed=1)
    batches = list(sampler)
    assert sorted(row for batch in batches for row in batch) == list(range(500))
    assert len(batches) == len(sampler)
    padded = [len(batch) * lengths()[batch].max() for batch in batches]
    assert max(padded) <= 200
    assert sum(padded) * 2 < 1.35 * 200 * len(batches) * 2  # and they are filled
    assert np.mean(padded) > 150


def test_batches_are_drawn_anew_each_epoch_and_again_for_the_same_epoch():
    sampler = TokenBudgetSampler(lengths(), 200)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    assert len(first) == len(second)
    sampler.set_epoch(0)
    assert list(sampler) == first


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_processes_share_out_the_rows_in_equally_many_batches(processes):
    shares = [list(TokenBudgetSampler(lengths(), 200, 0, rank, processes)) for rank in range(processes)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(row for share in shares for batch in share for row in batch) == list(range(500))


def test_a_row_longer_than_the_budget_is_named():
    with pytest.raises(ValueError, match="Row 2 has 9 tokens, more than tokens_per_batch=8"):
        TokenBudgetSampler(np.array([[1, 2], [3, 1], [4, 9]]), 8)


def test_documents_are_packed_into_full_blocks():
    packed = pack_documents([[5, 6, 7], [], [8], [9, 10]], block_size=4, eos_token_id=2)
    assert packed["input_ids"] == [[5, 6, 7, 2], [8, 2, 9, 10]]
    assert packed["position_ids"] == [[0, 1, 2, 3], [0, 1, 0, 1]]
    assert packed["labels"] == [[-100, 6, 7, 2], [-100, 2, -100, 10]]


def test_packed_documents_do_not_see_each_other():
    model = decoder_only(use_cache=False)
    documents = [[5, 6, 7, 8, 9], [10, 11, 12], [13, 14, 15, 16]]
    packed = {name: torch.tensor(rows) for name, rows in pack_documents(documents, 15, 2).items()}
    together = model(input_ids=packed["input_ids"], position_ids=packed["position_ids"]).logits[0]
    apart = [model(torch.tensor([[*document, 2]])).logits[0] for document in documents]
    torch.testing.assert_close(together, torch.cat(apart), atol=1e-5, rtol=1e-5)


def checkpoint(folder: Path, value: float, **extra: torch.Tensor) -> Path:
    folder.mkdir(parents=True)
    save_file({"weight": torch.full((2,), float(value)), **extra}, folder / "model.safetensors")
    (folder / "trainer_state.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps({"value": value}))
    return folder


def test_checkpoints_are_averaged(tmp_path):
    folders = [checkpoint(tmp_path / f"checkpoint-{step}", step) for step in (5, 10, 30)]
    torch.testing.assert_close(average_checkpoints(folders)["weight"], torch.full((2,), 15.0))
    torch.testing.assert_close(average_checkpoints(folders[-1:])["weight"], torch.full((2,), 30.0))
    save_average(folders, tmp_path / "mean")
    assert sorted(file.name for file in (tmp_path / "mean").iterdir()) == ["config.json", "model.safetensors"]
    with pytest.raises(ValueError, match="mean exists"):
        save_average(folders, tmp_path / "mean")
    other = checkpoint(tmp_path / "other", 1, bias=torch.zeros(1))
    with pytest.raises(ValueError, match="differ in: bias"):
        average_checkpoints([folders[0], other])


def test_a_half_written_checkpoint_is_passed_over(tmp_path):
    whole = checkpoint(tmp_path / "checkpoint-9", 1)
    cut = checkpoint(tmp_path / "checkpoint-10", 1)
    with (cut / "model.safetensors").open("r+b") as weights:
        weights.truncate(40)
    unmarked = checkpoint(tmp_path / "checkpoint-11", 1)
    (unmarked / "trainer_state.json").unlink()
    marked = checkpoint(tmp_path / "checkpoint-12", 1)
    (marked / "checkpoint-is-incomplete.txt").touch()
    assert complete_checkpoints(tmp_path) == [whole]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer(["a b c"] * 3, vocab_size=300)


def trainer(folder: Path, tokenizer: PreTrainedTokenizerBase, **options) -> RecipeSeq2SeqTrainer:
    random = np.random.default_rng(0)
    rows = [random.integers(3, 50, size=random.integers(2, 9)).tolist() for _ in range(40)]
    torch.manual_seed(0)
    model = encoder_decoder(dropout=0.1)
    arguments = RecipeArguments(
        output_dir=str(folder), num_train_epochs=2, warmup_steps=5, logging_steps=1, save_steps=3, use_cpu=True,
        disable_tqdm=True, per_device_train_batch_size=8, **options,
    )  # fmt: skip
    return RecipeSeq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": rows, "labels": rows}),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )


@pytest.mark.parametrize("options", [{}, {"tokens_per_batch": 64}])
def test_a_resumed_run_ends_bit_for_bit_as_one_that_was_not_interrupted(options, tokenizer, tmp_path):
    whole = trainer(tmp_path / "run", tokenizer, **options)
    whole.train()
    steps = whole.state.global_step
    shutil.copytree(tmp_path / "run" / "checkpoint-3", tmp_path / "resumed" / "checkpoint-3")
    resumed = trainer(tmp_path / "resumed", tokenizer, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "resumed" / "checkpoint-3"))
    assert resumed.state.global_step == steps > 6
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name
    losses = [[log["loss"] for log in run.state.log_history if "loss" in log] for run in (whole, resumed)]
    assert losses[0] == losses[1]


def test_the_optimiser_is_the_papers(tokenizer, tmp_path):
    run = trainer(tmp_path, tokenizer)
    run.create_optimizer_and_scheduler(10)
    for group in run.optimizer.param_groups:
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-9, 0.0)
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(32**-0.5 * 5**-1.5)
    assert run.args.max_grad_norm == 0


def test_a_schedule_of_the_library_stays_reachable(tokenizer, tmp_path):
    run = trainer(tmp_path, tokenizer, learning_rate=0.5, lr_scheduler_type="constant")
    run.create_optimizer_and_scheduler(10)
    run.lr_scheduler.step()
    assert run.optimizer.param_groups[0]["lr"] == 0.5
    with pytest.raises(ValueError, match="lr_scheduler_type=cosine needs a --learning_rate"):
        RecipeArguments(lr_scheduler_type="cosine")


def test_labels_are_not_smoothed_twice():
    with pytest.raises(ValueError, match="label_smoothing_factor=0.1: labels are smoothed in the model"):
        RecipeArguments(label_smoothing_factor=0.1)


TRAIN = [
    sys.executable, str(SCRIPTS / "train_translation.py"), "--preset", "tiny", "--d_model", "32", "--d_ff", "32",
    "--phrases", "1000", "--vocab_size", "400", "--tokens_per_batch", "400", "--use_cpu", "true", "--save_steps", "5",
    "--max_eval_samples", "4", "--logging_steps", "5", "--warmup_steps", "50", "--num_beams", "1",
]  # fmt: skip


def run_training(folder: Path, steps: int, *options: str, until: str | None = None, kill: int = 0) -> None:
    """Train in a process of its own; where `until` is given, send it the signal once that folder is there."""
    environment = os.environ | {"PYTHONPATH": f"{SCRIPTS.parent}:{SCRIPTS}", "OMP_NUM_THREADS": "1"}
    command = [*TRAIN, "--output_dir", str(folder), "--max_steps", str(steps), *options]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if until is None:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        return
    deadline = time.monotonic() + 120
    while not (folder / until / "trainer_state.json").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(kill)
    process.communicate(timeout=120)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(tmp_path):
    run_training(tmp_path / "whole", 40)
    run_training(tmp_path / "killed", 40, until="checkpoint-10", kill=signal.SIGKILL)
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    run_training(tmp_path / "killed", 40, "--resume_from_checkpoint", "true")
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(killed[name], weight) for name, weight in whole.items())


@pytest.mark.slow
def test_a_terminated_run_saves_a_checkpoint_and_stops(tmp_path):
    run_training(tmp_path / "run", 100_000, "--save_steps", "20", until="checkpoint-20", kill=signal.SIGTERM)
    steps = [int(folder.name.split("-")[1]) for folder in complete_checkpoints(tmp_path / "run")]
    assert steps and any(step % 20 for step in steps)
