"""Check that the model's modules reproduce published values."""

import numpy as np
import pytest
import torch

from vanilla_transformer.inside import midwinter
from vanilla_transformer.inside.recorder import record
from vanilla_transformer.inside.worked_examples import (
    EXAMPLES,
    MIDWINTER_STEPS,
    TODAY_HEAD_1,
    TODAY_HEAD_2,
    TODAY_PRINTED,
)


def steps_of(name: str, head: int | None = 0) -> dict[tuple[str, str], torch.Tensor]:
    example = EXAMPLES[name]
    return {(step.part, step.name): step.tensor for step in record(example.model(), example.inputs(), head=head)}


@pytest.mark.parametrize("step", list(TODAY_HEAD_1) + list(TODAY_PRINTED))
def test_the_today_example_reproduces_its_published_values(step):
    example = EXAMPLES["today"]
    assert example.tolerance == 2e-3
    printed = torch.tensor(example.printed_of(0)["self-attention", step])
    torch.testing.assert_close(steps_of("today")["self-attention", step][0], printed, atol=2e-3, rtol=0)


def test_the_midwinter_example_reproduces_its_published_values():
    example, printed = EXAMPLES["midwinter"], midwinter.printed()
    steps = {(step.part, step.name): step for step in record(example.model(), example.inputs(), head=0)}
    found = {name: steps[step].tensor[0] for step, name in MIDWINTER_STEPS.items()}
    found |= {
        name: steps["self-attention", step].matrices[name] for name, step in (("W_Q", "queries"), ("W_K", "keys"))
    }
    for name, numbers in printed.items():
        edges = found[name] if found[name].shape == numbers.shape else found[name][:, midwinter.EDGES]
        edges = edges[midwinter.EDGES] if name.startswith("W_") else edges
        there = ~numbers.isnan()
        torch.testing.assert_close(edges[there].double(), numbers[there], atol=1e-6, rtol=0, msg=name)
    assert sum(int((~numbers.isnan()).sum()) for numbers in printed.values()) == 294
    own = midwinter.matrices()
    values = own["X"] @ midwinter.keras_normal(midwinter.SEEDS["W_V"], 300, 300)
    assert (values[:, midwinter.EDGES] - printed["V"]).abs().nan_to_num().max() < 1e-7  # the source's own W_V
    # standard deviation of Keras' initialiser
    assert all(own[name].std() == pytest.approx(0.05, rel=0.03) for name in ("W_1", "W_2"))


@pytest.mark.parametrize(
    ("counter", "key", "numbers"),
    [  # known-answer tests of Random123, the reference implementation of Philox
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([2**32 - 1] * 4, [2**32 - 1] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_matches_the_reference_implementation(counter, key, numbers):
    found = midwinter.philox([np.array([part]) for part in counter], key)
    assert " ".join(f"{int(part[0]):08x}" for part in found) == numbers


def test_the_today_example_uses_one_hot_vectors_and_the_published_head():
    assert torch.equal(steps_of("today")["embedding", "embedding + position"][0], torch.eye(4)[:3])
    heads = steps_of("today", head=None)["self-attention", "heads"]
    torch.testing.assert_close(heads[0, 1], torch.tensor(TODAY_HEAD_2), atol=1e-6, rtol=0)


def test_today_example_scales_scores_by_the_head_width():
    steps = steps_of("today")
    torch.testing.assert_close(
        steps["self-attention", "scaled scores"], steps["self-attention", "scores"] / 2, atol=0, rtol=0
    )


def test_the_midwinter_example_has_seven_steps_of_the_right_shapes():
    steps = {step: tuple(tensor.shape[1:]) for step, tensor in steps_of("midwinter").items()}
    shapes = {
        ("self-attention", "queries"): (4, 300),
        ("self-attention", "keys"): (4, 300),
        ("self-attention", "values"): (4, 300),
        ("self-attention", "scaled scores"): (4, 4),
        ("self-attention", "weights"): (4, 4),
        ("self-attention", "heads"): (4, 300),
        ("self-attention", "layer norm"): (4, 300),
        ("feed-forward", "hidden"): (4, 1200),
        ("feed-forward", "feed-forward output"): (4, 300),
        ("feed-forward", "layer norm"): (4, 300),
    }
    assert {name: steps[name] for name in EXAMPLES["midwinter"].steps[1:]} == shapes
    assert steps["embedding", "embeddings"] == (4, 300)


def test_the_midwinter_example_ends_with_the_papers_layer_norm():
    steps = steps_of("midwinter")
    output = steps["output", "stack output"][0]
    assert torch.equal(output, steps["feed-forward", "layer norm"][0])
    torch.testing.assert_close(output.mean(-1), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(output.var(-1, unbiased=False), torch.ones(4), atol=1e-5, rtol=0)
    assert EXAMPLES["midwinter"].model().config.layer_norm_eps == 1e-6


def test_the_causal_mask_of_six_words_is_triangular():
    assert EXAMPLES["causal-mask"].words() == [["orange", "is", "my", "favorite", "fruit", "."]]
    mask = steps_of("causal-mask")["self-attention", "mask"][0] == 0
    assert mask.int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1],
    ]


def test_padding_masks_of_sentences_with_five_four_and_three_words():
    mask = steps_of("padding-mask")["self-attention", "mask"] == 0
    assert mask.int().tolist() == [[[1, 1, 1, 1, 1]] * 5, [[1, 1, 1, 1, 0]] * 5, [[1, 1, 1, 0, 0]] * 5]
    assert [sentence.count("<pad>") for sentence in EXAMPLES["padding-mask"].words()] == [0, 1, 2]


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples_are_deterministic_and_keep_the_random_state(name):
    state = torch.random.get_rng_state()
    first, second = steps_of(name), steps_of(name)
    assert all(torch.equal(first[step], second[step]) for step in first)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_residual_changes_the_norm_of_a_row():
    """A tutorial claims that the residual rescales norms to 1; these are the norms of its own printed rows."""
    residual = steps_of("today")["self-attention", "residual"][0]
    assert residual.norm(dim=-1).tolist() == pytest.approx([0.53, 1.40, 1.38], abs=0.01)
