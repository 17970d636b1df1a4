"""Test that notebooks match their sources, run, and store outputs, and that their checks accept only right answers."""

import contextlib
import io
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from saved_models import with_tokenizer, write


pytest.importorskip("jupytext", reason="of the dependency group docs")
plt = pytest.importorskip("matplotlib.pyplot")
plt.switch_backend("agg")

from documentation.notebooks import (  # noqa: E402
    FOLDER,
    SOLUTIONS,
    SOURCES,
    cells_of,
    notebook,
    solutions,
)


NAMES = [path.stem for path in SOURCES]
EACH = pytest.mark.parametrize("name", NAMES)
# notebooks that train or export a model
SLOW = {"into_production", "train_a_language_model", "train_a_translator", "train_an_encoder"}
EACH_MARKED = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NAMES]
)
MACHINE = re.compile(r"/(?:work|tmp|home|root|usr|opt|Users)/")  # beginnings of paths


def source_of(name: str) -> Path:
    return FOLDER / f"{name}.py"


def stored(name: str) -> list[dict]:
    """Return the cells of a stored notebook."""
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    """Change to an empty working folder, with a translation model for the notebooks that need one."""
    save_translator(tmp_path)
    monkeypatch.setenv("TRANSLATOR", str(tmp_path / "translator"))
    monkeypatch.setenv("QUICK", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save_translator(folder: Path, **fields) -> None:
    texts = ["I like to travel.", "Me gusta viajar.", "three miles", "tres millas"] * 3
    write(folder / "translator", *with_tokenizer(texts=texts, vocab_size=300, **fields))


def play(name: str, submitted: tuple[str, ...] = ("exercise", "wrong", "solution")) -> list[tuple[str, bool]]:
    """Run the cells of a source, and submit to each check the answers with the given tags.

    Assert that each call of print produces the output promised in its trailing comment.

    Returns:
        For each answer, its tag and whether the check accepted it.
    """
    session: dict[str, Any] = {"__name__": "__main__"}
    answers, verdicts = [], []

    def run(code: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(code, name, "exec"), session)
        return output.getvalue()

    for cell, tag in cells_of(source_of(name)):
        if tag in ("exercise", "wrong", "solution"):
            answers += [(tag, cell.source)] * (tag in submitted)
        elif tag == "check":
            for kind, answer in answers:
                run(answer)
                try:
                    run(cell.source)
                except Exception:
                    verdicts.append((kind, False))
                else:
                    verdicts.append((kind, True))
            answers.clear()
        elif cell.cell_type == "code":
            printed = run(cell.source).splitlines()
            for text in re.findall(r"^print\(.*\)  # (.+)$", cell.source, re.MULTILINE):
                assert text in printed
    plt.close("all")
    return verdicts


@EACH
def test_a_stored_notebook_matches_its_source(name):
    """If this test fails, run `make notebooks`."""
    made = [(cell.cell_type, cell.source) for cell in notebook(source_of(name)).cells]
    assert made == [(cell["cell_type"], "".join(cell["source"])) for cell in stored(name)]


def test_every_notebook_has_a_source():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)


@EACH
def test_outputs_are_stored_with_pictures_and_without_machine_paths(name):
    """If this test fails, run `make notebooks`."""
    pictures = 0
    for cell in stored(name):
        if cell["cell_type"] == "code":
            is_answer = bool(cell["metadata"].get("tags"))  # exercises and checks
            assert (cell["execution_count"] is None) == is_answer
            assert not (is_answer and cell["outputs"])
            assert {output["output_type"] for output in cell["outputs"]} <= {
                "stream",
                "execute_result",
                "display_data",
            }
            pictures += sum("image/png" in output.get("data", {}) for output in cell["outputs"])
            texts = [output.get("text") or output["data"].get("text/plain") for output in cell["outputs"]]
            assert not MACHINE.search(json.dumps(texts))
    assert pictures >= 1


@pytest.mark.parametrize("name", ["look_inside", "train_a_language_model"])
def test_the_explorer_is_stored_inline(name):
    pages = [output["data"] for cell in stored(name) for output in cell.get("outputs", []) if "data" in output]
    assert sum("mountExplorer" in "".join(data.get("text/html", "")) for data in pages) == 1


@EACH_MARKED
def test_checks_accept_solutions_and_reject_wrong_answers(name, workplace):
    verdicts = play(name)
    kinds = [kind for kind, _ in verdicts]
    assert kinds.count("solution") == kinds.count("exercise") >= 3
    assert kinds.count("wrong") >= 2 * kinds.count("exercise")
    assert [verdict for verdict in verdicts if verdict[1] != (verdict[0] == "solution")] == []


@EACH_MARKED
def test_a_notebook_continues_after_an_unsolved_exercise(name, workplace):
    assert {accepted for _, accepted in play(name, submitted=("exercise",))} == {False}


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_model_built_by_hand_translates_like_a_trained_one(norm_position, workplace):
    """The notebook compares its classes with the project's, and stops if they differ."""
    save_translator(workplace, norm_position=norm_position)
    assert {accepted for _, accepted in play("build_it_yourself", submitted=("solution",))} == {True}


def test_the_model_built_by_hand_has_at_most_150_lines():
    sources = [cell.source for cell, tag in cells_of(source_of("build_it_yourself")) if not tag]
    model = [text for text in sources if re.match(r"class |def (?:attend|positions)\(", text)]
    assert 100 < sum(len([line for line in text.splitlines() if line]) for text in model) <= 150


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train_a_language_model", "train_a_translator"])
def test_full_size_training_takes_two_minutes_on_two_cores(name, workplace, monkeypatch):
    """Limit CPU time instead of elapsed time, because the machine may be busy."""
    monkeypatch.delenv("QUICK")
    started = time.process_time()
    assert {accepted for _, accepted in play(name, submitted=("solution",))} == {True}
    assert time.process_time() - started < 2 * 120


def test_solutions_are_on_a_page_of_their_own():
    """If this test fails, run `make notebooks`."""
    assert solutions() == SOLUTIONS.read_text(encoding="utf-8")
    for name in NAMES:
        shown = [cell.source for cell in notebook(source_of(name)).cells]
        answers = [cell.source for cell, tag in cells_of(source_of(name)) if tag in ("solution", "wrong")]
        assert not set(answers) & set(shown)


@EACH
def test_a_notebook_has_links_to_colab_and_kaggle_and_installs_the_project(name):
    texts = ["".join(cell["source"]) for cell in stored(name)]
    assert texts[0].startswith("# ")
    for address in re.findall(r"\]\((https://(?:colab|kaggle)\S+)\)", texts[1]):
        assert address.endswith(f"/docs/notebooks/{name}.ipynb")
    assert "colab" in texts[1] and "kaggle" in texts[1]
    assert "%pip install" in texts[2] and sum("%pip" in text for text in texts) == 1


@EACH
def test_links_in_notebooks_exist(name):
    titles = re.findall(r"^## (.+)$", SOLUTIONS.read_text(encoding="utf-8"), re.MULTILINE)
    for text in ("".join(cell["source"]) for cell in stored(name) if cell["cell_type"] == "markdown"):
        for target, anchor in re.findall(r"\]\(([^)#\s]+)#?([^)\s]*)\)", text):
            assert target.startswith("https://") or (FOLDER / target).exists(), target
            assert not anchor or anchor in [title.lower().replace(" ", "-") for title in titles], anchor
