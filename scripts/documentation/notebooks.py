"""Generate the notebooks in docs/notebooks from their sources, Python files in jupytext's percent format.

python scripts/documentation/notebooks.py           # or `make notebooks`

A cell tagged "solution" becomes collapsed text. A cell tagged "check" reports a wrong answer without stopping the
notebook. Buttons for Colab and Kaggle, and a cell that installs the project, follow the first cell.
"""

import sys
import textwrap
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell


FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
REPOSITORY = "vanilla-transformer/vanilla-transformer"  # on GitHub
BUTTONS = """\
[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab})
[![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]({kaggle})"""
INSTALL = """\
# Once, where the project is not installed yet: about two minutes.
import importlib.util

if importlib.util.find_spec("vanilla_transformer") is None:
    %pip install -q "vanilla-transformer[train] @ git+https://github.com/{repository}" """

SOLUTION = """\
<details><summary>Solution</summary>

```python
{code}
```

</details>"""
CHECK = """\
try:
{code}
    print("Right.")
except Exception as error:
    print("Not yet:", error or "try again")"""


def buttons(name: str) -> str:
    """Return badges that open the notebook in Colab and Kaggle."""
    blob = f"github.com/{REPOSITORY}/blob/main/docs/notebooks/{name}.ipynb"
    colab = f"https://colab.research.google.com/{blob.replace('github.com', 'github', 1)}"
    return BUTTONS.format(colab=colab, kaggle=f"https://kaggle.com/kernels/welcome?src=https://{blob}")


def as_shown(cell: NotebookNode) -> NotebookNode:
    """Convert a source cell to a notebook cell, depending on its tags."""
    tags = cell.metadata.get("tags", [])
    if "solution" in tags:
        return new_markdown_cell(SOLUTION.format(code=cell.source))
    if "check" in tags:
        return new_code_cell(CHECK.format(code=textwrap.indent(cell.source, "    ")))
    make = new_code_cell if cell.cell_type == "code" else new_markdown_cell
    return make(cell.source)


def notebook(source: Path) -> str:
    """Convert a source file to the content of an .ipynb file. The result is deterministic."""
    first, *others = jupytext.read(source, fmt="py:percent").cells
    install = new_code_cell(INSTALL.format(repository=REPOSITORY).rstrip())
    made = nbformat.v4.new_notebook()
    made.cells = [as_shown(first), new_markdown_cell(buttons(source.stem)), install, *map(as_shown, others)]
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number + 1}"
    made.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made.metadata["language_info"] = {"name": "python"}
    return nbformat.writes(made, version=nbformat.NO_CONVERT) + "\n"


def main() -> None:
    """Write all notebooks."""
    for source in sorted(FOLDER.glob("*.py")):
        target = source.with_suffix(".ipynb")
        target.write_text(notebook(source), encoding="utf-8")
        print(target.relative_to(FOLDER.parents[1]))


if __name__ == "__main__":
    sys.exit(main())
