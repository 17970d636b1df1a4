"""The tiny translator that the demo trains: it learns, and fails as the page says if a part is missing."""

from itertools import islice

import gradio as gr
import pytest
import torch

from vanilla_transformer.app.live_training import STEPS_A_FRAME, train_live


def last(frames: int, **options):
    *_, frame = islice(train_live(**options), frames)
    return frame


def test_it_learns_to_reverse_a_text_and_attends_accordingly():
    frame = last(26)
    assert frame["right"] > 0.8 and frame["loss"] < 0.3
    assert frame["written"] == frame["text"][::-1]
    weights = torch.tensor(frame["attention"]).float().mean(dim=0)  # (written position, read position)
    looked_at = weights[:6].argmax(dim=1).tolist()
    assert sum(abs(place - wanted) <= 1 for place, wanted in zip(looked_at, [5, 4, 3, 2, 1, 0], strict=True)) >= 4


def test_without_the_causal_mask_it_cheats_in_training_and_cannot_generate():
    frame = last(21, mask=False)
    assert frame["loss"] < 0.5 and frame["right"] < 0.1


def test_a_run_is_deterministic_and_keeps_the_random_state():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    assert last(2, heads=2) == last(2, heads=2)
    assert torch.equal(torch.rand(1), expected)
    assert last(2)["step"] == STEPS_A_FRAME


@pytest.mark.parametrize("options", [{"heads": 3}, {"heads": None}, {"norm": "middle"}])
def test_impossible_training_options_are_refused(options):
    with pytest.raises(gr.Error, match="1, 2, 4 or 8 heads"):
        last(1, **options)
