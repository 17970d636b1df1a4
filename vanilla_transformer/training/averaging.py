"""The mean of the last checkpoints' weights (section 6.1), as weights or as a complete model folder."""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME


TRAINER_STATE = "trainer_state.json"
# What a checkpoint holds to resume a run, which a model folder does not need.
TRAINING_FILES = (
    "optimizer*",
    "scheduler*",
    "rng_state*",
    "trainer_state*",
    "training_args*",
    "scaler*",
    "pytorch_model_fsdp*",
    "*.safetensors*",
)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, one or sharded."""
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    if index.is_file():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return [folder / SAFE_WEIGHTS_NAME]


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint was written to its end: its state can be read and its weights opened."""
    if list(folder.glob("*incomplete*")):
        return False
    try:
        json.loads((folder / TRAINER_STATE).read_text())
        for file in weight_files(folder):
            with safe_open(file, framework="pt") as weights:
                weights.keys()
    except (OSError, ValueError, SafetensorError):
        return False
    return True


def complete_checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first; what a crash left half-written is passed over."""
    folders = [folder for folder in Path(run).glob("checkpoint-*") if folder.name.split("-")[-1].isdigit()]
    return [folder for folder in sorted(folders, key=lambda f: int(f.name.split("-")[-1])) if is_complete(folder)]


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for file in weight_files(Path(folder)):
        weights |= load_file(file)
    return weights


def average_checkpoints(folders: list[Path]) -> dict[str, torch.Tensor]:
    """The mean of the weights of several checkpoints of one model, computed in float32.

    Raises:
        ValueError: no checkpoint, or two that differ in a name or shape.
    """
    if not folders:
        raise ValueError("There is no checkpoint to average.")
    total = {name: weight.float() for name, weight in load_weights(folders[0]).items()}
    dtypes = {name: weight.dtype for name, weight in load_weights(folders[-1]).items()}
    for folder in folders[1:]:
        weights = load_weights(folder)
        if weights.keys() != total.keys():
            raise ValueError(
                f"{folder} and {folders[0]} differ in: {', '.join(sorted(weights.keys() ^ total.keys()))}."
            )
        for name, weight in weights.items():
            if weight.shape != total[name].shape:
                shapes = tuple(weight.shape), tuple(total[name].shape)
                raise ValueError(f"{name} has shape {shapes[0]} in {folder}, and {shapes[1]} in {folders[0]}.")
            total[name] += weight.float()
    return {name: (weight / len(folders)).to(dtypes[name]) for name, weight in total.items()}


def save_average(folders: list[Path], output: Path) -> None:
    """Write a model folder with the mean of the checkpoints, and all else but training state from the last of them.

    Raises:
        ValueError: `output` exists.
    """
    output = Path(output)
    if output.exists():
        raise ValueError(f"{output} exists: choose a new folder.")
    weights = average_checkpoints(folders)
    part = output.with_name(f"{output.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(folders[-1], part, ignore=shutil.ignore_patterns(*TRAINING_FILES, "*.safetensors*"))
    save_file(weights, part / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})
    os.replace(part, output)
