"""Test the layout of the repository: where code belongs, the direction of imports, and the length of files."""

import ast
import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vanilla_transformer"
TRAVELLING = {"configuration": 420, "modeling": 1300, "generation": 170, "pipeline": 260}  # maximum number of lines
LONGEST_MODULE = 450
LONGEST_REPEAT = 9
# A module may import modules from its own floor and from lower floors, which are listed first.
FLOORS = (
    {f"{name}_vanilla_transformer" for name in TRAVELLING},
    {"lazy", "models", "loading", "decoding", "files", "data", "fast"},
    {"training", "conversion", "inside", "datastore"},
    {"tasks"},
    {"app"},
    {"cli"},
    {"__main__"},
)
COMMANDS = (
    "train translate generate evaluate serve demo tokenizer quickstart average datastore estimate walk import export"
    " push"
).split()


def python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def travelling_files() -> list[Path]:
    return [ROOT / f"{name}_vanilla_transformer.py" for name in TRAVELLING]


def modules() -> dict[str, Path]:
    """Return the paths of all modules, including the four model files, by name relative to `vanilla_transformer`."""
    files = {
        path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path for path in python_files(PACKAGE)
    }
    files = {name.removesuffix(".__init__"): path for name, path in files.items() if name != "__init__"}
    return files | {path.stem: path for path in travelling_files()}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a file imports, including imports inside functions."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
            if node.level:  # only the model files use relative imports
                found |= {f"vanilla_transformer.{module}"}
    names = {name.removeprefix("vanilla_transformer.") for name in found if name.startswith("vanilla_transformer.")}
    return names & known.keys()


def floor(module: str) -> int:
    return next(i for i, names in enumerate(FLOORS) if module.split(".")[0] in names)


def test_modules_import_only_from_their_own_floor_or_below():
    known = modules()
    assert len(known) > 60
    up = {
        f"{name} -> {other}"
        for name, path in known.items()
        for other in imports(path, known)
        if floor(other) > floor(name)
    }
    assert up == set()


def test_there_are_no_circular_imports():
    known = modules()
    packages = {
        name for name, path in known.items() if path.name == "__init__.py"
    }  # exclude packages, which import lazily
    graph = {name: imports(path, known) - packages - {name} for name, path in known.items() if name not in packages}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_four_model_files_are_short_and_use_relative_imports():
    assert sorted(ROOT.glob("*.py")) == sorted(travelling_files())
    assert {
        path.name: length(path) for path in travelling_files() if length(path) > TRAVELLING[path.stem.split("_")[0]]
    } == {}
    for path in travelling_files():
        nodes = list(ast.walk(tree(path)))
        assert not [node for node in nodes if isinstance(node, ast.Try) and "ImportError" in ast.unparse(node)], (
            path.name
        )
        absolute = [
            ast.unparse(node)
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0)
        ]
        assert not [line for line in absolute if "vanilla_transformer" in line], path.name


def test_the_model_files_contain_no_training_options():
    nodes = [node for path in travelling_files() for node in ast.walk(tree(path))]
    arguments = {
        argument.arg
        for node in nodes
        if isinstance(node, ast.arguments)
        for argument in (*node.args, *node.kwonlyargs)
    }
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert "attention_mask" in arguments and "forward" in names
    assert not arguments & {"padding", "memory_padding"}
    assert not names & {"packed", "drop", "sees_all", "ForwardSignature", "Packing"}


def test_no_module_exceeds_the_maximum_length():
    lengths = {name: length(path) for name, path in modules().items() if path.is_relative_to(PACKAGE)}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_MODULE} == {}


def test_the_training_package_has_few_modules():
    rooms = {path.stem for path in (PACKAGE / "training").glob("*.py")} - {"__init__"}
    assert rooms <= {"arguments", "trainer", "callbacks", "checkpoints", "optimizer", "batching", "averaging", "plan"}


def test_the_command_line_has_one_entry_point():
    """Scripts duplicate no command: `train.py` provides a path for torchrun, the others are for maintainers."""
    from vanilla_transformer.__main__ import COMMANDS as OFFERED

    assert sorted(OFFERED) == sorted(COMMANDS)
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    assert scripts == {"train", "benchmark", "figures", "make_checkpoints"}
    assert length(ROOT / "scripts/train.py") <= 10 and length(ROOT / "demo/app.py") <= 10


def test_scripts_and_demo_import_only_the_package_and_their_neighbours():
    for folder in ("scripts", "demo"):
        others = {"tests", "scripts", "demo"} | {path.stem for path in python_files(ROOT / "tests")}
        found = {
            (path.name, alias)
            for path in python_files(ROOT / folder)
            for node in ast.walk(tree(path))
            for alias in (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            if alias.split(".")[0] in others
        }
        assert found == set()


def test_no_test_file_imports_another():
    """Test files must not import each other: shared helpers belong in a module of their own."""
    tests = {path.stem for path in python_files(ROOT / "tests") if path.stem.startswith("test_")}
    assert len(tests) > 30
    for path in python_files(ROOT / "tests"):
        nodes = list(ast.walk(tree(path)))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not names & tests, path.name


def test_no_file_modifies_the_import_path():
    """No code or page modifies `sys.path` or PYTHONPATH."""
    folders = ("docs", "launch", ".github", "vanilla_transformer", "scripts", "demo")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    texts = {".py", ".md", ".yaml", ".yml", ".html", ".ipynb", ".txt"}
    files = [path for path in (*files, *ROOT.iterdir()) if path.suffix in texts or path.name == "Makefile"]
    assert len(files) > 100
    found = [path.name for path in files if re.search(r"\bsys\.path\b|PYTHON[P]ATH", path.read_text(encoding="utf-8"))]
    assert found == []


def test_no_ten_lines_are_duplicated():
    """Move code that two modules need to a function that both import."""
    places = defaultdict(set)
    for path in (path for folder in (PACKAGE, ROOT / "scripts", ROOT / "demo") for path in python_files(folder)):
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        for number in range(len(lines) - LONGEST_REPEAT):
            run = tuple(lines[number : number + LONGEST_REPEAT + 1])
            places[run].add((str(path.relative_to(ROOT)), number))
    assert len(places) > 5000
    assert {run[0]: where for run, where in places.items() if len(where) > 1} == {}


STILTED_OPENING = re.compile(r"(What|Those|That|Of|Else|As the)\b")


@pytest.mark.parametrize("folder", ["", "vanilla_transformer", "scripts", "demo", "tests"])
def test_docstrings_have_no_stilted_opening(folder):
    files = python_files(ROOT / folder) if folder else list(ROOT.glob("*.py"))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [(file, node) for file in files for node in ast.walk(tree(file)) if isinstance(node, documented)]
    docstrings = [(file, ast.get_docstring(node) or "") for file, node in nodes]
    found = {file.name: text.splitlines()[0] for file, text in docstrings if STILTED_OPENING.match(text)}
    assert found == {}
