"""The tiny translator that learns in the demo: it learns, and without a part it fails as the page says."""

from itertools import islice

import gradio as gr
import pytest
import torch

from vanilla_transformer.app.live_training import STEPS_A_FRAME, train_live


def last(frames: int, **options):
    *_, frame = islice(train_live(**options), frames)
    return frame


def test_it_learns_to_write_backwards_and_to_look_there():
    frame = last(26)
    assert frame["right"] > 0.8 and frame["loss"] < 0.3
    assert frame["written"] == frame["text"][::-1]
    weights = torch.tensor(frame["attention"]).float().mean(dim=0)  # (written, read)
    looked_at = weights[:6].argmax(dim=1).tolist()
    assert sum(abs(place - wanted) <= 1 for place, wanted in zip(looked_at, [5, 4, 3, 2, 1, 0], strict=True)) >= 4


def test_without_the_mask_it_copies_in_training_and_cannot_write():
    frame = last(21, mask=False)
    assert frame["loss"] < 0.5 and frame["right"] < 0.1


def test_the_same_run_twice_is_the_same_and_leaves_chance_to_others():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    assert last(2, heads=2) == last(2, heads=2)
    assert torch.equal(torch.rand(1), expected)
    assert last(2)["step"] == STEPS_A_FRAME


@pytest.mark.parametrize("options", [{"heads": 3}, {"heads": None}, {"norm": "middle"}])
def test_what_cannot_be_trained_is_refused(options):
    with pytest.raises(gr.Error, match="1, 2, 4 or 8 heads"):
        last(1, **options)
