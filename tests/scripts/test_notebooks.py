"""Test that notebooks match their sources and run, and that the checks of exercises accept only solutions."""

import contextlib
import io
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from saved_models import with_tokenizer, write


jupytext = pytest.importorskip("jupytext", reason="of the extra docs")

from documentation.notebooks import FOLDER, notebook  # noqa: E402


SOURCES = sorted(FOLDER.glob("*.py"))
# notebooks that train or export a model
SLOW = {"into_production", "train_a_language_model", "train_a_translator", "train_an_encoder"}
TRAINING = [path for path in SOURCES if "QUICK" in path.read_text(encoding="utf-8")]
marked = [pytest.param(path, marks=[pytest.mark.slow] * (path.stem in SLOW), id=path.stem) for path in SOURCES]


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    """Change to an empty working folder, with a translation model for the notebooks that need one."""
    texts = ["I like to travel.", "Me gusta viajar.", "three miles", "tres millas"] * 3
    monkeypatch.setenv("TRANSLATOR", write(tmp_path / "translator", *with_tokenizer(texts=texts, vocab_size=300)))
    monkeypatch.setenv("QUICK", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def play(source: Path, solved: bool) -> tuple[int, list[str]]:
    """Run the cells of a source, with or without solutions; return the number of checks and the failed checks.

    Assert that each call of print produces the output promised in its trailing comment.
    """
    session: dict[str, Any] = {"__name__": "__main__"}
    checks, failed = 0, []
    for cell in jupytext.read(source, fmt="py:percent").cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type != "code" or ("solution" in tags and not solved):
            continue
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                exec(compile(cell.source, source.name, "exec"), session)
        except Exception:
            if "check" not in tags:
                raise
            failed.append(cell.source)
        checks += "check" in tags
        for text in re.findall(r"^print\(.*\)  # (.+)$", cell.source, re.MULTILINE):
            assert text in output.getvalue().splitlines()
    return checks, failed


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_matches_its_source(source):
    """If this test fails, run `make notebooks`."""
    assert notebook(source) == source.with_suffix(".ipynb").read_text(encoding="utf-8")


def test_every_notebook_has_a_source():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {path.stem for path in SOURCES}


@pytest.mark.parametrize("source", marked)
def test_a_notebook_runs_and_its_solutions_are_correct(source, workplace):
    checks, failed = play(source, solved=True)
    assert checks >= 2 and failed == []


@pytest.mark.slow
@pytest.mark.parametrize("source", TRAINING, ids=lambda path: path.stem)
def test_full_size_solutions_pass_their_checks_within_ten_minutes(source, workplace, monkeypatch):
    """Limit CPU time instead of elapsed time, because the machine may be busy: ten minutes on each of two cores."""
    monkeypatch.delenv("QUICK")
    started = time.process_time()
    assert play(source, solved=True)[1] == []
    assert time.process_time() - started < 2 * 600


@pytest.mark.parametrize("source", marked)
def test_a_notebook_reports_an_unsolved_exercise_and_continues(source, workplace):
    checks, failed = play(source, solved=False)
    assert len(failed) == checks


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_has_links_to_colab_and_kaggle_and_installs_the_project(source):
    cells = json.loads(source.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    assert texts[0].startswith("# ")
    for address in re.findall(r"\]\((https://(?:colab|kaggle)\S+)\)", texts[1]):
        assert address.endswith(f"/docs/notebooks/{source.name.replace('.py', '.ipynb')}")
    assert "colab" in texts[1] and "kaggle" in texts[1]
    assert "%pip install" in texts[2] and sum("%pip" in text for text in texts) == 1


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_links_in_notebooks_exist(source):
    for target in re.findall(r"\]\(([^)#\s]+)", source.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (FOLDER / target).exists(), target
