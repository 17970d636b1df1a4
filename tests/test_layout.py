"""Rules of the house that a program can check: who imports whom, how modules are found, how long a script is."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
LIBRARY = "vanilla_transformer"
FOLDERS = (LIBRARY, "scripts", "demo", "tests")
LONGEST_SCRIPT = 100
LONGEST_REPEAT = 9


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


# Private names that need not be looked for: those of other libraries than transformers and PyTorch, marks of our own,
# and in the last line what releases that will do may lack, or what is looked for in another way.
NOT_LOOKED_FOR = set(
    "_getframe _exit _repr_html_ _info _split_generators _generate_tables _set_pipelines _is_hf_initialized "
    "_actions _get_formatter _format_action_invocation _format_args _get_default_metavar_for_optional "
    "_get_help_string _mutually_exclusive_groups _option_string_actions _StoreFalseAction _load "
    "_fsdp_plan _load_video_processor _linear_pointwise".split()
)


def private_names(tree: ast.Module) -> set[str]:
    """The names with an underscore that a file reads of objects, or gives to a class's methods and attributes."""
    nodes = list(ast.walk(tree))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    for node in (node for cls in nodes if isinstance(cls, ast.ClassDef) for node in cls.body):
        names |= {node.name} if isinstance(node, ast.FunctionDef) else set()
        names |= {target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def looked_for(tree: ast.Module) -> set[str]:
    """The names that a file asks of their owners by `require_private_names`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [call for call in calls if getattr(call.func, "id", None) == "require_private_names"]
    lists = {argument.value.id for call in calls for argument in call.args if isinstance(argument, ast.Starred)}
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    values = [node.value for node in assigned if getattr(node.targets[0], "id", None) in lists]
    return {node.value for part in (*calls, *values) for node in ast.walk(part) if isinstance(node, ast.Constant)}


def test_private_names_of_transformers_and_pytorch_are_looked_for_where_a_file_is_imported():
    """Else a release that renames one would change what is computed, in silence."""
    paths = [*ROOT.glob("*.py"), *python_files(LIBRARY), *python_files("scripts")]
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    known = NOT_LOOKED_FOR.union(*map(looked_for, trees.values()))
    assert {name: private_names(tree) - known for name, tree in trees.items() if private_names(tree) - known} == {}


def test_one_file_is_one_command_of_about_a_page():
    """What only the project's own laboratory needs lies in folders of its own."""
    scripts = sorted((ROOT / "scripts").glob("*.py"))
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in scripts}
    assert lengths.keys() == {"train.py", "benchmark.py", "figures.py", "make_checkpoints.py"}
    assert {name: length for name, length in lengths.items() if length > LONGEST_SCRIPT} == {}
    for path in scripts:
        assert '\nif __name__ == "__main__":\n' in path.read_text(encoding="utf-8"), path.name


def test_no_run_of_ten_lines_stands_twice():
    """What two commands or modules need is a function of the library."""
    places = defaultdict(set)
    for path in (path for folder in (LIBRARY, "scripts", "demo") for path in python_files(folder)):
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        for number in range(len(lines) - LONGEST_REPEAT):
            run = tuple(lines[number : number + LONGEST_REPEAT + 1])
            places[run].add((str(path.relative_to(ROOT)), number))
    assert len(places) > 5000
    assert {run[0]: where for run, where in places.items() if len(where) > 1} == {}
