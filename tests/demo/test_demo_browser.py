"""Check that the demo works in a real browser, at desktop and phone sizes, without console errors."""

import re
from collections.abc import Iterator

import pytest

from browsing import NEEDS_CHROMIUM, SCREENS, expect, visit
from demo_server import address_of
from family import encoder_decoder
from saved_models import save, save_talkative


pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("browser")

    models = [
        save(folder / "translator", encoder_decoder, "seq2seq"),
        save_talkative(folder / "lm", num_layers=24, d_model=256, d_ff=1024),
    ]
    with address_of(*models) as address:
        yield address


def tab(page, title: str):
    """Open a tab and return its panel. On narrow screens, the tab may be in a menu."""
    page.wait_for_function("document.querySelector('[role=tab]')")
    found = page.get_by_role("tab", name=title)
    if not found.is_visible():
        page.locator(".overflow-menu > button").click()
        page.locator(".overflow-dropdown").get_by_role("button", name=title).click()
    else:
        found.click()
    return page.locator("[role=tabpanel]:visible").first


def test_clicking_an_example_runs_it(browser, address):
    with visit(browser, address) as page:
        panel = tab(page, "Generate")
        panel.get_by_text("Tom has never been", exact=True).click()
        expect(panel.get_by_placeholder("The text will grow here.")).to_have_value(re.compile("Tom has never been."))


def test_input_that_is_too_long_gives_an_error_instead_of_being_truncated(browser, address):
    with visit(browser, address) as page:
        panel = tab(page, "Generate")
        text = panel.get_by_label("Text", exact=True)
        text.fill("one " * 500)
        assert len(text.input_value()) == 2000
        panel.get_by_role("button", name="Generate").click()
        expect(page.get_by_text("Please keep to 300 characters; this text has 2,000.")).to_be_visible()


def test_an_empty_seed_is_allowed(browser, address):
    with visit(browser, address) as page:
        panel = tab(page, "Generate")
        panel.get_by_label("Seed").fill("")
        panel.get_by_label("number input for Maximum number of new tokens").fill("20")
        panel.get_by_role("button", name="Generate").click()
        expect(panel.get_by_test_id("highlighted-text").locator(".textspan, .text").nth(4)).to_be_visible()
        assert len(panel.get_by_placeholder("The text will grow here.").input_value()) > len("The parcel from")


def test_empty_input_shows_a_message(browser, address):
    with visit(browser, address) as page:
        panel = tab(page, "Generate")
        panel.get_by_label("Text", exact=True).fill(" ")
        panel.get_by_label("Text", exact=True).press("Enter")
        expect(page.get_by_text("Please type something to continue.")).to_be_visible()


# Click Stop from a script in the page: on a busy machine, the text could be complete before Playwright clicks.
STOP_WHILE_IT_GROWS = """stop => {
  const text = document.querySelector("[placeholder='The text will grow here.']");
  window.lengths = new Set();
  const watch = setInterval(() => {
    if (lengths.add(text.value.length).size < 3) return;
    clearInterval(watch);
    stop.click();
  }, 5);
}"""


@SCREENS
def test_text_streams_until_stopped_and_clicked_tokens_show_alternatives(browser, address, size):
    with visit(browser, address, size) as page:
        panel = tab(page, "Generate")
        panel.get_by_label("Text", exact=True).fill("one two")
        panel.get_by_label("number input for Maximum number of new tokens").fill("200")
        result = panel.get_by_placeholder("The text will grow here.")
        page.evaluate(STOP_WHILE_IT_GROWS, panel.get_by_role("button", name="Stop").element_handle())
        panel.get_by_role("button", name="Generate").click()
        page.wait_for_function("lengths.size > 2")
        pieces = panel.get_by_test_id("highlighted-text").locator(".textspan, .text")
        expect(pieces.first).to_be_visible()
        stopped = result.input_value()
        page.wait_for_timeout(500)
        assert result.input_value() == stopped

        pieces.nth(2).click()
        expect(panel.get_by_test_id("label-output-value").or_(panel.locator(".confidence-set")).first).to_be_visible()
        expect(panel.locator(".confidence-set")).to_have_count(10)
        expect(panel.get_by_label("The clicked token, its probability and rank")).to_have_value(
            re.compile(r"^Token 3, .*: [\d.e-]+, number [\d,]+ of all$")
        )
        expect(panel.get_by_text("chosen", exact=True)).to_be_visible()


@SCREENS
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_worked_example_is_displayed_step_by_step(browser, address, size, theme):
    with visit(browser, f"{address}?__theme={theme}", size) as page:
        panel = tab(page, "Look inside")
        expect(panel.get_by_text("positional encoding")).to_be_visible()
        panel.get_by_role("button", name="One layer, step by step").click()
        expect(panel.get_by_text("Today is sunday").first).to_be_visible()
        colour = page.locator(".gradio-container").evaluate("element => getComputedStyle(element).color")
        light = [int(part) > 127 for part in re.findall(r"\d+", colour)[:3]]
        assert light == [theme == "dark"] * 3, "the colour of text"
