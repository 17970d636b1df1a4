"""Test that resuming continues exactly or explains why it cannot, and that no usable checkpoint is lost."""

import json
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import IterableDataset
from safetensors.torch import load_file, save_file

from family import encoder_decoder
from fresh_process import ROOT, run_python, running
from tiny_training import tiny_trainer
from vanilla_transformer.cli import train
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.tasks.tagging import TaggingTask
from vanilla_transformer.training.arguments import RecipeArguments
from vanilla_transformer.training.averaging import average_checkpoints, load_average
from vanilla_transformer.training.checkpoints import LOCK_FILE, RUN_FILE, complete_checkpoints, was_interrupted


def names(folders) -> list[str]:
    return [folder.name for folder in folders]


def trained(folder: Path, **options) -> dict[str, torch.Tensor]:
    """Train like the command, resuming if possible, and return the weights."""
    trainer = tiny_trainer(folder, resume_from_checkpoint="true", **options)
    train.train(trainer)
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


def assert_equal(weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(weights, others, atol=0, rtol=0)


def terminate_in(step: int, trainer) -> None:
    """Send SIGTERM to this process during a step."""

    def signal_in_time(*_) -> None:
        if trainer.state.global_step == step - 1:
            signal.raise_signal(signal.SIGTERM)

    trainer.model.register_forward_pre_hook(signal_in_time)


BEST = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 3, "save_steps": 3}


# --- Finished runs


@pytest.mark.parametrize(
    "options", [{}, {"average_checkpoints": 2}, {"lr_scheduler_type": "linear", "learning_rate": 0.1}]
)
def test_resuming_a_finished_run_does_not_train_further(options, tmp_path):
    options |= {"max_steps": 7, "save_total_limit": 2}  # the run ends in the middle of an epoch
    weights = trained(tmp_path, **options)
    assert names(complete_checkpoints(tmp_path)) == ["checkpoint-6", "checkpoint-7"]
    assert_equal(trained(tmp_path, **options), weights)
    assert names(complete_checkpoints(tmp_path)) == ["checkpoint-6", "checkpoint-7"]
    trained(tmp_path, **options | {"max_steps": 9})  # a finished run continues only if it gets more steps
    assert names(complete_checkpoints(tmp_path)) == ["checkpoint-7", "checkpoint-9"]


def test_resuming_an_early_stopped_run_keeps_the_best_weights(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    options = BEST | {
        "max_steps": 60,
        "early_stopping_patience": 2,
        "learning_rate_scale": 300.0,
        "save_total_limit": 2,
    }

    def final(folder: Path) -> tuple[int, dict[str, torch.Tensor]]:
        trainer = tiny_trainer(folder, resume_from_checkpoint="true", **options)
        train.train(trainer)
        return trainer.state.global_step, {name: weight.clone() for name, weight in trainer.model.state_dict().items()}

    steps, weights = final(tmp_path / "run")
    assert steps < 60
    shutil.move(tmp_path / "run", tmp_path / "moved")
    again, kept = final(tmp_path / "moved")
    assert again == steps
    assert_equal(kept, weights)
    best = json.loads((tmp_path / "moved" / f"checkpoint-{steps}" / "trainer_state.json").read_text())
    stored = load_file(tmp_path / "moved" / f"checkpoint-{best['best_global_step']}" / "model.safetensors")
    assert all(torch.equal(weights[name], weight) for name, weight in stored.items())
    assert "missing keys" not in caplog.text, "a tied weight is not stored a second time"


def test_early_stopping_continues_counting_in_a_resumed_run(tmp_path):
    options = BEST | {"max_steps": 60, "early_stopping_patience": 3, "learning_rate_scale": 300.0}
    whole = tiny_trainer(tmp_path / "whole", **options)
    whole.train()
    last = whole.state.global_step
    for step in range(3, last, 3):
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{step}", tmp_path / "broken" / f"checkpoint-{step}")
    resumed = tiny_trainer(tmp_path / "broken", **options)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == last < 60


def test_resuming_from_a_checkpoint_raises_an_error_if_there_are_later_ones(tmp_path):
    """Otherwise, the later checkpoints would become part of the average."""
    tiny_trainer(tmp_path, max_steps=6).train()
    first = tmp_path / "checkpoint-3"
    with pytest.raises(ValueError, match="holds checkpoint-6, which is later than checkpoint-3"):
        tiny_trainer(tmp_path, max_steps=5).train(str(first))
    with pytest.raises(FileNotFoundError, match="checkpoint-4: there is no such folder"):
        tiny_trainer(tmp_path).train(str(tmp_path / "checkpoint-4"))
    shutil.rmtree(tmp_path / "checkpoint-6")
    gone_on = tiny_trainer(tmp_path, max_steps=5)
    gone_on.train(str(first))
    assert gone_on.state.global_step == 5


def test_a_finished_model_without_checkpoints_is_not_overwritten(tmp_path):
    (tmp_path / "README.md").write_text("A model card.")
    with pytest.raises(ValueError, match="contains a finished model and no checkpoint to resume"):
        trained(tmp_path)


# --- Best model and average


def test_the_best_model_is_not_averaged(tmp_path, caplog):
    arguments = RecipeArguments(output_dir=str(tmp_path), average_checkpoints=3, use_cpu=True, **BEST)
    assert arguments.average_checkpoints == 1
    assert "The final model is the best one, not the average" in caplog.text


def test_averaging_raises_an_error_if_checkpoints_do_not_match_the_model(tmp_path):
    model = encoder_decoder()
    model.save_pretrained(tmp_path)
    load_average(model, [tmp_path])
    stored = load_file(tmp_path / "model.safetensors")
    stored["strange"] = stored.popitem()[1]
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"and the model differ in: .*strange"):
        load_average(model, [tmp_path])


# --- Incomplete and damaged checkpoints


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, dict[str, torch.Tensor]]:
    """Train eight steps with three checkpoints. Return the folder of the run and its weights."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, trained(folder, max_steps=8)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("harm", [cut, empty, Path.unlink])
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "config.json", "model.safetensors"])
def test_a_checkpoint_with_a_missing_or_truncated_file_is_skipped(name, harm, whole, tmp_path):
    folder, weights = whole
    shutil.copytree(folder, tmp_path / "harmed")
    harm(tmp_path / "harmed" / "checkpoint-8" / name)
    trainer = tiny_trainer(tmp_path / "harmed", max_steps=8)
    steps = []
    trainer.model.register_forward_pre_hook(lambda *_: steps.append(1))
    trainer.train(resume_from_checkpoint=True)
    assert len(steps) == 2  # the run resumes from checkpoint-6
    assert_equal(trainer.model.state_dict(), weights)


def flip_a_bit(file: Path) -> None:
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt"])
def test_a_checkpoint_whose_contents_have_changed_is_skipped_with_a_warning(name, whole, tmp_path, caplog):
    folder, weights = whole
    shutil.copytree(folder, tmp_path / "harmed")
    flip_a_bit(tmp_path / "harmed" / "checkpoint-8" / name)
    with pytest.raises(ValueError, match=f"checkpoint-8 is damaged: .*{name}"):
        tiny_trainer(tmp_path / "harmed", max_steps=8).train(str(tmp_path / "harmed" / "checkpoint-8"))
    assert_equal(trained(tmp_path / "harmed", max_steps=8), weights)
    assert f"checkpoint-8 is damaged: the contents of {name} have changed" in caplog.text
    for step in (3, 6, 8):
        flip_a_bit(tmp_path / "harmed" / f"checkpoint-{step}" / name)
    with pytest.raises(ValueError, match="all checkpoints are damaged"):
        trained(tmp_path / "harmed", max_steps=8)


def test_averaging_skips_checkpoints_whose_weights_have_changed(tmp_path, caplog):
    trained(tmp_path, max_steps=9)
    flip_a_bit(tmp_path / "checkpoint-6" / "model.safetensors")
    with pytest.raises(ValueError, match=r"checkpoint-6 is damaged: .*model\.safetensors"):
        average_checkpoints(complete_checkpoints(tmp_path))
    options = {"max_steps": 9, "average_checkpoints": 2, "save_steps": 3}
    mean = average_checkpoints([tmp_path / "checkpoint-3", tmp_path / "checkpoint-9"])
    weights = trained(tmp_path, **options)
    assert all(torch.equal(weights[name], weight) for name, weight in mean.items())


def test_a_checkpoint_whose_run_file_is_not_an_object_is_skipped(whole, tmp_path):
    folder, weights = whole
    shutil.copytree(folder, tmp_path / "harmed")
    (tmp_path / "harmed" / "checkpoint-8" / RUN_FILE).write_text("[]")
    assert_equal(trained(tmp_path / "harmed", max_steps=8), weights)


def test_resuming_deletes_incomplete_checkpoints_but_keeps_complete_ones(tmp_path):
    trained(tmp_path / "run", max_steps=9)
    shutil.copytree(tmp_path / "run" / "checkpoint-9", tmp_path / "run" / "checkpoint-old")
    (tmp_path / "run" / "checkpoint-12").mkdir()
    (tmp_path / "run" / "checkpoint-13.txt").write_text("a note")
    cut(tmp_path / "run" / "checkpoint-3" / "optimizer.pt")
    # A user may have deleted the optimizer state. The weights are still complete.
    (tmp_path / "run" / "checkpoint-6" / "optimizer.pt").unlink()
    trained(tmp_path / "run", max_steps=9)
    left = {"checkpoint-6", "checkpoint-9", "checkpoint-old", "checkpoint-13.txt"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == left


def test_checkpoints_without_training_state_can_be_averaged_but_not_resumed(tmp_path):
    options = {"max_steps": 9, "save_only_model": True, "average_checkpoints": 2}
    weights = trained(tmp_path, **options)
    mean = average_checkpoints([tmp_path / "checkpoint-6", tmp_path / "checkpoint-9"])
    assert all(torch.equal(weights[name], weight) for name, weight in mean.items())
    with pytest.raises(
        ValueError, match="checkpoint-9 cannot be resumed: it lacks its optimizer, schedule, random num"
    ):
        trained(tmp_path, **options)
    assert len(complete_checkpoints(tmp_path)) == 3


# --- Checkpoints of another run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 0.2}, "dropout is 0.2, and was 0.1"),
        ({"seed": 1}, "seed is 1, and was 42"),
        ({"per_device_train_batch_size": 4}, "per_device_train_batch_size is 4, and was 8"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps x processes is 2, and was 1"),
        ({"muon": True}, "muon is True, and was False"),
    ],
)
def test_resuming_with_changed_options_raises_an_error_that_names_them(options, message, tmp_path):
    trained(tmp_path, max_steps=3)
    with pytest.raises(ValueError, match=f"checkpoint-3 is a checkpoint of another run: {message}. Resume with"):
        trained(tmp_path, max_steps=6, **options)
    trained(tmp_path, max_steps=6, logging_steps=2)  # options that do not affect the weights may be changed


@pytest.mark.parametrize(
    ("without", "added", "on", "off"),
    [
        ({}, {"dropout_start": 0.0}, "dropout_start is 0.0", "None"),
        ({}, {"tokens_per_batch": 64}, "tokens_per_batch is 64", "0"),
        ({"tokens_per_batch": 64}, {"bucketing": "none"}, "bucketing is none", "length"),
        ({"muon": True}, {"embedding_decay": 0.1}, "embedding_decay is 0.1", "0.0"),
    ],
)
def test_resuming_with_an_added_or_omitted_option_raises_an_error_that_names_it(without, added, on, off, tmp_path):
    name, value = on.split(" is ")
    trained(tmp_path / "without", max_steps=3, **without)
    with pytest.raises(ValueError, match=f"another run: {on}, and was {off}. Resume with"):
        trained(tmp_path / "without", max_steps=6, **without, **added)
    trained(tmp_path / "without", max_steps=6, **without)
    trained(tmp_path / "with", max_steps=3, **without, **added)
    with pytest.raises(ValueError, match=f"another run: {name} is {off}, and was {value}. Resume with"):
        trained(tmp_path / "with", max_steps=6, **without)


def test_options_are_not_compared_with_a_checkpoint_without_run_file(tmp_path):
    trained(tmp_path, max_steps=3, seed=1)
    (tmp_path / "checkpoint-3" / RUN_FILE).unlink()
    trained(tmp_path, max_steps=6, seed=2)


def test_resuming_with_a_different_stream_raises_an_error(tmp_path):
    trained(tmp_path, max_steps=3, streaming=True)
    trainer = tiny_trainer(tmp_path, max_steps=6, streaming=True)
    trainer.train_dataset = trainer.train_dataset.skip(1)
    with pytest.raises(ValueError, match=r"another run: dataset fingerprint is [0-9a-f]{16}, and was"):
        trainer.train(resume_from_checkpoint=True)
    trained(tmp_path, max_steps=6, streaming=True)


def test_a_run_on_a_nondeterministic_stream_can_be_resumed(tmp_path):
    random = np.random.default_rng()

    def rows():
        while True:
            ids = random.integers(3, 50, 5).tolist()
            yield {"input_ids": ids, "labels": ids}

    for steps in (3, 6):
        trainer = tiny_trainer(tmp_path, max_steps=steps)
        trainer.train_dataset = IterableDataset.from_generator(rows)
        trainer.train(resume_from_checkpoint=steps > 3)


def test_resuming_with_other_data_or_architecture_raises_an_error_that_names_them(tmp_path):
    trained(tmp_path, max_steps=3)
    trainer = tiny_trainer(tmp_path, max_steps=6)
    trainer.train_dataset = trainer.train_dataset.select([1, 0, *range(2, 40)])  # the same rows in another order
    with pytest.raises(ValueError, match=r"another run: dataset fingerprint is [0-9a-f]{16}, and was [0-9a-f]{16}"):
        trainer.train(resume_from_checkpoint=True)
    trainer = tiny_trainer(tmp_path, max_steps=6)
    trainer.model = encoder_decoder(dropout=0.1, norm_position="pre", encoder_layers=1)
    with pytest.raises(ValueError, match="encoder_layers is 1, and was") as refused:
        trainer.train(resume_from_checkpoint=True)
    assert "norm_position is pre, and was" in str(refused.value)


TAGGER = [
    "--d_model", "32", "--d_ff", "32", "--num_heads", "2", "--num_layers", "1", "--vocab_size", "300", "--use_cpu",
    "true", "--disable_tqdm", "true", "--warmup_steps", "5", "--save_steps", "4", "--per_device_train_batch_size", "8",
]  # fmt: skip


def tagger(folder: Path, name: str, *options: str, rows: range = range(40)) -> list[str]:
    """Return the options for a small tagging run on a file of rows."""
    sentences = phrasebook("tagging", size=1000)["train"]
    file = folder / f"rows-{len(rows)}.jsonl"
    file.write_text("".join(json.dumps(sentences[i]) + "\n" for i in rows))
    files = ["--train_file", str(file), "--validation_file", str(file)]
    return [*files, *TAGGER, "--output_dir", str(folder / name), "--resume_from_checkpoint", "true", *options]


def test_the_command_rejects_a_checkpoint_with_another_tokenizer(tmp_path):
    train.main(["tagging", *tagger(tmp_path, "run", "--max_steps", "4")])
    with pytest.raises(
        ValueError, match=r"the tokenizer is another one, in which \d+ of 300 tokens have another id or"
    ):
        train.main(["tagging", *tagger(tmp_path, "run", "--max_steps", "8", rows=range(500, 550))])


def test_a_run_can_be_resumed_if_the_locale_is_not_utf8(tmp_path):
    train.main(["tagging", *tagger(tmp_path, "run", "--max_steps", "4")])
    command = [
        sys.executable,
        "-m",
        "vanilla_transformer",
        "train",
        "tagging",
        *tagger(tmp_path, "run", "--max_steps", "8"),
    ]
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = subprocess.run(command, env=os.environ | locale, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    assert names(complete_checkpoints(tmp_path / "run")) == ["checkpoint-4", "checkpoint-8"]


# --- Saved files and when they are saved


def test_if_scoring_fails_the_model_is_saved_readable_and_with_a_card_but_without_pickles(tmp_path):
    os.umask(0o022)
    arguments = tagger(
        tmp_path, "run", "--max_steps", "4", "--hub_token", "hf_secret", "--metric_for_best_model", "f2"
    )
    trainers = []

    class FailingTask(TaggingTask):
        def evaluate(self, trainer, rows):
            trainers.append(trainer)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        train.run(FailingTask, arguments)
    folder = tmp_path / "run"
    weights = load_file(folder / "model.safetensors")
    assert all(torch.equal(trainers[0].model.state_dict()[name], weight) for name, weight in weights.items())
    assert not (folder / "training_args.bin").exists()
    assert "## Training" in (folder / "README.md").read_text()
    assert trainers[0].args.hub_token == "hf_secret"
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert not [file for file in files if b"hf_secret" in file.read_bytes()]
    assert {oct(file.stat().st_mode)[-3:] for file in files} == {"644"}


def test_arguments_are_pickled_without_the_token(tmp_path):
    arguments = RecipeArguments(output_dir=str(tmp_path), use_cpu=True, hub_token="hf_secret")
    assert b"hf_secret" not in pickle.dumps(arguments)
    assert pickle.loads(pickle.dumps(arguments)).output_dir == str(tmp_path)


def test_rows_longer_than_the_position_embeddings_raise_an_error_before_training(tmp_path):
    trainer = tiny_trainer(tmp_path)
    trainer.model = encoder_decoder(position_embedding="learned", max_position_embeddings=7)
    steps = []
    trainer.model.register_forward_pre_hook(lambda *_: steps.append(1))
    with pytest.raises(ValueError, match=r"A row has 8 tokens, and the table of position_embedding='learned' .*=7"):
        trainer.train()
    assert not steps


# --- Diverging runs


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 1.0}, {"gradient_accumulation_steps": 2}])
def test_a_diverging_run_stops_before_saving_weights_that_are_not_finite(options, tmp_path):
    trainer = tiny_trainer(tmp_path, save_steps=1, save_total_limit=2, learning_rate=1e30, warmup_steps=0, **options)
    with pytest.raises(FloatingPointError, match="Training has diverged: lower the learning rate"):
        trainer.train()
    for folder in complete_checkpoints(tmp_path):
        assert all(weight.isfinite().all() for weight in load_file(folder / "model.safetensors").values())


def test_the_command_fails_if_training_diverges(tmp_path):
    command = ["-m", "vanilla_transformer", "train", "tagging"]
    command += tagger(tmp_path, "run", "--max_steps", "30", "--learning_rate", "1e35", "--warmup_steps", "0")
    result = run_python(command)
    assert result.returncode != 0
    assert "Training has diverged" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_a_full_disk_gives_a_one_line_error_and_no_checkpoint(tmp_path):
    wide = ("--d_model", "96", "--max_steps")
    train.main(["tagging", *tagger(tmp_path, "run", *wide, "4")])
    whole = tmp_path / "run/checkpoint-4"
    limit = (whole / "optimizer.pt").stat().st_size - 1000
    assert all(file.stat().st_size < limit for file in whole.iterdir() if file.name != "optimizer.pt")
    limited = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    command = ["-c", limited, ROOT / "scripts/train.py", "tagging", *tagger(tmp_path, "run", *wide, "8")]
    result = run_python(command)
    assert result.returncode == 2 and "train.py: error: PyTorch could not finish writing a file" in result.stderr
    assert "Traceback" not in result.stderr
    assert names(complete_checkpoints(tmp_path / "run")) == ["checkpoint-4"]


# --- Concurrent runs, and signals

HOLD = """
import sys, time
from pathlib import Path
from vanilla_transformer.training.checkpoints import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(100)
"""


def test_a_second_run_in_the_same_folder_raises_an_error_until_the_first_ends(tmp_path):
    with running(["-c", HOLD, tmp_path]) as (other, output):
        assert output.readline() == "held\n"
        with pytest.raises(ValueError, match="another run trains into this folder"):
            train.main(["tagging", *tagger(tmp_path.parent, tmp_path.name, "--max_steps", "4")])
        other.kill()
        other.wait(60)
    # Files left by the killed process neither block a new run nor count as a run to resume.
    options = ("--max_steps", "4", "--resume_from_checkpoint", "false")
    train.main(["tagging", *tagger(tmp_path.parent, tmp_path.name, *options)])
    assert (tmp_path / "README.md").exists() and not (tmp_path / LOCK_FILE).exists()


@pytest.mark.parametrize(
    "options", [{"save_steps": 4}, {"save_steps": 4, "save_total_limit": 2}, {"save_strategy": "no"}]
)
def test_checkpoints_saved_on_sigterm_are_not_averaged(options, tmp_path):
    options |= {"average_checkpoints": 2, "max_steps": 10}
    whole = trained(tmp_path / "whole", **options)
    for step in (6, 7):  # interrupt the run, and then the resumed run
        trainer = tiny_trainer(tmp_path / "run", resume_from_checkpoint="true", **options)
        terminate_in(step, trainer)
        with pytest.raises(SystemExit):
            train.train(trainer)
        assert was_interrupted(tmp_path / "run" / f"checkpoint-{step}")
    assert_equal(trained(tmp_path / "run", **options), whole)
    kept = [name for name in names(complete_checkpoints(tmp_path / "run")) if name != "checkpoint-7"]
    assert kept == names(complete_checkpoints(tmp_path / "whole"))


def test_sigterm_within_an_epoch_skips_end_of_epoch_actions(tmp_path):
    trainer = tiny_trainer(tmp_path, eval_strategy="epoch", save_strategy="epoch")
    terminate_in(7, trainer)
    with pytest.raises(SystemExit):
        trainer.train()
    assert [entry["epoch"] for entry in trainer.state.log_history if "eval_loss" in entry] == [1.0]
    assert names(complete_checkpoints(tmp_path)) == ["checkpoint-5", "checkpoint-7"]


@pytest.mark.slow
def test_the_quickstart_resumes_after_ctrl_c(tmp_path):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore SIGINT
    command = [sys.executable, "-m", "vanilla_transformer", "quickstart", "--output_dir", str(tmp_path / "run")]
    for step in (100, 200):
        log = tmp_path / f"log-{step}"
        with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
            deadline = time.monotonic() + 500
            while not (tmp_path / "run" / f"checkpoint-{step}" / "trainer_state.json").exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    pytest.fail(log.read_text())
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
    state = json.loads((tmp_path / "run" / "checkpoint-200" / "trainer_state.json").read_text())
    assert [entry["step"] for entry in state["log_history"] if "loss" in entry] == [50, 100, 150, 200]
