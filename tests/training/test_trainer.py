"""Test the trainer: optimizer, schedule, arguments, and exact resuming with one or two processes."""

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import HfArgumentParser

from family import encoder_decoder
from fresh_process import ROOT, run_fresh
from tiny_training import tiny_trainer
from vanilla_transformer.tasks.translation import TranslationArguments
from vanilla_transformer.training.arguments import RecipeArguments
from vanilla_transformer.training.checkpoints import complete_checkpoints


SCRIPTS = ROOT / "scripts"


@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_optimizer_has_the_papers_settings(scale, tmp_path):
    run = tiny_trainer(tmp_path, learning_rate_scale=scale)
    run.create_optimizer_and_scheduler(10)
    for group in run.optimizer.param_groups:
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-9, 0.0)
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(scale * 32**-0.5 * 5**-1.5)
    assert run.args.max_grad_norm == 0


@pytest.mark.skipif(torch.accelerator.is_available(), reason="memory is pinned for a GPU")
@pytest.mark.filterwarnings("error:'pin_memory'")
def test_there_is_no_warning_about_pinned_memory_without_a_gpu(tmp_path):
    assert tiny_trainer(tmp_path, use_cpu=False, bf16=False).evaluate()["eval_loss"] > 0


def test_epoch_strategies_with_a_stream_raise_an_error(tmp_path):
    with pytest.raises(
        ValueError, match="save_strategy=epoch: a stream is read until --max_steps, as one epoch; give"
    ):
        tiny_trainer(tmp_path, streaming=True, max_steps=4, save_strategy="epoch").train()


@pytest.mark.parametrize(("limit", "mean"), [(None, 5), (0, 5), (-1, 5), (2, 2), (9, 5)])
def test_averaging_is_limited_to_the_checkpoints_kept(limit, mean, tmp_path):
    args = TranslationArguments(output_dir=str(tmp_path), save_total_limit=limit, use_cpu=True)
    assert args.average_checkpoints == mean


def test_warmup_can_be_a_fraction_of_all_steps(tmp_path):
    run = tiny_trainer(tmp_path, warmup_steps=0.5)
    run.create_optimizer_and_scheduler(10)
    rates = []
    for _ in range(10):
        rates.append(run.optimizer.param_groups[0]["lr"])
        run.optimizer.step()
        run.lr_scheduler.step()
    # The learning rate rises for five steps.
    assert rates.index(max(rates)) == 4 and rates[1] == pytest.approx(2 * rates[0])


@pytest.mark.parametrize("options", [{}, {"learning_rate": 1e-3, "lr_scheduler_type": "linear"}])
def test_a_run_shorter_than_its_warmup_logs_a_warning(options, tmp_path, caplog):
    """With little data, a run can end within the paper's 4,000 warm-up steps, and the model learns almost nothing."""
    tiny_trainer(tmp_path, warmup_steps=4000, **options).create_optimizer_and_scheduler(40)
    assert "The learning rate rises for 4000 steps, and the run has 40: it ends at 0.01 of its peak" in caplog.text
    caplog.clear()
    tiny_trainer(tmp_path, warmup_steps=40, **options).create_optimizer_and_scheduler(40)
    tiny_trainer(
        tmp_path, warmup_steps=4000, learning_rate=1e-3, lr_scheduler_type="constant"
    ).create_optimizer_and_scheduler(40)
    assert not caplog.text


def test_batches_depend_on_data_seed_if_it_is_given(tmp_path):
    def first(**seeds):
        run = tiny_trainer(tmp_path, tokens_per_batch=64, **seeds)
        return next(iter(run.get_train_dataloader()))["input_ids"].tolist()

    assert first(seed=1, data_seed=5) == first(seed=2, data_seed=5) != first(seed=2, data_seed=6)
    assert first(seed=5) == first(seed=2, data_seed=5)


def test_accumulated_batches_of_a_stream_share_the_token_budget_of_a_step(tmp_path):
    options = {"tokens_per_batch": 64, "gradient_accumulation_steps": 2, "max_steps": 4, "streaming": True}
    batches = iter(tiny_trainer(tmp_path, **options).get_train_dataloader())
    assert max(next(batches)["input_ids"].numel() for _ in range(6)) <= 32


@pytest.mark.parametrize(
    ("options", "kind", "after_two_steps"),
    # step 2 of 5 warm-up steps in the linear schedule
    [({"lr_scheduler_type": "constant"}, "constant", 0.5), ({}, "linear", 0.2)],
)
def test_a_learning_rate_selects_a_schedule_of_transformers(options, kind, after_two_steps, tmp_path):
    run = tiny_trainer(tmp_path, learning_rate=0.5, **options)
    run.create_optimizer_and_scheduler(10)
    for _ in range(2):
        run.optimizer.step()
        run.lr_scheduler.step()
    assert run.args.lr_scheduler_type == kind
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(after_two_steps)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_transformers_schedule_without_a_learning_rate_raises_an_error(kind):
    with pytest.raises(ValueError, match=f"lr_scheduler_type={kind} needs a --learning_rate"):
        RecipeArguments(lr_scheduler_type=kind)


def test_a_learning_rate_with_the_papers_schedule_raises_an_error():
    with pytest.raises(ValueError, match=r"learning_rate=0.5 belongs to --schedule library.*here 2.0"):
        RecipeArguments(schedule="paper", learning_rate=0.5, learning_rate_scale=2.0)


def test_label_smoothing_factor_of_trainer_raises_an_error():
    with pytest.raises(ValueError, match=r"label_smoothing_factor=0.1: .* give --label_smoothing"):
        RecipeArguments(label_smoothing_factor=0.1)


@pytest.mark.parametrize("options", [{}, {"learning_rate": 0.5, "lr_scheduler_type": "cosine"}])
def test_copying_or_reloading_arguments_does_not_change_them(options, tmp_path):
    given = RecipeArguments(output_dir=str(tmp_path), learning_rate_scale=0.4, **options)
    file = tmp_path / "options.json"
    names = ("schedule", "learning_rate", "lr_scheduler_type", "learning_rate_scale")
    file.write_text(json.dumps({name: given.to_dict()[name] for name in names}))
    (read,) = HfArgumentParser(RecipeArguments).parse_json_file(file)
    for same in (dataclasses.replace(given, seed=1), read):
        assert same.schedule == ("library" if options else "paper")
        assert [getattr(same, name) for name in names] == [getattr(given, name) for name in names]


BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")


@pytest.mark.parametrize("capable", BFLOAT16)
def test_bfloat16_is_the_default_if_the_processor_has_instructions_for_it(capable, monkeypatch, tmp_path, caplog):
    def precision(**options) -> tuple[bool, bool]:
        args = RecipeArguments(output_dir=str(tmp_path), use_cpu=True, **options)
        return args.bf16, args.fp16

    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {capable: True})
    assert precision() == (True, False)
    assert precision(bf16=False) == (False, False) and precision(fp16=True) == (False, True)
    assert precision(bf16=True) == (True, False) and not caplog.text
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # chosen by `accelerate launch`
    assert precision() == (False, False)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(BFLOAT16, False) | {"avx2": True})
    assert precision() == (False, False) and not caplog.text
    assert precision(bf16=True) == (True, False) and "no instructions for products in bfloat16" in caplog.text


@pytest.mark.parametrize("use_cache", [True, False])
def test_saved_config_has_the_models_original_use_cache(use_cache, tmp_path):
    """Trainer sets `use_cache` to False during training."""
    parts = tiny_trainer(tmp_path, max_steps=3)
    model = encoder_decoder(use_cache=use_cache)
    trainer = type(parts)(model, parts.args, parts.data_collator, parts.train_dataset)
    trainer.train()
    trainer.save_model()
    for folder in (tmp_path, tmp_path / "checkpoint-3"):
        assert type(trainer.model).from_pretrained(folder).config.use_cache is use_cache
    assert trainer.model.config.use_cache is False


def losses(log_history: list[dict]) -> list[float]:
    return [entry["loss"] for entry in log_history if "loss" in entry]


def assert_same_run(folder: Path, other: Path, **tolerance: float) -> None:
    """Assert that two runs have the same losses and weights, bit for bit unless a tolerance is given."""
    histories = [json.loads((run / "trainer_state.json").read_text())["log_history"] for run in (folder, other)]
    weights = [load_file(run / "model.safetensors") for run in (folder, other)]
    tolerance = tolerance or {"atol": 0, "rtol": 0}
    torch.testing.assert_close(*(torch.tensor(losses(history)) for history in histories), **tolerance)
    torch.testing.assert_close(*weights, **tolerance)


def train_and_save(trainer, resume_from_checkpoint: str | bool | None = None) -> None:
    trainer.train(resume_from_checkpoint)
    trainer.save_model()
    trainer.save_state()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tokens_per_batch": 64},
        {"muon": True, "learning_rate": 0.01},
        {"tokens_per_batch": 64, "streaming": True, "max_steps": 8},
        {"streaming": True, "max_steps": 8},  # epochs of five batches
    ],
)
@pytest.mark.parametrize("step", [3, 6], ids=["first epoch", "second epoch"])
def test_a_resumed_run_equals_an_uninterrupted_run_bit_for_bit(options, step, tmp_path):
    train_and_save(tiny_trainer(tmp_path / "whole", **options))
    shutil.copytree(tmp_path / "whole" / f"checkpoint-{step}", tmp_path / "resumed" / f"checkpoint-{step}")
    train_and_save(tiny_trainer(tmp_path / "resumed", **options), True)
    assert_same_run(tmp_path / "whole", tmp_path / "resumed")


def test_a_resumed_run_may_use_more_accumulation_steps_for_the_same_batches(tmp_path):
    options = {"tokens_per_batch": 64, "dropout": 0.0, "bf16": False}
    train_and_save(tiny_trainer(tmp_path / "whole", **options))
    shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "resumed" / "checkpoint-3")
    train_and_save(tiny_trainer(tmp_path / "resumed", **options, gradient_accumulation_steps=2), True)
    assert_same_run(tmp_path / "whole", tmp_path / "resumed", atol=2e-4, rtol=1e-4)


def test_resuming_skips_a_truncated_checkpoint(tmp_path):
    tiny_trainer(tmp_path, max_steps=6).train()
    weights = tmp_path / "checkpoint-6" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    resumed = tiny_trainer(tmp_path, max_steps=4)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4  # the run resumed from step 3, not from step 6
    with pytest.raises(ValueError, match="empty holds no complete checkpoint"):
        tiny_trainer(tmp_path / "empty").train(resume_from_checkpoint=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_token_budget_batches_use_the_dataloader_options(workers, tmp_path):
    options = {"dataloader_prefetch_factor": 3, "dataloader_persistent_workers": True} if workers else {}
    trainer = tiny_trainer(tmp_path, tokens_per_batch=64, dataloader_num_workers=workers, **options)
    loader = trainer.get_train_dataloader()
    assert (loader.num_workers, loader.persistent_workers) == (workers, bool(workers))
    assert loader.prefetch_factor == options.get("dataloader_prefetch_factor")
    assert sum(len(batch["labels"]) for batch in loader) == 40
    assert max(batch["labels"].numel() for batch in loader) <= 64


def test_sigterm_saves_a_checkpoint_that_resumes_bit_for_bit(tmp_path):
    train_and_save(tiny_trainer(tmp_path / "whole", save_strategy="no"))
    run = tiny_trainer(tmp_path / "run", save_strategy="no")
    handler, calls = signal.getsignal(signal.SIGTERM), []

    def terminate_in_the_third(module, args, kwargs):
        calls.append(module)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGTERM)

    hook = run.model.register_forward_pre_hook(terminate_in_the_third, with_kwargs=True)
    with pytest.raises(SystemExit) as stop:
        run.train()
    hook.remove()
    assert stop.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is handler
    assert [folder.name for folder in complete_checkpoints(tmp_path / "run")] == ["checkpoint-3"]
    train_and_save(tiny_trainer(tmp_path / "run", save_strategy="no"), True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


TRAIN = [
    sys.executable, str(SCRIPTS / "train.py"), "translation", "--preset", "tiny", "--d_model", "32", "--d_ff", "32",
    "--phrases", "1000", "--vocab_size", "400", "--tokens_per_batch", "400", "--use_cpu", "true", "--save_steps", "5",
    "--max_eval_samples", "4", "--logging_steps", "5", "--warmup_steps", "50", "--num_beams", "1",
]  # fmt: skip


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def run(command: list[str], until: Path | None = None, kill: int = 0) -> int:
    """Run a program to completion, or signal it once the checkpoint `until` exists. Return its exit status."""
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if until is not None:
        deadline = time.monotonic() + 120
        while not (until / "trainer_state.json").exists():
            assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
            time.sleep(0.02)
        process.send_signal(kill)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0 or until is not None, errors
    return process.returncode


def translation(folder: Path, steps: int, *options: str) -> list[str]:
    return [*TRAIN, "--output_dir", str(folder), "--max_steps", str(steps), *options]


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(tmp_path):
    run(translation(tmp_path / "whole", 40))
    run(translation(tmp_path / "killed", 40), tmp_path / "killed" / "checkpoint-10", signal.SIGKILL)
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    run(translation(tmp_path / "killed", 40, "--resume_from_checkpoint", "true"))
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(killed[name], weight) for name, weight in whole.items())


@pytest.mark.slow
def test_a_terminated_command_saves_a_checkpoint_but_no_final_model(tmp_path):
    command = translation(tmp_path / "run", 100_000, "--save_steps", "20")
    assert run(command, tmp_path / "run" / "checkpoint-20", signal.SIGTERM) == 143
    steps = [int(folder.name.split("-")[1]) for folder in complete_checkpoints(tmp_path / "run")]
    assert steps and steps[-1] % 20
    assert not (tmp_path / "run" / "model.safetensors").exists()


def tiny(folder: Path, processes: int = 1, **options) -> list[str]:
    """Return the command of a tiny run. Its batches are the same for two processes and two accumulation steps."""
    options = {"dropout": 0.0, "tokens_per_batch": 64, "gradient_accumulation_steps": 2 // processes} | options
    command = [sys.executable]
    if processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command += ["-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--master_port", str(port)]
        options["ddp_backend"] = "gloo"
    return [*command, str(ROOT / "tests/tiny_training.py"), str(folder), json.dumps(options)]


@pytest.mark.slow
def test_two_terminated_processes_save_one_checkpoint_that_resumes(tmp_path):
    options = {"max_steps": 200, "learning_rate_scale": 0.01}
    run(tiny(tmp_path / "whole", **options, save_strategy="no"))
    cut = tmp_path / "cut"
    run(tiny(cut, 2, **options, save_steps=20), cut / "checkpoint-20", signal.SIGTERM)
    last = complete_checkpoints(cut)[-1]
    assert 20 < int(last.name.split("-")[1]) < 200
    assert len(list(last.glob("rng_state_*.pth"))) == 2
    assert sorted(cut.glob("checkpoint-*")) == sorted(complete_checkpoints(cut))
    run(tiny(cut, 2, **options, save_strategy="no", resume=True))
    assert_same_run(tmp_path / "whole", cut, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_two_processes_train_and_score_on_a_stream_like_one_process(tmp_path):
    """The batches of the stream have different lengths."""
    options = {"streaming": True, "tokens_per_batch": 0, "max_steps": 6, "bf16": False}
    options |= {"eval_strategy": "steps", "eval_steps": 3}
    run(tiny(tmp_path / "one", **options, per_device_eval_batch_size=4))
    run(tiny(tmp_path / "two", 2, **options, per_device_eval_batch_size=2))
    assert_same_run(tmp_path / "one", tmp_path / "two", atol=1e-5, rtol=1e-5)
    histories = (json.loads((tmp_path / name / "trainer_state.json").read_text()) for name in ("one", "two"))
    one, two = ([entry["eval_loss"] for entry in h["log_history"] if "eval_loss" in entry] for h in histories)
    assert len(one) == 2 and one == pytest.approx(two, rel=1e-5)


# Save the loaded model again, with tied weights stored only once.
LOAD = """
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained(arguments[0], trust_remote_code=True)
model.save_pretrained(arguments[0])
print(1)
"""


@pytest.mark.slow
def test_two_fsdp_processes_train_and_resume_like_one_process_and_save_a_portable_model(tmp_path):
    # Use float32, because FSDP2 rounds all weights to bfloat16, and autocast only some.
    run(tiny(tmp_path / "whole", save_steps=100, bf16=False))
    sharded = tmp_path / "sharded"
    run(tiny(sharded, 2, fsdp=True, bf16=False))
    assert (sharded / "checkpoint-3" / "pytorch_model_fsdp.bin").exists()  # FSDP was active
    resumed = tmp_path / "resumed"
    shutil.copytree(sharded / "checkpoint-3", resumed / "checkpoint-3")
    run(tiny(resumed, 2, fsdp=True, bf16=False, resume=True))
    for folder in (sharded, resumed):
        # Check that the folder contains the code and the unsharded weights.
        run_fresh(LOAD, tmp_path, str(folder))
        assert_same_run(tmp_path / "whole", folder, atol=5e-5, rtol=1e-4)
