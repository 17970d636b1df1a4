"""The checkpoints of a run: which are complete, which can be resumed, and which belong together."""

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
RUN_FILE = "run.json"  # in each checkpoint: the options of the run, whether SIGTERM interrupted it, digests
LOCK_FILE = ".lock"  # file in the folder of a run while it trains
# Files of the training state. DeepSpeed saves all of it in its own folder.
TRAINING_STATE = {
    "optimizer": ("optimizer*", "global_step*"),
    "schedule": ("scheduler*", "global_step*"),
    "random numbers": ("rng_state*.pth",),
}
DIGESTED = ("*.safetensors", "optimizer*", "scheduler*", "scaler*", "rng_state.pth")
# Config fields that saving or Trainer sets, or that do not affect the outputs
NOT_COMPARED = {
    "_attn_implementation", "_name_or_path", "architectures", "auto_map", "custom_pipelines", "dtype", "problem_type",
    "transformers_version", "use_cache", "vanilla_transformer_version",
}  # fmt: skip


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock the folder of a run against other processes. A killed process loses the lock.

    Raises:
        ValueError: another process trains into the folder.
    """
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
        with suppress(OSError):  # Windows deletes the file on release, but not earlier
            (folder / LOCK_FILE).unlink()
        lock.release()


def read_run_file(folder: Path) -> dict[str, Any]:
    """Read `RUN_FILE` of a checkpoint; empty if the checkpoint has none, because another program wrote it.

    Raises:
        ValueError: the file is not a JSON object.
    """
    file = Path(folder) / RUN_FILE
    return read_settings(file) if file.is_file() else {}


def file_digest(file: Path) -> str:
    """Return a hash of a file's contents; empty if it cannot be read."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""


def write_digests(folder: Path) -> None:
    """Add a digest of each file of weights and training state to `RUN_FILE`."""
    files = [file for pattern in DIGESTED for file in folder.glob(pattern) if file.is_file()]
    facts = read_run_file(folder) | {"digests": {file.name: file_digest(file) for file in files}}
    temporary = folder / f"{RUN_FILE}.tmp"
    temporary.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, folder / RUN_FILE)


def damaged_files(folder: Path, pattern: str = "*") -> list[str]:
    """Return the names of files in a checkpoint whose digest no longer equals that in `RUN_FILE`."""
    digests = read_run_file(folder).get("digests", {})
    return [
        name for name, digest in digests.items() if fnmatch(name, pattern) and file_digest(folder / name) != digest
    ]


def check_digests(folder: Path, pattern: str = "*") -> None:
    """Raise a ValueError if a file of a checkpoint is damaged."""
    if damaged := damaged_files(folder, pattern):
        raise ValueError(f"{folder} is damaged: the contents of {', '.join(damaged)} have changed since it was saved.")


def is_sound(folder: Path, pattern: str = "*") -> bool:
    """Whether all files of a checkpoint are intact; warn if one is damaged."""
    try:
        check_digests(folder, pattern)
    except ValueError as error:
        logger.warning("%s It is left out.", error)
        return False
    return True


def was_interrupted(folder: Path) -> bool:
    """Whether a checkpoint was saved because of SIGTERM, at a step without a regular checkpoint."""
    return read_run_file(folder).get("interrupted", False)


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint, one or several shards.

    If a folder has both, from two saves, return the single file, as `from_pretrained` does.

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
    """Whether all files of a checkpoint can be read: weights, config, and its training state if it has one.

    A checkpoint without training state, as saved with `save_only_model`, can be complete: see `missing_state`.
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
    return all(map(zipfile.is_zipfile, states))  # torch.save writes zip files, which end with their directory


def missing_state(folder: Path) -> list[str]:
    """Return the missing parts of the training state, without which a complete checkpoint does not resume exactly."""
    missing = [name for name, patterns in TRAINING_STATE.items() if not any(any(folder.glob(p)) for p in patterns)]
    processes = read_run_file(folder).get("processes", 1)
    if not missing and len(list(folder.glob("rng_state*.pth"))) < processes:
        return [f"random numbers of some of its {processes} processes"]
    return missing


def checkpoint_folders(run: Path) -> list[Path]:
    """Return the checkpoints of a run, complete or not, oldest first."""
    folders = [folder for folder in Path(run).glob("checkpoint-*") if folder.name.split("-", 1)[1].isdecimal()]
    return sorted((folder for folder in folders if folder.is_dir()), key=step_of)


def complete_checkpoints(run: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first."""
    return [folder for folder in checkpoint_folders(run) if is_complete(folder)]


def checkpoints_to_average(run: Path) -> list[Path]:
    """Return the complete checkpoints of a run except those saved on SIGTERM, oldest first."""
    regular = [folder for folder in complete_checkpoints(run) if not was_interrupted(folder)]
    return [folder for folder in regular if is_sound(folder, "*.safetensors")]


def last_checkpoint(run: Path) -> Path | None:
    """Return the last checkpoint that a run can resume from, or None if it has no complete one yet.

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
    """Return the step of a checkpoint from the name of its folder."""
    return int(folder.name.split("-")[1])


def prune_checkpoints(last: Path, save_total_limit: int | None, best: str | None) -> None:
    """Keep the checkpoints that a run would have if nothing had interrupted it after the checkpoint `last`.

    Incomplete and damaged checkpoints, and complete ones beyond the limit, are deleted. Trainer deletes folders by
    modification time, the oldest first, so those left get times in the order of their steps.
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
    """Give the weights in a folder the permissions of its config, because safetensors makes them private."""
    for file in folder.glob("*.safetensors"):
        shutil.copymode(folder / CONFIG_NAME, file)


def config_differences(folder: Path, config: PreTrainedConfig) -> list[str]:
    """Compare a config with a checkpoint's, and return the differences that affect the outputs."""
    saved = read_settings(folder / CONFIG_NAME)
    if saved.get("model_type") != config.model_type:
        return [f"model_type is {config.model_type}, and was {saved.get('model_type')}"]
    # JSON turns tuples into lists, and integer keys into strings.
    then, now = (json.loads(c.to_json_string(use_diff=False)) for c in (type(config).from_dict(saved), config))
    names = [name for name in now if name not in NOT_COMPARED and not name.endswith("_token_id")]
    return [f"{name} is {now[name]}, and was {then.get(name)}" for name in names if now[name] != then.get(name)]


def tokenizer_differences(folder: Path, tokenizer: Tokenizer | None) -> list[str]:
    """Compare a tokenizer with a checkpoint's, if it has one; return a difference in a list, or an empty list."""
    file = folder / TOKENIZER
    if tokenizer is None or not file.is_file():
        return []
    then, now = map(json.loads, (file.read_text(encoding="utf-8"), tokenizer.to_str()))
    for state in (then, now):
        state["truncation"] = state["padding"] = None  # every call sets these
    if then == now:
        return []
    ids, before = tokenizer.get_vocab(), Tokenizer.from_str(json.dumps(then)).get_vocab()
    changed = sum(ids.get(token) != number for token, number in before.items())
    return [f"the tokenizer is another one, in which {changed} of {len(before)} tokens have another id or none"]


def check_same_run(folder: Path, facts: dict[str, Any], config: PreTrainedConfig, tokenizer: Any) -> None:
    """Raise an error if the checkpoint has another architecture, tokenizer, dataset or order of the data.

    Args:
        facts: the options of the current run, to compare with the checkpoint's `RUN_FILE`.

    Raises:
        ValueError: names all differences.
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
    """Raise an error if the models to average differ in their architecture or tokenizer.

    Training options, such as dropout, may differ.

    Raises:
        FileNotFoundError: a folder does not exist or contains no model.
        ValueError: names all differences between a model and the last one.
    """
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: there is no such folder.")
        check_source(folder)
    *others, last = folders
    # Compare files, not config objects, because a model may need its own code. Compare classes too: the heads of two
    # tasks can have weights with the same names and shapes.
    now = read_settings(last / CONFIG_NAME)
    names = [name for name in now if name not in NOT_COMPARED - {"architectures"} and not name.endswith("_token_id")]
    # Shapes of weights include the vocabulary sizes; `target_vocab_size` may be left out if both are equal.
    names = [name for name in names if "drop" not in name and name not in ("label_smoothing", "target_vocab_size")]
    tokenizer = Tokenizer.from_file(str(last / TOKENIZER)) if (last / TOKENIZER).is_file() else None
    for folder in others:
        then = read_settings(folder / CONFIG_NAME)
        both = [name for name in names if name in then]
        differences = [f"{name} is {now[name]}, and was {then[name]}" for name in both if now[name] != then[name]]
        differences += tokenizer_differences(folder, tokenizer)
        if differences:
            raise ValueError(f"{last} is another model than {folder}: {'; '.join(differences)}.")
