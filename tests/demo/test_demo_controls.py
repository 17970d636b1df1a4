"""Every control of the explorer has a visible effect in every task, without an error message."""

import json
import re
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from browsing import NEEDS_CHROMIUM, expect, visit
from demo_server import address_of
from family import decoder_only, encoder_decoder, encoder_only
from saved_models import save
from vanilla_transformer import (
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)


pytestmark = NEEDS_CHROMIUM
SMALL = {"num_heads": 2}
ONE_LAYER = {"num_layers": 1} | SMALL
LABELS = {0: "O", 1: "B-COUNTRY", 2: "I-COUNTRY"}


def brief_translator(**fields):
    """Return a translator that is likely to end soon."""
    model = encoder_decoder(encoder_layers=1, decoder_layers=1, output_bias=True, **SMALL, **fields)
    with torch.no_grad():
        model.lm_head.bias[model.config.eos_token_id] = 3
    return model


MODELS = {  # label of the task's button -> what builds its model, and the template of its tokenizer
    "Translate": (brief_translator, "seq2seq"),
    "Continue": (partial(decoder_only, **ONE_LAYER), "causal"),
    "Fill in": (partial(encoder_only, **ONE_LAYER), "encoder"),
    "Classify": (partial(encoder_only, VanillaTransformerForSequenceClassification, **ONE_LAYER), "encoder"),
    "Estimate": (
        partial(encoder_only, VanillaTransformerForSequenceClassification, num_labels=1, **ONE_LAYER),
        "encoder",
    ),
    "Tag": (
        partial(encoder_only, VanillaTransformerForTokenClassification, id2label=LABELS, **ONE_LAYER),
        "encoder",
    ),
    "Answer": (partial(encoder_only, VanillaTransformerForQuestionAnswering, **ONE_LAYER), "encoder"),
}
TASKS = pytest.mark.parametrize("task", MODELS)


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("controls")
    texts = ["Wednesday, July 4, 2029", "The parcel from Kenya", "12 kilómetros"] * 2
    models = [save(folder / task.replace(" ", "-"), *made, texts=texts) for task, made in MODELS.items()]
    with address_of(*models) as address:
        yield address


def opened(page, task: str):
    """Open the explorer with the model of a task and wait for the effects of its heads."""
    explorer = page.locator(".explorer")
    explorer.locator(".models button").filter(has_text=task).first.click()
    expect(explorer.locator(".models button[aria-pressed=true]")).to_contain_text(task)
    expect(explorer.locator(".busy")).to_have_count(0)
    expect(explorer.locator(".map svg")).to_be_visible()
    expect(explorer.locator(".worth span").first).to_have_attribute("style", re.compile("width"))
    return explorer


# In the page: read what is shown as one string, read an error message, wait up to 15 seconds, and click.
IN_PAGE = """
const frame = document.querySelector(".explorer-place").shadowRoot.querySelector(".explorer");
const one = (selector) => frame.querySelector(selector);
const all = (selector) => [...frame.querySelectorAll(selector)];
const nameOf = (it) => it.getAttribute("aria-label") ?? it.closest("label")?.textContent ?? it.textContent;
const shown = () => frame.innerHTML + all("input").map((each) => each.value + each.checked);
const told = () => all(".message").filter((it) => !it.hidden).map((it) => it.textContent).join();
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const within = async (test) => {
  for (let i = 0; i < 300 && !test(); i++) await pause(50);
  return test();
};
const press = (it) => it.dispatchEvent(new MouseEvent("click", { bubbles: true, composed: true }));
"""

SWITCHES = """async () => {
  const wrong = [], beside = one("section.beside"), switches = () => all(".broken input, .off");
  const isThere = () => !beside.hidden && !beside.classList.contains("waits") && one(".beside .verdict");
  for (let i = 0; i < switches().length; i++) {
    const name = nameOf(switches()[i]);
    press(switches()[i]);
    if (!(await within(isThere)) || told()) wrong.push(`off: ${name} ${told()}`);
    await within(() => switches()[i]);
    press(switches()[i]);
    if (!(await within(() => beside.hidden)) || told()) wrong.push(`on: ${name} ${told()}`);
    await within(() => switches().length > i + 1);  // the page draws them again after each press
  }
  return [switches().length, wrong];
}"""

BUTTONS = """async () => {
  const wrong = [], tried = [];
  // Pressed buttons and the current token stay as they are; files are saved elsewhere.
  const isIdle = (it) => it.disabled || it.ariaPressed === "true" || it.closest(".save, .away, .looks");
  const controls = () => all(".whole button, .whole summary, .whole [role=button], .top .examples button");
  const next = () => controls().find((it) => !isIdle(it) && it.checkVisibility() && !tried.includes(nameOf(it)));
  for (let control; (control = next()); ) {
    const name = nameOf(control), before = shown();
    tried.push(name);
    press(control);
    if (!(await within(() => shown() !== before))) wrong.push(`nothing changes: ${name}`);
    if (told() || frame.textContent.includes("[object")) wrong.push(`${name}: ${told()}`);
  }
  return [tried.length, wrong];
}"""


def run(page, script: str) -> tuple[int, list[str]]:
    return page.evaluate(f"(() => {{ {IN_PAGE} return ({script})(); }})()")


@pytest.mark.slow  # on a busy machine the page sometimes loses an answer, and the next switches wait for it
@TASKS
def test_every_switch_shows_the_changed_model_next_to_the_original(browser, address, task):
    with visit(browser, address) as page:
        opened(page, task)
        count, wrong = run(page, SWITCHES)
        assert wrong == []
        assert count >= 6


@TASKS
def test_every_button_has_a_visible_effect(browser, address, task):
    with visit(browser, address) as page:
        opened(page, task)
        count, wrong = run(page, BUTTONS)
        assert wrong == []
        assert count > 20


def test_an_error_without_a_message_gets_one_next_to_the_switch(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page, "Classify")
        event = f"event: error\ndata: {json.dumps({'error': None})}\n\n"
        page.route("**/explore_changed/*", lambda route: route.fulfill(body=event, content_type="text/event-stream"))
        switch = explorer.get_by_label("Positions of the encoder")
        switch.uncheck()
        expect(explorer.get_by_role("alert")).to_have_text("Something went wrong on the server. Please try again.")
        expect(explorer.get_by_role("alert")).to_be_in_viewport()
        expect(switch).to_be_in_viewport()
