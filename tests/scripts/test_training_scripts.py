"""Test that training on every task overfits a few rows and saves a model that loads and has a model card."""

import json
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from family import decoder_only
from fresh_process import UNDER_WATCH, run_fresh
from saved_models import with_tokenizer, write
from small_data import ONE_STACK, SMALL, train_and_validate_on, write_json_lines, write_rows
from vanilla_transformer.cli import average, evaluate, generate, train, translate
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.data.tokenizer import train_tokenizer
from vanilla_transformer.inside.page import explore_data
from vanilla_transformer.loading import load_model, vocabulary_hash
from vanilla_transformer.pipeline_vanilla_transformer import QuestionAnsweringPipeline
from vanilla_transformer.tasks.masked_language_modeling import (
    MaskedLanguageModelingArguments,
    MaskedLanguageModelingTask,
)
from vanilla_transformer.training.averaging import average_checkpoints as average_checkpoints_of


TASKS = {
    "translation": ("translation", "translation", [
        "--encoder_layers", "2", "--decoder_layers", "2", "--tokens_per_batch", "0", "--max_steps", "150",
    ], lambda scores: scores["exact_match"] == 100),
    "language model": ("language_modeling", "language_modeling",
                       [*ONE_STACK, "--block_size", "64", "--max_steps", "130"],
                       lambda scores: scores["loss"] < 0.5),
    "masked language model": ("masked_language_modeling", "language_modeling", [*ONE_STACK, "--max_steps", "150"],
                              lambda scores: scores["loss"] < 3.3),
    "classifier": ("classification", "classification", [*ONE_STACK, "--max_steps", "40"],
                   lambda scores: scores["accuracy"] == 100),
    "regression": ("regression", "regression", [*ONE_STACK, "--max_steps", "80"],
                   lambda scores: scores["pearson"] > 0.95),
    "tagger": ("tagging", "tagging", [*ONE_STACK, "--max_steps", "60"], lambda scores: scores["f1"] == 100),
    "reader": ("question_answering", "question_answering", [*ONE_STACK, "--max_steps", "150"],
               lambda scores: scores["exact_match"] == 100),
}  # fmt: skip


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory) -> Callable[[str], tuple[Path, dict]]:
    """Return a function that overfits a model on a few rows, once per task, and returns its folder and scores.

    The rows are in rows.jsonl next to the folder.
    """

    @cache
    def train_once(name: str) -> tuple[Path, dict]:
        task, data, options, _ = TASKS[name]
        folder = tmp_path_factory.mktemp("overfitted")
        files = write_rows(data, folder)
        if name == "translation":  # "</s>" in the data is ordinary text, not a special token
            rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
            rows[-1] = {"source": "write </s> here", "target": "pon </s> aquí"}
            write_json_lines(folder / "rows.jsonl", rows)
        return folder / "run", train.main([task, *files, *SMALL, *options, "--output_dir", str(folder / "run")])

    return train_once


@pytest.mark.parametrize("name", TASKS)
def test_every_task_overfits_a_few_rows(name, overfitted, tmp_path):
    task, data, options, learned = TASKS[name]
    run, scores = overfitted(name)
    assert learned(scores["validation"]), scores

    config, tokenizer = AutoConfig.from_pretrained(run), AutoTokenizer.from_pretrained(run)
    assert config.architectures and tokenizer.pad_token_id == 0
    assert tokenizer.model_max_length == config.max_position_embeddings
    assert config.tokenizer_hash == vocabulary_hash(tokenizer)
    card = ModelCard.load(run / "README.md")
    metrics = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert metrics == pytest.approx(scores["validation"], abs=1e-4)
    assert (run / "curves.png").stat().st_size > 1000

    rows = str(run.parent / "rows.jsonl")
    again = evaluate.main(["--model", str(run), "--test_file", rows, "--scores", str(tmp_path / "scores.json")])
    assert again["test"] == pytest.approx(scores["validation"], rel=1e-5)
    assert json.loads((tmp_path / "scores.json").read_text())["scores"] == again

    with pytest.raises(ValueError, match="is not empty: continue it with --resume_from_checkpoint true"):
        train.main([task, *write_rows(data, tmp_path), *SMALL, *options, "--output_dir", str(run)])


@pytest.mark.parametrize(
    ("task", "data", "options"),
    [("translation", "translation", ["--encoder_layers", "1", "--decoder_layers", "1", "--max_steps", "20"]),
     ("question_answering", "question_answering",
      [*ONE_STACK, "--per_device_train_batch_size", "32", "--max_steps", "60"])],
)  # fmt: skip
def test_a_model_trained_in_bfloat16_is_scored_in_its_saved_precision(task, data, options, tmp_path):
    """The model is only partly trained, so that tiny rounding differences change some of its predictions."""
    rows = phrasebook(data, size=1000)["train"].select(range(300))
    file = write_json_lines(tmp_path / "rows.jsonl", rows)
    options = [*SMALL, *options, "--bf16", "true", "--output_dir", str(tmp_path / "run")]
    scores = train.main([task, *train_and_validate_on(file), *options])["validation"]
    assert evaluate.main(["--model", str(tmp_path / "run"), "--test_file", file])["test"] == scores


ROWS = {
    "reader": [
        {"question": "Who?", "context": "Ada was here.", "answers": {"text": ["Ada"], "answer_start": [0]}},
        {"question": "When?", "context": "Ada was here.", "answers": {"text": [], "answer_start": []}},
    ],
    "classifier": [{"text": "warm and dry", "label": ["warm", "dry"]}, {"text": "neither", "label": []}],
}


def test_a_translator_trains_on_a_stream_of_two_files(tmp_path):
    rows = phrasebook("translation", size=1000)["train"].select(range(100, 108))
    files = [str(tmp_path / name) for name in ("rows.en", "rows.es")]
    for file, side in zip(files, ("source", "target"), strict=True):
        Path(file).write_text("".join(f"{text}\n" for text in rows[side]), encoding="utf-8")
    data = ["--train_file", *files, "--validation_file", *files, "--streaming", "true"]
    size = ["--encoder_layers", "2", "--decoder_layers", "2", "--tokens_per_batch", "400", "--max_steps", "150"]
    scores = train.main(["translation", *data, *SMALL, *size, "--output_dir", str(tmp_path / "run")])
    assert scores["validation"]["exact_match"] == 100


def test_a_stream_too_short_for_evaluation_still_gives_a_model_and_card(tmp_path, caplog):
    file = write_json_lines(tmp_path / "rows.jsonl", [{"text": f"{i} miles to go"} for i in range(8)])
    options = ["--train_file", file, "--streaming", "true", "--block_size", "16", "--max_steps", "2"]
    options += [*SMALL, *ONE_STACK]
    scores = train.main(["language_modeling", *options, "--output_dir", str(tmp_path / "run")])
    assert scores == {}
    assert "There are no scores of validation: the held-out stream is empty, or too short" in caplog.text
    assert "It was not scored." in (tmp_path / "run/README.md").read_text()
    again = ["--model", str(tmp_path / "run"), "--test_file", file, "--streaming", "true", "--block_size", "200"]
    with pytest.raises(ValueError, match="There is nothing to score: the held-out stream is empty"):
        evaluate.main(again)
    during = ["--eval_strategy", "steps", "--output_dir", str(tmp_path / "another")]
    with pytest.raises(ValueError, match="--eval_strategy: the held-out stream is empty, or too short"):
        train.main(["language_modeling", *options, *during])


def test_a_stream_shorter_than_one_training_block_is_rejected(tmp_path):
    file = write_json_lines(tmp_path / "rows.jsonl", [{"text": f"{i} miles to go"} for i in range(8)])
    options = ["--train_file", file, "--streaming", "true", "--block_size", "200", "--max_steps", "2"]
    with pytest.raises(ValueError, match=r"The training stream is empty, or too short .* lower --block_size"):
        train.main(["language_modeling", *options, *SMALL, *ONE_STACK, "--output_dir", str(tmp_path / "run")])


def test_the_card_states_the_dropout_schedule_and_the_config_the_final_rate(tmp_path):
    run = tmp_path / "run"
    options = [*SMALL, "--dropout_start", "0", "--dropout", "0.2", "--max_steps", "3", "--output_dir", str(run)]
    train.main(["translation", *write_rows("translation", tmp_path), *options])
    assert AutoConfig.from_pretrained(run).dropout == 0.2
    assert "dropout_start" not in (run / "config.json").read_text()
    assert "| `dropout_start` | 0.0 |" in (run / "README.md").read_text()


def test_a_run_cannot_resume_with_another_share_of_concatenated_pairs(tmp_path):
    run = ["--output_dir", str(tmp_path / "run")]
    options = [
        *write_rows("translation", tmp_path),
        *SMALL,
        "--concat_pairs",
        "0.5",
        *run,
        "--save_strategy",
        "steps",
        "--save_steps",
        "2",
    ]
    train.main(["translation", *options, "--max_steps", "2"])
    assert "| `concat_pairs` | 0.5 |" in (tmp_path / "run" / "README.md").read_text()
    with pytest.raises(ValueError, match="training rows is 8, and was 12"):
        train.main(
            ["translation", *options, "--concat_pairs", "0", "--max_steps", "4", "--resume_from_checkpoint", "true"]
        )
    with pytest.raises(ValueError, match=r"concat_pairs=-1\.0 must be at least 0"):
        train.main(["translation", *options, "--concat_pairs", "-1"])


def test_changing_the_bucketing_changes_the_run(tmp_path):
    options = [*write_rows("translation", tmp_path), *SMALL, "--output_dir", str(tmp_path / "run")]
    with pytest.raises(ValueError, match="bucketing=none needs --tokens_per_batch"):
        train.main(["translation", *options, "--bucketing", "none", "--tokens_per_batch", "0"])
    options += ["--tokens_per_batch", "100", "--save_strategy", "steps", "--save_steps", "2"]
    train.main(["translation", *options, "--bucketing", "none", "--max_steps", "2"])
    assert "| `bucketing` | none |" in (tmp_path / "run" / "README.md").read_text()
    with pytest.raises(ValueError, match="bucketing"):
        train.main(["translation", *options, "--max_steps", "4", "--resume_from_checkpoint", "true"])


def test_the_card_states_how_tokenised_bleu_was_computed(tmp_path):
    options = [*write_rows("translation", tmp_path), *SMALL, "--max_steps", "1", "--output_dir", str(tmp_path / "run")]
    for name in ("split_compounds", "normalize_punctuation"):
        with pytest.raises(ValueError, match=f"{name}=True needs --moses_language"):
            train.main(["translation", *options, f"--{name}", "true"])
    with pytest.raises(ValueError, match=r"moses_language=german is not a language of Moses' tokenizer: .*de, "):
        train.main(["translation", *options, "--moses_language", "german"])
    both = ["--split_compounds", "true", "--normalize_punctuation", "true"]
    train.main(["translation", *options, *both, "--moses_language", "es"])
    card = (tmp_path / "run" / "README.md").read_text()
    assert "Moses' tokenizer (es), punctuation normalised, compounds split at hyphens" in card


@pytest.mark.parametrize("name", ROWS)
def test_rows_without_answers_or_classes_are_evaluated(name, tmp_path):
    file = write_json_lines(tmp_path / "rows.jsonl", ROWS[name])
    task = "multi_label" if name == "classifier" else TASKS[name][0]
    options = [*SMALL, "--max_steps", "2", "--output_dir", str(tmp_path / "run")]
    scores = train.main([task, *train_and_validate_on(file), *options])
    again = evaluate.main(["--model", str(tmp_path / "run"), "--test_file", file])
    assert again["test"] == pytest.approx(scores["validation"], rel=1e-5)


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        ("classification", [True, False]),
        ("classification", [-1, 10]),
        ("multi_label", [[i, (i + 7) % 12] for i in range(12)]),  # sorted as strings, 10 and 11 would precede 2
    ],
)
def test_train_and_evaluate_give_the_same_scores_for_numeric_classes(task, labels, tmp_path):
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu".split()
    rows = [{"text": word, "label": label} for word, label in zip(words, labels, strict=False)]
    file = write_json_lines(tmp_path / "rows.jsonl", rows)
    run = ["--output_dir", str(tmp_path / "run"), "--max_steps", "60"]
    scores = train.main([task, *train_and_validate_on(file), *SMALL, *ONE_STACK, *run])
    assert scores["validation"]["accuracy"] == 100
    again = evaluate.main(["--model", str(tmp_path / "run"), "--test_file", file])
    assert again["test"] == pytest.approx(scores["validation"], rel=1e-5)


def test_numeric_strings_in_a_csv_file_stay_distinct_classes(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("text,code\n" + "".join(f"row {label},{label}\n" for label in ["0101", "203", "0203"] * 3))
    run = ["--output_dir", str(tmp_path / "run"), "--max_steps", "1", "--columns", "label=code"]
    train.main(["classification", *train_and_validate_on(str(file)), *SMALL, *ONE_STACK, *run])
    assert list(AutoConfig.from_pretrained(tmp_path / "run").id2label.values()) == ["0101", "0203", "203"]


def test_numeric_classes_are_sorted_by_value_before_strings(tmp_path):
    rows = [{"text": "row", "label": label} for label in ([10], ["b"], [2], ["a", 2])]
    file = write_json_lines(tmp_path / "rows.jsonl", rows)
    run = ["--output_dir", str(tmp_path / "run"), "--max_steps", "1"]
    train.main(["multi_label", *train_and_validate_on(file), *SMALL, *ONE_STACK, *run])
    assert list(AutoConfig.from_pretrained(tmp_path / "run").id2label.values()) == ["2", "10", "a", "b"]


def test_answers_are_trained_without_surrounding_spaces(tmp_path):
    context = "Anna lives in Paris today."
    rows = [
        {"question": question, "context": context, "answers": {"text": [text], "answer_start": [context.index(text)]}}
        for question, text in (("Where?", " Paris"), ("Who?", "Anna "), ("When?", " today"))
    ]
    file = write_json_lines(tmp_path / "rows.jsonl", rows)
    run = ["--output_dir", str(tmp_path / "run"), "--max_steps", "60"]
    scores = train.main(["question_answering", *train_and_validate_on(file), *SMALL, *ONE_STACK, *run])
    assert scores["validation"] == {"exact_match": 100, "f1": 100}


def test_question_answering_with_learned_positions_evaluates_long_contexts_in_windows(tmp_path):
    row = {"question": "Who?", "context": "Ada was here.", "answers": {"text": ["Ada"], "answer_start": [0]}}
    file = write_json_lines(tmp_path / "rows.jsonl", [row])
    test = write_json_lines(tmp_path / "test.jsonl", [row | {"context": "Ada was here. " * 50}])
    learned = ["--position_embedding", "learned", "--max_position_embeddings", "64", "--max_steps", "1"]
    run = ["--output_dir", str(tmp_path / "run"), *learned, "--test_file", test]
    scores = train.main(["question_answering", *train_and_validate_on(file), *SMALL, *ONE_STACK, *run])
    assert set(scores) == {"validation", "test"}


def test_perplexity_can_be_computed_without_an_end_token(tmp_path):
    model, tokenizer = with_tokenizer(decoder_only, "causal", texts=["a b c"] * 3)
    # like the tokenizer of GPT, without an end token
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, unk_token="<pad>")
    write(tmp_path / "model", model, bare)
    file = write_json_lines(tmp_path / "rows.jsonl", [{"text": "a b c"}] * 40)
    scores = evaluate.main(["--model", str(tmp_path / "model"), "--test_file", file, "--block_size", "16"])
    assert 1 < scores["test"]["perplexity"] < 1000


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_regression_can_be_evaluated_on_a_single_row(tmp_path):
    file = write_json_lines(tmp_path / "rows.jsonl", [{"text": f"row {i}", "label": i / 16} for i in range(16)])
    run = ["--output_dir", str(tmp_path / "run"), "--max_steps", "2"]
    scores = train.main(["regression", "--train_file", file, *SMALL, *ONE_STACK, *run])  # one row is held out
    assert scores["validation"]["rmse"] > 0 and math.isnan(scores["validation"]["pearson"])
    assert "| validation | rmse |" in (tmp_path / "run/README.md").read_text()


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_evaluation_without_training_saves_nothing(tmp_path):
    options = [*write_rows("classification", tmp_path), *SMALL, *ONE_STACK]
    run = ["--output_dir", str(tmp_path / "run")]
    scores = train.main(["classification", *options, "--max_steps", "40", *run])
    before = files_of(tmp_path)
    with pytest.raises(ValueError, match="give it as --model_name_or_path"):
        train.main(["classification", *options, *run, "--do_train", "false"])
    named = ["--model_name_or_path", str(tmp_path / "run"), "--do_train", "false"]
    for folder in ("run", "another"):
        again = train.main(["classification", *options, *named, "--output_dir", str(tmp_path / folder)])
        assert again["validation"] == pytest.approx(scores["validation"], rel=1e-5)
    assert files_of(tmp_path) == before


def test_the_best_model_minimises_an_error_metric(tmp_path):
    best = ["--load_best_model_at_end", "true", "--metric_for_best_model", "rmse", "--eval_strategy", "steps"]
    best += ["--eval_steps", "5", "--save_strategy", "steps", "--save_steps", "5", "--max_steps", "25"]
    options = [*write_rows("regression", tmp_path), *SMALL, *ONE_STACK, *best]
    scores = train.main(["regression", *options, "--output_dir", str(tmp_path / "run")])
    states = [json.loads(file.read_text()) for file in (tmp_path / "run").glob("checkpoint-*/trainer_state.json")]
    history = max((state["log_history"] for state in states), key=len)
    errors = [entry["eval_rmse"] for entry in history if "eval_rmse" in entry]
    assert len(errors) == 5 and max(errors) > 1.5 * min(errors)
    assert scores["validation"]["rmse"] == pytest.approx(min(errors), rel=1e-4)


def test_a_model_trained_on_unanswerable_questions_may_give_no_answer(tmp_path):
    answers = {"text": ["Ada"], "answer_start": [0]}
    rows = [
        {"question": "Who was here?", "context": "Ada was here.", "answers": answers},
        {"question": "When was it?", "context": "Ada was here.", "answers": {"text": [], "answer_start": []}},
    ]
    file = write_json_lines(tmp_path / "rows.jsonl", rows * 4)
    run = ["--output_dir", str(tmp_path / "run"), "--max_steps", "60"]
    scores = train.main(["question_answering", *train_and_validate_on(file), *SMALL, *ONE_STACK, *run])
    assert scores["validation"] == {"exact_match": 100, "f1": 100}
    again = evaluate.main(["--model", str(tmp_path / "run"), "--test_file", file])
    assert again["test"] == scores["validation"]
    model, tokenizer = load_model(tmp_path / "run"), AutoTokenizer.from_pretrained(tmp_path / "run")
    reader = QuestionAnsweringPipeline(model=model, tokenizer=tokenizer)
    assert [reader(question=row["question"], context=row["context"])["answer"] for row in rows] == ["Ada", ""]
    for row, answer in zip(rows, ("Ada", "no answer"), strict=True):
        assert explore_data(model, tokenizer, row["question"], context=row["context"])["answer"] == answer


def test_a_warning_reports_truncated_words_that_are_not_scored(tmp_path, caplog):
    files = write_rows("tagging", tmp_path)
    run = ["--output_dir", str(tmp_path / "run"), "--max_steps", "2", "--max_length"]
    train.main(["tagging", *files, *SMALL, *ONE_STACK, *run, "4"])
    (message,) = (record.getMessage() for record in caplog.records if "are not scored" in record.getMessage())
    assert re.match(r"\d+ of \d+ words are not scored, because --max_length 4 truncates", message)


@pytest.mark.parametrize(
    ("task", "short", "long", "options"),
    [
        (
            "translation",
            {"source": "a b", "target": "c"},
            [{"source": "a " * 30, "target": "c"}, {"source": "a", "target": "c " * 40}],
            [],
        ),
        (
            "multi_label",
            {"text": "a b", "label": ["x"]},
            [{"text": "a " * 30, "label": ["x", "y"]}, {"text": "c " * 40, "label": []}],
            ONE_STACK,
        ),
        (
            "tagging",
            {"tokens": ["a", "b"], "tags": ["O", "X"]},
            [{"tokens": ["a"] * length, "tags": ["O"] * length} for length in (30, 40)],
            ONE_STACK,
        ),
    ],
)
def test_truncated_training_rows_are_counted(task, short, long, options, tmp_path, caplog):
    file = write_json_lines(tmp_path / "rows.jsonl", [short] * 3 + long)
    run = ["--output_dir", str(tmp_path / "run"), "--max_steps", "1", "--max_length", "20"]
    train.main([task, *train_and_validate_on(file), *SMALL, *options, *run])
    assert "--max_length 20 truncates 2 of 5 training rows." in caplog.text


def test_the_card_states_the_number_of_averaged_checkpoints(tmp_path, caplog):
    options = [*write_rows("classification", tmp_path), *SMALL, *ONE_STACK, "--save_strategy", "steps"]
    options += ["--save_steps", "2", "--max_steps", "4", "--average_checkpoints", "5"]
    train.main(["classification", *options, "--output_dir", str(tmp_path / "run")])
    assert "Found 2 of average_checkpoints=5: the final model is their mean." in caplog.text
    assert "| `average_checkpoints` | 2 |" in (tmp_path / "run/README.md").read_text()
    mean = average_checkpoints_of([tmp_path / "run/checkpoint-2", tmp_path / "run/checkpoint-4"])
    torch.testing.assert_close(load_file(tmp_path / "run/model.safetensors"), mean)


def test_evaluation_includes_the_last_batch_with_dataloader_drop_last(tmp_path):
    file = write_json_lines(tmp_path / "rows.jsonl", [{"text": f"row {i}", "label": i % 2} for i in range(13)])
    run = ["--output_dir", str(tmp_path / "run"), "--max_steps", "10"]
    train.main(["classification", *train_and_validate_on(file), *SMALL, *ONE_STACK, *run])
    given = ["--model", str(tmp_path / "run"), "--test_file", file, "--per_device_eval_batch_size", "16"]
    assert evaluate.main([*given, "--dataloader_drop_last", "true"]) == evaluate.main(given)


def test_the_label_true_differs_from_class_1(tmp_path):
    few = write_json_lines(tmp_path / "train.jsonl", [{"text": "row", "label": label} for label in (0, 1, 1)])
    test = write_json_lines(tmp_path / "test.jsonl", [{"text": "row", "label": True}])
    run = ["--output_dir", str(tmp_path / "run"), "--max_steps", "1"]
    with pytest.raises(ValueError, match=r"test.jsonl, row 1: label 'True' never occurs in training"):
        train.main(["classification", "--train_file", few, "--test_file", test, *SMALL, *ONE_STACK, *run])


def test_training_data_without_any_class_are_rejected(tmp_path):
    file = write_json_lines(tmp_path / "rows.jsonl", [{"text": f"row {i}", "label": []} for i in range(8)])
    run = ["--output_dir", str(tmp_path / "run")]
    with pytest.raises(ValueError, match="No row of the training data has a class"):
        train.main(["multi_label", "--train_file", file, *SMALL, *ONE_STACK, *run])


@pytest.mark.parametrize(
    ("task", "row", "said"),
    [
        ("classification", {"text": "row {}", "label": "good"}, "All rows of the training data are of class 'good'"),
        (
            "tagging",
            {"tokens": ["row", "{}"], "tags": ["O", "O"]},
            "All words of the training data have the tag 'O'",
        ),
    ],
)
def test_training_data_with_a_single_class_are_rejected(task, row, said, tmp_path):
    rows = [json.loads(json.dumps(row).replace("{}", str(i))) for i in range(8)]
    file = write_json_lines(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ValueError, match=said):
        train.main([task, *train_and_validate_on(file), *SMALL, *ONE_STACK, "--output_dir", str(tmp_path / "run")])


def test_held_out_text_shorter_than_a_block_is_rejected_before_training(tmp_path):
    files = [
        write_json_lines(tmp_path / f"{name}.jsonl", [{"text": "some words"}] * rows)
        for name, rows in (("long", 40), ("short", 1))
    ]
    options = ["--train_file", files[0], "--validation_file", files[1], "--block_size", "32", *SMALL, *ONE_STACK]
    with pytest.raises(
        ValueError, match=r"validation: The text of 1 rows does not fill one block .* lower that, or give"
    ):
        train.main(["language_modeling", *options, "--output_dir", str(tmp_path / "run")])


def test_nan_scores_are_null_in_the_results_file(tmp_path):
    file = write_json_lines(tmp_path / "rows.jsonl", [{"text": f"row {i}", "label": 0.5} for i in range(8)])
    run = ["--output_dir", str(tmp_path / "run"), "--max_steps", "2"]
    train.main(["regression", *train_and_validate_on(file), *SMALL, *ONE_STACK, *run])
    scores = tmp_path / "scores.json"
    evaluate.main(["--model", str(tmp_path / "run"), "--test_file", file, "--scores", str(scores)])
    found = json.loads(scores.read_text(), parse_constant=pytest.fail)
    assert found["scores"]["test"]["pearson"] is None and found["scores"]["test"]["rmse"] >= 0


def test_a_model_in_the_current_folder_is_named_after_it(tmp_path, monkeypatch):
    files = write_rows("classification", tmp_path)
    (tmp_path / "moods").mkdir()
    monkeypatch.chdir(tmp_path / "moods")
    train.main(["classification", *files, *SMALL, *ONE_STACK, "--max_steps", "1", "--output_dir", "."])
    card = (tmp_path / "moods/README.md").read_text()
    assert "\n# moods\n" in card and 'folder = "moods"' in card


def test_truncation_in_training_is_not_saved_with_the_tokenizer(tmp_path):
    run = ["--output_dir", str(tmp_path / "run"), "--max_steps", "2", "--max_length", "5", "--save_steps", "1"]
    options = [*SMALL, *ONE_STACK, "--save_strategy", "steps"]
    train.main(["classification", *write_rows("classification", tmp_path), *options, *run])
    average.main(["--run", str(tmp_path / "run"), "--last", "2", "--output", str(tmp_path / "mean")])
    for folder in (tmp_path / "run", tmp_path / "run/checkpoint-2", tmp_path / "mean"):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert tokenizer.truncation is None and len(tokenizer.encode("a b c d e f g h").ids) > 5, folder

    # Averaging finished runs gives a model, like averaging checkpoints, but without the card and scores of any run.
    finished = [str(tmp_path / "run")] * 2
    average.main(["--checkpoints", *finished, "--output", str(tmp_path / "of_runs")])
    assert {file.name for file in (tmp_path / "of_runs").iterdir()} == {
        file.name for file in (tmp_path / "mean").iterdir()
    }


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_requested_fraction_of_tokens_is_masked(rate, tmp_path):
    args = MaskedLanguageModelingArguments(output_dir=str(tmp_path), mask_probability=rate, use_cpu=True)
    tokenizer = train_tokenizer(["a b c d e f g h"] * 3, "encoder", vocab_size=300)
    collator = MaskedLanguageModelingTask(args).collator(tokenizer, None)
    batch = collator([{"input_ids": tokenizer("a b c d e f g h " * 200)["input_ids"]}])
    assert (batch["labels"] != -100).float().mean().item() == pytest.approx(rate, abs=0.04)


@pytest.mark.filterwarnings("ignore:An input array is constant")
@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_token_batches_do_not_count_labels_as_tokens(task, tmp_path):
    labels = [[f"c{i}"] for i in range(90)] if task == "multi_label" else [[i / 90] * 90 for i in range(90)]
    file = write_json_lines(tmp_path / "rows.jsonl", [{"text": "a b c", "label": label} for label in labels])
    options = [*SMALL, *ONE_STACK, "--tokens_per_batch", "64", "--num_train_epochs", "1"]
    run = tmp_path / "run"
    train.main([task, *train_and_validate_on(file), *options, "--save_strategy", "epoch", "--output_dir", str(run)])
    rows = 64 // len(AutoTokenizer.from_pretrained(run)("a b c")["input_ids"])  # rows per batch
    assert [folder.name for folder in run.glob("checkpoint-*")] == [f"checkpoint-{-(-90 // rows)}"]


def test_long_questions_are_an_error_only_if_no_context_fits(tmp_path):
    tokenizer = train_tokenizer(["a b c"] * 3, "encoder", vocab_size=300)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    row = {
        "question": "Who?",
        "context": "On that day Ada was here.",
        "answers": {"text": ["Ada"], "answer_start": [12]},
    }
    long = "Who was here on that day?"
    file = write_json_lines(tmp_path / "rows.jsonl", [row, {**row, "question": long}])
    options = [*train_and_validate_on(file), *SMALL, "--tokenizer_name_or_path", str(tmp_path / "tokenizer")]
    options += ["--max_steps", "2", "--output_dir", str(tmp_path / "run"), "--max_length"]
    enough = len(tokenizer(long, "O")["input_ids"])  # smallest usable length: windows of one token without overlap
    with pytest.raises(ValueError, match=rf"Row 2: question: 'Who was .* in max_length={enough - 1}: raise that"):
        train.main(["question_answering", *options, str(enough - 1)])
    scores = train.main(["question_answering", *options, str(enough)])
    assert scores["validation"].keys() == {"exact_match", "f1"}


def test_an_unusable_test_row_is_rejected_before_training(tmp_path):
    files = write_rows("question_answering", tmp_path)
    answers = {"text": ["Ada"], "answer_start": [0]}
    test = write_json_lines(
        tmp_path / "test.jsonl", [{"question": "Who? " * 60, "context": "Ada.", "answers": answers}]
    )
    run = ["--max_steps", "2", "--max_length", "64", "--output_dir", str(tmp_path / "run")]
    with pytest.raises(ValueError, match=r"Row 1: question: 'Who.* leaves no room for the context in max_length=64"):
        train.main(["question_answering", *files, *SMALL, *ONE_STACK, *run, "--test_file", test])
    assert not (tmp_path / "run/model.safetensors").exists() and not list((tmp_path / "run").glob("checkpoint-*"))


def test_a_string_instead_of_a_list_of_classes_is_rejected_before_training(tmp_path):
    files = write_rows("classification", tmp_path)
    with pytest.raises(ValueError, match=r"rows.jsonl, row 1: label is '..'; it must be a list of classes"):
        train.main(["multi_label", *files, *SMALL, "--output_dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_lines_are_translated_in_order(overfitted, tmp_path, capsys):
    run, _ = overfitted("translation")
    rows = [json.loads(line) for line in (run.parent / "rows.jsonl").read_text().splitlines()]
    # Windows editors save files with a byte order mark and CRLF line ends.
    source = "".join(f"{row['source']}\r\n" for row in rows)
    (tmp_path / "source.txt").write_text(source, encoding="utf-8-sig", newline="")
    files = ["--input", str(tmp_path / "source.txt"), "--output", str(tmp_path / "target.txt")]
    translate.main(["--model", str(run), "--batch_size", "3", *files])
    assert (tmp_path / "target.txt").read_text().splitlines() == [row["target"] for row in rows]

    # A failing command leaves no partial file and keeps the existing one.
    (tmp_path / "source.txt").write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"source.txt, line 2: not UTF-8"):
        translate.main(["--model", str(run), *files])
    assert (tmp_path / "target.txt").read_text().splitlines() == [row["target"] for row in rows]


def test_generate_continues_prompts_from_a_file_or_arguments(overfitted, tmp_path, capsys):
    run, _ = overfitted("language model")
    text = json.loads((run.parent / "rows.jsonl").read_text().splitlines()[0])["text"]
    (tmp_path / "prompts.txt").write_text(f"{text[:30]}\nThe\n")
    files = ["--input", str(tmp_path / "prompts.txt"), "--output", str(tmp_path / "texts.txt")]
    options = ["--model", str(run), "--do_sample", "false", "--max_new_tokens", "8"]
    generate.main([*options, *files])
    generate.main([*options, text[:30], "The"])
    assert capsys.readouterr().out.endswith((tmp_path / "texts.txt").read_text())
    continued, other = (tmp_path / "texts.txt").read_text().splitlines()
    assert continued.startswith(text[:30]) and len(continued) > 30 and text.startswith(continued[:36])
    assert other.startswith("The")


def test_the_code_folder_is_rejected_as_output_folder():
    """transformers copies the code files to the output folder, which fails if source and target are the same."""
    with pytest.raises(ValueError, match="is not empty"):
        train.main(["classification", "--output_dir", str(Path(__file__).parents[2])])


@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_all_options_can_be_in_one_file(ending, tmp_path):
    given = dict(zip(SMALL[::2], SMALL[1::2], strict=True)) | {"--max_steps": "2", "--num_layers": "1"}
    options = {name.removeprefix("--"): yaml.safe_load(value) for name, value in given.items()}
    options |= {"learning_rate": 3e-3, "save_strategy": "no"}  # YAML parses unquoted 3e-3 as a string and no as False
    files = write_rows("tagging", tmp_path)
    options |= {"train_file": [files[1]], "validation_file": [files[3]], "output_dir": str(tmp_path / "run")}
    file = tmp_path / f"options.{ending}"
    file.write_text(json.dumps(options))  # JSON is valid YAML
    scores = train.main(["tagging", str(file)])
    assert "f1" in scores["validation"]
    assert AutoConfig.from_pretrained(tmp_path / "run").d_model == 64


def test_training_works_with_mixed_precision_accumulation_and_checkpointing(tmp_path):
    task, data, options, learned = TASKS["classifier"]
    saving = ["--bf16", "true", "--gradient_checkpointing", "true", "--gradient_accumulation_steps", "2"]
    given = [*write_rows(data, tmp_path), *SMALL, *options, *saving, "--per_device_train_batch_size", "4"]
    assert learned(train.main([task, *given, "--output_dir", str(tmp_path / "run")])["validation"])


@pytest.mark.slow
def test_training_works_with_torch_compile(tmp_path):
    task, data, options, learned = TASKS["classifier"]
    given = [*write_rows(data, tmp_path), *SMALL, *options, "--torch_compile", "true"]
    assert learned(train.main([task, *given, "--output_dir", str(tmp_path / "run")])["validation"])


TRAINING = """
from pathlib import Path
from vanilla_transformer.cli import evaluate, train, translate
train.main(["translation", *arguments, "--output_dir", "model"])
train.main(["translation", *arguments, "--output_dir", "further", "--model_name_or_path", "model"])
evaluate.main(["--model", "further", "--test_file", "rows.jsonl"])
Path("lines.txt").write_text("3 miles")
translate.main(["--model", "further", "--input", "lines.txt", "--output", "translated.txt"])
print(json.dumps(asked))
"""


def test_training_scoring_and_translating_make_no_network_requests(tmp_path):
    model = ["--encoder_layers", "1", "--decoder_layers", "1", "--num_beams", "1"]
    steps = ["--tokens_per_batch", "200", "--max_steps", "2", "--save_strategy", "steps", "--save_steps", "1"]
    arguments = [*write_rows("translation", tmp_path), *SMALL, *model, *steps]
    assert run_fresh(UNDER_WATCH + TRAINING, tmp_path, *arguments, installed=True) == []
