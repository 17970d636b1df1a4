"""Compare the estimated cost of a training step with measurements, accelerate's estimate, and the paper."""

import re
import sys

import pytest
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes

from fresh_process import run_fresh
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli import estimate
from vanilla_transformer.cli.estimate import step_cost


SIZES = {"vocab_size": 2000, "d_model": 256, "d_ff": 1024, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2}
ROWS, LENGTH = 192, 32

# Print the memory added by the forward pass, and the peak memory added by two training steps.
MEASURE = """
import json
from pathlib import Path

import torch
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

def resident(name):
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) * 1024

sizes, rows, length, checkpointing = arguments
warm = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**sizes | {"d_model": 64}))
ids = torch.zeros(2, 4, dtype=torch.long)
warm(input_ids=ids, labels=ids).loss.backward()
del warm
before = resident("VmRSS")
model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**sizes))
if checkpointing:
    model.gradient_checkpointing_enable({"use_reentrant": False})
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.zeros(rows, length, dtype=torch.long)
weights = resident("VmRSS")
states = model.model(input_ids=ids, decoder_input_ids=ids, use_cache=False).last_hidden_state
activations = resident("VmRSS") - weights
_, loss = model.logits_and_loss(states, ids)
loss.backward()
optimizer.step()
optimizer.zero_grad()
del states, loss
model(input_ids=ids, labels=ids).loss.backward()  # now beside Adam's states
optimizer.step()
print(json.dumps([activations, resident("VmHWM") - before]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_estimated_memory_of_a_step_equals_measured_memory(checkpointing, tmp_path):
    at_once = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # return freed memory to the system immediately
    activations, whole = run_fresh(
        MEASURE, tmp_path, SIZES, ROWS, LENGTH, checkpointing, installed=True, cold=True, **at_once
    )
    print(f"measured: {activations:,} and {whole:,} bytes")
    options = {"bf16": False, "on_accelerator": False, "checkpointing": checkpointing}
    cost = step_cost(VanillaTransformerConfig(**SIZES), ROWS * LENGTH, LENGTH, **options)
    print(cost)
    if checkpointing:  # activations of layers are recomputed in the backward pass
        assert cost.memory["activations"] > 2 * activations
    else:
        assert cost.memory["activations"] == pytest.approx(activations, rel=0.05)
    assert sum(cost.memory.values()) == pytest.approx(whole, rel=0.2)


def test_estimated_memory_of_the_model_equals_accelerates_estimate():
    config = VanillaTransformerConfig(**SIZES)
    size, _ = calculate_maximum_sizes(VanillaTransformerForConditionalGeneration(config))
    theirs = estimate_training_usage(size, "float32")
    ours = step_cost(config, 100, 10, bf16=False).memory
    assert ours["weights"] == pytest.approx(theirs["model"], rel=0.01)
    assert ours["gradients"] == pytest.approx(theirs["gradients"], rel=0.01)
    assert ours["optimizer"] == pytest.approx(theirs["optimizer"], rel=0.01)


def test_gradient_checkpointing_keeps_the_bfloat16_copies_of_weights():
    config = VanillaTransformerConfig(**SIZES)
    plain, checkpointed = (step_cost(config, 3200, 32, checkpointing=on).memory for on in (False, True))
    assert checkpointed["weights"] == plain["weights"] > step_cost(config, 3200, 32, bf16=False).memory["weights"]
    assert checkpointed["activations"] < plain["activations"] / 2


def test_a_step_takes_six_operations_per_weight_and_token():
    """Embedding lookups need no operations, but the tied output projection is a matrix multiplication."""
    config = VanillaTransformerConfig(**SIZES, tie_word_embeddings=True)
    cost = step_cost(config, 3200, 2)  # with two tokens, attention is negligible
    assert cost.operations == pytest.approx(6 * cost.parameters * 3200, rel=0.02)
    # with gradient checkpointing, the forward pass of the layers runs twice, but not the output projection
    in_layers = cost.parameters - config.vocab_size * config.d_model
    again = step_cost(config, 3200, 2, checkpointing=True).operations - cost.operations
    assert again == pytest.approx(2 * in_layers * 3200, rel=0.02)


def test_activations_and_sharded_states_are_divided_by_the_number_of_devices():
    config = VanillaTransformerConfig(**SIZES | {"encoder_layers": 1, "decoder_layers": 1})
    whole, ddp, sharded = (
        step_cost(config, 3200, 32, devices=devices, sharding=sharding, bf16=False)
        for devices, sharding in ((1, "ddp"), (4, "ddp"), (4, "fsdp2"))
    )
    assert ddp.memory["activations"] == pytest.approx(whole.memory["activations"] / 4, rel=0.01)
    assert ddp.memory["exchange of gradients"] == whole.memory["gradients"]
    for part in ("weights", "gradients", "optimizer"):
        assert ddp.memory[part] == whole.memory[part]
        assert sharded.memory[part] == pytest.approx(whole.memory[part] / 4, rel=0.01)
    assert whole.operations == ddp.operations == sharded.operations


def test_the_command_estimates_the_papers_big_model(capsys):
    estimate.main(["--preset", "big", "--gpus", "8", "--steps", "300000"])
    printed = capsys.readouterr().out
    assert printed.startswith("| big, 8 GPUs (ddp) |")
    assert "| 214.2 million" in printed and "300,000 steps" in printed  # Table 3 gives 213 million
    assert float(re.search(r"operations of a step \| ([\d.]+)", printed)[1]) == pytest.approx(32.2, rel=0.01)
    estimate.main([])
    assert capsys.readouterr().out.startswith("| base, 1 GPU (ddp) |")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "0"], "--gpus 0 must be greater than 0"),
        (["--mfu", "40"], "--mfu 40.0 is a share"),
        (["--steps", "100", "-5"], "--steps -5 must be greater than 0"),
        (["--steps", "0"], "--steps 0 must be greater than 0"),
        (["--preset", "huge"], "preset='huge' is not known"),
        (["--tokens_per_batch", "100", "--gpus", "8"], "fewer than a sentence of 30 tokens for each of 8 devices"),
    ],
)
def test_invalid_options_of_estimate_raise_an_error(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        estimate.main(options)
