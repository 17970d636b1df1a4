"""Time tasks that take turns."""

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
    """The device to measure on: "cpu", with a number of threads, or "cuda"."""

    device: str
    threads: int

    def multiplies_bf16(self) -> bool:
        """Whether the device multiplies bfloat16 matrices in hardware."""
        return has_bf16_matmul(self.device)

    def autocast(self, precision: str) -> AbstractContextManager:
        return torch.autocast(self.device, torch.bfloat16, enabled=precision == "bf16")

    def seconds(self, task: Callable[[], Any]) -> float:
        """Return the seconds that the task takes, including the work that it leaves to the device."""
        self.wait()
        start = time.perf_counter()
        task()
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the exponent of the growth of costs with sizes, by a least-squares fit of their logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def in_turns(machine: Machine, tasks: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run each task once as a warm-up, then `rounds` times in turns; return each result divided by its seconds.

    Every other round goes backwards, so that a task does not always find the caches of the same predecessor.
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
