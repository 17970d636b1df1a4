"""Settings that must be made before the libraries are imported, and one seed for each test."""

import gc
import os
from pathlib import Path

import pytest


def cpuinfo() -> str:
    """Return what Linux reports about the processor."""
    file = Path("/proc/cpuinfo")
    return file.read_text() if file.is_file() else ""


os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# Without int8 instructions (VNNI), oneDNN products overflow silently, also when a test quantises a model.
if "vnni" not in cpuinfo():
    os.environ["CT2_USE_MKL"] = "1"


@pytest.fixture(autouse=True)
def seed() -> None:
    """Seed each test, so that it draws the same random numbers alone or among others."""
    from transformers import set_seed  # after the settings above

    set_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests without CUDA, so that `make test-gpu` reports them and succeeds."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="PyTorch finds no CUDA on this machine"))


def pytest_collection_finish() -> None:
    """Exclude imported modules from the garbage collection that each Trainer runs after training."""
    gc.collect()
    gc.freeze()
