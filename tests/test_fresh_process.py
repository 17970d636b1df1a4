"""Test that a fork of the server behaves like a new interpreter, and that forks do not affect each other."""

import os
import signal
import subprocess
import sys
from tempfile import TemporaryFile

import pytest

from fresh_process import SERVER_ENVIRONMENT, Process, run_fresh, run_python


LEFT_OVER = """
import inspect, os
from pathlib import Path
import datasets, huggingface_hub, numpy, transformers
import transformers.trainer_seq2seq
import transformers.dynamic_module_utils as remote_code
(server,) = arguments

def values(module):
    for value in list(vars(module).values()):
        functions = list(vars(value).values()) if inspect.isclass(value) else [value]
        yield value
        for function in filter(inspect.isfunction, functions):
            yield from function.__defaults__ or ()
            yield from (function.__kwdefaults__ or {}).values()

readers = [name for name in sys.modules if name.partition(".")[0] in ("datasets", "huggingface_hub", "transformers")]
old = [
    name for name in readers for value in values(sys.modules[name])
    if isinstance(value, (str, Path)) and server in str(value)
]
constants = huggingface_hub.constants
print(json.dumps([
    old, [os.getcwd(), constants.HF_HUB_CACHE, str(datasets.config.HF_DATASETS_CACHE), remote_code.HF_MODULES_CACHE],
    constants.HF_HUB_OFFLINE, huggingface_hub.HfApi().endpoint, datasets.config.HF_ENDPOINT,
    datasets.config.HF_HUB_OFFLINE, numpy.random.rand(), dict(os.environ),
]))
"""


def test_a_fork_has_its_own_folder_environment_and_library_settings(tmp_path):
    home = str(tmp_path / "hf_home")
    given = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://localhost:1"}
    found = run_fresh(LEFT_OVER, tmp_path, SERVER_ENVIRONMENT["HF_HOME"], **given)
    old, paths, *settings, drawn, environment = found
    assert old == []
    assert paths == [str(tmp_path), f"{home}/hub", f"{home}/datasets", f"{home}/modules"]
    assert settings == [True, "http://localhost:1", "http://localhost:1", True]
    assert environment == {"PATH": os.environ["PATH"], "HF_HOME": home, "OMP_NUM_THREADS": "1"} | given
    old, paths, *settings, drawn_next, environment = run_fresh(LEFT_OVER, tmp_path, SERVER_ENVIRONMENT["HF_HOME"])
    assert settings == [False, "https://huggingface.co", "https://huggingface.co", False]
    assert drawn != drawn_next


@pytest.mark.parametrize("installed", [True, False])
def test_the_project_can_be_imported_only_if_installed(installed, tmp_path):
    code = """
import importlib.util
left = [name for name in sys.modules if "vanilla" in name and sys.modules[name]]
try:
    import vanilla_transformer
    print(json.dumps([left, True]))
except ImportError:
    print(json.dumps([left, False]))
"""
    assert run_fresh(code, tmp_path, installed=installed) == [[], installed]


PROGRAM = """
import atexit, sys
atexit.register(print, "at exit")
print(sys.argv, __name__, sys.stdin.read(), sys.path[0])
if len(sys.argv) > 2:
    raise SystemExit(int(sys.argv[2]))
sys.argv[3]
"""


STARTS = {
    "file": ["program.py"],
    "module": ["-m", "program"],
    "code": ["-c", PROGRAM],
    "isolated": ["-I", "-c", PROGRAM],
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("arguments", [["a"], ["a", "0"], ["a", "3"]], ids=" ".join)
def test_a_forked_process_behaves_like_a_fresh_interpreter(start, arguments, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [*start, *arguments]
    expected = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, input="asked\n", capture_output=True, text=True
    )
    found = run_python(command, cwd=tmp_path, input="asked\n")
    assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout)
    assert found.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


def test_two_forks_run_concurrently_and_a_signal_ends_only_one(tmp_path):
    waits = ["-c", "import time; print('ready', flush=True); time.sleep(600)"]
    with TemporaryFile() as output:
        first, second = (Process(waits, output, output, output) for _ in range(2))
        assert first.poll() is None and second.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(0.1)
        first.send_signal(signal.SIGTERM)
        assert first.wait(20) == -signal.SIGTERM and second.poll() is None
        second.kill()
        assert second.wait(20) == -signal.SIGKILL


def test_a_command_that_takes_too_long_is_killed(tmp_path):
    with pytest.raises(subprocess.TimeoutExpired):
        run_python(["-c", "import time; time.sleep(600)"], timeout=0.1)


def test_variables_that_are_read_at_startup_are_rejected(tmp_path):
    with pytest.raises(AssertionError, match="MALLOC_ARENA_MAX"):
        run_fresh("", tmp_path, MALLOC_ARENA_MAX="1")
