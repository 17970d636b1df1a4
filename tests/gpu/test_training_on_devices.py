"""Training on a GPU: runs resume as on a CPU, and batches are copied asynchronously."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from small_data import write_json_lines
from tiny_training import tiny_trainer
from vanilla_transformer.cli import train as train_command
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.fast import make_fast
from vanilla_transformer.fast.transfer import AsyncScalars


on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def train(folder: Path, device: str, resume: bool = False, **options) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train a tiny model; return the loss of each logged step and the final weights."""
    trainer = tiny_trainer(folder, use_cpu=device == "cpu", tokens_per_batch=64, **options)
    trainer.train(resume_from_checkpoint=resume or None)
    trainer.save_model()
    last = max(folder.glob("checkpoint-*"), key=lambda checkpoint: int(checkpoint.name.split("-")[1]))
    history = json.loads((last / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry], load_file(folder / "model.safetensors")


@on_devices
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
def test_a_resumed_run_has_the_same_result_as_an_uninterrupted_run(bf16, device, tmp_path):
    whole = train(tmp_path / "whole", device, bf16=bf16)
    shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "resumed" / "checkpoint-3")
    resumed = train(tmp_path / "resumed", device, resume=True, bf16=bf16)
    if device == "cpu":
        assert resumed[0] == whole[0]
        assert all(torch.equal(resumed[1][name], weight) for name, weight in whole[1].items())
    else:  # GPUs sum embedding gradients in no fixed order, and Adam amplifies differences near zero
        assert resumed[0] == pytest.approx(whole[0], rel=0.02)
        ours, theirs = (torch.cat([weight.flatten() for weight in run[1].values()]) for run in (resumed, whole))
        assert (ours - theirs).norm() <= 0.02 * theirs.norm()


@pytest.mark.gpu
def test_training_losses_are_the_same_on_cpu_and_gpu(tmp_path):
    options = {"bf16": False, "dropout": 0.0, "max_steps": 4, "save_steps": 4}
    expected, _ = train(tmp_path / "cpu", "cpu", **options)
    found, _ = train(tmp_path / "cuda", "cuda", **options)
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens_per_batch", [64, 0])
@pytest.mark.parametrize("attention", ["sdpa", "packed_sdpa"])
def test_the_number_of_synchronisations_does_not_grow_with_the_number_of_steps(attention, tokens_per_batch, tmp_path):
    """The host waits at the start and end of training; with "sdpa", transformers also reads masks in each step."""

    def times(steps: int) -> int:
        options = {"max_steps": steps, "logging_steps": 100, "save_strategy": "no", "use_cpu": False}
        trainer = tiny_trainer(tmp_path / str(steps), tokens_per_batch=tokens_per_batch, **options)
        make_fast(trainer.model, packing=attention == "packed_sdpa", loss_chunk_size=4)
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                trainer.train()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
        return sum("synchronizing" in str(warning.message) for warning in seen)

    times(2)  # the first run fills caches
    few, many = times(4), times(14)
    # with "sdpa", reading the source mask waits for the GPU once per step in encoder and decoder
    assert many - few <= (10 * 2 if attention == "sdpa" else 0)


@on_devices
def test_logged_values_are_one_step_late_only_on_a_gpu(device):
    late = AsyncScalars()
    come = [late.push(step, torch.full((2,), float(step), device=device)) for step in (1, 2, 3)]
    known = [(step, [step, step]) for step in (1, 2, 3)]
    assert come == (known if device == "cpu" else [None, *known[:2]])


@pytest.mark.gpu
def test_a_run_that_diverges_on_a_gpu_stops(tmp_path):
    trainer = tiny_trainer(tmp_path, use_cpu=False, save_strategy="no", learning_rate=1e30, warmup_steps=0)
    with pytest.raises(FloatingPointError, match="Training has diverged"):
        trainer.train()


@on_devices
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_in_pinned_memory_if_there_is_a_gpu(workers, device, tmp_path):
    trainer = tiny_trainer(tmp_path, use_cpu=device == "cpu", tokens_per_batch=64, dataloader_num_workers=workers)
    batch = next(iter(trainer.get_train_dataloader()))
    assert all(values.is_pinned() == (device == "cuda") for values in batch.values())


@pytest.mark.gpu
def test_a_plan_for_a_file_trains_on_the_gpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json_lines(tmp_path / "pairs.jsonl", phrasebook("translation", size=1000)["train"].select(range(200)))
    torch.cuda.reset_peak_memory_stats()
    assert train_command.main(["pairs.jsonl", "--max_steps", "8"])["validation"]
    assert torch.cuda.max_memory_allocated() > 0
