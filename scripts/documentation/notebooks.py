"""Generate the notebooks in docs/notebooks from their sources, Python files in jupytext's percent format.

python scripts/documentation/notebooks.py                # or `make notebooks`: run all notebooks, about five minutes
python scripts/documentation/notebooks.py look_inside    # run only this one

Each notebook runs in an empty folder with its exercises solved, and stores its outputs. The exercises and checks are
stored without outputs. Buttons for Colab and Kaggle, and a cell that installs the project, follow the first cell.

Tags of cells in a source file:

    exercise    a cell that the reader completes
    wrong       a wrong answer, which the check must reject; only for tests
    solution    goes into docs/notebooks/solutions.md
    check       prints whether the answer is right, and does not stop the notebook
"""

import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook


FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
SOURCES = sorted(FOLDER.glob("*.py"))
SOLUTIONS = FOLDER / "solutions.md"
REPOSITORY = "vanilla-transformer/vanilla-transformer"  # on GitHub
BUTTONS = """\
[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab}) ·
[![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]({kaggle})

Try each exercise before you look at [its solution](solutions.md#{anchor}). The outputs below come from a run with all
exercises solved."""
INSTALL = """\
# Once, where the project is not installed yet: about two minutes.
import importlib.util

if importlib.util.find_spec("vanilla_transformer") is None:
    %pip install -q "vanilla-transformer[train] @ git+https://github.com/{repository}" """

CHECK = """\
try:
{code}
    print("Right.")
except Exception as error:
    print("Not yet:", error or "try again")"""
QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore"}
SECONDS = 600  # limit for one cell


def cells_of(source: Path) -> Iterator[tuple[NotebookNode, str]]:
    """Yield each cell of a source with its tag, or an empty string."""
    for cell in jupytext.read(source, fmt="py:percent").cells:
        yield cell, "".join(cell.metadata.get("tags", []))


def title_of(source: Path) -> str:
    """Return the first heading of a source."""
    return re.search(r"^# # (.+)$", source.read_text(encoding="utf-8"), re.M)[1]


def buttons(source: Path) -> str:
    """Return badges that open the notebook in Colab and Kaggle, and a link to its solutions."""
    blob = f"github.com/{REPOSITORY}/blob/main/docs/notebooks/{source.stem}.ipynb"
    colab = f"https://colab.research.google.com/{blob.replace('github.com', 'github', 1)}"
    kaggle = f"https://kaggle.com/kernels/welcome?src=https://{blob}"
    return BUTTONS.format(colab=colab, kaggle=kaggle, anchor=title_of(source).lower().replace(" ", "-"))


def as_shown(cell: NotebookNode, tag: str) -> NotebookNode:
    """Convert a source cell to a notebook cell, which keeps the tag."""
    if cell.cell_type == "markdown":
        return new_markdown_cell(cell.source)
    code = CHECK.format(code=textwrap.indent(cell.source, "    ")) if tag == "check" else cell.source
    return new_code_cell(code, metadata={"tags": [tag]} if tag else {})


def notebook(source: Path) -> NotebookNode:
    """Convert a source file to a notebook without outputs. The result is deterministic."""
    shown = [as_shown(cell, tag) for cell, tag in cells_of(source) if tag not in ("solution", "wrong")]
    install = new_code_cell(INSTALL.format(repository=REPOSITORY).rstrip())
    made = new_notebook(cells=[shown[0], new_markdown_cell(buttons(source)), install, *shown[1:]])
    for number, cell in enumerate(made.cells, start=1):
        cell.id = f"cell-{number}"
    made.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made.metadata["language_info"] = {"name": "python"}
    return made


def solved(source: Path) -> NotebookNode:
    """Convert a source file to a notebook whose exercises contain their solutions."""
    made = notebook(source)
    exercises = [cell for cell in made.cells if cell.metadata.get("tags") == ["exercise"]]
    answers = [cell.source for cell, tag in cells_of(source) if tag == "solution"]
    for exercise, answer in zip(exercises, answers, strict=True):
        exercise.source = answer
    return made


def stored(output: NotebookNode) -> NotebookNode:
    """Remove from an output the progress of training, and the text that stands for an interactive page."""
    if "text" in output:
        output.text = re.sub(r"^\[[#-]+\] step .*\n", "", output.text, flags=re.MULTILINE)
    elif "text/html" in output.data:
        del output.data["text/plain"]
    return output


def run(source: Path) -> NotebookNode:
    """Run a notebook with its exercises solved, and return it unsolved, with the outputs of the other cells.

    Raises:
        ValueError: a check failed, or an output contains a path of this machine.
    """
    from nbclient import NotebookClient  # which tests of the sources do not need

    made, ran = notebook(source), solved(source)
    with TemporaryDirectory() as folder:
        NotebookClient(
            ran,
            timeout=SECONDS,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        ).execute()
        places = (str(FOLDER.parents[1]), folder, str(Path.home()), sys.prefix)
    for cell, done in zip(made.cells, ran.cells, strict=True):
        if cell.cell_type != "code":
            continue
        outputs = [stored(output) for output in done.outputs if output.get("name") != "stderr"]
        if cell.metadata.get("tags") == ["check"] and not outputs[-1].text.endswith("Right.\n"):
            raise ValueError(f"{source.name}: the solution fails this check:\n{cell.source}\n{outputs[-1].text}")
        if not cell.metadata.get("tags"):
            outputs = [output for output in outputs if output.get("text") != ""]
            cell.outputs, cell.execution_count = outputs, done.execution_count
        if found := [place for place in places if place in nbformat.v4.writes(new_notebook(cells=[cell]))]:
            raise ValueError(f"{source.name}: an output contains {found[0]}:\n{cell.source}")
    return made


def solutions() -> str:
    """Return the page with the solutions of all notebooks."""
    parts = [
        "# Solutions of the notebooks\n\nThere is often more than one right answer: the checks accept them all.\n"
    ]
    for source in SOURCES:
        parts.append(f"## {title_of(source)}\n\n[To the notebook]({source.stem}.ipynb)\n")
        answers = [cell.source for cell, tag in cells_of(source) if tag == "solution"]
        parts += [f"Exercise {number}:\n\n```python\n{code}\n```\n" for number, code in enumerate(answers, start=1)]
    return "\n".join(parts)


def main(names: list[str]) -> None:
    """Write the page of solutions, then run the named notebooks, or all of them, and store them with their outputs."""
    os.environ |= QUIET
    SOLUTIONS.write_text(solutions(), encoding="utf-8")
    for source in SOURCES:
        if not names or source.stem in names:
            target = source.with_suffix(".ipynb")
            target.write_text(nbformat.writes(run(source), version=nbformat.NO_CONVERT) + "\n", encoding="utf-8")
            print(target.relative_to(FOLDER.parents[1]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
