"""What a step is said to cost is what it costs: beside a measurement, accelerate's estimate, and the paper."""

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

# Prints what the process holds more after the pass forward, and at most in two steps, than before it had a model.
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
def test_the_memory_of_a_step_is_what_a_step_takes(checkpointing, tmp_path):
    at_once = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back
    activations, whole = run_fresh(
        MEASURE, tmp_path, SIZES, ROWS, LENGTH, checkpointing, installed=True, cold=True, **at_once
    )
    print(f"measured: {activations:,} and {whole:,} bytes")
    options = {"bf16": False, "on_accelerator": False, "checkpointing": checkpointing}
    cost = step_cost(VanillaTransformerConfig(**SIZES), ROWS * LENGTH, LENGTH, **options)
    print(cost)
    if checkpointing:  # of a layer they come back in the pass backward
        assert cost.memory["activations"] > 2 * activations
    else:
        assert cost.memory["activations"] == pytest.approx(activations, rel=0.05)
    assert sum(cost.memory.values()) == pytest.approx(whole, rel=0.2)


def test_the_memory_of_the_model_is_as_accelerate_estimates_it():
    config = VanillaTransformerConfig(**SIZES)
    size, _ = calculate_maximum_sizes(VanillaTransformerForConditionalGeneration(config))
    theirs = estimate_training_usage(size, "float32")
    ours = step_cost(config, 100, 10, bf16=False).memory
    assert ours["weights"] == pytest.approx(theirs["model"], rel=0.01)
    assert ours["gradients"] == pytest.approx(theirs["gradients"], rel=0.01)
    assert ours["optimizer"] == pytest.approx(theirs["optimizer"], rel=0.01)


def test_copies_of_weights_in_bfloat16_are_there_with_checkpointing_too():
    config = VanillaTransformerConfig(**SIZES)
    plain, checkpointed = (step_cost(config, 3200, 32, checkpointing=on).memory for on in (False, True))
    assert checkpointed["weights"] == plain["weights"] > step_cost(config, 3200, 32, bf16=False).memory["weights"]
    assert checkpointed["activations"] < plain["activations"] / 2


def test_operations_are_six_for_each_weight_and_token():
    """Of all weights but the embeddings, which are looked up; the output projection is a product."""
    config = VanillaTransformerConfig(**SIZES, tie_word_embeddings=True)
    cost = step_cost(config, 3200, 2)  # hardly any attention
    assert cost.operations == pytest.approx(6 * cost.parameters * 3200, rel=0.02)
    in_layers = cost.parameters - config.vocab_size * config.d_model  # which run twice; the output projection does not
    again = step_cost(config, 3200, 2, checkpointing=True).operations - cost.operations
    assert again == pytest.approx(2 * in_layers * 3200, rel=0.02)


def test_shards_and_devices_share_out_memory():
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


def test_the_command_gives_the_papers_big_model(capsys):
    estimate.main(["--preset", "big", "--gpus", "8", "--steps", "300000"])
    printed = capsys.readouterr().out
    assert printed.startswith("| big, 8 GPUs (ddp) |")
    assert "| 214.2 million" in printed and "300,000 steps" in printed  # Table 3: 213 million
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
def test_numbers_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        estimate.main(options)
