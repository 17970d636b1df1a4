"""The model's own modules reproduce published numbers."""

import pytest
import torch

from vanilla_transformer.inside.recorder import record
from vanilla_transformer.inside.worked_examples import EXAMPLES, TODAY_HEAD_2


def steps_of(name: str, head: int | None = 0) -> dict[tuple[str, str], torch.Tensor]:
    example = EXAMPLES[name]
    return {(step.part, step.name): step.tensor for step in record(example.model(), example.inputs(), head=head)}


@pytest.mark.parametrize(
    ("name", "step", "tolerance"),
    [
        *(("today", step, 2e-3) for step in ("scores", "weights", "heads", "output projection", "residual")),
        ("midwinter", "scaled scores", 1e-7),
        ("midwinter", "weights", 1e-7),
    ],
)
def test_a_published_value_is_reproduced(name, step, tolerance):
    example = EXAMPLES[name]
    assert example.tolerance == tolerance
    printed = torch.tensor(example.printed_of(0)[step])
    torch.testing.assert_close(steps_of(name)["self-attention", step][0], printed, atol=tolerance, rtol=0)


def test_the_today_example_uses_one_hot_vectors_and_the_published_head():
    assert torch.equal(steps_of("today")["embedding", "embedding + position"][0], torch.eye(4)[:3])
    heads = steps_of("today", head=None)["self-attention", "heads"]
    torch.testing.assert_close(heads[0, 1], torch.tensor(TODAY_HEAD_2), atol=1e-6, rtol=0)


def test_the_today_example_scales_by_the_width_of_a_head():
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
def test_an_example_is_deterministic_and_keeps_the_random_state(name):
    state = torch.random.get_rng_state()
    first, second = steps_of(name), steps_of(name)
    assert all(torch.equal(first[step], second[step]) for step in first)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_residual_changes_the_norm_of_a_row():
    """A tutorial says that the residual rescales the norm to 1, but the tutorial's own printed rows have these
    norms.
    """
    residual = steps_of("today")["self-attention", "residual"][0]
    assert residual.norm(dim=-1).tolist() == pytest.approx([0.53, 1.40, 1.38], abs=0.01)
