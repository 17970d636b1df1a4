"""Test planned training: `train FILE` chooses options for the data, saves the plan, and lets options override it."""

import csv
import re
from collections.abc import Callable

import pytest
import yaml
from datasets import Dataset
from transformers import AutoTokenizer

from small_data import write_json_lines
from vanilla_transformer.cli import train
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.training import plan as plans
from vanilla_transformer.training.plan import Budget, Facts, make_plan, sizes, without_replaced


OPTIONS = ["--use_cpu", "true", "--disable_tqdm", "true", "--seed", "1"]
TINY = [*OPTIONS, "--max_steps", "4", "--d_model", "16", "--num_heads", "2"]
PAIRS = Facts(rows=20_000, characters=40, alphabet=80)


def write_reviews(file) -> str:
    with open(file, "w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["review", "mood"])
        rows.writerows([f"number {n} is {['good', 'bad'][n % 2]}", ["up", "down"][n % 2]] for n in range(80))
    return str(file)


def test_the_saved_recipe_reproduces_a_planned_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_reviews(tmp_path / "reviews.csv")
    scores = train.main(["reviews.csv", *OPTIONS, "--max_steps", "30", "--d_model", "32"])
    said = capsys.readouterr().out
    assert "classification, with review as text, mood as label" in said
    assert "train classification reviews.csv --columns text=review label=mood" in said
    recipe = yaml.safe_load((tmp_path / "runs/reviews/recipe.yaml").read_text())
    assert recipe["task"] == "classification" and recipe["seed"] == 1  # the recipe contains planned and given options
    assert (recipe["max_steps"], recipe["d_model"], recipe["num_layers"]) == (30, 32, 2)
    assert (tmp_path / "runs/reviews/model.safetensors").is_file()
    with pytest.raises(ValueError, match="runs/reviews is not empty"):
        train.main(["reviews.csv"])
    again = train.main(["runs/reviews/recipe.yaml", "--output_dir", "runs/again"])
    assert again == scores
    first, second = (tmp_path / "runs" / name / "model.safetensors" for name in ("reviews", "again"))
    assert first.read_bytes() == second.read_bytes()


def test_the_minutes_option_is_rejected_without_a_plan():
    with pytest.raises(ValueError, match="--minutes is for a plan: give data files"):
        train.main(["translation", "--minutes", "5"])


def test_a_time_budget_limits_steps_and_evaluation_rows():
    plan = make_plan("translation", PAIRS)
    fast = Budget(step=0.01, setup=1, row=0.0001, rows=9, held_out={"validation": 1000}, parameters=1, memory=1)
    assert fast.fit(plan, 3600) == plan
    slow = Budget(step=0.5, setup=10, row=0.1, rows=9, held_out={"validation": 1000}, parameters=1, memory=1)
    limited = slow.fit(plan, 300)
    seconds = 10 + limited["max_steps"] * 0.5 + limited["max_eval_samples"] * 0.1
    assert 250 < seconds <= 300
    unscored = Budget(step=0.5, setup=10, row=0, rows=9, held_out={"validation": 1000}, parameters=1, memory=1)
    limited = unscored.fit(plan, 300)  # training uses the time that scoring does not need
    assert 280 < 10 + limited["max_steps"] * 0.5 <= 285 and "max_eval_samples" not in limited
    with pytest.raises(ValueError, match=r"--minutes: on this machine 50 steps of 0\.5 s"):
        slow.fit(plan, 20)


@pytest.mark.parametrize("task", ["translation", "regression", "tagging", "question_answering", "language_modeling"])
def test_rows_of_each_task_are_recognised_planned_and_scored(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json_lines(tmp_path / "rows.jsonl", phrasebook(task, size=1000)["train"].select(range(120)))
    assert train.main(["rows.jsonl", *TINY])["validation"]
    assert yaml.safe_load((tmp_path / "runs/rows/recipe.yaml").read_text())["task"] == task
    AutoTokenizer.from_pretrained(tmp_path / "runs/rows")


def words(number: int, count: int = 5) -> str:
    return " ".join(f"w{number * place % 97}" for place in range(1, count + 1))


@pytest.mark.parametrize(
    ("row", "count", "task"),
    [
        # many classes: 500
        (lambda n: {"utterance": words(n), "intent": f"intent {n % 500}"}, 1000, "classification"),
        (lambda n: {"letter": "abcdefgh"[n % 8], "kind": "xy"[n % 2]}, 200, "classification"),
        (lambda n: {"letter": "abcdefgh"[n % 8], "capital": "ABCDEFGH"[n % 8] + "."}, 200, "translation"),
        (lambda n: {"text": words(n), "label": "rare" if n == 5 else "ab"[n % 2]}, 60, "classification"),
        (lambda n: {"text": words(n, 5000), "ease": n / 7}, 20, "regression"),
    ],
)
def test_training_works_on_unusual_rows(row: Callable[[int], dict], count, task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json_lines(tmp_path / "rows.jsonl", map(row, range(count)))
    named = [] if task == "classification" else [task]
    assert train.main([*named, "rows.jsonl", *TINY])["validation"]


def test_pairs_too_long_to_translate_are_rejected_before_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json_lines(tmp_path / "books.jsonl", [{"en": words(n, 3000), "de": words(n, 3001)} for n in range(9)])
    with pytest.raises(ValueError, match=r"about 11,\d+ characters each.*split them into sentences"):
        train.main(["books.jsonl", *TINY])


@pytest.mark.parametrize("name", ["pairs.jsonl", "text.txt"])
def test_a_large_file_is_streamed(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plans, "LARGEST_IN_MEMORY", 10_000)
    if name == "text.txt":
        (tmp_path / name).write_text("".join(f"{n} {words(n, 60)}\n" for n in range(2000)))
    else:
        write_json_lines(tmp_path / name, [{"en": f"{n} {words(n)}", "de": f"the {n}"} for n in range(2000)])
    assert train.main([name, *TINY, "--max_eval_samples", "8"])["validation"]
    rows = re.search(r"about (\d),(\d+) rows to train on", capsys.readouterr().out)  # estimated from the file size
    assert rows and 1800 < int("".join(rows.groups())) < 2200


def test_planned_steps_and_vocabulary_grow_with_the_data():
    sizes = [Facts(rows, 40, 80) for rows in (200, 2000, 20_000, 3_000_000)]
    for task in ("translation", "classification", "tagging"):
        steps = [make_plan(task, facts)["max_steps"] for facts in sizes]
        assert steps == sorted(steps) and steps[0] >= 400 and steps[-1] <= 20_000
        held_out = [facts.rows * make_plan(task, facts)["validation_fraction"] for facts in sizes]
        assert held_out[0] == 20 and max(held_out) <= 2100
    vocabularies = [make_plan("translation", facts)["vocab_size"] for facts in sizes]
    assert vocabularies == [1000, 1000, 5000, 8000]


def test_the_size_of_a_translator_depends_on_the_data_and_on_the_speed():
    news = Facts(rows=4_500_000, characters=110, alphabet=300, is_stream=True)
    assert sizes("translation", PAIRS, on_cpu=False) == ["small", "short"]
    assert sizes("translation", Facts(20_000, 19, 80), on_cpu=False) == ["short"]
    assert sizes("translation", news, on_cpu=True) == ["medium", "small", "short"]
    assert sizes("translation", news, on_cpu=False) == ["base", "medium", "small", "short"]
    assert make_plan("translation", news, "base") == make_plan("translation", news, "base") | {
        "preset": "base", "tokens_per_batch": 25_000, "max_steps": 99_000, "warmup_steps": 4000, "streaming": True,
    }  # fmt: skip

    def chosen(step: float, minutes: float) -> str:
        budget = Budget(step, setup=60, row=0.1, rows=0, held_out={}, parameters=1, memory=1)
        plans = ((size, make_plan("translation", news, size)) for size in sizes("translation", news, on_cpu=False))
        return next(size for size, plan in plans if budget.suits(size, plan, 60 * minutes))

    assert chosen(step=0.1, minutes=24 * 60) == "base"
    assert chosen(step=0.1, minutes=10) == "medium"
    assert chosen(step=5, minutes=24 * 60) == "medium"
    assert chosen(step=1, minutes=15) == "small"
    assert chosen(step=1, minutes=5) == "short"


def test_the_processes_share_the_batch_of_a_plan():
    batches = [
        make_plan("classification", PAIRS, processes=count)["per_device_train_batch_size"] for count in (1, 2, 8, 64)
    ]
    assert batches == [32, 16, 4, 1]


def test_the_tokenizer_kind_depends_on_alphabet_and_data_size():
    kinds = [
        make_plan("translation", facts)["tokenizer_kind"]
        for facts in (PAIRS, Facts(20_000, 40, alphabet=3000), Facts(3_000_000, 40, 80))
    ]
    assert kinds == ["unigram", "byte_bpe", "byte_bpe"]
    names, orders = (Facts(2000, 40, 80, known_words=share) for share in (0.5, 0.8))
    assert [make_plan("classification", facts)["tokenizer_kind"] for facts in (names, orders)] == ["unigram", "word"]
    assert make_plan("tagging", orders)["tokenizer_kind"] == "byte_bpe"
    plan = make_plan("classification", orders)
    assert plan["lowercase"] and "lowercase" not in without_replaced(plan, {"tokenizer_kind"})
    assert {"tokenizer_kind", "lowercase"} & without_replaced(plan, {"model_name_or_path"}).keys() == set()
    assert make_plan("language_modeling", Facts(1, 1_000_000, 60))["tokenizer_kind"] == "character"
    assert "tokenizer_kind" not in make_plan("language_modeling", Facts(1, 1_000_000, alphabet=3000))


def test_words_are_known_in_texts_about_a_topic_but_not_in_names():
    names = [{"name": f"{a}{b}ov", "label": "ru"} for a in "bdgklm" for b in "aeiou"]
    orders = [{"text": f"Play {i} songs by {name['name']}", "label": "play"} for i, name in enumerate(names)]
    shares = [Facts.of(Dataset.from_list(rows), ["rows.csv"]).known_words for rows in (names, orders)]
    assert shares == [0, pytest.approx(3 / 5)]


def test_a_plan_for_little_text_keeps_the_best_weights():
    little, more = (make_plan("language_modeling", Facts(1, count, 60)) for count in (50_000, 1_000_000))
    assert little["load_best_model_at_end"] and little["dropout"] > more["dropout"]
    assert "load_best_model_at_end" not in more


def test_a_plan_for_fine_tuning_has_fewer_steps_and_a_lower_learning_rate():
    plan = make_plan("translation", PAIRS)
    fine = without_replaced(plan, {"model_name_or_path"})
    assert fine["learning_rate"] < plan["learning_rate"] / 10
    assert fine["max_steps"] == plan["max_steps"] // 4
    assert {"vocab_size", "preset", "norm_position"} & fine.keys() == set()  # the checkpoint determines these
    given = without_replaced(plan, {"model_name_or_path", "learning_rate", "max_steps"})
    assert {"learning_rate", "max_steps"} & given.keys() == set()
