"""Test the demo's live training: the model learns, and fails as described on the page if a part is removed."""

from itertools import islice

import gradio as gr
import pytest
import torch

from vanilla_transformer.app.live_training import STEPS_A_FRAME, train_live


def last(frames: int, **options):
    *_, frame = islice(train_live(**options), frames)
    return frame


def test_model_learns_to_reverse_digits_and_attends_in_reverse_order():
    frame = last(26)
    assert frame["right"] > 0.8 and frame["loss"] < 0.3
    assert frame["written"] == frame["text"][::-1]
    weights = torch.tensor(frame["attention"]).float().mean(dim=0)  # (target position, source position)
    looked_at = weights[:6].argmax(dim=1).tolist()
    assert sum(abs(place - wanted) <= 1 for place, wanted in zip(looked_at, [5, 4, 3, 2, 1, 0], strict=True)) >= 4


def test_model_without_a_causal_mask_trains_but_cannot_generate():
    frame = last(21, mask=False)
    assert frame["loss"] < 0.5 and frame["right"] < 0.1


def test_live_training_is_deterministic_and_keeps_the_random_state():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    assert last(2, heads=2) == last(2, heads=2)
    assert torch.equal(torch.rand(1), expected)
    assert last(2)["step"] == STEPS_A_FRAME


@pytest.mark.parametrize("options", [{"heads": 3}, {"heads": None}, {"norm": "middle"}])
def test_invalid_training_options_are_rejected(options):
    with pytest.raises(gr.Error, match="1, 2, 4 or 8 heads"):
        last(1, **options)
