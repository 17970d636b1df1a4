"""Write the HTML of the explorer. Its models run in the page, on a server, or not at all.

This module needs neither PyTorch nor transformers, so that the demo can show its page before they are imported.
"""

import json
from html import escape
from importlib.resources import files
from typing import Any
from uuid import uuid4

from vanilla_transformer.inside.palette import LIGHT, css


MOST_BYTES = 20_000_000  # size of the weights of the largest model that runs in a page

# Files of `explorer`, concatenated in this order into the bodies of two JavaScript functions. The function scope keeps
# their names out of the surrounding page, and a saved page can embed the functions' sources.
MODEL_SCRIPTS = ("linear", "transformer", "saved_model", "answers", "effects", "layers")
SCRIPTS = (
    *("elements", "server", "models", "state", "player", "steps", "layout", "stage", "strips", "cells", "overrides"),
    *("card", "output", "sampling", "heads", "lens"),
    *("broken", "beside", "experiments", "picture", "files", "tour", "curves", "lesson", "runs", "asking"),
)
MODEL_NAMES = "UNCHANGED, modelHost, listen, fetchModel, readModel"
OPTIONS = "style, data = null, models = [], runs = [], saved = {}, served = false, linked = true"

PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<meta name="description" content="The Transformer of Attention Is All You Need at work: see what it does inside.">
<style>html {{ color-scheme: light dark; background: {paper} }} body {{ margin: 0 }}</style>
{body}
</html>
"""


def component_files() -> tuple[str, str]:
    """Return the explorer's self-contained JavaScript and CSS."""
    folder = files("vanilla_transformer.inside").joinpath("explorer")

    def joined(names: tuple[str, ...]) -> str:
        return "\n".join(folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in names)

    script = (
        f"function pageModels() {{\n{joined(MODEL_SCRIPTS)}\nreturn {{ {MODEL_NAMES} }};\n}}\n"
        f"function mountExplorer(place, {{ {OPTIONS} }}) {{\n{joined(SCRIPTS)}\n}}"
    )
    colours = " ".join(f"--{name}: {css(name)};" for name in LIGHT._fields)
    return script, f":host {{ {colours} }}\n{folder.joinpath('style.css').read_text(encoding='utf-8')}"


def for_script(value: Any) -> str:
    """Serialise `value` to JSON that is safe inside a <script> element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def explorer_html(**options: Any) -> str:
    """Return HTML that draws the explorer, with options for the JavaScript function mountExplorer."""
    script, style = component_files()
    place = f"explorer-{uuid4().hex}"
    mount = f'mountExplorer(document.getElementById("{place}"), {for_script({"style": style} | options)});'
    return f'<div id="{place}"></div>\n<script>\n(() => {{\n{script}\n{mount}\n}})();\n</script>'


def explorer_page(title: str, **options: Any) -> str:
    """Return a self-contained HTML page with the explorer. For `options`, see `explorer_html`."""
    return PAGE.format(title=escape(title), paper=css("paper"), body=explorer_html(**options))
