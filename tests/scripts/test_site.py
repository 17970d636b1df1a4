"""`make docs` builds the site without warnings, and its links to code lead to lines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from browsing import NEEDS_CHROMIUM, browser
from fresh_process import ROOT


__all__ = ["browser"]
pytest.importorskip("mkdocs", reason="of the extra docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # as in the Makefile
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    return folder


def test_every_page_is_in_the_site(site):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"index", "changelog", "contributing", "security"}
    assert {path.stem for path in site.glob("*.html")} - {"404", "conduct"} == pages


def test_links_between_pages_and_to_code_exist(site):
    pages = {*site.glob("*.html"), *(site / "notebooks").glob("*.html")} - {site / "404.html"}
    for page in pages:  # the 404 page has links from the root of the site's address
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r'(?:href|src|srcset)="([^"#:]+)(?:#[^"]*)?"', text):
            assert (page.parent / target).exists(), f"{page.name}: no {target}"


def test_a_box_of_a_diagram_links_to_its_line(site):
    svg = (site / "figures" / "attention.svg").read_text(encoding="utf-8")
    links = set(re.findall(r'xlink:href="\.\./(source/\S+?)#(L\d+)"', svg))
    assert len(links) >= 8
    for page, anchor in links:
        assert f'id="{anchor}"' in (site / page).read_text(encoding="utf-8")


def test_every_formula_is_rendered_in_the_site(site):
    written = (ROOT / "docs/walkthrough.md").read_text(encoding="utf-8").count("```math")
    text = (site / "walkthrough.html").read_text(encoding="utf-8")
    assert text.count('<div class="arithmatex">') == written > 5


def test_token_names_are_not_read_as_html(site):
    """Outside code, `<s>` would strike out the text after it, and `<mask>` would be invisible."""
    for page in site.glob("*.html"):
        assert not re.findall(r"<(?:s|mask|pad|unk)>", page.read_text(encoding="utf-8")), page.name


def test_the_reference_documents_the_arguments_of_each_head(site):
    text = (site / "api.html").read_text(encoding="utf-8")
    heads = [f"VanillaTransformerFor{head}.forward" for head in ("QuestionAnswering", "CausalLM")]
    shared = ("MaskedLM", "SequenceClassification", "TokenClassification")
    heads += ["EncoderHead.forward", *(f"VanillaTransformerFor{head}.head" for head in shared)]
    assert [head for head in heads if f'id="modeling_vanilla_transformer.{head}"' not in text] == []


@pytest.mark.parametrize("width", [pytest.param(width, marks=NEEDS_CHROMIUM) for width in (1220, 1440)])
def test_no_table_hides_a_column_on_a_desktop_screen(width, site, browser):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.route(re.compile("^http"), lambda route: route.abort())  # equations are not checked
    hidden = []  # (page, pixels) of each table, because several tables may have the same header
    for file in site.glob("*.html"):
        page.goto(file.as_uri())
        for details in page.locator("details").all():
            details.evaluate("element => element.open = true")
        tables = page.locator(".md-typeset__scrollwrap")  # tables of the theme scroll
        beyond = tables.evaluate_all("elements => elements.map(e => e.scrollWidth - e.clientWidth)")
        hidden += [(file.name, pixels) for pixels in beyond]
    page.close()
    assert len(hidden) > 30
    assert [found for found in hidden if found[1] > 1] == []
