"""The checkpoints of a run: which are whole, and which a run can go on from."""

import json
import os
import shutil
import time
import zipfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers.trainer_utils import rotate_checkpoints
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from vanilla_transformer.loading import read_object


TRAINER_STATE = "trainer_state.json"
RUN_FILE = "run.json"  # of each checkpoint: what the run was started with, and why the checkpoint was written
# Where the parts of a run's state lie; DeepSpeed has all of them in a folder of its own.
TRAINING_STATE = {
    "optimizer": ("optimizer*", "global_step*"),
    "schedule": ("scheduler*", "global_step*"),
    "random numbers": ("rng_state*.pth",),
}


def read_run_file(folder: Path) -> dict[str, Any]:
    """What `RUN_FILE` of a checkpoint says; nothing where another program has written it."""
    file = Path(folder) / RUN_FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def was_interrupted(folder: Path) -> bool:
    """Whether a checkpoint was saved since the run was to end, at a step where it saves none otherwise."""
    return read_run_file(folder).get("interrupted", False)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, one or sharded; where an earlier save has left both, `from_pretrained`
    reads the one.

    Raises:
        ValueError: the index of the shards is no JSON, or does not name them.
    """
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    if index.is_file() and not (folder / SAFE_WEIGHTS_NAME).is_file():
        names = read_object(index, "weight_map").values()
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{index}: weight_map must name the file of each weight.")
        return [folder / name for name in sorted(set(names))]
    return [folder / SAFE_WEIGHTS_NAME]


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint was written to its end, and each file of it can be read: weights, config, training state.

    One without any training state, as `save_only_model` writes it, may be complete: see `missing_state`.
    """
    if list(folder.glob("*incomplete*")):
        return False
    try:
        for name in (TRAINER_STATE, CONFIG_NAME):
            json.loads((folder / name).read_text(encoding="utf-8"))
        read_run_file(folder)
        for file in weight_files(folder):
            with safe_open(file, framework="pt") as weights:
                weights.keys()
    except (OSError, ValueError, SafetensorError):
        return False
    states = [
        file for pattern in ("optimizer*", "scheduler*", "scaler*", "rng_state*") for file in folder.glob(pattern)
    ]
    # torch.save writes zip files, whose directory stands at the end: what is cut off has none.
    return all(zipfile.is_zipfile(file) for file in states if file.is_file())


def missing_state(folder: Path) -> list[str]:
    """What a complete checkpoint lacks for training to go on from it exactly."""
    missing = [name for name, patterns in TRAINING_STATE.items() if not any(any(folder.glob(p)) for p in patterns)]
    processes = read_run_file(folder).get("processes", 1)
    if not missing and len(list(folder.glob("rng_state*.pth"))) < processes:
        return [f"random numbers of some of its {processes} processes"]
    return missing


def checkpoint_folders(run: Path) -> list[Path]:
    """The checkpoints of a run, whole or not, oldest first."""
    folders = [folder for folder in Path(run).glob("checkpoint-*") if folder.name.split("-", 1)[1].isdecimal()]
    return sorted((folder for folder in folders if folder.is_dir()), key=lambda folder: int(folder.name.split("-")[1]))


def complete_checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first; what a crash left half-written is passed over."""
    return [folder for folder in checkpoint_folders(run) if is_complete(folder)]


def checkpoints_to_average(run: Path) -> list[Path]:
    """The complete checkpoints of a run that count for a mean, oldest first: all at steps where it saves anyway."""
    return [folder for folder in complete_checkpoints(run) if not was_interrupted(folder)]


def last_checkpoint(run: Path) -> Path | None:
    """The checkpoint to resume a run from: the last complete one; None where there is none yet.

    Raises:
        ValueError: complete checkpoints, but none of them has what a run goes on from.
    """
    complete = complete_checkpoints(run)
    resumable = [folder for folder in complete if not missing_state(folder)]
    if complete and not resumable:
        raise ValueError(
            f"{complete[-1]} cannot be resumed: it lacks its {', '.join(missing_state(complete[-1]))} (a run with "
            "--save_only_model true saves none). Start from its weights in another folder: --model_name_or_path "
            f"{complete[-1]}"
        )
    return resumable[-1] if resumable else None


def clear(run: Path, save_total_limit: int | None, best: str | None) -> None:
    """Leave the checkpoints that the run would hold, had nothing interrupted it; what is complete and within the limit
    stays. The Trainer deletes the oldest by the time of their folders, so they get one in the order of their steps.
    """
    for folder in checkpoint_folders(run):
        if not is_complete(folder) and not folder.is_symlink():
            shutil.rmtree(folder)
    rotate_checkpoints(str(run), save_total_limit, best)
    now, left = time.time(), checkpoint_folders(run)
    for age, folder in enumerate(reversed(left)):
        os.utime(folder, (now - age, now - age))


def share(folder: Path) -> None:
    """Let whoever may read a folder's other files read its weights, which safetensors keeps for their owner."""
    for file in folder.glob("*.safetensors"):
        shutil.copymode(folder / CONFIG_NAME, file)
