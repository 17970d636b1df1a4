"""Average the last checkpoints of a run (section 6.1), in memory or into a complete model folder."""

import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_NAME

from vanilla_transformer.files import new_folder
from vanilla_transformer.training.checkpoints import (
    RUN_FILE,
    check_digests,
    check_same_model,
    make_readable,
    weight_files,
)


# Files not copied into the averaged model: weights, training state, and reports about the final model
NOT_COPIED = (
    *"optimizer* scheduler* rng_state* trainer_state* training_args* scaler* pytorch_model_fsdp* global_step*".split(),
    *(RUN_FILE, "*.safetensors*", "checkpoint-*", "runs", "README.md", "curves.png", "examples.md"),
)


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Load the weights of a checkpoint, from one file or several shards. Return them by name.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: a file is damaged.
    """
    check_digests(folder, "*.safetensors")
    weights: dict[str, torch.Tensor] = {}
    for file in weight_files(Path(folder)):
        try:
            weights |= load_file(file)
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged or truncated ({error}).") from error
    return weights


def average_checkpoints(folders: list[Path]) -> dict[str, torch.Tensor]:
    """Return the mean of the weights of several checkpoints of one model, computed in float32.

    Raises:
        ValueError: no checkpoint is given, or weights differ in name or shape, are damaged, or are not finite.
    """
    if not folders:
        raise ValueError("There is no checkpoint to average.")
    total: dict[str, torch.Tensor] = {}
    for folder in folders:
        weights = load_weights(folder)
        total = total or {name: torch.zeros_like(weight, dtype=torch.float32) for name, weight in weights.items()}
        if weights.keys() != total.keys():
            raise ValueError(
                f"{folder} and {folders[0]} differ in: {', '.join(sorted(weights.keys() ^ total.keys()))}."
            )
        for name, weight in weights.items():
            if weight.shape != total[name].shape:
                shapes = tuple(weight.shape), tuple(total[name].shape)
                raise ValueError(f"{name} has shape {shapes[0]} in {folder}, and {shapes[1]} in {folders[0]}.")
            if not weight.isfinite().all():
                raise ValueError(f"{name} has values that are not finite in {folder}: leave this checkpoint out.")
            total[name] += weight.float()
    return {name: (weight / len(folders)).to(weights[name].dtype) for name, weight in total.items()}


def load_average(model: PreTrainedModel, folders: list[Path]) -> None:
    """Load the averaged weights of the checkpoints into `model`.

    Raises:
        ValueError: the weights of the checkpoints and of the model have different names.
    """
    names = model.load_state_dict(average_checkpoints(folders), strict=False)
    # Tied weights are saved once, under the name of their source.
    unknown = {*names.missing_keys} - {*model.all_tied_weights_keys} | {*names.unexpected_keys}
    if unknown:
        raise ValueError(f"{folders[-1]} and the model differ in: {', '.join(sorted(unknown))}.")


def save_average(folders: list[Path], output: Path) -> None:
    """Write a model folder with the mean of the checkpoints and the other model files of the last one.

    Raises:
        FileNotFoundError: a checkpoint or one of its files does not exist.
        ValueError: no checkpoint is given, the checkpoints are of different models, or `output` exists or is inside
            the last checkpoint.
    """
    if not folders:
        raise ValueError("There is no checkpoint to average.")
    if folders[-1].resolve() in output.resolve().parents:
        raise ValueError(f"{output} is inside {folders[-1]}, whose files are copied: choose a folder outside.")
    check_same_model(folders)
    with new_folder(output) as folder:
        weights = average_checkpoints(folders)
        shutil.copytree(folders[-1], folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
        save_file(weights, folder / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})
        make_readable(folder)
