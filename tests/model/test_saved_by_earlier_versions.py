"""Models saved by earlier versions load and give the same outputs."""

import json
from pathlib import Path

import pytest
import torch

from save_version import FOLDER, MODELS, outputs
from vanilla_transformer.loading import load_model


SAVED = sorted(path.parent for path in FOLDER.glob("*/*/config.json"))


def test_every_version_has_a_saved_copy_of_every_model():
    versions = {folder.parent for folder in SAVED}
    assert {folder.name for folder in versions} >= {"0.1.0"}
    for version in versions:
        assert {folder.name for folder in SAVED if folder.parent == version} >= MODELS.keys()


@pytest.mark.parametrize("folder", SAVED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_models_of_earlier_versions_give_the_same_outputs(folder: Path):
    recorded = json.loads((folder / "outputs.json").read_text())
    found = outputs(load_model(folder))
    assert found.keys() == recorded.keys()
    for name, values in recorded.items():
        torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(values), atol=1e-4, rtol=1e-4, msg=name)
