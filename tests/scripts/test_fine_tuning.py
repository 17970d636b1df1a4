"""Test the Trainer features that users expect from `train`: fine-tuning, best model, early stopping, logging."""

import json
import logging
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoTokenizer
from transformers.utils import logging as library_logging

from golden import GOLDEN, score
from shipping import commands
from shipping.rows import read
from small_data import ONE_STACK, SMALL, train_and_validate_on, write_json_lines, write_rows
from vanilla_transformer import (
    VanillaTransformerEncoderConfig,
    VanillaTransformerForMaskedLM,
)
from vanilla_transformer.cli import train
from vanilla_transformer.cli.options import make_model, model_options
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.loading import CHECKPOINTS, load_model
from vanilla_transformer.tasks.masked_language_modeling import ReproducibleMasking


HEADS = {
    "classifier": ("classification", ["classifier.bias", "classifier.weight"]),
    "tagger": ("tagging", ["classifier.bias", "classifier.weight"]),
    "reader": ("question_answering", ["qa_outputs.bias", "qa_outputs.weight"]),
}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pretraining")
    options = [*write_rows("language_modeling", folder), *SMALL, *ONE_STACK, "--max_steps", "3"]
    train.main(["masked_language_modeling", *options, "--output_dir", str(folder / "encoder")])
    return folder / "encoder"


def test_new_models_use_the_chunked_loss_and_packing_by_default(pretrained):
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    options = model_options(VanillaTransformerEncoderConfig)

    def made(**given) -> tuple[bool, str]:
        model = make_model(VanillaTransformerForMaskedLM, options(**given), tokenizer).train()
        ids = torch.randint(10, 200, (2, 6))
        return model(ids, labels=ids).logits is None, model.config._attn_implementation

    sizes = {"d_model": 32, "num_heads": 4}
    assert made(**sizes) == (True, "packed_sdpa")
    assert made(**sizes, loss_chunk_size=0, attn_implementation="eager") == (False, "eager")
    assert made(model_name_or_path=str(pretrained)) == (True, "packed_sdpa")
    assert "loss_chunk_size" not in json.loads((pretrained / "config.json").read_text())


@pytest.mark.parametrize("head", HEADS)
def test_every_head_can_use_a_pretrained_encoder_and_reports_new_weights(head, pretrained, tmp_path, caplog):
    task, new_weights = HEADS[head]
    library_logging.enable_propagation()
    caplog.set_level(logging.WARNING)
    given = [*write_rows(task, tmp_path), *SMALL, "--model_name_or_path", str(pretrained)]
    train.main([task, *given, "--max_steps", "1", "--learning_rate", "0", "--output_dir", str(tmp_path / "run")])
    library_logging.disable_propagation()
    for name in new_weights:
        assert name in caplog.text

    before, after = (load_file(folder / "model.safetensors") for folder in (pretrained, tmp_path / "run"))
    shared = [name for name in before if name.startswith("model.")]
    assert shared and all(torch.equal(before[name], after[name]) for name in shared)
    assert sorted(after.keys() - before.keys()) == new_weights
    before, after = (json.loads((folder / "tokenizer.json").read_text()) for folder in (pretrained, tmp_path / "run"))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == (
        {"normalizer", "post_processor"} if head == "tagger" else set()
    )  # taggers prepend a space to each word


# checkpoint -> (task, metric that fine-tuning must not make worse)
SHIPPED = {
    "en-es": ("translation", "chrf"),
    "intents": ("classification", "accuracy"),
    "language-id": ("classification", "accuracy"),
    "language-model": ("language_modeling", "loss"),
    "masked-lm": ("masked_language_modeling", "loss"),
    "reader": ("question_answering", "f1"),
    "tagger": ("tagging", "f1"),
}


def rows_for(name: str) -> dict[str, list[dict]]:
    """Return training and validation rows similar to the original data of a shipped checkpoint, with all classes."""
    if name == "tagger":
        rows = commands.tagger(phrases=1000, copies=0, everyday=100)["train"]
        seen: set[str] = set()
        for row in rows:
            row["new"] = bool({*row["tags"]} - seen)
            seen |= {*row["tags"]}
        train = [{"tokens": row["tokens"], "tags": row["tags"]} for row in rows if row.pop("new")]
        return {"validation": rows[-16:], "train": train}
    if name in ("intents", "language-id"):
        rows = read("snips" if name == "intents" else "languages")["validation"]
        labels = load_model(CHECKPOINTS / name).config.label2id
        rows = [row for label in labels for row in [each for each in rows if each["label"] == label][:4]]
        return {"validation": rows[::4], "train": [row for i, row in enumerate(rows) if i % 4]}
    rows = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return {"validation": rows[:16], "train": rows[16:]}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_checkpoint_is_fine_tuned_in_float32_and_does_not_get_worse(name, tmp_path):
    folder, (task, metric) = CHECKPOINTS / name, SHIPPED[name]
    rows = rows_for(name)
    files = {split: write_json_lines(tmp_path / f"{split}.jsonl", some) for split, some in rows.items()}
    options = [f"--{split}_file={file}" for split, file in files.items()]
    options += "--max_steps 4 --learning_rate 3e-5 --lr_scheduler_type constant --warmup_steps 0".split()
    options += "--tokens_per_batch 0 --per_device_train_batch_size 16 --average_checkpoints 1".split()
    options += "--save_strategy no --use_cpu true --disable_tqdm true".split()
    options += ["--block_size", "8"] if task == "language_modeling" else []
    run = tmp_path / "run"
    train.main([task, *options, "--model_name_or_path", str(folder), "--output_dir", str(run)])
    before, after = (load_file(place / "model.safetensors") for place in (folder, run))
    assert {weight.dtype for weight in after.values()} == {torch.float32}
    # Some ReLU units may never be active, so not every weight of a feed-forward network changes.
    matrices = [key for key in before if "_attn." in key and before[key].dim() == 2]
    still = {key: (before[key].float() == after[key]).float().mean().item() for key in matrices}
    assert matrices and max(still.values()) < 0.01, max(still, key=still.__getitem__)
    old, new = (score(place, rows["validation"])[metric] for place in (folder, run))
    assert new <= old + 0.05 if metric == "loss" else new >= old - 1, (old, new)


def test_a_size_that_contradicts_the_checkpoint_is_rejected(pretrained, tmp_path):
    given = [*write_rows("classification", tmp_path), *SMALL, "--model_name_or_path", str(pretrained)]
    for name, saved, value in (("d_model", 64, 96), ("d_ff", 128, 64), ("num_layers", 2, 3)):
        message = re.escape(f"--{name} {value} does not fit {pretrained}, a checkpoint with {name}={saved}: leave")
        with pytest.raises(ValueError, match=message):
            train.main(["classification", *given, f"--{name}", str(value), "--output_dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_fine_tuning_a_classifier_on_new_classes_is_rejected(tmp_path):
    given = [*write_rows("classification", tmp_path), *SMALL, *ONE_STACK, "--max_steps", "1"]
    train.main(["classification", *given, "--output_dir", str(tmp_path / "run")])
    rows = [{"text": "a b", "label": label} for label in ("no", "such", "labels")]
    other = train_and_validate_on(write_json_lines(tmp_path / "other.jsonl", rows))
    given = [*other, *SMALL, "--model_name_or_path", str(tmp_path / "run"), "--output_dir", str(tmp_path / "other")]
    with pytest.raises(ValueError, match=r"run cannot be loaded; does the data have other classes"):
        train.main(["classification", *given])


def test_options_for_new_models_are_ignored_with_a_warning_for_pretrained_models(pretrained, tmp_path, caplog):
    given = [*write_rows("classification", tmp_path), "--use_cpu", "true", "--disable_tqdm", "true"]
    given += ["--max_steps", "1", "--save_strategy", "no", "--per_device_train_batch_size", "8"]
    without_effect = "--lowercase True: no effect, because the checkpoint or tokenizer has its own."
    there = ["--model_name_or_path", str(pretrained)]
    named = ["--preset", "tiny", "--init", "small", "--lowercase", "true"]
    train.main(["classification", *given, *there, *named, "--output_dir", str(tmp_path / "a")])
    assert f"--preset tiny, --init small, {without_effect}" in caplog.text

    caplog.clear()
    there = ["--tokenizer_name_or_path", str(pretrained), "--num_layers", "1"]
    train.main(["classification", *given, *there, *named, "--output_dir", str(tmp_path / "b")])
    assert without_effect in caplog.text and "--preset" not in caplog.text

    caplog.clear()
    train.main(
        ["classification", *given, "--model_name_or_path", str(pretrained), "--output_dir", str(tmp_path / "c")]
    )
    assert "without effect" not in caplog.text


def test_masked_language_modeling_resumes_bit_for_bit(tmp_path):
    given = [*write_rows("language_modeling", tmp_path), *SMALL, *ONE_STACK, "--dropout", "0.1"]
    given += ["--max_steps", "6", "--save_strategy", "steps", "--save_steps", "3"]
    train.main(["masked_language_modeling", *given, "--output_dir", str(tmp_path / "whole")])
    shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "resumed" / "checkpoint-3")
    resumed = ["--output_dir", str(tmp_path / "resumed"), "--resume_from_checkpoint", "true"]
    train.main(["masked_language_modeling", *given, *resumed])
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed"))
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())


def test_masks_differ_between_batches_and_cover_the_requested_fraction(pretrained):
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    mask = ReproducibleMasking(tokenizer, mlm_probability=0.15)
    rows = [{"input_ids": torch.randint(10, 200, (100,)).tolist()} for _ in range(40)]
    first, again, other = mask(rows[:20]), mask(rows[:20]), mask(rows[20:])
    assert torch.equal(first["labels"], again["labels"]) and torch.equal(first["input_ids"], again["input_ids"])
    chosen, others = first["labels"] != -100, other["labels"] != -100
    assert not torch.equal(chosen, others)
    assert chosen.float().mean() == pytest.approx(0.15, abs=0.04)


def test_early_stopping_keeps_the_best_model_and_logs_to_tensorboard(tmp_path):
    # The labels are unrelated to the text, so the model soon overfits.
    rows = phrasebook("classification", size=1000)["train"]
    names = {"train": range(40), "validation": range(40, 80)}
    for split, numbers in names.items():
        unlearnable = [{**rows[i], "label": i % 2} for i in numbers]
        write_json_lines(tmp_path / f"{split}.jsonl", unlearnable)
    run = tmp_path / "run"
    train.main(["classification",
        "--train_file", str(tmp_path / "train.jsonl"), "--validation_file", str(tmp_path / "validation.jsonl"),
        *SMALL, *ONE_STACK, "--num_train_epochs", "40", "--early_stopping_patience", "2",
        "--eval_strategy", "epoch", "--save_strategy", "epoch", "--load_best_model_at_end", "true",
        "--metric_for_best_model", "loss", "--report_to", "tensorboard", "--output_dir", str(run),
    ])  # fmt: skip
    last = max(run.glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))
    state = json.loads((last / "trainer_state.json").read_text())
    losses = [entry["eval_loss"] for entry in state["log_history"] if "eval_loss" in entry]
    assert 3 <= len(losses) < 40 and losses.index(min(losses)) == len(losses) - 3  # two epochs without improvement
    best = load_file(Path(state["best_model_checkpoint"]) / "model.safetensors")
    final = load_file(run / "model.safetensors")
    assert all(torch.equal(final[name], weight) for name, weight in best.items())

    # the oldest log is from training; the final evaluation writes another
    events = min(run.rglob("events.out.tfevents.*"), key=lambda file: file.stat().st_ctime)
    logged = [event.value for event in EventAccumulator(str(events)).Reload().Scalars("eval/loss")]
    assert logged == pytest.approx(losses, rel=1e-5)


def test_a_language_model_trains_on_a_stream(tmp_path):
    text = "\n\n".join(f"chapter {i}: the tank holds {i} litres of water." for i in range(400))
    (tmp_path / "text.txt").write_text(text)
    scores = train.main(["language_modeling",
        "--train_file", str(tmp_path / "text.txt"), "--sample_by", "paragraph", "--streaming", "true",
        *SMALL, *ONE_STACK, "--block_size", "64", "--max_steps", "150", "--output_dir", str(tmp_path / "run"),
    ])  # fmt: skip
    assert scores["validation"]["loss"] < 1.2
