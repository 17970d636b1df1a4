"""How long tasks take, in turns."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vanilla_transformer.training.arguments import has_bf16_matmul


PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Machine:
    """Where is measured: "cpu", with so many threads, or "cuda"."""

    device: str
    threads: int

    def multiplies_bf16(self) -> bool:
        """Whether in hardware."""
        return has_bf16_matmul(self.device)

    def autocast(self, precision: str) -> AbstractContextManager:
        return torch.autocast(self.device, torch.bfloat16, enabled=precision == "bf16")

    def seconds(self, task: Callable[[], Any]) -> float:
        """That the task takes, until the device has done its part."""
        self.wait()
        start = time.perf_counter()
        task()
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The power of the size with which the cost grows: the slope between their logarithms, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def in_turns(machine: Machine, tasks: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run each task once unmeasured, then `rounds` times in turns; what each returns over the seconds that it took.

    Every other round goes backwards, so that none always comes behind the same other, whose caches it would find.
    """
    rates: dict[str, list[float]] = {name: [] for name in tasks}
    amounts = {name: task() for name, task in tasks.items()}
    for number in range(rounds):
        for name, task in list(tasks.items())[:: 1 if number % 2 == 0 else -1]:

            def run(name: str = name, task: Callable[[], float] = task) -> None:
                amounts[name] = task()

            seconds = machine.seconds(run)
            rates[name].append(amounts[name] / seconds)
    return rates
