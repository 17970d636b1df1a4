"""Measure the memory and time of a step, each in a fresh process that imports no more than this module."""

from collections.abc import Callable
from pathlib import Path

import torch

from benchmarking.peers import Size, translators
from benchmarking.timing import Machine
from vanilla_transformer import VanillaTransformerDecoderConfig, VanillaTransformerDecoderModel
from vanilla_transformer.fast import make_fast


def resident(name: str) -> int:
    """Return the memory of this process in bytes: VmRSS (now) or VmHWM (peak, which excludes the parent's)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return int(status[name].split()[0]) * 1024


def extra_memory(task: Callable[[], None], device: str) -> int:
    """Return the peak memory in bytes that a task adds; on a CPU, that of this process (Linux)."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        task()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets the peak to the current value
    before = resident("VmRSS")
    task()
    return resident("VmHWM") - before


def step_memory(name: str, size: list[int], chunk: int, rows: int, length: int, device: str, threads: int) -> int:
    """Return the bytes that a training step needs beyond the model and its gradients."""
    torch.set_num_threads(threads)
    size = Size(*size)
    model = translators(size)[name]().to(device).train()
    if chunk:
        make_fast(model, packing=False, loss_chunk_size=chunk)

    def step(ids: torch.Tensor) -> None:
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
        (output if torch.is_tensor(output) else output.loss).backward()

    step(torch.full((1, 2), 5, device=device))
    ids = torch.randint(4, size.vocab_size, (rows, length), device=device)
    return extra_memory(lambda: step(ids), device)


def pass_cost(size: list[int], window: int | None, length: int, device: str, threads: int) -> tuple[float, int]:
    """Return seconds and bytes of a forward and backward pass over one sequence, without an output layer."""
    machine = Machine(device, threads)
    torch.set_num_threads(threads)
    size = Size(*size)
    config = VanillaTransformerDecoderConfig(
        vocab_size=size.vocab_size,
        d_model=size.d_model,
        d_ff=size.d_ff,
        num_heads=size.num_heads,
        num_layers=size.layers,
        sliding_window=window,
    )
    model = VanillaTransformerDecoderModel(config).to(device).train()

    def step(length: int) -> None:
        ids = torch.randint(size.vocab_size, (1, length), device=device)
        model(input_ids=ids, use_cache=False).last_hidden_state.sum().backward()

    step(2)
    grown = extra_memory(lambda: step(length), device)
    return min(machine.seconds(lambda: step(length)) for _ in range(3)), grown
