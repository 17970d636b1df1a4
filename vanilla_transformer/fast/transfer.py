# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Numbers of each training step for the host, which does not wait for them."""

import torch
from torch import Tensor


class LateNumbers:
    """Gives numbers that a GPU computes in a step to the host in the next one.

    Then they have long come: a host that wanted them at once would wait until the GPU has done all that it was asked,
    and the GPU then for the host. On any other device they are given at once.
    """

    def __init__(self) -> None:
        self.coming: tuple[int, Tensor, torch.cuda.Event] | None = None

    def exchange(self, step: int, numbers: Tensor) -> tuple[int, list[float]] | None:
        """Take the numbers (n,) of a step; return a step and its numbers, or None where there are none yet."""
        if numbers.device.type != "cuda":
            return step, numbers.tolist()
        come = self.coming
        on_host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
        arrival = torch.cuda.Event()
        arrival.record()
        self.coming = step, on_host, arrival
        if come is None:
            return None
        step, on_host, arrival = come
        arrival.synchronize()
        return step, on_host.tolist()
