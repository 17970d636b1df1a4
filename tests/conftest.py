"""Settings that have to stand before the libraries are imported, and one seed for each test."""

import gc
import os
from pathlib import Path

import pytest


def cpuinfo() -> str:
    """What Linux tells about the processor."""
    file = Path("/proc/cpuinfo")
    return file.read_text() if file.is_file() else ""


os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# Without instructions for int8 (VNNI), products by oneDNN overflow, and say nothing about how a model was quantised.
if "vnni" not in cpuinfo():
    os.environ["CT2_USE_MKL"] = "1"


@pytest.fixture(autouse=True)
def seed() -> None:
    """Each test draws the same random numbers, alone or among others."""
    from transformers import set_seed  # behind the settings above

    set_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without CUDA, tests of the GPU are skipped: `make test-gpu` says so and succeeds."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="PyTorch finds no CUDA on this machine"))


def pytest_collection_finish() -> None:
    """Keep what the tests have imported out of garbage collections, which each Trainer makes after its training."""
    gc.collect()
    gc.freeze()
