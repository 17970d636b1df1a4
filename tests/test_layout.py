"""Rules of the house that a program can check: who imports whom, how modules are found, how long a script is."""

import ast
import re
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
LIBRARY = "vanilla_transformer"
FOLDERS = (LIBRARY, "scripts", "demo", "tests")
LONGEST_SCRIPT = 100


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def modules(folder: str) -> set[str]:
    """What an import calls the modules of a folder of commands, and the packages in it."""
    return {path.relative_to(ROOT / folder).parts[0].removesuffix(".py") for path in python_files(folder)}


def imported(path: Path) -> set[str]:
    """The first name of each module that a file imports, wherever in the file."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize(
    ("folder", "above"), [(LIBRARY, ("scripts", "demo", "tests")), ("scripts", ("demo", "tests")),
                          ("demo", ("scripts", "tests"))],
)  # fmt: skip
def test_imports_run_one_way(folder, above):
    forbidden = set().union(*map(modules, above)) - modules(folder)
    assert len(forbidden) > 5
    assert {path.name: imported(path) & forbidden for path in python_files(folder) if imported(path) & forbidden} == {}


def test_no_test_file_imports_another():
    """What two of them need lies in a module of helpers, which imports no test either."""
    tests = {path.stem for path in python_files("tests") if path.stem.startswith("test_")}
    assert len(tests) > 30
    assert {path.name: imported(path) & tests for path in python_files("tests") if imported(path) & tests} == {}


def test_the_files_that_travel_import_nothing_else_of_the_project():
    paths = sorted(ROOT.glob("*.py"))
    assert paths and all(path.stem.endswith("_vanilla_transformer") for path in paths)
    project = {LIBRARY}.union(*map(modules, FOLDERS[1:]))
    assert {path.name: imported(path) & project for path in paths if imported(path) & project} == {}


def test_what_is_imported_is_installed():
    """Nothing looks for modules elsewhere than where an installation puts them, or beside the command."""
    files = [path for folder in ("docs", "launch", ".github", *FOLDERS) for path in (ROOT / folder).rglob("*")]
    texts = {".py", ".md", ".yaml", ".yml", ".html", ".ipynb", ".txt"}
    files = [path for path in (*files, *ROOT.iterdir()) if path.suffix in texts or path.name == "Makefile"]
    assert len(files) > 100
    found = [path.name for path in files if re.search(r"\bsys\.path\b|PYTHON[P]ATH", path.read_text(encoding="utf-8"))]
    assert found == []


def test_one_file_is_one_command_of_about_a_page():
    """What only the project's own laboratory needs lies in folders of its own."""
    scripts = sorted((ROOT / "scripts").glob("*.py"))
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in scripts}
    assert len(lengths) > 10
    assert {name: length for name, length in lengths.items() if length > LONGEST_SCRIPT} == {}
    for path in scripts:
        assert '\nif __name__ == "__main__":\n' in path.read_text(encoding="utf-8"), path.name
