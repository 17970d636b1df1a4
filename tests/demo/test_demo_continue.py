"""Check in a browser that temperature, top-k and top-p change the probabilities and the continuation of a text."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from browsing import NEEDS_CHROMIUM, SCREENS, expect, visit
from demo_server import address_of
from family import decoder_only
from saved_models import save


pytestmark = NEEDS_CHROMIUM
TEXT = "one two"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return Path(save(tmp_path_factory.mktemp("continue") / "writer", decoder_only, "causal"))


@pytest.fixture(scope="module")
def address(folder):
    with address_of(str(folder)) as address:
        yield address


def asked(page):
    """Continue the text, and return the part of the page with the prediction."""
    page.get_by_label("Text to continue").fill(TEXT)
    page.get_by_label("Text to continue").press("Enter")
    expect(page.locator(".output .answer")).to_contain_text(TEXT)
    expect(page.locator(".sampling")).to_be_visible()
    return page.locator(".output")


def probabilities(output) -> list[float]:
    return [float(text.removesuffix(" %")) / 100 for text in output.locator(".bars .number").all_inner_texts()]


@SCREENS
def test_bars_show_the_probabilities_after_temperature_and_top_k(browser, address, folder, size):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        expected = model(**tokenizer(TEXT, return_tensors="pt")).logits[0, -1].softmax(-1)
    with visit(browser, address, size) as page:
        output = asked(page)
        assert probabilities(output)[:3] == pytest.approx(expected.topk(3).values.tolist(), abs=1e-3)
        output.get_by_label("Top k").fill("3")
        expect(output.locator(".sampling .note")).to_contain_text("3 of")
        best = expected.topk(3).values
        assert probabilities(output) == pytest.approx((best / best.sum()).tolist(), abs=1e-3)
        output.get_by_label("Temperature").fill("0.5")
        expect(output.locator(".bars .number").first).not_to_have_text(f"{100 * (best / best.sum())[0]:.1f} %")
        assert probabilities(output) == pytest.approx((best**2 / (best**2).sum()).tolist(), abs=1e-3)
        output.get_by_label("Temperature").fill("0")
        expect(output.locator(".bars .number")).to_have_text(["100 %"])


def test_sampled_continuations_differ_and_temperature_0_is_greedy(browser, address, folder):
    with visit(browser, address) as page:
        output = asked(page)
        greedy = output.locator(".answer").inner_text()
        output.get_by_label("Temperature").fill("2")
        found = set()
        for _ in range(2):
            output.get_by_role("button", name="Continue by sampling").click()
            expect(output.locator(".answer")).not_to_have_text(next(iter(found), greedy))
            found.add(output.locator(".answer").inner_text())
        assert len(found | {greedy}) == 3
        output.get_by_label("Temperature").fill("0")
        output.get_by_role("button", name="Continue by sampling").click()
        expect(output.locator(".answer")).to_have_text(greedy)


def test_server_samples_for_a_model_that_does_not_run_in_the_page(browser, folder):
    with address_of(str(folder), in_page=False) as address, visit(browser, address) as page:
        output = asked(page)
        greedy = output.locator(".answer").inner_text()
        output.get_by_label("Temperature").fill("2")
        output.get_by_role("button", name="Continue by sampling").click()
        expect(output.locator(".answer")).not_to_have_text(greedy)
        expect(output.locator(".answer")).to_have_text(re.compile(f"^{TEXT}"))
