"""Configure libraries before they are imported, and seed each test."""

import gc
import os
from pathlib import Path

import pytest


def cpuinfo() -> str:
    """Return the content of /proc/cpuinfo, or an empty string where it does not exist."""
    file = Path("/proc/cpuinfo")
    return file.read_text() if file.is_file() else ""


os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# Without int8 instructions (VNNI), oneDNN matrix multiplications of quantised models overflow silently.
if "vnni" not in cpuinfo():
    os.environ["CT2_USE_MKL"] = "1"


@pytest.fixture(autouse=True)
def seed() -> None:
    """Seed each test, so that its random numbers do not depend on the tests before it."""
    from transformers import set_seed  # import only after the settings above

    set_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests on machines without CUDA, so that `make test-gpu` succeeds and reports them as skipped."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="PyTorch finds no CUDA on this machine"))


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection, which each Trainer runs after training."""
    gc.collect()
    gc.freeze()
