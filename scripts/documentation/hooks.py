"""MkDocs hooks: pages from outside docs/, notebooks, links to code, equations, and table labels for narrow screens.

README.md is the first page. The changelog and similar files, and notebooks with their outputs, also become pages.
Links to other files of the repository lead to generated pages that show the file, with the same line anchors as on
GitHub (#L149).
"""

import json
import posixpath
import re
from functools import cache
from html import escape, unescape
from importlib.resources import files as package_files
from itertools import cycle
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

from vanilla_transformer.app.loading import DemoModel
from vanilla_transformer.app.static_page import write_static_page
from vanilla_transformer.files import shipped_models


ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
LINK = re.compile(r'(?P<before>\]\(|(?:src|srcset|href)=")(?P<target>[^)"\s#:]+)(?P<anchor>#[^)"\s]*)?(?=[)"])')
EQUATION = re.compile(r"\\\((?P<inline>.+?)\\\)|\\\[(?P<block>.+?)\\\]", re.DOTALL)
EXPLORER = "live"  # folder of the explorer's page in the site
STATE = re.compile(r"\bexplorer\.html(?=#(?:tour|explore)=)")  # in links to the explorer, before the state to open
FOLDED = '<details markdown="1"><summary>The check</summary>\n\n{code}\n\n</details>'
MATH_FONT = "STIXTwoMath-Regular.ttf"  # many systems lack a font with large brackets and roots


def repository_path(target: str, folder: str) -> str:
    """Resolve the link `target` on a page in `folder` to a path relative to the root of the repository."""
    return posixpath.normpath(posixpath.join(folder, target))


def site_path(path: str) -> str:
    """Return the path in the site for a file of the repository."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path == "docs" or path.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))
    return f"source/{path}/index.html" if (ROOT / path).is_dir() else f"source/{path}.html"


def relink(text: str, folder: str) -> str:
    """Rewrite the links of a page in `folder` to point to files of the site."""

    def link(match: re.Match[str]) -> str:
        path = repository_path(match["target"], folder)
        if not (ROOT / path).exists():
            return match[0]
        here = folder.removeprefix("docs").strip("/")
        return f"{match['before']}{posixpath.relpath(site_path(path), here or '.')}{match['anchor'] or ''}"

    return LINK.sub(link, text)


@cache
def linked_sources() -> frozenset[str]:
    """Return the files and folders outside docs/ that pages and SVG figures link to."""
    found = set()
    for file in (*map(ROOT.joinpath, OUTSIDE), *(ROOT / "docs").rglob("*")):
        if file.suffix in (".md", ".svg"):
            folder = file.parent.relative_to(ROOT).as_posix()
            text = file.read_text(encoding="utf-8")
            found |= {repository_path(match["target"], folder) for match in LINK.finditer(text)}
    return frozenset(
        path for path in found - OUTSIDE.keys() if not path.startswith(("docs", "..")) and (ROOT / path).exists()
    )


def source_page(path: str) -> str:
    """Return an HTML page that shows a file with an anchor for each line, or lists a folder."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(entry.name + "/" * entry.is_dir() for entry in file.iterdir() if entry.name[0] != ".")
        items = "".join(f"<li>{escape(name)}</li>" for name in names)
        return f"<!doctype html><meta charset='utf-8'><title>{path}</title><h1>{path}</h1><ul>{items}</ul>"
    try:
        lexer = get_lexer_for_filename(file.name)
    except ClassNotFound:
        lexer = TextLexer()
    formatter = HtmlFormatter(full=True, title=path, lineanchors="L", linenos="inline")
    html = highlight(file.read_text(encoding="utf-8"), lexer, formatter)
    return html.replace('id="L-', 'id="L').replace('name="L-', 'name="L')


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown. Its interactive outputs are only places, which `on_page_content` fills."""

    def output(cell: dict, number: int, item: dict) -> str:
        data = item.get("data", {"text/plain": item.get("text")})
        if "text/html" in data:
            return f'<div data-output="{cell["id"]}:{number}"></div>'
        if "image/png" in data:
            return f'<img class="output" alt="Output" src="data:image/png;base64,{data["image/png"].strip()}">'
        text = "".join(data["text/plain"]).rstrip()
        return f"``` {{ .text .output }}\n{text}\n```"

    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            # the badges for Colab and Kaggle are pictures from other hosts
            parts.append(re.sub(r"\[!\[(.+?)\]\(.+?\)\]", r"[\1]", text))
        else:
            code = f"```python\n{text}\n```"
            check = cell["metadata"].get("tags") == ["check"]
            parts.append(FOLDED.format(code=code) if check else code)
            parts += [output(cell, number, item) for number, item in enumerate(cell["outputs"])]
    return "\n\n".join(parts)


def fill_outputs(html: str, path: Path) -> str:
    """Put the interactive outputs of a notebook in their places on its page."""
    cells = {cell["id"]: cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]}

    def fill(place: re.Match[str]) -> str:
        item = cells[place["cell"]]["outputs"][int(place["number"])]
        return "".join(item["data"]["text/html"])

    return re.sub(r'<div data-output="(?P<cell>[\w-]+):(?P<number>\d+)"></div>', fill, html)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages from outside docs/, pages for notebooks and linked source files, and the font for equations."""
    for name, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=relink((ROOT / name).read_text(encoding="utf-8"), "")))
    for path in sorted(linked_sources()):
        files.append(File.generated(config, site_path(path), content=source_page(path)))
    for path in NOTEBOOKS.glob("*.ipynb"):
        content = relink(notebook_page(path), "docs/notebooks") + f"\n\n[Download this notebook]({path.name})\n"
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=content))
    font = (package_files("ziamath.fonts") / MATH_FONT).read_bytes()
    files.append(File.generated(config, f"stylesheets/{MATH_FONT}", content=font))
    return files


def notebook_of(page: Page) -> Path:
    """Return the notebook of a page, which may not exist."""
    return (ROOT / "docs" / page.file.src_uri).with_suffix(".ipynb")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of pages in docs/, and rank the reference and the changelog low in search results."""
    if page.file.src_uri in ("api.md", "changelog.md"):
        page.meta["search"] = {"boost": 0.1}
    if page.file.src_uri in OUTSIDE.values() or notebook_of(page).exists():
        return markdown  # `on_files` has already rewritten these links
    return relink(markdown, posixpath.join("docs", posixpath.dirname(page.file.src_uri)))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert equations to MathML, which needs no JavaScript, label table cells, and fill in interactive outputs."""

    def mathml(match: re.Match[str]) -> str:
        return convert(unescape(match[match.lastgroup]), display=match.lastgroup)

    def label_cells(table: re.Match[str]) -> str:
        names = cycle(escape(re.sub("<.+?>", "", name)) for name in re.findall("<th.*?>(.*?)</th>", table[0]))
        return re.sub("<td", lambda _: f'<td data-label="{next(names)}"', table[0])

    if page.file.src_uri == "explorer.md":
        link = f'<p><a href="{EXPLORER}/index.html">Open the explorer</a>: the shipped models run in your browser.</p>'
        html = html.replace("</h1>", f"</h1>\n{link}", 1)
    html = STATE.sub(f"{EXPLORER}/index.html", html)
    html = re.sub("<table>.*?</table>", label_cells, EQUATION.sub(mathml, html), flags=re.DOTALL)
    return fill_outputs(html, notebook_of(page)) if notebook_of(page).exists() else html


def on_post_build(config: MkDocsConfig) -> None:
    """Rewrite the links of diagram boxes to point to the source pages of the site, and add the explorer's page."""
    if not (explorer := Path(config.site_dir, EXPLORER)).exists():
        write_static_page([DemoModel(folder) for folder in shipped_models()], explorer)
    for svg in Path(config.site_dir, "figures").glob("*.svg"):
        text = svg.read_text(encoding="utf-8")
        svg.write_text(re.sub(r'"\.\./\.\./([\w./]+\.py)#', r'"../source/\1.html#', text), encoding="utf-8")
