"""How long things take: tasks in turns, and the matrix products of a training step each by itself."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vanilla_transformer.fast.onednn import OneDNNLinear, linear
from vanilla_transformer.training.arguments import has_bf16_matmul


PRECISIONS = ("fp32", "bf16")
# Operations per second that a maker states for dense products in bfloat16, by a part of the device's name.
STATED_RATES = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "RTX 4090": 165e12}


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

    def stated_rate(self, precision: str) -> float | None:
        """Operations per second that its maker states, as far as they are known here: what MFU is a share of."""
        name = torch.cuda.get_device_name() if self.device == "cuda" and precision == "bf16" else ""
        return next((rate for part, rate in STATED_RATES.items() if part in name), None)

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


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def make(self, device: str) -> Tensor:
        size = 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        return torch.randn(size, device=device).to(self.dtype).as_strided(self.shape, self.stride)


def layout_of(tensor: Tensor) -> Layout:
    return Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def onednn_product(a: Tensor, b: Tensor) -> Tensor:
    return OneDNNLinear.forward(a, b.T, None)


class MatrixProducts(TorchDispatchMode):
    """Counts the matrix products that run under it, by operator and by the layouts of their operands.

    Fused attention is one operator of its own and does not count, which is little.
    """

    def __init__(self):
        super().__init__()
        self.counts: Counter[tuple[Any, tuple[Layout, ...]]] = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        aten = torch.ops.aten
        if function in (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default):
            self.counts[function, tuple(map(layout_of, arguments))] += 1
        elif function == torch.ops.mkldnn._linear_pointwise.default:
            x, weight = arguments[:2]
            self.counts[onednn_product, (layout_of(x.flatten(0, -2)), layout_of(weight.T))] += 1
        return function(*arguments, **(keywords or {}))

    def seconds(self, machine: Machine, runs: int = 5) -> float:
        """That all of them take, each at the best of some runs by itself: a step cannot be faster."""
        total = 0.0
        for (function, layouts), count in self.counts.items():
            operands = [layout.make(machine.device) for layout in layouts]
            function(*operands)
            total += count * min(machine.seconds(lambda f=function, o=operands: f(*o)) for _ in range(runs))
        return total

    def operations(self) -> int:
        """Multiplications and additions."""
        return sum(
            2 * count * math.prod(layouts[-2].shape) * layouts[-1].shape[-1]
            for (_, layouts), count in self.counts.items()
        )


@torch.no_grad()
def large_product_rate(machine: Machine, precision: str) -> float:
    """Floating-point operations per second of a large matrix product in the faster library, the best of some."""
    width = 8192 if machine.device == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = torch.randn(2, width, width, device=machine.device).to(dtype)
    linear(a, b)
    return 2 * width**3 / min(machine.seconds(lambda: linear(a, b)) for _ in range(10))
