"""What MkDocs cannot do by itself: pages that lie outside docs/, and links to code, which becomes pages of the site.

README.md is the first page; the changelog and its like follow. A link to another file of the repository leads to a
page with that file, whose lines have the anchors that GitHub gives them (#L149).
"""

import posixpath
import re
from functools import cache
from html import escape
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound


ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
LINK = re.compile(r'(?P<before>\]\(|(?:src|srcset|href)=")(?P<target>[^)"\s#:]+)(?P<anchor>#[^)"\s]*)?(?=[)"])')


def place(target: str, folder: str) -> str:
    """Where a link of a page in `folder` leads, as a path from the root of the repository."""
    return posixpath.normpath(posixpath.join(folder, target))


def page_of(path: str) -> str:
    """What the site calls a file of the repository."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path == "docs" or path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}/index.html" if (ROOT / path).is_dir() else f"source/{path}.html"


def relinked(text: str, folder: str) -> str:
    """The text of a page of `folder`, whose links lead to pages of the site."""

    def link(match: re.Match[str]) -> str:
        path = place(match["target"], folder)
        if not (ROOT / path).exists():
            return match[0]
        here = folder.removeprefix("docs").strip("/")
        return f"{match['before']}{posixpath.relpath(page_of(path), here or '.')}{match['anchor'] or ''}"

    return LINK.sub(link, text)


@cache
def linked_sources() -> frozenset[str]:
    """The files and folders outside docs/ that pages and pictures lead to."""
    found = set()
    for file in (*map(ROOT.joinpath, OUTSIDE), *(ROOT / "docs").rglob("*")):
        if file.suffix in (".md", ".svg"):
            folder = file.parent.relative_to(ROOT).as_posix()
            found |= {place(match["target"], folder) for match in LINK.finditer(file.read_text(encoding="utf-8"))}
    return frozenset(
        path for path in found - OUTSIDE.keys() if not path.startswith(("docs", "..")) and (ROOT / path).exists()
    )


def listing(folder: Path) -> str:
    """The names in a folder."""
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir() if not entry.name.startswith("."))
    return "<ul>" + "".join(f"<li>{escape(name)}</li>" for name in names) + "</ul>"


def source_page(path: str) -> str:
    """A file of the repository as a page, with an anchor for each line."""
    file = ROOT / path
    if file.is_dir():
        return f"<!doctype html><meta charset='utf-8'><title>{path}</title><h1>{path}</h1>{listing(file)}"
    text = file.read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(file.name)
    except ClassNotFound:
        lexer = TextLexer()
    formatter = HtmlFormatter(full=True, title=path, lineanchors="L", linenos="inline")
    return highlight(text, lexer, formatter).replace('id="L-', 'id="L').replace('name="L-', 'name="L')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside, and those of code."""
    for name, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=relinked((ROOT / name).read_text(encoding="utf-8"), "")))
    for path in sorted(linked_sources()):
        files.append(File.generated(config, page_of(path), content=source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to the pages of the site."""
    if page.file.src_uri in OUTSIDE.values():
        return markdown  # its links have been led there already
    return relinked(markdown, posixpath.join("docs", posixpath.dirname(page.file.src_uri)))


def on_post_build(config: MkDocsConfig) -> None:
    """Lead the boxes of the diagrams to the pages of code."""
    for svg in Path(config.site_dir, "figures").glob("*.svg"):
        text = svg.read_text(encoding="utf-8")
        pointing = re.sub(r'"\.\./\.\./([\w./]+\.py)#', r'"../source/\1.html#', text)
        if pointing != text:
            svg.write_text(pointing, encoding="utf-8")
