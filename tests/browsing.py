"""Open the demo and the documentation in a real browser."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
CHROMIUM = shutil.which("chromium")
NEEDS_CHROMIUM = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
DESK, PHONE = {"width": 1200, "height": 800}, {"width": 375, "height": 700}
SCREENS = pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
WAIT = 60_000  # timeout in milliseconds, long enough for a single busy core


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visit(browser, address: str, size: dict[str, int] = DESK, complains: bool = False, **options) -> Iterator:
    """Yield a browser page; finally, check that it fits the width of the screen and logged no console errors.

    Args:
        complains: whether to allow console errors, which are expected without a server, for example.
        options: keyword arguments for `new_page`.
    """
    page = browser.new_page(viewport=size, **({"reduced_motion": "reduce"} | options))
    page.set_default_timeout(WAIT)
    expect.set_options(timeout=WAIT)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    yield page
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    page.close()
    assert complains or complaints == []


def choose(page, task: str) -> None:
    """Choose a task and model by its label, such as "Translate · en-es", or only by its task."""
    choice = page.get_by_label("Task and model")
    label = next(text for text in choice.locator("option").all_inner_texts() if text.startswith(task))
    choice.select_option(label=label)


def open_switches(explorer) -> None:
    """Show the switches for single parts, which the experiments hide."""
    explorer.get_by_role("button", name="All switches").click()
