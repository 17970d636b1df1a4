"""Test that the commands in the README work as written in a fresh clone and print the output shown.

In bash blocks, comment lines below a command show its output.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from code_blocks import blocks, printed
from fresh_process import ROOT
from vanilla_transformer.cli import train


NEXT = "the next command of the README"  # printed before each command, to split the output of the shell


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("readme") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True, timeout=600)
    return folder


def run(command: list[str], clone: Path) -> str:
    """Run a command in the clone, without input from the user, and return its output."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {"HF_HOME": str(clone.parent / "hf_home"), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        command, cwd=clone, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=3000
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def with_outputs(code: str) -> list[tuple[str, list[str]]]:
    """Return each command of a bash block with the output lines shown below it."""
    commands: list[tuple[str, list[str]]] = []
    for line in code.splitlines():
        if line.startswith("# "):
            commands[-1][1].append(line.removeprefix("# "))
        elif line:
            commands.append((line, []))
    return commands


@pytest.mark.slow
def test_the_first_example_needs_no_installation(clone):
    (block,) = blocks(clone / "README.md", "python")
    assert run([sys.executable, "-c", block.code], clone).splitlines() == printed(block.code)


@pytest.mark.slow
def test_the_commands_work_in_sequence_in_one_shell(clone):
    commands = [pair for block in blocks(clone / "README.md", "bash") for pair in with_outputs(block.code)]
    assert len(commands) >= 3 and any(said for _, said in commands)
    session = "\n".join(f"echo '{NEXT}'\n{command}" for command, _ in commands)
    _, *outputs = run(["bash", "-e", "-c", session], clone).split(f"{NEXT}\n")
    for (command, said), output in zip(commands, outputs, strict=True):
        assert output.strip(), command
        assert not said or output.splitlines() == said, command


@pytest.mark.slow
def test_training_on_the_included_data_gives_a_good_model(tmp_path, monkeypatch, capsys):
    block = next(b for b in blocks(ROOT / "README.md", "bash") if "recipes/data" in b.code)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    program, command, *options = shlex.split(block.code)
    assert (program, command) == ("vanilla-transformer", "train")
    scores = train.main(options)
    assert scores["validation"]["accuracy"] > 90
    said = capsys.readouterr().out
    (shown,) = blocks(ROOT / "README.md", "text")
    for line in shown.code.splitlines():
        beginning = re.match(r"(?:\[[#-]+\])?(\W*[^\d.]*)", line)[1]  # the bar depends on the speed
        assert beginning in said, line
    assert Path("runs/commands/curves.png").is_file() and Path("runs/commands/examples.md").is_file()
