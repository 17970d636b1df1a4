# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Copy values between the host and a GPU without making either wait.

When the host reads a value from a GPU, it waits until the GPU has finished all queued work. Then the GPU is idle until
the host queues more.
"""

from typing import Any

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy values from the host to `device` asynchronously, and keep the host copy for `to_host`."""
    if values.device.type == device.type:
        return values
    if device.type == "cuda":
        values = values.pin_memory()
    # On MPS, an asynchronous copy might read `values` only after the caller has changed them.
    sent: Any = values.to(device, non_blocking=device.type != "mps")
    if not sent.is_inference():  # inference tensors have no `_version`
        sent.kept_on_host = values, sent._version
    return sent


def to_host(values: Tensor) -> Tensor:
    """Return the host copy that `to_device` kept, or copy `values` back if they have changed since."""
    kept, version = getattr(values, "kept_on_host", (None, None))
    return kept if kept is not None and version == values._version else values.cpu()


class AsyncScalars:
    """Delivers the GPU values of each step to the host one step later, so that neither waits for the other.

    Values on other devices are delivered immediately.
    """

    def __init__(self) -> None:
        self.pending: tuple[int, Tensor, torch.cuda.Event] | None = None

    def push(self, step: int, numbers: Tensor) -> tuple[int, list[float]] | None:
        """Take the values (n,) of a step; return the previous step and its values, or None at the first step."""
        if numbers.device.type != "cuda":
            return step, numbers.tolist()
        previous = self.pending
        copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
        arrival = torch.cuda.Event()
        arrival.record()
        self.pending = step, copy, arrival
        if previous is None:
            return None
        step, copy, arrival = previous
        arrival.synchronize()
        return step, copy.tolist()
