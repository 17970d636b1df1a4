"""`train FILE` plans the training for the data; the run's folder keeps the plan, and options override it."""

import csv

import pytest
import yaml

from vanilla_transformer.cli import train
from vanilla_transformer.training.plan import Budget, Facts, make_plan


OPTIONS = ["--use_cpu", "true", "--disable_tqdm", "true", "--seed", "1"]


def write_reviews(file) -> str:
    with open(file, "w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["review", "mood"])
        rows.writerows([f"number {n} is {['good', 'bad'][n % 2]}", ["up", "down"][n % 2]] for n in range(80))
    return str(file)


def test_the_saved_recipe_repeats_a_planned_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_reviews(tmp_path / "reviews.csv")
    scores = train.main(["reviews.csv", *OPTIONS, "--max_steps", "30", "--d_model", "32"])
    said = capsys.readouterr().out
    assert "classification, with review as text, mood as label" in said
    assert "train classification reviews.csv --columns text=review label=mood" in said
    recipe = yaml.safe_load((tmp_path / "runs/reviews/recipe.yaml").read_text())
    assert recipe["task"] == "classification" and recipe["seed"] == 1  # the file contains planned and given options
    assert (recipe["max_steps"], recipe["d_model"], recipe["num_layers"]) == (30, 32, 2)
    assert (tmp_path / "runs/reviews/model.safetensors").is_file()
    with pytest.raises(ValueError, match="runs/reviews is not empty"):
        train.main(["reviews.csv"])
    again = train.main(["runs/reviews/recipe.yaml", "--output_dir", "runs/again"])
    assert again == scores
    first, second = (tmp_path / "runs" / name / "model.safetensors" for name in ("reviews", "again"))
    assert first.read_bytes() == second.read_bytes()


def test_minutes_are_refused_without_a_plan():
    with pytest.raises(ValueError, match="--minutes is for a plan: give data files"):
        train.main(["translation", "--minutes", "5"])


def test_a_budget_limits_steps_and_scored_rows():
    plan = make_plan("translation", Facts(rows=20_000, characters=40, alphabet=80))
    fast = Budget(step=0.01, setup=1, row=0.0001, held_out={"validation": 1000}, parameters=1, memory=1)
    assert fast.fit(plan, 3600) == plan
    slow = Budget(step=0.5, setup=10, row=0.1, held_out={"validation": 1000}, parameters=1, memory=1)
    limited = slow.fit(plan, 300)
    seconds = 10 + limited["max_steps"] * 0.5 + limited["max_eval_samples"] * 0.1
    assert 200 < seconds <= 300
    with pytest.raises(ValueError, match=r"--minutes: on this machine 50 steps of 0\.5 s"):
        slow.fit(plan, 20)
