"""Test that the recipes for the models of the paper run unchanged on a small data set in the format of WMT14."""

import json
from pathlib import Path

import pytest
import yaml
from datasets import Dataset

from fresh_process import ROOT
from vanilla_transformer.cli import train
from vanilla_transformer.data.phrasebook import phrasebook


RECIPES = ROOT / "recipes"


def write_copy(folder: Path) -> str:
    """Save a small data set with the same splits and columns as the Hub's WMT14."""
    phrases = phrasebook("translation", size=5000)
    for split, rows in {"train": 2100, "validation": 4, "test": 4}.items():
        chosen = sorted(phrases["train" if split == "train" else split], key=lambda row: len(row["target"]))[:rows]
        pairs = [{"de": row["target"], "en": row["source"]} for row in chosen]
        Dataset.from_dict({"translation": pairs}).to_parquet(folder / f"{split}.parquet")
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "d_model"), [("base", 512), ("big", 1024)])
def test_the_recipes_of_the_paper_run_unchanged(name, d_model, tmp_path):
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    train.main(
        [
            "translation", str(RECIPES / f"paper_{name}_wmt14_en_de.yaml"),
            "--dataset", write_copy(data), "--output_dir", str(run),
            "--max_steps", "3", "--max_train_samples", "2000", "--use_cpu", "true", "--disable_tqdm", "true",
            "--gradient_accumulation_steps", "1" if name == "base" else "8",  # needs an eighth of the memory
        ]
    )  # fmt: skip
    state = json.loads((run / "checkpoint-3" / "trainer_state.json").read_text())
    assert state["global_step"] == 3
    config = json.loads((run / "config.json").read_text())
    assert (config["d_model"], config["encoder_layers"], config["label_smoothing"]) == (d_model, 6, 0.1)
    assert "BLEU" in (run / "README.md").read_text()


@pytest.mark.parametrize(("name", "steps", "average"), [("base", 100_000, 5), ("big", 300_000, 20)])
def test_the_recipes_of_the_paper_use_its_batch_size_steps_and_averaging(name, steps, average):
    recipe = yaml.safe_load((RECIPES / f"paper_{name}_wmt14_en_de.yaml").read_text())
    assert (recipe["tokens_per_batch"], recipe["max_steps"], recipe["average_checkpoints"]) == (25_000, steps, average)
    assert recipe.get("tokens_per_batch_of", "step") == "step" and recipe.get("gradient_accumulation_steps", 1) == 1
