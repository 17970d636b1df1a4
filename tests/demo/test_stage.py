"""Test the stage of the explorer: its numbers equal PyTorch's, and the film follows the order of the model."""

import re
from functools import cache
from xml.etree import ElementTree

import pytest
import torch

from browsing import NEEDS_CHROMIUM, PHONE, SCREENS, expect, visit
from family import decoder_only, encoder_decoder, encoder_only
from saved_models import with_tokenizer
from vanilla_transformer.inside import explore
from vanilla_transformer.inside.markup import explorer_page
from vanilla_transformer.inside.page import explore_data
from vanilla_transformer.inside.predictions import predict
from vanilla_transformer.inside.recorder import record


pytestmark = NEEDS_CHROMIUM
TEXT = "one two three"
FAMILIES = {
    "post-norm translator": (encoder_decoder, "seq2seq", {}),
    "pre-norm translator": (encoder_decoder, "seq2seq", {"norm_position": "pre"}),
    "pre-norm writer": (decoder_only, "causal", {"norm_position": "pre"}),
    "post-norm filler": (encoder_only, "encoder", {}),
}


@cache
def made(family: str):
    make, template, fields = FAMILIES[family]
    model, tokenizer = with_tokenizer(make, template, texts=[TEXT, "uno dos tres"] * 3, **fields)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())  # a page stores such weights without loss
    return model, tokenizer, "one ___ three" if family.endswith("filler") else TEXT


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return a function that saves the explorer of a family, and returns the page's address."""
    folder = tmp_path_factory.mktemp("stage")

    @cache
    def saved(family: str) -> str:
        model, tokenizer, text = made(family)
        file = folder / f"{family}.html"
        explore(model, tokenizer, text).save(file)
        return file.as_uri()

    return saved


def opened(page):
    explorer = page.locator(".explorer")
    expect(explorer.locator(".scene")).to_be_visible()
    return explorer


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def choose(explorer, group: str, name: str) -> None:
    """Press a button of each group whose name ends with `group`: "Layer" means the layers of both stacks."""
    for each in explorer.get_by_role("group", name=re.compile(f"{group}$", re.IGNORECASE)).all():
        each.get_by_role("button", name=name, exact=True).click()


def open_step(explorer, name: str, part: str, stack: str):
    """Open the card of a step, and return it."""
    card = explorer.locator("section.card")
    if card.locator("h2").all_inner_texts() != [name]:
        explorer.get_by_role("button", name=f"{name}, {part}, {stack}: open").click()
    expect(card.locator(".card-body")).to_be_visible()
    return card


STEPS = [
    ("Embeddings", "embedding"),
    ("Queries", "self-attention"),
    ("Keys", "self-attention"),
    ("Weights", "self-attention"),
    ("Heads", "self-attention"),
    ("Activation", "feed-forward"),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_card_of_each_step_has_the_whole_vectors_of_the_model(browser, pages, family):
    model, tokenizer, text = made(family)
    stack = "encoder" if "translator" in family or "filler" in family else "decoder"
    prediction, _, _ = predict(model, tokenizer, text)
    layer = {(step.part, step.name): step for step in record(model, prediction.inputs, 1, 2, stack)}
    with visit(browser, pages(family)) as page:
        explorer = opened(page)
        choose(explorer, "Layer", "2")
        choose(explorer, "Head", "3")
        explorer.get_by_role("button", name="Token 2,").first.click()
        for name, part in STEPS:
            card = open_step(explorer, name, part, stack)
            shown = card.locator(".vector-numbers li").all_inner_texts()
            expected = layer[part, name.lower()].tensor[0][1].tolist()
            assert len(shown) == len(expected)
            found = [number(re.search(r"−?[\d.]+$", text)[0]) for text in shown]
            assert found == pytest.approx(expected, abs=2e-3), name
            expect(card.locator("math")).to_have_count(1)
        card = open_step(explorer, "Queries", "self-attention", stack)
        matrix = layer["self-attention", "queries"].matrices["W_Q"]
        colours = card.locator(".map canvas").nth(1)
        size = colours.bounding_box()
        at = {"x": 3.5 / matrix.shape[1] * size["width"], "y": 20.5 / matrix.shape[0] * size["height"]}
        colours.hover(position=at)
        value = f"{matrix[20, 3].item():.4f}".replace("-", "−")
        expect(card.locator(".map .note").nth(1)).to_have_text(f"row 21, column 4: {value}")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_norms_are_drawn_where_they_are(browser, pages, family):
    model, _, _ = made(family)
    with visit(browser, pages(family)) as page:
        labels = opened(page).locator(".opener text").all_text_contents()
    sublayers = 5 if model.config.is_encoder_decoder else 2
    if model.config.norm_position == "pre":  # before each sub-layer, and after each stack
        assert labels.count("Norm") == sublayers + (2 if model.config.is_encoder_decoder else 1)
        assert labels.count("+") == sublayers
    else:
        assert labels.count("+ Norm") == sublayers and "Norm" not in labels


def test_a_cell_shows_the_products_of_query_and_key(browser, pages):
    model, tokenizer, text = made("post-norm translator")
    prediction, _, _ = predict(model, tokenizer, text)
    steps = {(s.part, s.name): s.tensor[0] for s in record(model, prediction.inputs, 0, 1, "decoder")}
    with visit(browser, pages("post-norm translator")) as page:
        explorer = opened(page)
        choose(explorer, "Layer", "1")
        choose(explorer, "Head", "2")
        explorer.get_by_role("button", name=re.compile("^Cross-attention: “")).focus()
        for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        card = explorer.locator(".cell-card")
        expect(card).to_contain_text("Cross-attention, layer 1, head 2")
        expect(card.get_by_role("img")).to_have_count(3)  # q, k and their products
        total, scaled, weight = card.locator(".sum b").all_inner_texts()
    expected = [steps["cross-attention", name][1, 2].item() for name in ("scores", "scaled scores", "weights")]
    assert [number(total), number(scaled)] == pytest.approx(expected[:2], abs=0.006)
    assert number(weight.removesuffix(" %")) == pytest.approx(100 * expected[2], abs=0.06)


# Record each caption with its time, and predictions that are shown before the first softmax.
WATCH = """() => {
    const root = document.querySelector("[id^=explorer]").shadowRoot;
    globalThis.film = { told: [], spoiled: 0, line: root.querySelector(".cable path") };
    const look = () => {
        const text = root.querySelector(".caption").textContent;
        if (text !== film.told.at(-1)?.text) film.told.push({ text, at: performance.now() });
        if (!film.told.some(({ text }) => text.startsWith("The softmax")))
            film.spoiled += root.querySelectorAll(".next:not(.away), .bars li, .hypotheses li").length;
    };
    root.querySelector("[aria-label=Play]").click();
    const all = { subtree: true, childList: true, characterData: true, attributes: true };
    new MutationObserver(look).observe(root, all);
    look();
}"""


def test_the_film_shows_layer_after_layer_and_ends_on_a_telling_token(browser, pages):
    with visit(browser, pages("post-norm translator")) as page:
        explorer = opened(page)
        page.evaluate(WATCH)
        page.wait_for_function("film.told.length > 3")
        choose(explorer, "Speed", "2×")
        page.wait_for_function("film.told.length > 8")
        told = page.evaluate("film.told")
        layers = [f"{who}, layer {i}" for who in ("In the encoder", "To write token 1") for i in (1, 2)]
        starts = [*layers, "The softmax", "To write token 2, layer 1", "To write token 2, layer 2", "The softmax"]
        for caption, start in zip(told, starts, strict=False):
            assert caption["text"].startswith(start)
        times = [caption["at"] for caption in told]
        assert times[3] - times[1] > 1700, "a second for each layer"
        assert times[7] - times[5] > 700, "half a second at double speed"
        assert page.evaluate("film.spoiled") == 0, "no prediction is shown before the softmax"
        assert page.evaluate("film.line.isConnected"), "lines change their width, and are not drawn again"
        step = int(re.search(r"token (\d+)", told[-1]["text"] + told[-2]["text"])[1]) - 1
        expect(explorer.locator(".lens thead button[aria-pressed=true]")).to_have_count(1)
        assert step >= 1
        explorer.get_by_role("button", name="Skip to the end").click()
        now = explorer.locator(".next.now")
        expect(now).to_have_count(1)
        expect(explorer.locator(".lens td.now").first).to_be_visible()


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_the_film_begins_by_itself_unless_the_visitor_prefers_less_motion(browser, pages, motion):
    with visit(browser, pages("post-norm translator"), reduced_motion=motion) as page:
        explorer = opened(page)
        slider = explorer.get_by_label("Step of the forward pass")
        if motion == "no-preference":
            expect(slider).not_to_have_value(slider.input_value())
            explorer.get_by_role("button", name="Pause", exact=True).click()
        expect(explorer.get_by_role("button", name="Play", exact=True)).to_be_visible()
        stopped_at = slider.input_value()
        page.wait_for_timeout(1500)
        assert slider.input_value() == stopped_at


def test_an_empty_hypothesis_has_a_name(browser, tmp_path):
    model, tokenizer, text = made("post-norm translator")
    data = explore_data(model, tokenizer, text, target="uno", values=False)
    data["hypotheses"] = [{"text": words, "score": -1.0, "ids": [2]} for words in ("uno", "")]
    (tmp_path / "page.html").write_text(explorer_page("Page", data=data))
    with visit(browser, (tmp_path / "page.html").as_uri()) as page:
        expect(opened(page).locator(".hypotheses li")).to_have_text(["uno −1.000", "(empty) −1.000"])


@SCREENS
def test_the_picture_has_a_caption_and_no_controls(browser, pages, size, tmp_path):
    with visit(browser, pages("pre-norm translator"), size) as page:
        explorer = opened(page)
        for name in ("SVG", "PNG"):
            with page.expect_download() as download:
                explorer.get_by_role("button", name=f"Picture ({name})").click()
            download.value.save_as(tmp_path / name)
    drawing = ElementTree.fromstring((tmp_path / "SVG").read_text(encoding="utf-8"))
    texts = [text.text or "" for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text.startswith("model · encoder layer 2 · decoder layer 2 · mean of all heads") for text in texts)
    assert {"one", "Q", "A"} <= set(texts)
    assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
    assert drawing.find(".//{http://www.w3.org/2000/svg}image") is not None
    assert drawing.find(".//{http://www.w3.org/1999/xhtml}input") is None


def test_the_keyboard_reaches_every_part_of_the_stage_in_a_few_stops(browser, pages):
    with visit(browser, pages("post-norm translator")) as page:
        explorer = opened(page)
        explorer.locator(".opener").first.focus()
        names = set()
        for _ in range(40):
            names.add(page.evaluate("document.querySelector('[id^=explorer]').shadowRoot.activeElement.ariaLabel"))
            page.keyboard.press("ArrowRight")
        for part in ("Queries, self-attention, encoder", "Values, cross-attention, decoder", "Logits and softmax"):
            assert f"{part}: open" in names
        page.keyboard.press("Enter")
        expect(explorer.locator("section.card h2")).to_have_text("Logits")
        stops = explorer.locator(".stage [tabindex='0'], .heads .head[tabindex='0']")
        assert stops.count() < 16


def test_a_phone_shows_both_stacks_at_once(browser, tmp_path):
    model, tokenizer, text = made("pre-norm translator")
    explore(model, tokenizer, text, target="uno dos tres").save(tmp_path / "page.html")
    phone = {"width": 390, "height": 844}
    with visit(browser, (tmp_path / "page.html").as_uri(), phone) as page:
        explorer = opened(page)
        scene = explorer.locator(".scene").bounding_box()
        assert scene["x"] + scene["width"] <= phone["width"]
        assert scene["y"] + scene["height"] <= phone["height"]
        expect(explorer.get_by_text(re.compile("^(Encoder|Decoder), layer"))).to_have_count(2)


def test_a_finger_reaches_every_step_and_every_cell_on_a_phone(browser, pages):
    with visit(browser, pages("pre-norm translator"), PHONE) as page:
        explorer = opened(page)
        explorer.locator(".area").first.click()
        card, names = explorer.locator("section.card"), []
        while card.get_by_role("button", name="Previous step").is_enabled():
            card.get_by_role("button", name="Previous step").click()
        while card.get_by_role("button", name="Next step").is_enabled():
            names += card.locator("h2").all_inner_texts()
            card.get_by_role("button", name="Next step").click()
        assert {"Embeddings", "Queries", "Keys", "Values", "Weights", "Activation"} <= set(names)
        card.get_by_role("button", name="Close").click()
        explorer.get_by_role("button", name=re.compile("^Cross-attention: “")).click(force=True)
        explorer.get_by_label("Query", exact=True).select_option(index=2)
        explorer.get_by_label("Key", exact=True).select_option(index=1)
        query, key = (explorer.get_by_label(name, exact=True) for name in ("Query", "Key"))
        texts = [each.evaluate("it => it.selectedOptions[0].text") for each in (query, key)]
        cursor = f"Cross-attention: “{texts[0]}” attends to “{texts[1]}”"
        expect(explorer.get_by_role("button", name=re.compile(f"^{re.escape(cursor)}"))).to_have_count(1)


def test_each_stack_shows_the_layer_chosen_for_it(browser, tmp_path):
    model, tokenizer = with_tokenizer(
        encoder_decoder, "seq2seq", texts=[TEXT, "uno dos tres"] * 3, encoder_layers=3, decoder_layers=2
    )
    explore(model, tokenizer, TEXT).save(tmp_path / "page.html")
    with visit(browser, (tmp_path / "page.html").as_uri()) as page:
        explorer = opened(page)
        titles = explorer.get_by_text(re.compile("^(Encoder|Decoder), layer"))
        expect(titles).to_have_text(["Encoder, layer 3 of 3", "Decoder, layer 2 of 2"])
        choose(explorer, "Encoder layer", "1")
        expect(titles).to_have_text(["Encoder, layer 1 of 3", "Decoder, layer 2 of 2"])
        choose(explorer, "Decoder layer", "1")
        choose(explorer, "Encoder layer", "3")
        expect(titles).to_have_text(["Encoder, layer 3 of 3", "Decoder, layer 1 of 2"])
        page.reload()
        expect(titles).to_have_text(["Encoder, layer 3 of 3", "Decoder, layer 1 of 2"])
