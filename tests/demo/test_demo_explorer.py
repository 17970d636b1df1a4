"""Test the explorer in a real browser: pointer and keyboard interaction, and correct values."""

import csv
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
from gradio_client import Client

from browsing import DESK, NEEDS_CHROMIUM, PHONE, SCREENS, choose, expect, open_switches, visit
from demo_server import address_of, served
from family import decoder_only, encoder_decoder, encoder_only
from saved_models import save, with_tokenizer
from vanilla_transformer import (
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer.app.app import Demo
from vanilla_transformer.app.loading import DemoModel
from vanilla_transformer.inside import Interventions, explore
from vanilla_transformer.inside.interventions import interventions_from_json
from vanilla_transformer.inside.page import compare_data
from vanilla_transformer.inside.predictions import predict
from vanilla_transformer.inside.recorder import record


pytestmark = NEEDS_CHROMIUM
CLASSES = {0: "English", 1: "Spanish"}


def classifier(id2label=CLASSES, **fields):
    return encoder_only(VanillaTransformerForSequenceClassification, id2label=id2label, **fields)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("explorer")
    texts = ["Wednesday, July 4, 2029", "The parcel from Kenya", "12 kilómetros"] * 2
    return [
        save(folder / "translator", encoder_decoder, "seq2seq", texts=texts),
        save(folder / "writer", decoder_only, "causal", texts=texts),
        save(folder / "classifier", classifier, "encoder", texts=texts),
    ]


@pytest.fixture(scope="module")
def address(models) -> Iterator[str]:
    with address_of(*models) as address:
        yield address


@pytest.fixture(scope="module")
def server_address(models) -> Iterator[str]:
    """Yield the address of a demo whose models do not run in the page."""
    with address_of(*models, in_page=False) as address:
        yield address


def opened(page):
    """Return the explorer once it displays a prediction."""
    explorer = page.locator(".explorer")
    expect(explorer.locator(".scene")).to_be_visible()
    return explorer


# Record captions and early predictions in the page, because the test might miss them on a busy machine.
WATCH = """
window.captions = [];
window.spoiled = 0;
const attach = Element.prototype.attachShadow;
Element.prototype.attachShadow = function (options) {
  const root = attach.call(this, options);
  const look = () => {
    const caption = root.querySelector(".caption")?.textContent;
    if (caption && root.querySelector("[aria-label=Pause]") && caption !== captions.at(-1)) captions.push(caption);
    if (caption?.startsWith("In the encoder"))
      spoiled += root.querySelectorAll(".next:not(.away), .bars li, .hypotheses li").length;
  };
  const all = { subtree: true, childList: true, characterData: true, attributes: true };
  new MutationObserver(look).observe(root, all);
  return root;
};
"""


@SCREENS
def test_the_first_screen_shows_an_animated_translation(browser, address, size):
    with visit(browser, address, size, reduced_motion="no-preference") as page:
        page.add_init_script(WATCH)
        page.goto("about:blank")
        page.goto(address)  # a reload would show the step in the address, without a film
        explorer = opened(page)
        explorer.get_by_role("button", name="2×").click()
        page.wait_for_function("captions.some((text) => text.startsWith('To write token 2'))")
        order = page.evaluate("captions.map((text) => text.split(',').slice(0, 2).join())")
        softmax = next(caption for caption in order if caption.startswith("The softmax"))
        layers = [f"{who}, layer {i}" for who in ("In the encoder", "To write token 1") for i in (1, 2)]
        told = [caption.partition(" of 2")[0] for caption in order]
        assert [*layers, softmax] == told[told.index(layers[0]) :][:5]
        assert page.evaluate("spoiled") == 0, "no prediction is shown before the softmax"
        # the lens and the address follow
        expect(explorer.locator(".lens td.now").first).to_be_visible()
        expect(page).to_have_url(re.compile("step%22%3A1"))
        explorer.get_by_label("Motion").uncheck()
        expect(explorer.get_by_role("button", name="Play")).to_be_visible()
        caption = explorer.locator(".caption")
        stopped = caption.inner_text()
        page.wait_for_timeout(1500)
        assert caption.inner_text() == stopped


def test_reduced_motion_disables_animation_and_keeps_manual_steps(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        expect(explorer.get_by_label("Motion")).not_to_be_checked()
        expect(explorer.locator(".caption")).to_contain_text("The translation:")
        explorer.get_by_label("Step of the forward pass").fill("0")
        expect(explorer.locator(".caption")).to_contain_text("In the encoder, layer 1 of 2")
        explorer.get_by_role("button", name="One step forward").click()
        expect(explorer.locator(".caption")).to_contain_text("layer 2 of 2")
        expect(explorer.locator(".next.away").first).to_be_attached()
        explorer.get_by_role("button", name="Skip to the end").click()
        expect(explorer.locator(".next.away")).to_have_count(0)


@SCREENS
def test_tokens_heads_and_steps_open_by_pointer_and_keyboard(browser, address, size):
    with visit(browser, address, size) as page:
        explorer = opened(page)
        token = explorer.get_by_role("button", name="Token 3,").first
        token.focus()
        expect(token).to_have_class(re.compile("looks"))
        page.keyboard.press("ArrowDown")
        expect(explorer.get_by_role("button", name="Token 4,").first).to_be_focused()

        head = explorer.get_by_role("button", name=re.compile("^Cross-attention, layer 1, head 2:"))
        head.click()
        expect(head).to_have_attribute("aria-pressed", "true")
        expect(
            explorer.get_by_role("group", name="Head", exact=True).get_by_role("button", name="2")
        ).to_have_attribute("aria-pressed", "true")
        explorer.get_by_text("Attention weights as a table").click()
        caption = explorer.locator(".stage table caption")
        expect(caption).to_contain_text("Cross-attention, layer 1, head 2")

        explorer.get_by_role("button", name="Weights, cross-attention, decoder: open").press("Enter")
        card = explorer.locator("section.card")
        expect(card).to_contain_text("How much each target position attends")
        expect(card.locator("math")).to_contain_text("softmax")
        expect(card).to_contain_text("heads 4 × queries")
        expect(card.locator("code")).to_contain_text("softmax")
        expect(card.get_by_role("link")).to_have_attribute(
            "href", re.compile(r"modeling_vanilla_transformer.py#L\d+$")
        )
        card.get_by_role("button", name="Next step").click()
        expect(card.locator("h2")).to_have_text("Heads")


def test_focus_moves_when_the_focused_element_disappears(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        expect(explorer.locator(".ranking")).to_be_visible()
        explorer.get_by_role("button", name="Activation, feed-forward, encoder: open").press("Enter")
        expect(explorer.locator(".card-body")).to_be_visible()
        explorer.get_by_role("button", name="Close").press("Enter")
        expect(explorer.locator(".card-body")).to_have_count(0)
        expect(explorer.locator(".opener").first).to_be_focused()
        open_switches(explorer)
        explorer.get_by_label("Causal mask").press(" ")
        expect(explorer.locator(".verdict")).to_be_visible()
        explorer.get_by_role("button", name="Reset all").press("Enter")
        expect(explorer.get_by_label("Positions of the encoder")).to_be_focused()
        explorer.get_by_label("Step of the forward pass").fill("0")
        explorer.get_by_role("button", name="Skip to the end").press("Enter")
        expect(explorer.get_by_role("button", name="Play")).to_be_focused()
        choice = explorer.get_by_label("Task and model")
        choice.focus()
        choose(explorer, "Continue")
        expect(explorer.locator(".heads h3")).to_have_text(["Masked self-attention"])
        expect(choice).to_be_focused()


def test_focus_stays_on_the_button_of_the_selected_side(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        open_switches(explorer)
        explorer.get_by_label("Causal mask").uncheck()
        expect(explorer.locator(".verdict")).to_be_visible()
        for side in (1, 0):
            button = explorer.locator(".side button").nth(side)
            button.press("Enter")
            expect(button).to_have_text("Shown above")
            expect(button).to_be_focused()


def test_prompt_keeps_leading_and_trailing_spaces(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        choose(explorer, "Continue")
        text = explorer.get_by_label("Text to continue")
        for asked, first in [("July", '"J'), (" July", '" J')]:
            text.fill(asked)
            text.press("Enter")
            expect(explorer.locator(".token title").nth(1)).to_have_text(re.compile(f"^{first}"))
        text.fill("  ")
        text.press("Enter")
        expect(explorer.get_by_role("alert")).to_contain_text("Please type something")


def test_every_model_family_can_be_explored(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        page.set_viewport_size({"width": 360, "height": 740})
        open_switches(explorer)
        assert explorer.locator(".switches > .scroll").evaluate("table => table.scrollWidth <= table.clientWidth")
        page.set_viewport_size(DESK)
        choose(explorer, "Continue")
        expect(explorer.locator(".heads h3")).to_have_text(["Masked self-attention"])
        explorer.get_by_label("Text to continue").fill("The parcel from")
        explorer.get_by_label("Text to continue").press("Enter")
        expect(explorer.locator(".answer")).to_contain_text("The parcel from")
        expect(explorer.locator(".broken thead")).to_have_text("layerresidual, self-attentionresidual, feed-forward")
        page.set_viewport_size(PHONE)
        last = explorer.locator(".broken th[scope=col]").last.bounding_box()
        assert last["x"] + last["width"] <= PHONE["width"]
        page.set_viewport_size(DESK)
        explorer.get_by_label("Positions of the decoder").uncheck()
        expect(explorer.locator(".verdict")).to_contain_text(re.compile(r"from [\d.]+ % to [\d.]+ % \(geometric mean"))
        asked, answer = (explorer.locator(part).first.inner_text() for part in (".beside .answer", ".output .answer"))
        assert asked.strip() == answer.strip()
        explorer.get_by_label("Text to continue").fill("Köln")  # ö takes two tokens
        explorer.get_by_label("Text to continue").press("Enter")
        expect(explorer.locator(".output .answer").first).to_contain_text("Köln")
        explorer.get_by_label("Positions of the decoder").uncheck()
        expect(explorer.locator(".beside .answer").first).to_contain_text("ln")
        assert "öln" in explorer.locator(".beside .answer").first.inner_text()
        choose(explorer, "Classify")
        expect(explorer.locator(".bars li")).to_have_count(2)
        expect(explorer.locator(".heads h3")).to_have_text(["Encoder self-attention"])


def test_heads_are_ranked_by_their_effect(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        ranking = explorer.locator(".ranking")
        expect(ranking).to_contain_text("Largest effect: ")
        told = [re.search(r"−?[\d.]+$", text)[0] for text in ranking.locator("button").all_inner_texts()]
        sizes = [float(number.removeprefix("−")) for number in told]
        assert sizes == sorted(sizes, reverse=True) and any(number.startswith("−") for number in told)
        ranking.locator("button").first.click()
        expect(explorer.locator(".head[aria-pressed=true]")).to_have_count(1)
        explorer.get_by_text("All heads as a table").click()
        expect(explorer.locator(".heads table tbody tr")).to_have_count(24)


def test_head_thumbnails_fill_their_columns(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        # heads are redrawn when their effects arrive
        expect(explorer.locator(".ranking")).to_contain_text("Largest effect: ")
        for cell in page.locator(".cell").all():
            own, column = (element.bounding_box()["width"] for element in (cell.locator(".head"), cell))
            assert own == pytest.approx(column, abs=1)


def test_regression_shows_values_in_the_lens_and_the_comparison(browser, models, tmp_path):
    model = save(tmp_path / "judge", partial(classifier, {0: "difficulty"}), "encoder")
    with address_of(model, models[2]) as address, visit(browser, address) as page:
        explorer = opened(page)
        number = explorer.locator(".bars .number").inner_text()
        assert re.fullmatch(r"−?\d+\.\d{3}", number)
        expect(explorer.locator(".caption")).to_have_text(f"The estimate: {number}")
        expect(explorer.locator(".answer")).to_have_text(number)
        expect(explorer.get_by_role("button", name="Estimate", exact=True)).to_have_count(1)
        lens = explorer.locator(".lens td").all_inner_texts()
        assert lens[0] == number and all(re.fullmatch(r"−?\d+\.\d{3}", text) for text in lens)
        open_switches(explorer)
        explorer.get_by_role("button", name="Compare with classifier").click()
        cells = explorer.locator(".beside td")
        expect(cells.first).to_have_text(number)
        expect(cells.last).to_have_text(re.compile("%$"))
        expect(explorer.locator(".beside th[scope=col]")).to_have_text(["", "number", "classifier", "probability"])
        explorer.get_by_label("Positions of the encoder").uncheck()
        expect(explorer.locator(".beside th[scope=col]")).to_have_text(["", "original", "changed"])


def test_label_of_a_token_includes_its_tag(browser, tmp_path):
    tags = {0: "B-DATE", 1: "I-DATE"}
    model = save(
        tmp_path / "tagger", partial(encoder_only, VanillaTransformerForTokenClassification, id2label=tags), "encoder"
    )
    with address_of(model) as address, visit(browser, address) as page:
        tagged = opened(page).get_by_role("button", name=re.compile(r"^Token \d+, .+, [BI]-DATE$"))
        expect(tagged.first).to_be_visible()
        assert len(tagged.all()) > 2


@pytest.mark.parametrize("task", ["translate", "generate"])
def test_each_token_of_a_forced_output_shows_its_rank(browser, address, task):
    with visit(browser, address) as page:
        explorer = opened(page)
        if task == "generate":
            choose(explorer, "Continue")
            expect(explorer.locator(".heads h3")).to_have_text(["Masked self-attention"])
        explorer.get_by_text(re.compile("^Score a .* of your own$")).click()
        own = explorer.get_by_label("Each token is shown")
        own.fill("July")
        own.press("Enter")
        expect(explorer.locator(".answer")).to_have_text(re.compile("July$"))
        explorer.locator(".next").filter(has_text=re.compile("^Ju")).click()
        expect(explorer.locator(".output")).to_contain_text(re.compile(r"(Rank [\d,]+|The most probable) of \d+ tok"))
        expect(explorer.locator(".bars .chosen .name")).to_have_text(re.compile("^Ju"))


def test_text_of_the_maximum_length_is_shown_and_a_longer_one_rejected(browser, tmp_path):
    def make(**fields):
        return decoder_only(position_embedding="learned", max_position_embeddings=5, **fields)

    with address_of(save(tmp_path / "writer", make, "causal")) as address, visit(browser, address) as page:
        text = page.get_by_label("Text to continue")
        text.fill("one")
        text.press("Enter")
        explorer = opened(page)
        expect(explorer.locator(".caption")).to_contain_text("The continuation: one")
        text.fill("xxxx")
        text.press("Enter")
        expect(explorer.locator(".caption")).to_contain_text("all 5 positions")
        expect(explorer.locator(".token")).to_have_count(5)
        explorer.get_by_text(re.compile("^Score a .* of your own$")).click()
        own = explorer.get_by_label("Each token is shown")
        own.fill("more")
        own.press("Enter")
        expect(explorer.get_by_role("alert")).to_contain_text("this text with its continuation has")


def test_disabling_a_head_updates_the_comparison_with_the_original(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        switch = explorer.get_by_role("button", name="Switch off cross-attention, layer 2, head 1")
        switch.locator("..").hover()  # the switch appears on hover
        switch.click()
        beside = explorer.locator(".beside")
        expect(beside.locator(".verdict")).to_contain_text("%")
        expect(explorer.locator(".off-heads")).to_contain_text("cross-attention 2.1 off")
        one_off = beside.locator("tbody").inner_text()
        open_switches(explorer)
        for part in ("Positions of the encoder", "Causal mask"):
            explorer.get_by_label(part).uncheck()
        expect(beside.locator("tbody")).not_to_have_text(one_off)
        beside.get_by_role("button", name="Show it above").click()
        expect(explorer.locator(".front")).to_have_css("outline-style", "solid")
        expect(explorer.locator(".ranking")).to_have_count(0)  # effects of the original model do not apply
        explorer.get_by_role("button", name="Reset all").click()
        expect(beside).to_be_hidden()


def cell_of(explorer, kind: str):
    """Return the cursor of an attention matrix, which the arrow keys move from cell to cell."""
    return explorer.get_by_role("button", name=re.compile(f"^{kind}: “"))


def test_a_cell_shows_the_product_of_query_and_key(browser, address, models):
    loaded_model = DemoModel(models[0])
    with visit(browser, address) as page:
        explorer = opened(page)
        explorer.get_by_role("group", name="Head", exact=True).get_by_role("button", name="2").click()
        explorer.get_by_role("group", name="Decoder layer").get_by_role("button", name="1").click()
        cell_of(explorer, "Cross-attention").focus()
        for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        card = explorer.locator(".cell-card")
        expect(card).to_contain_text("Cross-attention, layer 1, head 2")
        expect(card.get_by_role("img")).to_have_count(3)
        text = explorer.get_by_label("Text to translate").input_value()
        shown = [float(number.replace("−", "-")) for number in card.locator(".sum b").all_inner_texts()[:2]]
    model, tokenizer = loaded_model.model, loaded_model.tokenizer
    prediction, _, _ = predict(model, tokenizer, text)
    steps = {step.name: step.tensor[0] for step in record(model, prediction.inputs, 0, 1, "decoder")
             if step.part == "cross-attention"}  # fmt: skip
    expected = [steps[name][1, 2].item() for name in ("scores", "scaled scores")]
    assert shown == pytest.approx(expected, abs=0.011)


@SCREENS
def test_setting_a_weight_by_hand_changes_the_output(browser, address, size):
    with visit(browser, address, size) as page:
        explorer = opened(page)
        explorer.get_by_role("button", name=re.compile("^Cross-attention, layer 1, head 2:")).click()
        cell = cell_of(explorer, "Cross-attention")
        cell.focus()
        page.keyboard.press("Enter")
        slider = explorer.get_by_role("slider", name="Set this attention weight by hand")
        before = int(slider.input_value())
        assert before < 100
        slider.fill("95")
        changed = explorer.locator(".output .changed")
        expect(changed.locator(".bars li").first).to_be_visible()
        expect(explorer.locator(".off-heads button")).to_contain_text("95 %")
        expect(explorer.locator(".verdict")).to_be_visible()
        cell.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        slider.fill("100")  # limited by the first set weight, which keeps its value
        expect(explorer.locator(".slider output")).to_have_text("5 %")
        explorer.get_by_role("button", name="Reset", exact=True).click()
        cell.focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        explorer.get_by_role("button", name="Reset", exact=True).click()
        expect(slider).to_have_value(str(before))
        expect(changed).to_have_count(0)


def test_effect_of_a_set_weight_equals_the_servers_result(browser, server_address, models):
    with visit(browser, server_address) as page:
        explorer = opened(page)
        cell_of(explorer, "Cross-attention").press("Enter")
        with page.expect_request(re.compile("call/explore_changed")) as asked:
            explorer.get_by_role("slider", name="Set this attention weight by hand").fill("90")
        (_, text, changes, *_) = asked.value.post_data_json["data"]
        expect(explorer.locator(".changed .bars li").first).to_be_visible()
        shown = explorer.locator(".changed .bars .chosen .number").inner_text()
        with page.expect_download() as download:
            explorer.get_by_role("button", name="Weights (CSV)").click()
        table = [*csv.reader(Path(download.value.path()).read_text(encoding="utf-8").splitlines())]
    loaded = DemoModel(models[0])
    found = compare_data(loaded.model, loaded.tokenizer, text, interventions_from_json(changes))
    assert len(changes["weights"]) == loaded.model.config.num_heads, "all of them, where none is chosen"
    assert float(shown.removesuffix(" %")) == pytest.approx(100 * found["same"][0]["p"], rel=0.06)
    # The CSV file has the mean weights over heads, including the query with a set weight. Layers count from 1.
    (kind, layer, _, query, *_) = changes["weights"][0]
    heads = [row for *place, row in found["rows"] if place[0] == kind and place[3] == query]
    seen = [line for line in table if line[0] == "cross-attention" and line[1] == str(layer + 1)]
    assert [float(cell) for cell in seen[query][4:]] == pytest.approx(
        [sum(cells) / len(heads) / 1000 for cells in zip(*heads, strict=True)], abs=0.001
    )


def test_link_restores_the_state_of_the_page(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        explorer.get_by_label("Text to translate").fill("July 4")
        explorer.get_by_label("Text to translate").press("Enter")
        expect(page).to_have_url(re.compile("July%204%22"))
        expect(explorer.locator(".ranking")).to_be_visible()  # the last part to be drawn
        explorer.get_by_role("button", name=re.compile("^Cross-attention, layer 1, head 2:")).click()
        explorer.get_by_role("button", name="Switch off cross-attention, layer 2, head 1").click(force=True)
        expect(explorer.locator(".verdict")).to_be_visible()
        link, verdict = page.url, explorer.locator(".verdict").inner_text()
    with visit(browser, link) as page:
        explorer = opened(page)
        expect(explorer.get_by_label("Text to translate")).to_have_value("July 4")
        expect(explorer.locator(".verdict")).to_have_text(verdict)
        expect(page).to_have_url(link)  # opening a link keeps it in the address bar
        expect(explorer.locator(".head[aria-pressed=true]")).to_have_attribute(
            "aria-label", re.compile("^Cross-attention, layer 1, head 2:")
        )


def test_back_restores_the_previous_state(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        text, answer = explorer.get_by_label("Text to translate"), explorer.locator(".output .answer").first
        first, told = text.input_value(), answer.inner_text()
        text.fill("July 4")
        text.press("Enter")
        expect(page).to_have_url(re.compile("July%204%22"))
        expect(explorer.locator(".ranking")).to_be_visible()  # the last part to be drawn
        head = explorer.get_by_role("button", name=re.compile("^Cross-attention, layer 1, head 2:"))
        head.click()  # selecting a head adds no history entry
        open_switches(explorer)
        mask = explorer.locator(".broken").get_by_label("Causal mask")
        mask.uncheck()
        expect(explorer.locator(".verdict")).to_be_visible()
        choose(explorer, "Continue")
        expect(explorer.locator(".heads h3")).to_have_text(["Masked self-attention"])
        choose(explorer, "Train")
        expect(explorer.locator(".train .squares canvas")).to_have_count(4)

        page.go_back()
        expect(explorer.locator(".heads h3")).to_have_text(["Masked self-attention"])
        expect(explorer.locator(".train")).to_be_hidden()
        page.go_back()
        expect(mask).not_to_be_checked()
        expect(explorer.locator(".verdict")).to_be_visible()
        expect(explorer.get_by_label("Task and model")).to_have_value("0")
        page.go_back()
        expect(mask).to_be_checked()
        expect(head).to_have_attribute("aria-pressed", "true")
        expect(text).to_have_value("July 4")
        page.go_back()
        expect(text).to_have_value(first)
        expect(answer).to_have_text(told)
        page.go_forward()
        expect(text).to_have_value("July 4")
        expect(head).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize("damage", ["cut off", "cut in a letter", "edited", "another form", "nothing"])
def test_damaged_link_shows_a_message_and_restores_its_valid_parts(browser, address, damage):
    whole = {"model": "translator", "text": "Köln, July", "context": None, "target": None, "head": 2}
    whole["layers"] = {"decoder": 1}
    edited = {
        "head": 9,
        "layers": {"decoder": 0.5},
        "kinds": 5,
        "step": "x",
        "changes": {"heads_off": 3},
        "card": ["x"],
    }
    link = quote(json.dumps(whole | (edited if damage == "edited" else {}), separators=(",", ":"), ensure_ascii=False))
    link = {
        "cut off": link[: link.index("context") + 9],
        "cut in a letter": link[: link.index("%C3") + 4],
        "another form": quote(json.dumps([1, None])),
        "nothing": "",
    }.get(damage, link)
    with visit(browser, f"{address}#explore={link}") as page:
        explorer = opened(page)
        expect(explorer.get_by_role("alert")).to_have_text(DAMAGED)
        text = explorer.get_by_label("Text to translate")
        if damage == "edited":
            expect(text).to_have_value("Köln, July")
        else:
            expect(text).not_to_have_value("")
        expect(explorer.locator(".ranking")).to_be_visible()
        expect(explorer.get_by_role("alert")).to_be_visible()


DAMAGED = "The link is damaged. Only part of it could be restored."
NOT_HERE = "The link is for the model gone, which is not loaded here."


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ({"model": "gone", "text": "July", "target": [5, 60000]}, NOT_HERE),  # token ids of another model
        ({"model": "translator", "text": "July", "card": ["decoder", 7, "feed-forward", "hidden"]}, DAMAGED),
        ({"model": "translator", "text": ""}, DAMAGED),
    ],
    ids=["tokens of another model", "no such step", "no text"],
)
def test_link_parameters_that_do_not_fit_the_model_are_ignored(browser, address, link, message):
    with visit(browser, f"{address}#explore={quote(json.dumps(link, separators=(',', ':')))}") as page:
        explorer = opened(page)
        expect(explorer.get_by_role("alert")).to_have_text(message)
        expect(explorer.locator(".output .answer").first).to_be_visible()
        expect(explorer.locator(".card-body")).to_have_count(0)


def test_link_to_a_changed_model_opens_the_comparison_with_the_original(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        open_switches(explorer)
        explorer.get_by_label("Positions of the decoder").uncheck()
        explorer.locator(".beside").get_by_role("button", name="Show it above").click()
        expect(explorer.locator(".stage h2")).to_have_text("The model: translator, changed")
        page.reload()
        expect(explorer.locator(".stage h2")).to_have_text("The model: translator")
        expect(explorer.locator(".verdict")).to_be_visible()
        expect(explorer.get_by_label("Positions of the decoder")).not_to_be_checked()
        expect(explorer.get_by_role("alert")).to_be_hidden()


def test_explorer_works_when_the_browser_limits_the_history(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        refusing = "() => { throw new DOMException('too many', 'SecurityError') }"
        page.evaluate(f"() => {{ history.pushState = history.replaceState = {refusing} }}")
        open_switches(explorer)
        explorer.get_by_label("Causal mask").uncheck()
        expect(explorer.locator(".verdict")).to_be_visible()
        expect(explorer.get_by_role("alert")).to_be_hidden()


def test_back_button_keeps_the_page_and_history_if_the_server_is_unreachable(browser, server_address):
    with visit(browser, server_address, complains=True) as page:
        explorer = opened(page)
        text = explorer.get_by_label("Text to translate")
        first = text.input_value()
        text.fill("July 4")
        text.press("Enter")
        expect(page).to_have_url(re.compile("July%204%22"))
        expect(explorer.locator(".ranking")).to_be_visible()
        page.context.set_offline(True)
        page.go_back()
        expect(explorer.get_by_role("alert")).to_have_text("The server cannot be reached. Please try again.")
        expect(text).to_have_value("July 4")
        explorer.get_by_role("button", name=re.compile("^Cross-attention, layer 1, head 2:")).click()
        expect(page).to_have_url(re.compile("July%204%22"))
        page.context.set_offline(False)
        page.go_back()
        expect(text).to_have_value(first)


def test_page_stays_unchanged_if_the_server_is_unreachable(browser, server_address):
    with visit(browser, server_address, complains=True) as page:
        explorer = opened(page)
        expect(explorer.locator(".ranking")).to_be_visible()
        seen, link = explorer.locator(".output").inner_text(), page.url
        page.context.set_offline(True)
        choose(explorer, "Continue")
        expect(explorer.get_by_role("alert")).to_have_text("The server cannot be reached. Please try again.")
        expect(explorer.get_by_label("Task and model")).to_have_value("0")
        expect(explorer.get_by_label("Text to translate")).to_be_visible()
        assert (explorer.locator(".output").inner_text(), page.url) == (seen, link)
        page.context.set_offline(False)
        choose(explorer, "Continue")
        expect(explorer.locator(".heads h3")).to_have_text(["Masked self-attention"])
        expect(explorer.get_by_role("alert")).to_be_hidden()


def test_step_card_stays_closed_if_its_request_fails_and_opens_on_retry(browser, server_address):
    with visit(browser, server_address, complains=True) as page:
        explorer = opened(page)
        expect(explorer.locator(".ranking")).to_be_visible()
        explorer.get_by_role("group", name="Encoder layer").get_by_role("button", name="2").click()
        step = explorer.get_by_role("button", name="Activation, feed-forward, encoder: open")
        page.context.set_offline(True)
        explorer.get_by_role("group", name="Encoder layer").get_by_role("button", name="1").click()
        expect(explorer.get_by_role("alert")).to_have_text("The server cannot be reached. Please try again.")
        expect(explorer.locator("section.card")).to_be_hidden()
        page.context.set_offline(False)
        step.press("Enter")
        expect(explorer.locator(".card-body")).to_be_visible()
        expect(page).to_have_url(re.compile("card"))


@pytest.mark.parametrize("late", ["explore", "explore_effects", "explore_changed", "explore_layer"])
def test_late_response_is_ignored_after_the_back_button(browser, server_address, late):
    with visit(browser, server_address) as page:
        explorer = opened(page)
        text, whole = explorer.get_by_label("Text to translate"), explorer.locator(".whole")
        open_switches(explorer)
        mask = explorer.get_by_label("Causal mask")
        expect(explorer.locator(".ranking")).to_be_visible()  # the last part to be drawn
        seen, link = whole.inner_text(), page.url
        if late in ("explore", "explore_layer"):  # add a history entry to go back from
            mask.uncheck()
            expect(explorer.locator(".verdict")).to_be_visible()
        on_its_way = []
        page.route(re.compile(f"/{late}/"), lambda route: on_its_way.append(route), times=1)
        with page.expect_request(re.compile(f"/{late}/")) as asked:
            if late == "explore_changed":
                mask.uncheck()
            elif late == "explore_layer":
                explorer.get_by_role("group", name="Encoder layer").get_by_role("button", name="1").click()
                explorer.get_by_role("button", name="Activation, feed-forward, encoder: open").press("Enter")
            else:
                text.fill("July 4")
                text.press("Enter")
        if late == "explore_layer":
            page.evaluate("history.go(-2)")  # opening the card has added another entry
        else:
            page.go_back()
        expect(page).to_have_url(link)
        expect(whole).to_have_text(seen, use_inner_text=True)
        with page.expect_event("requestfinished", lambda request: request == asked.value):
            on_its_way[0].continue_()
        page.evaluate("() => new Promise(resolve => setTimeout(resolve, 100))")  # time to draw the late response
        assert (whole.inner_text(), page.url) == (seen, link)
        expect(explorer.get_by_role("alert")).to_be_hidden()


def test_page_picture_data_and_weights_can_be_downloaded(browser, address, tmp_path):
    with visit(browser, address) as page:
        explorer = opened(page)
        for button, begin in [("Page (HTML)", b"<!doctype"), ("Picture (PNG)", b"\x89PNG"),
                              ("Picture (SVG)", b"<svg"), ("All data (JSON)", b"{"),
                              ("Weights (CSV)", b'"attention"')]:  # fmt: skip
            with page.expect_download() as download:
                explorer.get_by_role("button", name=button).click()
            file = tmp_path / download.value.suggested_filename
            download.value.save_as(file)
            assert file.read_bytes().startswith(begin)
        answer = explorer.locator(".answer").first.inner_text()
    with visit(browser, (tmp_path / "explorer.html").as_uri()) as page:
        explorer = opened(page)
        expect(explorer.locator(".answer").first).to_have_text(answer)
        explorer.get_by_role("button", name="Activation, feed-forward, encoder: open").click()
        expect(explorer.locator("section.card")).to_contain_text("Negative numbers become 0")
        expect(explorer.locator(".save")).to_contain_text("works offline. It includes a model")


@pytest.mark.parametrize("second", ["other", "translator, changed"])
def test_downloads_include_both_models_of_a_comparison(browser, models, tmp_path, second):
    """The saved page contains both models, which run in it."""
    other = save(tmp_path / "other", encoder_decoder, "seq2seq", texts=["The parcel from Kenya"] * 2)

    def seen(page) -> list[str]:
        explorer = opened(page)
        expect(explorer.locator(".stage h2")).to_have_text(f"The model: {second}")
        expect(explorer.locator(".side h3").first).to_have_text("translator")
        explorer.get_by_role("button", name="Activation, feed-forward, encoder: open").click()
        expect(explorer.locator(".card-body")).to_be_visible()
        return explorer.locator(".stage header .note, .side, .vector-numbers").all_inner_texts()

    with address_of(models[0], other) as address, visit(browser, address) as page:
        explorer = opened(page)
        open_switches(explorer)
        if second == "other":
            explorer.get_by_role("button", name="Compare with other").click()
        else:
            explorer.get_by_label("Positions of the encoder").uncheck()
        explorer.locator(".beside").get_by_role("button", name="Show it above").click()
        before = seen(page)
        for button in ("Page (HTML)", "All data (JSON)"):
            with page.expect_download() as download:
                explorer.get_by_role("button", name=button).click()
            download.value.save_as(tmp_path / download.value.suggested_filename)
    with visit(browser, (tmp_path / "explorer.html").as_uri()) as page:
        assert seen(page) == before
        if second != "other":
            expect(page.get_by_label("Positions of the encoder")).not_to_be_checked()
        page.get_by_role("button", name="Show it above").click()
        expect(page.locator(".stage h2")).to_have_text("The model: translator")
        if second != "other":  # the page includes the model: its switches work
            open_switches(page.locator(".explorer"))
            page.get_by_label("Positions of the encoder").check()
            expect(page.locator(".beside")).to_be_hidden()
    data = json.loads((tmp_path / "explorer.json").read_text(encoding="utf-8"))
    assert (data["name"], data["beside"]["data"]["name"]) == ("translator", second)
    assert data["source"] and data["beside"]["data"]["source"]


@SCREENS
def test_live_training_runs_from_the_page(browser, address, size):
    with visit(browser, address, size) as page:
        explorer = opened(page)
        choose(explorer, "Train")
        train = explorer.locator(".train")
        expect(train.locator(".squares canvas")).to_have_count(4)
        expect(train.locator(".digits")).to_contain_text("314159")
        train.get_by_role("button", name="2", exact=True).click()
        expect(train.locator(".squares canvas")).to_have_count(2)
        train.get_by_role("button", name="Stop").click()
        expect(train.get_by_role("button", name="Train again")).to_be_visible()
        choose(explorer, "Translate")
        expect(explorer.locator(".scene")).to_be_visible()


def test_every_picture_has_a_table(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        open_switches(explorer)
        explorer.get_by_label("Causal mask").uncheck()
        expect(explorer.locator(".verdict")).to_be_visible()
        for title, rows in [
            ("Attention weights as a table", 1),
            ("All heads", 24),
            ("The squares", 2),
        ]:
            summary = explorer.locator(".whole summary").filter(has_text=re.compile(f"^{title}"))
            summary.click()
            expect(summary.locator("..").locator("tbody tr").nth(rows - 1)).to_be_visible()
        first, last = (explorer.locator(".stage table").nth(1).locator("tr").nth(i).locator("td") for i in (1, -1))
        assert set(first.all_inner_texts()) == {"100 %", "0"}, "what comes later is hidden"
        assert all(re.fullmatch(r"\d+\.\d %|< 0\.05 %", text) for text in last.all_inner_texts())
        choose(explorer, "Train")
        expect(explorer.locator(".train .squares canvas")).to_have_count(4)
        explorer.locator(".train").get_by_text("The squares as tables").click()
        expect(explorer.locator(".train table")).to_have_count(4)


def test_open_table_stays_open_when_its_picture_is_redrawn(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        summary = explorer.get_by_text("All heads as a table")
        summary.click()
        head = explorer.get_by_role("button", name=re.compile("^Cross-attention, layer 1, head 2:"))
        head.click()
        expect(head).to_have_attribute("aria-pressed", "true")  # all heads are redrawn
        expect(summary.locator("..").locator("tbody tr")).to_have_count(24)
        summary.click()
        head.click()
        expect(summary.locator("..").locator("tbody tr")).to_have_count(0)


LOG = [
    {"step": 10, "epoch": 0.5, "loss": 4.5, "learning_rate": 0.001, "grad_norm": 1.5},
    {"step": 20, "epoch": 1.0, "loss": 2.25, "learning_rate": 0.0005, "grad_norm": float("nan")},
    {"step": 20, "epoch": 1.0, "eval_loss": 3.125, "eval_bleu": 12.5, "eval_runtime": 3.0},
]


@pytest.fixture
def run(tmp_path):
    """Return the folder of an unfinished training run with one checkpoint."""
    state = {"global_step": 20, "max_steps": 40, "epoch": 1.0, "log_history": LOG, "best_model_checkpoint": "/home"}
    (tmp_path / "my-run/checkpoint-20").mkdir(parents=True)
    (tmp_path / "my-run/checkpoint-20/trainer_state.json").write_text(json.dumps(state))
    return tmp_path / "my-run"


def test_log_file_of_a_training_run_is_plotted_in_the_browser(browser, address, run, tmp_path):
    with visit(browser, address) as page:
        explorer = opened(page)
        choose(explorer, "Train")
        runs = explorer.locator(".runs")
        file = runs.locator("input[type=file]")
        file.set_input_files(run / "checkpoint-20/trainer_state.json")
        expect(runs.locator(".run h3")).to_contain_text(re.compile("training 2.25 .*evaluation 3.13"))
        expect(runs.locator(".caption")).to_contain_text("step 20 of 40, epoch 1")
        runs.get_by_role("button", name="Bleu").click()
        expect(runs.locator(".run h3")).to_contain_text("Bleu 12.5")
        runs.get_by_text("The run as a table").click()
        expect(runs.locator("tbody tr")).to_have_count(3)
        (tmp_path / "other.json").write_text("{}")
        file.set_input_files(tmp_path / "other.json")
        expect(explorer.get_by_role("alert")).to_contain_text("other.json has no log_history")


def test_unfinished_training_run_is_listed_without_revealing_its_path(browser, run):
    with address_of(runs=[str(run)]) as address, visit(browser, address) as page:
        runs = page.locator(".runs")
        runs.get_by_role("button", name="my-run").click()
        expect(runs.locator(".run h3")).to_contain_text("training 2.25")
        state = json.loads((run / "checkpoint-20/trainer_state.json").read_text())
        later = [*LOG, {"step": 40, "epoch": 2.0, "loss": 1.5}]
        file = run / "checkpoint-40/trainer_state.json"
        file.parent.mkdir()
        file.write_text("{")  # the file is still being written
        expect(page.get_by_role("alert")).to_contain_text("my-run cannot be read now")
        file.write_text(json.dumps(state | {"global_step": 40, "log_history": later}))
        expect(runs.locator(".run h3")).to_contain_text("training 1.5")
        expect(page.get_by_role("alert")).to_be_hidden()
        client = Client(address, verbose=False)
        found = client.predict(0, api_name="/training_run")
        assert set(found) == {"global_step", "max_steps", "epoch", "log_history"}
        assert found["log_history"][1] == {"step": 20, "epoch": 1.0, "loss": 2.25, "learning_rate": 0.0005}
        with pytest.raises(Exception, match="There is no training run 1, counted from 0"):
            client.predict(1, api_name="/training_run")


def test_missing_folder_of_a_training_run_is_an_error_at_startup(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        Demo([], [str(tmp_path / "nothing")])


def test_error_is_shown_and_the_previous_picture_stays(browser, address):
    with visit(browser, address) as page:
        explorer = opened(page)
        explorer.get_by_label("Text to translate").fill("one " * 200)
        explorer.get_by_role("button", name="Translate", exact=True).click()
        expect(explorer.get_by_role("alert")).to_contain_text("Please keep to 300 characters")
        expect(explorer.locator(".scene")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_explorer_follows_the_light_or_dark_theme(browser, address, theme):
    with visit(browser, address, PHONE, color_scheme=theme) as page:
        color = opened(page).evaluate("element => getComputedStyle(element).color")
        assert (int(re.findall(r"\d+", color)[0]) > 127) == (theme == "dark")


def test_a_saved_page_works_without_a_server(browser, tmp_path):
    model, tokenizer = with_tokenizer(encoder_decoder, "seq2seq")
    explore(model, tokenizer, "one two").save(tmp_path / "page.html")
    with visit(browser, (tmp_path / "page.html").as_uri()) as page:
        explorer = opened(page)
        explorer.get_by_role("button", name="Activation, feed-forward, encoder: open").click()
        expect(explorer.locator("section.card")).to_contain_text("Negative numbers become 0")


def test_saved_page_of_a_changed_model_lists_its_interventions(browser, tmp_path):
    model, tokenizer = with_tokenizer(encoder_decoder, "seq2seq")
    changes = Interventions(heads_off={("cross", 1, 0)}, positions_off={"decoder"})
    explore(model, tokenizer, "one two", interventions=changes).save(tmp_path / "page.html")
    with visit(browser, (tmp_path / "page.html").as_uri()) as page:
        told = opened(page).locator(".broken")
        expect(told).to_contain_text("cross-attention 2.1 off")
        expect(told.get_by_label("Positions of the decoder")).not_to_be_checked()
        expect(told.get_by_label("Positions of the encoder")).to_be_checked()


def test_right_to_left_page_changes_the_direction_of_right_to_left_text_only(browser, tmp_path):
    model, tokenizer = with_tokenizer(decoder_only, "causal")
    page = explore(model, tokenizer, "سلام").page().replace('<html lang="en">', '<html lang="ar" dir="rtl">')
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    with visit(browser, (tmp_path / "page.html").as_uri()) as page:
        explorer = opened(page)
        left, right = (explorer.locator(part).first.bounding_box()["x"] for part in (".token", ".next"))
        assert left < right
        name, number = (explorer.locator(f".bars .{part}").first.bounding_box()["x"] for part in ("name", "number"))
        assert name < number
        expect(explorer.locator(".output .answer")).to_have_css("direction", "rtl")


def test_api_returns_the_data_of_the_page_and_rejects_invalid_calls(models):
    with served(*models) as client:
        found = client.predict(0, "July 4", api_name="/explore")
        assert [kind["kind"] for kind in found["attention"]] == ["encoder", "decoder", "cross"]
        effects = client.predict(0, "July 4", api_name="/explore_effects")["effects"]
        assert len(effects) == 24
        layer = client.predict(0, "July 4", None, None, "decoder", 1, api_name="/explore_layer")["steps"]
        assert {step["part"] for step in layer} >= {"self-attention", "cross-attention", "feed-forward"}
        changes = {"positions_off": ["decoder"]}
        other = client.predict(0, "July 4", None, None, "decoder", 1, changes, api_name="/explore_layer")["steps"]
        assert other != layer
        off = client.predict(0, "July 4", {"layers_off": [["decoder", 1]]}, api_name="/explore_changed")
        assert len(off["same"]) == len(found["steps"]) and off["same"] != found["steps"]
        with pytest.raises(Exception, match="Unknown changes: heads"):
            client.predict(0, "July 4", {"heads": 1}, api_name="/explore_changed")
        frames = client.submit(2, api_name="/train")
        assert len(next(frames)["attention"]) == 2
        frames.cancel()
        for wrong, message in [
            ((7, "July"), "There is no model 7"),
            ((0, " "), "Please type something"),
            ((0, "July", [99999]), "99999"),
            ((0, "July", None, None, "decoder", 9), "layer=9 does not exist"),
        ]:
            name = "/explore_layer" if len(wrong) > 3 else "/explore"
            with pytest.raises(Exception, match=message):
                client.predict(*wrong, api_name=name)
