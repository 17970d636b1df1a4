"""Measure the time and memory of tasks."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile


def seconds(task: Callable[[], Any], device: str) -> float:
    """Return the seconds that the task takes on `device` ("cpu" or "cuda"), including asynchronous GPU work."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    task()
    wait()
    return time.perf_counter() - start


def in_turns(tasks: dict[str, Callable[[], float]], rounds: int, device: str) -> dict[str, list[float]]:
    """Run each task once to warm up, then `rounds` times in turns, and return its rates.

    A task returns an amount of work, such as a number of tokens; its rates are amounts per second. Every other round
    runs in reverse order, so that no task always follows the same task and finds the caches in the same state.
    """
    rates: dict[str, list[float]] = {name: [] for name in tasks}
    amounts = {name: task() for name, task in tasks.items()}
    for number in range(rounds):
        for name in list(tasks)[:: 1 if number % 2 == 0 else -1]:
            rates[name].append(amounts[name] / seconds(tasks[name], device))
    return rates


def peak_memory(task: Callable[[], object]) -> int:
    """Return the peak number of bytes that PyTorch allocates on the CPU during the task."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = task()  # noqa: F841  (include the result in the peak)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return int(np.cumsum([event.nbytes() for event in events]).max())
