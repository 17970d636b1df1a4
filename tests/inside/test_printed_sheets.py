"""Test the pages of the `walk` command in Chromium, as sheets to print (docs/teaching.md)."""

import pytest

from browsing import NEEDS_CHROMIUM, browser
from fresh_process import ROOT
from saved_models import with_tokenizer, write
from vanilla_transformer.cli import walk


__all__ = ["browser"]
pytestmark = NEEDS_CHROMIUM
PAPER = {"width": 703, "height": 1032}  # A4 without its margins, in CSS pixels
NUMBERS = ["--numbers", str(ROOT / "docs/examples/my_numbers.json"), "--precision", "2"]


@pytest.fixture
def opened(browser, tmp_path):
    """Return a function that opens the page of a walk."""

    def write_and_open(options: list[str]):
        file = tmp_path / "sheet.html"
        walk.main([*options, "--html", str(file)])
        page.goto(file.as_uri())
        return page

    page = browser.new_page(viewport=PAPER)
    yield write_and_open
    page.close()


@pytest.mark.parametrize("options", [["--example", "today"], NUMBERS, ["--text", "three miles", "--head", "2"]])
def test_a_printed_sheet_is_as_wide_as_the_paper_and_breaks_between_steps(options, opened, tmp_path):
    if "--text" in options:
        options = [*options, "--model", write(tmp_path, *with_tokenizer(texts=["three miles"] * 3, vocab_size=280))]
    page = opened(options)
    page.emulate_media(media="print")
    right = page.locator(".matrix table").evaluate_all("all => all.map(e => e.getBoundingClientRect().right)")
    heights = page.locator("section").evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
    assert len(right) > 8 and max(right) <= PAPER["width"] and max(heights) <= PAPER["height"]


def test_the_result_of_a_step_can_be_hidden_for_an_exercise(opened):
    page = opened(NUMBERS)
    section = page.locator("section", has_text="output projection")
    matrix, result = (section.locator(".matrix").nth(i).locator("td").first for i in (0, 1))
    color = "cell => getComputedStyle(cell).color"
    visible = result.evaluate(color)
    section.get_by_label("hide the result").check()
    assert result.evaluate(color) == "rgba(0, 0, 0, 0)" and matrix.evaluate(color) == visible
    before = page.locator("section", has_text="concatenation").locator("td").first
    assert before.evaluate(color) == visible
