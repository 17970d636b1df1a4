"""The demo works in a real browser, on a desk and on a phone, and the browser has nothing to complain of."""

import shutil

import pytest

from app import build
from family import encoder_decoder
from test_demo import save


sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    app = build(save(tmp_path_factory.mktemp("demo") / "translator", encoder_decoder, "seq2seq"))
    _, url, _ = app.queue().launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
    yield url
    app.close()


@pytest.mark.parametrize("width", [1200, 375])
def test_a_person_translates_and_looks_inside(address, width):
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800})
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        page.get_by_label("Text", exact=True).fill("one two")
        page.get_by_role("button", name="Translate").click()
        sync_api.expect(page.locator("img[src^='data:image']").first).to_be_visible(timeout=15000)
        page.get_by_role("tab", name="Look inside").click()
        sync_api.expect(page.get_by_text("positional encoding")).to_be_visible()
        page.get_by_role("button", name="One layer, step by step").click()
        sync_api.expect(page.get_by_text("Today is sunday").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        browser.close()
    assert complaints == []
