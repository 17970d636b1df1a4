"""Define a fixture that gives each test its own working directory and datasets cache."""

import datasets
import pytest


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    return tmp_path
