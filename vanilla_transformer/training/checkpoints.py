"""The checkpoints of a run: which are whole, what they were trained with, and one run at a time in a folder."""

import hashlib
import json
import os
import shutil
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.trainer_utils import rotate_checkpoints
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


TRAINER_STATE = "trainer_state.json"
RUN_FILE = "run.json"  # of each checkpoint: what the run was started with, and why the checkpoint was written
# Where the parts of a run's state lie; DeepSpeed has all of them in a folder of its own.
TRAINING_STATE = {
    "optimizer": ("optimizer*", "global_step*"),
    "schedule": ("scheduler*", "global_step*"),
    "random numbers": ("rng_state*.pth",),
}


# ---------------------------------------------------------------------------------------------------------------------
# Which are whole
# ---------------------------------------------------------------------------------------------------------------------


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, one or sharded."""
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    if index.is_file():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return [folder / SAFE_WEIGHTS_NAME]


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint was written to its end, and each file of it can be read: weights, config, training state.

    One without any training state, as `save_only_model` writes it, may be complete: see `missing_state`.
    """
    if list(folder.glob("*incomplete*")):
        return False
    try:
        for name in (TRAINER_STATE, CONFIG_NAME):
            json.loads((folder / name).read_text())
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


# ---------------------------------------------------------------------------------------------------------------------
# What they were trained with
# ---------------------------------------------------------------------------------------------------------------------


def read_run_file(folder: Path) -> dict[str, Any]:
    """What `RUN_FILE` of a checkpoint says; nothing where another program has written it."""
    file = Path(folder) / RUN_FILE
    return json.loads(file.read_text()) if file.is_file() else {}


def was_interrupted(folder: Path) -> bool:
    """Whether a checkpoint was saved since the run was to end, at a step where it saves none otherwise."""
    return read_run_file(folder).get("interrupted", False)


def digest(rows: Any) -> str | None:
    """A hash of encoded rows, in their order; None for rows that are not at hand."""
    if not isinstance(rows, Dataset):
        return None
    total = hashlib.blake2b(digest_size=8)
    for table in rows.with_format("arrow").iter(batch_size=10_000):
        for name in sorted(table.column_names):
            values = table[name].combine_chunks()
            while pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
                total.update(pc.list_value_length(values).to_numpy(zero_copy_only=False).tobytes())
                values = pc.list_flatten(values)
            plain = values.to_numpy(zero_copy_only=False)
            total.update(repr(plain.tolist()).encode() if plain.dtype == object else plain.tobytes())
    return total.hexdigest()


# Set by saving, by the library's Trainer, or without a say in what is computed.
NOT_COMPARED = {
    "_attn_implementation", "_name_or_path", "architectures", "auto_map", "dtype", "problem_type",
    "transformers_version", "use_cache", "vanilla_transformer_version",
}  # fmt: skip


def config_differences(folder: Path, config: PreTrainedConfig) -> list[str]:
    """What a checkpoint's config says otherwise, but for fields without a say in what is computed."""
    saved = json.loads((folder / CONFIG_NAME).read_text())
    if saved.get("model_type") != config.model_type:
        return [f"model_type is {config.model_type}, and was {saved.get('model_type')}"]
    # Through JSON, which knows neither tuples nor numbers as keys.
    then, now = (json.loads(c.to_json_string(use_diff=False)) for c in (type(config).from_dict(saved), config))
    names = [name for name in now if name not in NOT_COMPARED and not name.endswith("_token_id")]
    return [f"{name} is {now[name]}, and was {then.get(name)}" for name in names if now[name] != then.get(name)]


def tokenizer_differences(folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> list[str]:
    """Whether a checkpoint's tokenizer gives other ids, and for how many tokens; nothing where it has none."""
    file = folder / "tokenizer.json"
    if tokenizer is None or not file.is_file() or getattr(tokenizer, "backend_tokenizer", None) is None:
        return []
    then, now = json.loads(file.read_text()), json.loads(tokenizer.backend_tokenizer.to_str())
    for state in (then, now):  # how texts are cut and filled up is set anew at each call
        state["truncation"] = state["padding"] = None
    if then == now:
        return []
    ids, before = tokenizer.get_vocab(), Tokenizer.from_str(json.dumps(then)).get_vocab()
    others = sum(ids.get(token) != number for token, number in before.items())
    return [f"the tokenizer is another one, in which {others} of {len(before)} tokens have another id or none"]


def check_same_run(folder: Path, facts: dict[str, Any], config: PreTrainedConfig, tokenizer: Any) -> None:
    """Refuse to go on from a checkpoint with another architecture, tokenizer, data or order of them.

    Args:
        facts: what the run is started with now, to be compared with the checkpoint's `RUN_FILE`.

    Raises:
        ValueError: names all that differs.
    """
    then = read_run_file(folder)
    differences = config_differences(folder, config) + tokenizer_differences(folder, tokenizer)
    differences += [
        f"{name} is {value}, and was {then[name]}" for name, value in facts.items() if then.get(name, value) != value
    ]
    if differences:
        raise ValueError(
            f"{folder} is a checkpoint of another run: {'; '.join(differences)}. Resume with what that run was "
            "started with, or start a new one in another --output_dir."
        )


# ---------------------------------------------------------------------------------------------------------------------
# One run at a time
# ---------------------------------------------------------------------------------------------------------------------

LOCKS: set[int] = set()


def drop_locks() -> None:
    """In a forked process: a worker that outlives a killed run for a moment is not to hold its folder."""
    for descriptor in LOCKS:
        os.close(descriptor)
    LOCKS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=drop_locks)


@contextmanager
def sole_run(folder: Path) -> Iterator[None]:
    """Lock the folder of a run. The lock is the kernel's: it leaves no file, and goes with the process, killed or not.

    Raises:
        ValueError: another process has the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    empty = not any(folder.iterdir())
    descriptor = os.open(folder, os.O_RDONLY)
    LOCKS.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"output_dir={folder}: another run trains into this folder. Wait for its end, or choose another."
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        LOCKS.discard(descriptor)
        os.close(descriptor)
        if empty and not any(folder.iterdir()):
            folder.rmdir()  # a run that was refused leaves nothing
