"""Test that user errors print one line on stderr and exit with code 2, however the command is started."""

import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import packages_distributions

import pytest
import transformers
from huggingface_hub.errors import StrictDataclassClassValidationError

from documentation.command_help import collect
from fresh_process import ROOT, run_fresh, run_python, running
from vanilla_transformer.__main__ import COMMANDS, is_answered
from vanilla_transformer.cli.errors import EXTRAS, run_command
from vanilla_transformer.cli.help import FILE
from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.cli.translate import TranslateArguments
from vanilla_transformer.tasks import task_names


@dataclass
class Options:
    model: str
    num_beams: int = 4
    names: list[str] | None = None


def started(main, *arguments: str, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/translate.py", *arguments])
    run_command(main)


def failing(error: BaseException):
    def main(arguments: list[str]) -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("d_model=128 is\n  not divisible"), "d_model=128 is not divisible"),
        (FileNotFoundError(2, "No such file", "x.txt"), "[Errno 2] No such file: 'x.txt'"),
        (ModuleNotFoundError("No module named 'onnx'"), "No module named 'onnx'"),
        (StrictDataclassClassValidationError("check", ValueError("too big")), None),
        (OSError(), "OSError"),
        (Exception("No space left on device (os error 28)"), "No space left on device (os error 28)"),
    ],
)
def test_user_errors_print_one_line_and_exit_with_code_2(error, line, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stop:
        started(failing(error), monkeypatch=monkeypatch)
    printed = capsys.readouterr()
    assert stop.value.code == 2 and not printed.out
    assert printed.err.startswith("translate.py: error: ") and printed.err.count("\n") == 1
    assert line is None or printed.err == f"translate.py: error: {line}\n"


def test_the_traceback_option_raises_the_original_error(monkeypatch):
    with pytest.raises(ValueError, match="wrong"):
        started(failing(ValueError("wrong")), "--traceback", monkeypatch=monkeypatch)
    given = []
    started(given.extend, "--model", "x", "--traceback", monkeypatch=monkeypatch)
    assert given == ["--model", "x"]


def test_internal_errors_keep_their_traceback(monkeypatch):
    with pytest.raises(KeyError):
        started(failing(KeyError("labels")), monkeypatch=monkeypatch)


def test_a_misspelt_option_gets_a_suggestion():
    parser = CommandParser(Options, "What it does.")
    with pytest.raises(ValueError, match=r"no option --num_baems; did you mean --num_beams\?"):
        parser.parse_args_into_dataclasses(["--model", "x", "--num_baems", "3"])
    with pytest.raises(ValueError, match="no option --zzz; see --help"):
        parser.parse_args_into_dataclasses(["--model", "x", "--zzz"])
    (options,) = parser.parse_args_into_dataclasses(["--model", "x", "--names", "a", "b"])
    assert options == Options("x", 4, ["a", "b"])


def test_an_invalid_value_for_a_boolean_option_is_rejected(capsys):
    with pytest.raises(SystemExit):
        CommandParser(TranslateArguments).parse_args_into_dataclasses(["--datastore", "maybe"])
    assert "argument --datastore: Truthy value expected: got maybe" in capsys.readouterr().err


def test_help_describes_the_command_and_shows_only_real_defaults(capsys):
    with pytest.raises(SystemExit):
        CommandParser(Options, "What it does.\n\n    an example").parse_args(["--help"])
    text = capsys.readouterr().out
    assert "What it does.\n\n    an example\n" in text and "(default: None)" not in text
    with pytest.raises(SystemExit) as stop:
        CommandParser(Options).parse_args([])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1  # only the error, without a usage message of hundreds of options


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            ["-m", "vanilla_transformer", "translate", "Hello", "--modell", "x"],
            "There is no option --modell; did you mean --model?",
        ),
        (
            ["-m", "vanilla_transformer", "translat"],
            "There is no command 'translat'",
        ),
        (
            ["-m", "vanilla_transformer", "translate", "Hello", os.fsdecode(b"caf\xe9")],
            r"'caf\udce9' is not UTF-8 (at character 4): write it in UTF-8.",
        ),
        (["-m", "vanilla_transformer", "average", "--output", "x"], "Give either --run or --checkpoints."),
    ],
)
def test_a_failing_command_prints_one_line_and_exits_with_code_2(command, line):
    result = run_python(command, cwd=ROOT)
    assert result.returncode == 2
    assert line in result.stderr.splitlines()[-1] and "Traceback" not in result.stderr


# Print the output of each command as if only PyTorch and transformers were installed.
BARE = """
import contextlib, io
for name in arguments[0]:
    sys.modules[name] = None
from vanilla_transformer.__main__ import main

printed = {}
for command in arguments[1]:
    sys.argv = ["vanilla-transformer", *command.split()]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit:
            pass
    printed[command] = [out.getvalue(), err.getvalue().strip()]
print(json.dumps(printed))
"""


@pytest.mark.parametrize("command", [["--help"], ["estimate"]])
def test_a_closed_pipe_is_not_an_error(command, tmp_path):
    """For example, `vanilla-transformer estimate | head -1` closes the pipe early."""
    log, command = tmp_path / "log", ["-m", "vanilla_transformer", *command]
    with log.open("w") as errors, running(command, stderr=errors) as (process, output):
        output.close()
        assert process.wait(300) == 141
    assert not log.read_text()


def test_a_missing_standard_output_is_not_an_error(tmp_path):
    """In a service, which writes its results to files, `sys.stdout` may be None."""
    code = """
import os, sys
os.close(1)
sys.stdout = None
from vanilla_transformer.cli.errors import run_command
run_command(lambda _: print("done"))
"""
    process = run_python(["-c", code])
    assert (process.returncode, process.stderr) == (0, "")


def test_only_commands_that_need_a_missing_extra_fail_and_name_it(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x/config.json").write_text("{}")
    (tmp_path / "y.jsonl").write_text("{}")
    hidden = [module for modules in EXTRAS.values() for module in modules.split()]
    lacking = {
        "evaluate --model x --test_file y.jsonl": ("accelerate", "train"),
        "datastore --model x --train_file y.jsonl": ("datasets", "train"),
        "translate --model x --datastore": ("faiss", "datastore"),
        "export --source x --output y": ("ctranslate2", "export"),
        "translate --engine ctranslate2 x": ("ctranslate2", "export"),
        "export --source x --output y --to onnx": ("onnxscript", "export"),
    }
    working = [f"{name} --help" for name in COMMANDS]
    printed = run_fresh(BARE, tmp_path, hidden, [*lacking, *working, "--help", "estimate"], installed=True, cold=True)
    for command, (module, extra) in lacking.items():
        said = (
            f"{module} is not installed. It is part of the extra {extra}: pip install 'vanilla-transformer[{extra}]'"
        )
        assert printed[command] == ["", f"vanilla-transformer {command.split()[0]}: error: {said}"]
    for command in working:
        assert f"usage: vanilla-transformer {command.removesuffix(' --help')}" in printed[command][0], printed[command]
    assert "\n  evaluate   Score a saved model on any data" in printed["--help"][0]
    assert "63.0 million" in printed["estimate"][0]


def test_the_modules_of_each_extra_match_pyproject():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    of_module = packages_distributions()
    of_module["pandas"] = of_module["pyarrow"] = ["datasets"]  # both are dependencies of datasets
    for extra, modules in EXTRAS.items():
        required = {re.match(r"[\w-]+", line)[0].lower() for line in extras[extra]}
        for module in modules.split():
            assert {name.lower().replace("_", "-") for name in of_module[module]} & required, module


# Print the output and CPU time of command lines that must not import torch.
EARLY = """
import contextlib, io, time
printed = []
for command in arguments:
    sys.argv = ["/bin/vanilla-transformer", *command]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        with contextlib.suppress(SystemExit):
            from vanilla_transformer.__main__ import main
            main()
    printed.append(out.getvalue() + err.getvalue())
    assert not {"torch", "transformers", "datasets"} & sys.modules.keys(), command
print(json.dumps([printed, time.process_time()]))
"""


def test_help_of_every_command_is_fast(tmp_path):
    commands = [[], ["--help"], ["train", "--help"], *([name, "--help"] for name in COMMANDS)]
    commands += [["train", task, "-h"] for task in task_names()]
    printed, _ = run_fresh(EARLY, tmp_path, *commands, installed=True, cold=True)
    for command, text in zip(commands, printed, strict=True):
        assert f"usage: vanilla-transformer {' '.join(command[:-1]) or 'COMMAND'} " in text
    _, seconds = run_fresh(EARLY, tmp_path, ["train", "translation", "--help"], installed=True, cold=True)
    assert seconds < 0.5


def test_wrong_names_and_missing_files_are_rejected_before_torch_is_imported(tmp_path):
    (tmp_path / "rows.xlsx").write_text("x")
    (tmp_path / "recipe.yaml").write_text("task: tagging\nmax_stepz: 3\n")
    wrong = {
        "translat": "did you mean translate?",
        "train translatio": "did you mean translation?",
        "train missing.yaml": "missing.yaml",
        "train recipe.yaml": "recipe.yaml: there is no option max_stepz; did you mean --max_steps?",
        "train translation --max-stepz 3": "did you mean --max_steps?",
        "evaluate --per_device_evl_batch_size 3": "did you mean --per_device_eval_batch_size?",
        "estimate --gpuss 8": "did you mean --gpus?",
        "translate --input missing.txt": "missing.txt: there is no such file",
        "translate --model missing": "missing: there is no such folder",
        "serve missing": "missing: there is no such folder",
        "train tagging --train_file missing.jsonl": "missing.jsonl: there is no such file",
        "train translation --train_file=rows.xlsx": "rows.xlsx: its name must end in one of .json",
        "evaluate --model user/name --test_file rows.xlsx": "rows.xlsx: its name must end in one of .json",
    }
    printed, _ = run_fresh(EARLY, tmp_path, *(command.split() for command in wrong), installed=True, cold=True)
    for (command, said), line in zip(wrong.items(), printed, strict=True):
        assert line.startswith("vanilla-transformer") and said in line and line.count("\n") == 1, command


def test_supported_files_pass_the_early_check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("book.txt", "train.en", "train.de", "rows.csv.gz"):
        (tmp_path / name).write_text("a")
    for command in (
        "tokenizer --train_file book.txt",
        "evaluate --test_file train.en train.de",
        "train tagging --train_file rows.csv.gz",
    ):
        name, *arguments = command.split()
        assert not is_answered(name, arguments)


def test_the_stored_help_is_up_to_date():
    """If this test fails, run `make help`."""
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    if stored["trainer"]["version"] != transformers.__version__:
        pytest.skip("the Trainer of another version has other options")
    assert json.loads(json.dumps(collect())) == stored


BASELINE = """
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers import GenerationMixin, PreTrainedModel, PreTrainedTokenizerFast
"""


@pytest.mark.slow
def test_translating_takes_little_more_time_than_importing():
    """Compare CPU times of whole processes, each the best of three."""

    def seconds(command: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.stderr == "" and done.stdout in ("", "Me gusta viajar.\n")
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    translate = [sys.executable, "-m", "vanilla_transformer", "translate", "I like to travel."]
    baseline = min(seconds([sys.executable, "-c", BASELINE]) for _ in range(3))
    assert min(seconds(translate) for _ in range(3)) <= 1.15 * baseline
