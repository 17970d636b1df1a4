"""Test that `make docs` builds the site without warnings, and that it works offline and on a phone."""

import os
import re
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from browsing import NEEDS_CHROMIUM, WAIT, browser, expect
from fresh_process import ROOT


__all__ = ["browser"]
pytest.importorskip("mkdocs", reason="of the dependency group docs")
NOTEBOOKS = [path.stem for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb"))]
PHONE = {"width": 390, "height": 844}
DESKS = [{"width": width, "height": 800} for width in (1220, 1440)]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # the Makefile sets the same variable
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    return folder


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        """Disable request logging."""


@pytest.fixture(scope="module")
def address(site):
    """Serve the site over HTTP, which the search requires, and yield the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def page(browser, address):
    """Yield a browser page that blocks requests to other hosts; fail if the site makes one."""
    asked = []
    page = browser.new_page(base_url=address)
    page.route(
        lambda url: not url.startswith((address, "data:")),
        lambda route: (asked.append(route.request.url), route.abort()),
    )
    yield page
    page.close()
    assert asked == []


def pages_of(site: Path) -> list[str]:
    return [
        path.relative_to(site).as_posix()
        for path in (*site.glob("*.html"), *site.glob("lessons/*.html"), *site.glob("notebooks/*.html"))
    ]


def test_pages_are_short():
    words = {path: len(path.read_text(encoding="utf-8").split()) for path in (ROOT / "docs").rglob("*.md")}
    assert {path.name: number for path, number in words.items() if number > 1500} == {}
    assert sum(number for path, number in words.items() if path.parent.name != "lessons") <= 13_500


def test_every_page_is_in_the_site(site):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"index", "changelog", "contributing", "security"}
    assert {path.stem for path in site.glob("*.html")} - {"404", "conduct"} == pages


def test_link_targets_exist_in_the_site(site):
    pages = {*site.glob("*.html"), *site.glob("lessons/*.html"), *site.glob("notebooks/*.html")} - {site / "404.html"}
    for page in pages:  # links on the 404 page are relative to the root of the site
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r'(?:href|src|srcset)="([^"#:]+)(?:#[^"]*)?"', text):
            assert (page.parent / target).exists(), f"{page.name}: no {target}"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_pages_with_equations_and_outputs(name, site):
    html = (site / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
    text = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert 'class="output highlight"' in text and '<img class="output"' in text
    assert "\\(" not in text and "\\[" not in text and "\\frac" not in text
    assert f'href="{name}.ipynb"' in text  # a link to download it
    assert "data-output" not in text


def test_diagram_boxes_link_to_existing_line_anchors(site):
    svg = (site / "figures" / "attention.svg").read_text(encoding="utf-8")
    links = set(re.findall(r'xlink:href="\.\./(source/\S+?)#(L\d+)"', svg))
    assert len(links) >= 8
    for page, anchor in links:
        assert f'id="{anchor}"' in (site / page).read_text(encoding="utf-8")


def test_every_equation_is_converted_to_mathml(site):
    for path in (ROOT / "docs" / "lessons").glob("*.md"):
        written = path.read_text(encoding="utf-8").count("```math")
        name = "index" if path.stem == "README" else path.stem
        text = (site / "lessons" / f"{name}.html").read_text(encoding="utf-8")
        assert text.count('display="block"') == written >= path.stem[0].isdigit()
        assert "\\(" not in text and "\\[" not in text and "\\frac" not in text


def test_pages_link_to_their_neighbours_and_to_the_repository(site):
    for name in set(pages_of(site)) - {"404.html", "conduct.html"}:
        text = (site / name).read_text(encoding="utf-8")
        assert ("md-footer__link--prev" in text) == (name != "index.html"), name
        assert ("md-footer__link--next" in text) == (name != "security.html"), name
        assert 'href="https://github.com/vanilla-transformer/vanilla-transformer"' in text


def test_special_tokens_are_not_parsed_as_html(site):
    """Outside code, `<s>` would strike through the following text, and `<mask>` would be invisible."""
    for page in site.glob("*.html"):
        assert not re.findall(r"<(?:s|mask|pad|unk)>", page.read_text(encoding="utf-8")), page.name


def test_the_reference_documents_the_arguments_of_each_head(site):
    text = (site / "api.html").read_text(encoding="utf-8")
    heads = [f"VanillaTransformerFor{head}.forward" for head in ("QuestionAnswering", "CausalLM")]
    shared = ("MaskedLM", "SequenceClassification", "TokenClassification")
    heads += ["EncoderHead.forward", *(f"VanillaTransformerFor{head}.head" for head in shared)]
    assert [head for head in heads if f'id="modeling_vanilla_transformer.{head}"' not in text] == []


@pytest.mark.parametrize("size", [pytest.param(size, marks=NEEDS_CHROMIUM) for size in (PHONE, *DESKS)], ids=str)
def test_no_page_and_no_table_is_wider_than_the_screen(size, site, page):
    page.set_viewport_size(size)
    hidden = []  # (page, hidden pixels) for each table
    for name in pages_of(site):
        page.goto(name)
        page.locator("details").evaluate_all("elements => elements.forEach(e => e.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        tables = page.locator(".md-typeset__scrollwrap")  # the element in which the theme lets tables scroll
        beyond = tables.evaluate_all("elements => elements.map(e => e.scrollWidth - e.clientWidth)")
        hidden += [(name, pixels) for pixels in beyond]
    assert len(hidden) > 30
    assert [found for found in hidden if found[1] > 1] == []


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("size", [pytest.param(size, marks=NEEDS_CHROMIUM) for size in (PHONE, DESKS[0])], ids=str)
def test_equations_render_offline(size, page):
    page.set_viewport_size(size)
    page.goto("lessons/2-attention.html")
    heights = page.locator("math[display=block]").evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
    assert len(heights) >= 3 and min(heights) > 15
    over, under = (page.locator(f"mfrac > :{part}-child").first.bounding_box() for part in ("first", "last"))
    assert over["y"] + over["height"] <= under["y"] + 1  # the numerator is above the denominator
    # this font has roots and brackets of any height
    assert page.evaluate("document.fonts.check('16px \"STIX Two Math\"')")


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("name", [pytest.param("look_inside", marks=NEEDS_CHROMIUM)])
def test_the_explorer_of_a_notebook_works_offline(name, page):
    page.goto(f"notebooks/{name}.html")
    explorer = page.locator('[id^="explorer-"]')
    expect(explorer).to_have_count(1)
    assert explorer.bounding_box()["height"] > 400
    expect(explorer.locator("button").first).to_be_visible()


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("link", [pytest.param("Cross-attention", marks=NEEDS_CHROMIUM)])
def test_a_link_for_the_projector_opens_the_explorer_in_presentation_mode(link, page):
    page.goto("teaching.html")
    page.get_by_role("link", name=link, exact=True).click()
    expect(page.get_by_role("heading", name=link)).to_be_visible(timeout=WAIT)
    expect(page.get_by_role("button", name="Present")).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize(("word", "found"), [
    pytest.param(word, found, marks=NEEDS_CHROMIUM)
    for word, found in {
        "masking": "6-masks", "bottleneck": "2-attention", "BERT": "knobs", "GPT": "knobs", "fine-tune": "train",
    }.items()
])  # fmt: skip
def test_the_search_ranks_the_expected_page_first(word, found, page):
    page.goto("index.html")
    page.locator(".md-search__input").click()
    page.keyboard.type(word)
    results = page.locator(".md-search-result__link")
    expect(results.first).to_be_visible()
    assert f"/{found}.html" in results.first.get_attribute("href")
