"""Read the logs of finished or ongoing training runs for the explorer to plot."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vanilla_transformer.app.reading import refusal


TRAINER_STATE = "trainer_state.json"


def state_file(run: str | Path) -> Path | None:
    """Return the newest `trainer_state.json` in a run's folder or checkpoints; None if there is none yet."""
    from vanilla_transformer.training.checkpoints import checkpoint_folders  # it imports PyTorch

    for folder in (Path(run), *reversed(checkpoint_folders(Path(run)))):
        if (folder / TRAINER_STATE).is_file():
            return folder / TRAINER_STATE
    return None


def training_log(run: str | Path) -> dict[str, Any]:
    """Return a run's progress and logged values. Strings are dropped, because they could reveal paths.

    Raises:
        FileNotFoundError: the run has saved no checkpoint yet.
    """
    file = state_file(run)
    if file is None:
        raise FileNotFoundError(f"{run} has no {TRAINER_STATE} yet: it is written with the first checkpoint.")
    state = json.loads(file.read_text(encoding="utf-8"))

    def finite(entry: dict[str, Any]) -> dict[str, float]:
        return {
            name: value for name, value in entry.items() if isinstance(value, int | float) and math.isfinite(value)
        }

    return {
        "global_step": state["global_step"],
        "max_steps": state["max_steps"],
        "epoch": state.get("epoch"),
        "log_history": [finite(entry) for entry in state["log_history"]],
    }


class Runs:
    """Training runs, addressed by index, for the page and the API."""

    def __init__(self, folders: Sequence[str]):
        if missing := [folder for folder in folders if not Path(folder).is_dir()]:
            raise FileNotFoundError(f"{missing[0]}: there is no such folder of a training run.")
        self.folders = folders
        self.names = [Path(folder).name for folder in folders]

    def training_run(self, number: int) -> dict[str, Any]:
        """Return a training run's progress and logged values."""
        if number not in range(len(self.folders)):
            raise refusal(f"There is no training run {number}, counted from 0: the demo has {len(self.folders)}.")
        try:
            return training_log(self.folders[number])
        except FileNotFoundError:
            raise refusal(f"{self.names[number]} has saved no checkpoint yet.") from None
        except (OSError, ValueError, KeyError):  # the file is still being written
            raise refusal(f"{self.names[number]} cannot be read now. Please try again.") from None
