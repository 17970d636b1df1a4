"""Training on a GPU: runs resume there as on a CPU, and batches are on their way before they are needed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tiny_training import tiny_trainer


on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def train(folder: Path, device: str, resume: bool = False, **options) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses of the steps, and the final weights."""
    trainer = tiny_trainer(folder, use_cpu=device == "cpu", tokens_per_batch=64, **options)
    trainer.train(resume_from_checkpoint=resume or None)
    trainer.save_model()
    last = max(folder.glob("checkpoint-*"), key=lambda checkpoint: int(checkpoint.name.split("-")[1]))
    history = json.loads((last / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry], load_file(folder / "model.safetensors")


@on_devices
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(bf16, device, tmp_path):
    whole = train(tmp_path / "whole", device, bf16=bf16)
    shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "resumed" / "checkpoint-3")
    resumed = train(tmp_path / "resumed", device, resume=True, bf16=bf16)
    if device == "cpu":
        assert resumed[0] == whole[0]
        assert all(torch.equal(resumed[1][name], weight) for name, weight in whole[1].items())
    else:  # a GPU sums gradients of embeddings in any order, and Adam makes much of what is about zero
        assert resumed[0] == pytest.approx(whole[0], rel=0.02)
        ours, theirs = (torch.cat([weight.flatten() for weight in run[1].values()]) for run in (resumed, whole))
        assert (ours - theirs).norm() <= 0.02 * theirs.norm()


@pytest.mark.gpu
def test_a_gpu_trains_as_a_cpu_does(tmp_path):
    options = {"bf16": False, "dropout": 0.0, "max_steps": 4, "save_steps": 4}
    expected, _ = train(tmp_path / "cpu", "cpu", **options)
    found, _ = train(tmp_path / "cuda", "cuda", **options)
    assert found == pytest.approx(expected, rel=1e-3)


@on_devices
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_pinned_where_there_is_a_gpu_to_fetch_them(workers, device, tmp_path):
    trainer = tiny_trainer(tmp_path, use_cpu=device == "cpu", tokens_per_batch=64, dataloader_num_workers=workers)
    batch = next(iter(trainer.get_train_dataloader()))
    assert all(values.is_pinned() == (device == "cuda") for values in batch.values())
