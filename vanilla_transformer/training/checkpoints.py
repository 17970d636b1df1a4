"""Find the checkpoints of a run, and check whether they are complete, resumable, and from the same run or model."""

import hashlib
import json
import logging
import os
import shutil
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from transformers import PreTrainedConfig
from transformers.trainer_utils import rotate_checkpoints
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from vanilla_transformer.files import check_source, read_object, read_settings


logger = logging.getLogger(__name__)

TRAINER_STATE = "trainer_state.json"
TOKENIZER = "tokenizer.json"
RUN_FILE = "run.json"  # in each checkpoint: options of the run, whether SIGTERM interrupted it, and file digests
LOCK_FILE = ".lock"  # exists in the folder of a run during training
# File patterns of the training state. DeepSpeed saves optimizer and schedule in the folder global_step*.
TRAINING_STATE = {
    "optimizer": ("optimizer*", "global_step*"),
    "schedule": ("scheduler*", "global_step*"),
    "random numbers": ("rng_state*.pth",),
}
DIGESTED = ("*.safetensors", "optimizer*", "scheduler*", "scaler*", "rng_state.pth")
# Config fields that Trainer or saving sets, or that do not affect the outputs
NOT_COMPARED = {
    "_attn_implementation", "_name_or_path", "architectures", "auto_map", "custom_pipelines", "dtype", "problem_type",
    "transformers_version", "use_cache", "vanilla_transformer_version",
}  # fmt: skip


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock the folder of a run against other processes. If the process is killed, the system releases the lock.

    Raises:
        ValueError: another process is training in this folder.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"output_dir={folder}: another run trains into this folder. Wait for its end, or choose another."
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):  # Windows cannot delete the file before its release
            (folder / LOCK_FILE).unlink()
        lock.release()
        with suppress(OSError):  # a folder with files stays
            for path in created:
                path.rmdir()


def read_run_file(folder: Path) -> dict[str, Any]:
    """Read `RUN_FILE` of a checkpoint. Return {} if there is none because another program saved the checkpoint.

    Raises:
        ValueError: the file is not a JSON object.
    """
    file = Path(folder) / RUN_FILE
    return read_settings(file) if file.is_file() else {}


def file_digest(file: Path) -> str:
    """Return the SHA-256 hash of a file, or an empty string if the file cannot be read."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""


def write_digests(folder: Path) -> None:
    """Add the digest of each file with weights or training state to `RUN_FILE`."""
    files = [file for pattern in DIGESTED for file in folder.glob(pattern) if file.is_file()]
    facts = read_run_file(folder) | {"digests": {file.name: file_digest(file) for file in files}}
    temporary = folder / f"{RUN_FILE}.tmp"
    temporary.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, folder / RUN_FILE)


def damaged_files(folder: Path, pattern: str = "*") -> list[str]:
    """Return the names of a checkpoint's files whose digests differ from those in `RUN_FILE`."""
    digests = read_run_file(folder).get("digests", {})
    return [
        name for name, digest in digests.items() if fnmatch(name, pattern) and file_digest(folder / name) != digest
    ]


def check_digests(folder: Path, pattern: str = "*") -> None:
    """Raise a ValueError if a file of a checkpoint that matches `pattern` is damaged."""
    if damaged := damaged_files(folder, pattern):
        raise ValueError(f"{folder} is damaged: the contents of {', '.join(damaged)} have changed since it was saved.")


def is_sound(folder: Path, pattern: str = "*") -> bool:
    """Whether all files of a checkpoint that match `pattern` are intact. Warn if one is damaged."""
    try:
        check_digests(folder, pattern)
    except ValueError as error:
        logger.warning("%s It is left out.", error)
        return False
    return True


def was_interrupted(folder: Path) -> bool:
    """Whether a checkpoint was saved only because of SIGTERM, between the regular checkpoints."""
    return read_run_file(folder).get("interrupted", False)


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint: a single file or several shards.

    If two saves have left both in the folder, return the single file, which `from_pretrained` prefers too.

    Raises:
        ValueError: the index of the shards is not valid JSON, or does not name files.
    """
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    if index.is_file() and not (folder / SAFE_WEIGHTS_NAME).is_file():
        names = read_object(index, "weight_map").values()
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{index}: weight_map must name the file of each weight.")
        return [folder / name for name in sorted(set(names))]
    return [folder / SAFE_WEIGHTS_NAME]


def is_complete(folder: Path) -> bool:
    """Whether all files of a checkpoint can be read: weights, config, and training state if present.

    A checkpoint without training state, as saved with `save_only_model`, can be complete; see `missing_state`.
    """
    if list(folder.glob("*incomplete*")):
        return False
    try:
        for name in (TRAINER_STATE, CONFIG_NAME):
            read_settings(folder / name)
        read_run_file(folder)
        for file in weight_files(folder):
            with safe_open(file, framework="pt") as weights:
                weights.keys()
    except (OSError, ValueError, SafetensorError):
        return False
    patterns = ("optimizer*", "scheduler*", "scaler*", "rng_state*")
    states = [file for pattern in patterns for file in folder.glob(pattern) if file.is_file()]
    return all(map(zipfile.is_zipfile, states))  # torch.save writes zip files; a truncated one is invalid


def missing_state(folder: Path) -> list[str]:
    """Return the missing parts of the training state. Without them, a run cannot be resumed exactly."""
    missing = [name for name, patterns in TRAINING_STATE.items() if not any(any(folder.glob(p)) for p in patterns)]
    processes = read_run_file(folder).get("processes", 1)
    if not missing and len(list(folder.glob("rng_state*.pth"))) < processes:
        return [f"random numbers of some of its {processes} processes"]
    return missing


def checkpoint_folders(run: Path) -> list[Path]:
    """Return all checkpoint folders of a run, complete or not, oldest first."""
    folders = [folder for folder in Path(run).glob("checkpoint-*") if folder.name.split("-", 1)[1].isdecimal()]
    return sorted((folder for folder in folders if folder.is_dir()), key=step_of)


def complete_checkpoints(run: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first."""
    return [folder for folder in checkpoint_folders(run) if is_complete(folder)]


def checkpoints_to_average(run: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first, without damaged ones and those saved on SIGTERM."""
    regular = [folder for folder in complete_checkpoints(run) if not was_interrupted(folder)]
    return [folder for folder in regular if is_sound(folder, "*.safetensors")]


def last_checkpoint(run: Path) -> Path | None:
    """Return the last checkpoint from which a run can be resumed, or None if no checkpoint is complete.

    Raises:
        ValueError: the run has complete checkpoints, but all are damaged or lack their training state.
    """
    complete = complete_checkpoints(run)
    resumable = [folder for folder in complete if not missing_state(folder)]
    if complete and not resumable:
        raise ValueError(
            f"{complete[-1]} cannot be resumed: it lacks its {', '.join(missing_state(complete[-1]))} (a run with "
            "--save_only_model true saves none). Start from its weights in another folder: --model_name_or_path "
            f"{complete[-1]}"
        )
    sound = next(filter(is_sound, reversed(resumable)), None)
    if resumable and sound is None:
        raise ValueError(f"{run}: all checkpoints are damaged. Start a new run in another --output_dir.")
    return sound


def step_of(folder: Path) -> int:
    """Return the training step in the name of a checkpoint folder."""
    return int(folder.name.split("-")[1])


def prune_checkpoints(last: Path, save_total_limit: int | None, best: str | None) -> None:
    """Delete the checkpoints that an uninterrupted run would not have right after the checkpoint `last`.

    These are incomplete and damaged checkpoints, and complete ones beyond the limit. Trainer deletes folders by
    modification time, oldest first, so the remaining folders get modification times in the order of their steps.
    """
    run = last.parent
    for folder in checkpoint_folders(run):
        unusable = not is_complete(folder) or (step_of(folder) > step_of(last) and damaged_files(folder))
        if unusable and not folder.is_symlink():
            shutil.rmtree(folder)
    rotate_checkpoints(str(run), save_total_limit, best)
    now, left = time.time(), checkpoint_folders(run)
    for age, folder in enumerate(reversed(left)):
        os.utime(folder, (now - age, now - age))


def make_readable(folder: Path) -> None:
    """Give the weight files in a folder the permissions of its config, because safetensors makes them private."""
    for file in folder.glob("*.safetensors"):
        shutil.copymode(folder / CONFIG_NAME, file)


def config_differences(folder: Path, config: PreTrainedConfig) -> list[str]:
    """Return the differences between a config and that of a checkpoint, as far as they affect the outputs."""
    saved = read_settings(folder / CONFIG_NAME)
    if saved.get("model_type") != config.model_type:
        return [f"model_type is {config.model_type}, and was {saved.get('model_type')}"]
    # Compare both as JSON, which turns tuples into lists and integer keys into strings.
    then, now = (json.loads(c.to_json_string(use_diff=False)) for c in (type(config).from_dict(saved), config))
    names = [name for name in now if name not in NOT_COMPARED and not name.endswith("_token_id")]
    return [f"{name} is {now[name]}, and was {then.get(name)}" for name in names if now[name] != then.get(name)]


def tokenizer_differences(folder: Path, tokenizer: Tokenizer | None) -> list[str]:
    """Return a list with the difference between a tokenizer and a checkpoint's; an empty list if there is none."""
    file = folder / TOKENIZER
    if tokenizer is None or not file.is_file():
        return []
    then, now = map(json.loads, (file.read_text(encoding="utf-8"), tokenizer.to_str()))
    for state in (then, now):
        state["truncation"] = state["padding"] = None  # changed by every call of the tokenizer
    if then == now:
        return []
    ids, before = tokenizer.get_vocab(), Tokenizer.from_str(json.dumps(then)).get_vocab()
    changed = sum(ids.get(token) != number for token, number in before.items())
    return [f"the tokenizer is another one, in which {changed} of {len(before)} tokens have another id or none"]


def check_same_run(folder: Path, facts: dict[str, Any], config: PreTrainedConfig, tokenizer: Any) -> None:
    """Check that a checkpoint has the architecture, tokenizer, data and options of the current run.

    Args:
        facts: options and data of the current run, to compare with the checkpoint's `RUN_FILE`.

    Raises:
        ValueError: they differ. The message lists all differences.
    """
    then = read_run_file(folder)
    differences = config_differences(folder, config)
    differences += tokenizer_differences(folder, getattr(tokenizer, "backend_tokenizer", None))
    differences += [
        f"{name} is {value}, and was {then[name]}" for name, value in facts.items() if then.get(name, value) != value
    ]
    if differences:
        raise ValueError(
            f"{folder} is a checkpoint of another run: {'; '.join(differences)}. Resume with what that run was "
            "started with, or start a new one in another --output_dir."
        )


def check_same_model(folders: Sequence[Path]) -> None:
    """Check that the models to average have the same architecture and tokenizer.

    Training options, such as dropout, may differ.

    Raises:
        FileNotFoundError: a folder does not exist or contains no model.
        ValueError: a model differs from the last one. The message lists all differences.
    """
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: there is no such folder.")
        check_source(folder)
    *others, last = folders
    # Compare config files, because config objects might need a model's own code. Compare class names too, because
    # models for two tasks can have weights with the same names and shapes.
    now = read_settings(last / CONFIG_NAME)
    names = [name for name in now if name not in NOT_COMPARED - {"architectures"} and not name.endswith("_token_id")]
    # Different vocabulary sizes show in the weights' shapes. Configs may omit an equal `target_vocab_size`.
    names = [name for name in names if "drop" not in name and name not in ("label_smoothing", "target_vocab_size")]
    tokenizer = Tokenizer.from_file(str(last / TOKENIZER)) if (last / TOKENIZER).is_file() else None
    for folder in others:
        then = read_settings(folder / CONFIG_NAME)
        both = [name for name in names if name in then]
        differences = [f"{name} is {now[name]}, and was {then[name]}" for name in both if now[name] != then[name]]
        differences += tokenizer_differences(folder, tokenizer)
        if differences:
            raise ValueError(f"{last} is another model than {folder}: {'; '.join(differences)}.")
