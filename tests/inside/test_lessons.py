"""Test the lessons: their parts, and the claims in their lists of common mistakes that no other test covers."""

import math
import re

import pytest
import torch
from torch import nn

from family import encoder_only
from fresh_process import ROOT
from vanilla_transformer import VanillaTransformerEncoderModel
from vanilla_transformer.modeling_vanilla_transformer import AddAndNorm, eager_attention_forward, sinusoids


LESSONS = sorted((ROOT / "docs" / "lessons").glob("[1-8]-*.md"))


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_each_lesson_has_all_its_parts(lesson):
    text = lesson.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.M)
    for part in ("By numbers", "Our code", "Exercise", "Common mistakes", "Summary"):
        assert any(heading.startswith(part) for heading in headings), part
    assert "**The question.**" in text and "../figures/" in text and "```math" in text
    assert text.startswith(f"# {lesson.stem[0]}. ")


def test_the_course_has_eight_lessons_in_order_and_a_solution_for_each():
    assert [int(path.stem[0]) for path in LESSONS] == list(range(1, 9))
    solutions = (ROOT / "docs" / "lessons" / "solutions.md").read_text(encoding="utf-8")
    titles = [path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for path in LESSONS]
    assert re.findall(r"^## (.+)$", solutions, re.M)[:8] == titles


def gradient_at_the_input(norm_position: str) -> torch.Tensor:
    """Return the gradient of a sum of outputs at the input of a sub-layer that contributes nothing."""
    config = encoder_only(norm_position=norm_position, dropout=0.0).config
    x = torch.randn(1, 3, config.d_model, requires_grad=True)
    AddAndNorm(config)(x, torch.zeros_like)[0, 1].sum().backward()
    return x.grad[0, 1]


def test_only_pre_norm_has_an_undiminished_path():
    assert torch.equal(gradient_at_the_input("pre"), torch.ones(32))
    assert gradient_at_the_input("post").abs().max() < 1e-5  # the norm removes what all components share


def test_a_saturated_softmax_still_teaches_the_values():
    query, key, value = (torch.randn(1, 1, 4, 8, requires_grad=True) for _ in range(3))
    output, weights = eager_attention_forward(nn.Module().eval(), query, key, value, None, scaling=1e4)
    output.pow(2).sum().backward()
    assert weights.max(dim=-1).values.min() == 1
    assert query.grad.abs().max() == key.grad.abs().max() == 0 and value.grad.abs().max() > 0.1


# --- What fails in the classes that courses print (docs/teaching.md)


def test_a_divisor_for_every_dimension_does_not_fit_the_sines():
    """Frequencies for all dimensions, instead of one for each pair, are twice as many as the even columns."""
    codes, position = torch.zeros(10, 16), torch.arange(10)[:, None]
    with pytest.raises(RuntimeError, match="size"):
        codes[:, 0::2] = torch.sin(position / 10000 ** (torch.arange(0, 16) / 16))
    codes[:, 0::2] = torch.sin(position / 10000 ** (torch.arange(0, 16, 2) / 16))
    torch.testing.assert_close(codes[:, 0::2], sinusoids(torch.arange(10)[None], 16)[0, :, 0::2])


def test_a_loop_over_all_dimensions_writes_beyond_the_last_pair():
    def fill(d_model: int, count: int) -> list[float]:
        code = [0.0] * d_model
        for j in range(count):
            code[2 * j], code[2 * j + 1] = math.sin(j), math.cos(j)
        return code

    assert len(fill(4, count=4 // 2)) == 4  # j counts pairs
    with pytest.raises(IndexError):
        fill(4, count=4)


def test_permuting_three_axes_fails_after_the_heads_are_split():
    key = torch.zeros(2, 4, 5, 8)  # batch, heads, length, width
    with pytest.raises(RuntimeError):
        key.permute(1, 2, 0)
    assert key.transpose(-2, -1).shape == (2, 4, 8, 5)


def test_calling_super_with_another_class_fails():
    class Other(nn.Module):
        pass

    class Decoder(nn.Module):
        def __init__(self):
            super(Other, self).__init__()

    with pytest.raises(TypeError):
        Decoder()


def test_a_padding_mask_of_zero_rows_gives_nan():
    visible = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 0]])  # the third token is padding
    weights = torch.zeros(3, 3).masked_fill(visible == 0, -torch.inf).softmax(-1)
    assert weights[2].isnan().all()
    ids, mask = torch.tensor([[5, 6, 0]]), torch.tensor([[1, 1, 0]])
    assert encoder_only(VanillaTransformerEncoderModel)(ids, attention_mask=mask).last_hidden_state.isfinite().all()


def test_a_mask_that_is_multiplied_leaves_weights_on_the_future():
    scores, visible = torch.tensor([[0.2, 0.9, 0.4]]), torch.tensor([[1.0, 0.0, 0.0]])
    assert (scores * visible).softmax(-1)[0, 1] > 0.3
    assert scores.masked_fill(visible == 0, -torch.inf).softmax(-1).tolist() == [[1, 0, 0]]
    assert (scores.sub(0.2) * torch.full((3,), -torch.inf)).isnan().any()
