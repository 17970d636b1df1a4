"""Walk the explorer's tour and run its experiments in a real browser, on a page without a server."""

import json
import re
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest

from browsing import NEEDS_CHROMIUM, PHONE, choose, expect, visit
from demo_server import address_of
from family import decoder_only, encoder_decoder, encoder_only
from saved_models import save
from vanilla_transformer import VanillaTransformerForSequenceClassification
from vanilla_transformer.app.app import find_models
from vanilla_transformer.app.static_page import write_static_page
from vanilla_transformer.inside import Interventions
from vanilla_transformer.inside.page import compare_data
from vanilla_transformer.loading import load_model, load_tokenizer


pytestmark = NEEDS_CHROMIUM
SCREEN = {"width": 1920, "height": 1080}
TEXT = "Wednesday, July 4, 2029"
MODELS = {
    "translator": (encoder_decoder, "seq2seq"),
    "writer": (decoder_only, "causal"),
    "classifier": (
        partial(encoder_only, VanillaTransformerForSequenceClassification, id2label={0: "English", 1: "Spanish"}),
        "encoder",
    ),
}
EVERYWHERE = ["token", "position", "query-and-key", "square-root", "heads", "residual", "feed-forward"]
STOPS = {
    "translator": [*EVERYWHERE, "mask", "cross-attention", "softmax", "beam-search"],
    "writer": [*EVERYWHERE, "mask", "softmax"],
    "classifier": [*EVERYWHERE, "softmax"],
}
EXPERIMENTS = {
    "translator": ["positions", "mask", "head", "residual", "scaling", "temperature"],
    "writer": ["positions", "mask", "head", "residual", "scaling", "temperature"],
    "classifier": ["positions", "head", "residual", "scaling", "temperature"],
}
FAMILIES = pytest.mark.parametrize("family", MODELS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    texts = [TEXT, "The parcel from Kenya", "12 kilómetros"] * 2
    return {name: save(folder / name, *made, texts=texts) for name, made in MODELS.items()}


@pytest.fixture(scope="module")
def address(folders, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("static") / "page"
    write_static_page(find_models(list(folders.values())), folder)
    return (Path(folder) / "index.html").as_uri()


def link(address: str, **kept) -> str:
    return f"{address}#explore={quote(json.dumps(kept))}"


def settled(page, stop: str = "[a-z-]+"):
    """Return the tour once it is at a stop, whose numbers have been computed."""
    expect(page).to_have_url(re.compile(f"%22tour%22%3A%22{stop}%22"))
    tour = page.locator(".tour")
    expect(tour).to_contain_text("Notice:")
    expect(tour).not_to_contain_text("being computed")
    return tour


def stop_in(address: str) -> str | None:
    found = re.search(r"%22tour%22%3A%22([a-z-]+)%22", address)
    return found and found[1]


@FAMILIES
def test_arrow_keys_walk_the_tour_of_every_family(browser, address, family):
    with visit(browser, link(address, model=family, text=TEXT)) as page:
        page.get_by_role("button", name="Tour", exact=True).click()
        texts = []
        for stop in STOPS[family]:
            texts.append(settled(page, stop).locator(".tour-text").inner_text())
            page.keyboard.press("ArrowRight")
        assert len(set(texts)) == len(texts)
        assert not re.search(r"undefined|NaN|Infinity|\[object|null", "\n".join(texts))
        expect(settled(page).get_by_role("button", name="Next stop")).to_be_disabled()
        page.keyboard.press("ArrowLeft")
        settled(page, STOPS[family][-2])
        page.keyboard.press("Escape")
        expect(page.locator(".tour")).to_be_hidden()
        expect(page.get_by_role("button", name="Tour", exact=True)).to_be_focused()
        expect(page).not_to_have_url(re.compile("tour"))


@FAMILIES
def test_link_of_each_stop_opens_it_in_a_new_page(browser, address, family):
    with visit(browser, link(address, model=family, text=TEXT, tour="token")) as page:
        links = settled(page).locator("nav a")
        hrefs = [each.get_attribute("href") for each in links.all()]
        titles = []
        for each, stop in zip(links.all(), STOPS[family], strict=True):
            each.click()
            titles.append(settled(page, stop).inner_text())
    assert [stop_in(href) for href in hrefs] == STOPS[family]
    for href, title in zip(hrefs, titles, strict=True):
        with visit(browser, address + href) as page:
            assert settled(page).inner_text() == title
            expect(page.locator(".message")).to_be_hidden()
            expect(page.locator("input[name=text]")).to_have_value(TEXT)


def test_short_link_opens_a_stop_and_an_unknown_stop_opens_the_first_one(browser, address):
    for name, title in [("mask", "Mask"), ("nothing", "Token")]:
        with visit(browser, f"{address}#tour={name}") as page:
            expect(settled(page).locator("h2")).to_have_text(title)
            expect(page.locator(".message")).to_be_hidden()


def test_arrow_keys_in_a_text_field_do_not_leave_the_stop(browser, address):
    with visit(browser, link(address, model="translator", text=TEXT, tour="position")) as page:
        settled(page)
        page.get_by_label("Text to translate").press("ArrowRight")
        expect(page.locator(".tour h2")).to_have_text("Position")
        page.get_by_label("Text to translate").fill("July 4")
        page.get_by_label("Text to translate").press("Enter")
        expect(page.locator(".scene .token title").first).to_have_text('" July"')
        expect(settled(page).locator("h2")).to_have_text("Position")
        choose(page, "Classify")
        expect(page.locator(".tour nav a")).to_have_count(len(STOPS["classifier"]))
        expect(settled(page).locator("h2")).to_have_text("Position")


# Font sizes in pixels of the screen of all visible texts that are smaller than `least`.
SMALL_TEXTS = """(least) => {
  const frame = document.querySelector("[id^=explorer]").shadowRoot.querySelector(".explorer");
  const hasText = (it) => [...it.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...frame.querySelectorAll("*")].flatMap((it) => {
    const box = it.getBoundingClientRect();
    if (!hasText(it) || !it.checkVisibility() || box.width < 2 || ["STYLE", "title"].includes(it.tagName)) return [];
    const size = parseFloat(getComputedStyle(it).fontSize) * it.currentCSSZoom;
    return size < least ? [`${size} ${it.tagName} ${it.className.baseVal ?? it.className}: ${it.textContent}`] : [];
  });
}"""


@FAMILIES
def test_presentation_mode_shows_only_large_type(browser, address, family):
    with visit(browser, link(address, model=family, text=TEXT, tour="token", present=True), SCREEN) as page:
        for stop in STOPS[family]:
            settled(page, stop)
            assert page.evaluate(SMALL_TEXTS, 28) == []
            expect(page.locator("form")).to_be_hidden()
            page.keyboard.press("PageDown")
        page.goto(link(address, model=family, text=TEXT, tour="position", present=True))
        settled(page, "position").locator(".act a").click()  # an experiment takes the place of the picture
        page.locator(".predictions button").first.click()
        expect(page.locator(".lab .verdict")).to_be_visible()
        assert page.evaluate(SMALL_TEXTS, 28) == []
        page.get_by_role("button", name="Close the experiment").click()
        expect(page.locator(".scene")).to_be_visible()
        page.get_by_role("button", name="Present").click()
        expect(page.locator("form")).to_be_visible()
        expect(page.locator(".scene")).to_be_visible()


def test_every_stop_fits_a_phone(browser, address):
    for present in (False, True):
        options = {"tour": "token", "present": present}
        with visit(browser, link(address, model="translator", text=TEXT, **options), PHONE) as page:
            for stop in STOPS["translator"]:
                settled(page, stop)
                assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
                page.keyboard.press("ArrowRight")


def openers(page):
    return page.locator(".experiments .actions").first.get_by_role("button")


@FAMILIES
def test_experiments_ask_first_then_show_the_outcome_and_restore_the_page(browser, address, family):
    with visit(browser, link(address, model=family, text=TEXT)) as page:
        expect(page.locator(".scene")).to_be_visible()
        before = page.locator(".front").inner_text()
        expect(openers(page)).to_have_count(len(EXPERIMENTS[family]) + 1)
        for i, name in enumerate(EXPERIMENTS[family]):
            openers(page).nth(i).click()
            lab = page.locator(".lab")
            expect(page).to_have_url(re.compile(f"%22experiment%22%3A%22{name}%22"))
            expect(lab.locator(".verdict")).to_have_count(0)
            choices = lab.locator(".predictions button")
            assert choices.count() == 3
            choices.nth(0).click()
            expect(lab.locator(".verdict")).to_be_visible()
            expect(lab.locator(".predictions .right")).to_have_count(1)
            is_right = "right" in (choices.nth(0).get_attribute("class") or "")
            assert lab.locator(".verdict").inner_text().startswith("Your prediction was right") == is_right
            assert not re.search(r"undefined|NaN|Infinity|\[object|null", lab.inner_text())
            page.get_by_role("button", name="Close the experiment").click()
            expect(lab).to_have_count(0)
            assert page.locator(".front").inner_text() == before
            expect(page).not_to_have_url(re.compile("experiment|changes"))
        expect(page.locator(".broken")).to_be_hidden()
        openers(page).last.click()
        expect(page.get_by_label(re.compile("^Positions of the")).first).to_be_visible()


def test_outcome_of_an_experiment_equals_that_of_pytorch(browser, address, folders):
    folder = folders["translator"]
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    words = [TEXT, " ".join(reversed(TEXT.split(" ")))]
    off = Interventions(positions_off=frozenset({"encoder"}))
    expected = [compare_data(model, tokenizer, text, off)["changed"]["answer"].strip() for text in words]
    with visit(browser, link(address, model="translator", text=TEXT, experiment="positions")) as page:
        page.locator(".predictions button").nth(1).click()
        expect(page.locator(".lab .verdict")).to_be_visible()
        assert page.locator(".texts span").all_inner_texts() == words
        after = [page.locator(".lab .side:nth-child(2) .answer").nth(i).inner_text().strip() for i in range(2)]
        assert after == expected
        page.get_by_role("link", name="Look inside the changed model").click()
        expect(page.get_by_label("Positions of the encoder")).not_to_be_checked()
        expect(page.locator(".beside .verdict")).to_be_visible()
        page.go_back()
        expect(page.locator(".predictions button").first).to_be_enabled()
        expect(page.locator(".beside")).to_be_hidden()


def test_switches_for_the_scaling_and_the_temperature_change_the_prediction(browser, address):
    with visit(browser, link(address, model="translator", text=TEXT, experiment="switches")) as page:
        verdict = page.locator(".beside .verdict")
        page.get_by_label("Division by √d_k").uncheck()
        expect(verdict).to_contain_text("%")
        page.get_by_role("button", name="Reset all").click()
        expect(verdict).to_be_hidden()
        page.locator(".broken").get_by_label(re.compile("^Temperature")).fill("2")
        expect(verdict).to_contain_text("The probability of the original answer goes from")
        expect(page).to_have_url(re.compile("%22temperature%22%3A2"))


def test_the_tour_ends_with_live_training_on_a_server(browser, folders):
    with (
        address_of(folders["classifier"]) as address,
        visit(browser, link(address, model="classifier", text=TEXT, tour="softmax")) as page,
    ):
        settled(page)
        page.keyboard.press("ArrowRight")
        expect(page.locator(".tour h2")).to_have_text("Watch it learn")
        expect(page.locator(".tour .notice")).to_contain_text(re.compile(r"After \d+ steps?, [\d.]+ % of the numbers"))
        copied = page.url
        page.keyboard.press("ArrowLeft")
        expect(settled(page).locator("h2")).to_have_text("Softmax and temperature")
        expect(page.locator(".output .answer").first).to_be_visible()
        with visit(browser, copied) as again:
            expect(again.locator(".tour h2")).to_have_text("Watch it learn")
            expect(again.locator(".lesson")).to_be_visible()
