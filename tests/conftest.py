"""Settings that have to stand before the libraries are imported, and one seed for each test."""

import os

import pytest


os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


@pytest.fixture(autouse=True)
def seed() -> None:
    """Each test draws the same random numbers, alone or among others."""
    from transformers import set_seed  # behind the settings above

    set_seed(0)
