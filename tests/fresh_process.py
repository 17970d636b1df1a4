"""Run code as another user would: in a new process and folder, where this project cannot be imported."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any


ROOT = Path(__file__).parent.parent
MODULES = ["vanilla_transformer"]
# `-I` ignores the working folder and PYTHONPATH. `hidden` blocks the import of an installed copy of this project.
PRELUDE = """
import json, sys
for name in {hidden}:
    sys.modules[name] = None
arguments = json.loads(sys.argv[1])
"""
# For code that must not use the network: fail all connections and collect their addresses in `asked`.
UNDER_WATCH = """
import socket
asked = []
def refuse(*address, **options):
    asked.append(str(address))
    raise OSError("no network here")
socket.getaddrinfo = refuse
socket.socket.connect = lambda self, address: refuse(address)
"""
# Prefixes of variables that Python, glibc and OpenMP read at program start, so that a fork cannot change them.
READ_AT_START = ("PYTHON", "LANG", "LC_", "MALLOC_", "GLIBC_", "LD_", "OMP_")
# test_fresh_process.py checks that no fork sees a path in this HF_HOME.
SERVER_ENVIRONMENT = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "HF_HOME": "/hf_home_of_the_fork_server"}
NUMBER = struct.Struct("q")


@cache
def fork_server() -> socket.socket:
    """Start the fork server and return its socket. The server ends when the socket is closed."""
    here, there = socket.socketpair()
    with there:
        subprocess.Popen(
            [sys.executable, "-I", ROOT / "tests" / "fork_server.py", str(there.fileno())],
            pass_fds=[there.fileno()], env=SERVER_ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return here


class Process:
    """A fork that emulates `python ARGUMENTS`. The interface is that of `subprocess.Popen`, without pipes."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        stdin: IO,
        stdout: IO,
        stderr: IO,
        cwd: Path | None = None,
        env: Mapping[str, str] = os.environ,
    ):
        known = os.environ | SERVER_ENVIRONMENT
        late = [
            name
            for name in env
            if name.startswith(READ_AT_START) and env[name] not in (known.get(name), os.environ.get(name))
        ]
        assert not late, f"a fork cannot set {late}: start a new interpreter"
        self.args = [str(argument) for argument in arguments]
        self.returncode: int | None = None
        request = {"arguments": self.args, "cwd": str(cwd or Path.cwd()), "environment": dict(env)}
        message = json.dumps(request).encode()
        self.answers, there = socket.socketpair()
        with there:
            descriptors = [file.fileno() for file in (stdin, stdout, stderr, there)]
            socket.send_fds(fork_server(), [NUMBER.pack(len(message))], descriptors)
            fork_server().sendall(message)
        self.pid = self._receive()

    def _receive(self) -> int:
        (number,) = NUMBER.unpack(self.answers.recv(NUMBER.size, socket.MSG_WAITALL))
        return number

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            self.answers.settimeout(timeout)
            try:
                self.returncode = os.waitstatus_to_exitcode(self._receive())
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout) from None
            self.answers.close()
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_python(
    arguments: Sequence[str | Path], *, input: str = "", timeout: float = 600, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Emulate `subprocess.run([sys.executable, *arguments], capture_output=True, encoding="utf-8")` in a fork."""
    with ExitStack() as stack:
        standard = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", newline="")) for _ in range(3)]
        stdin, stdout, stderr = standard
        stdin.write(input)
        stdin.seek(0)
        process = Process(arguments, *standard, **options)
        try:
            returncode = process.wait(timeout)
        finally:
            process.kill()
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(process.args, returncode, stdout.read(), stderr.read())


@contextmanager
def running(
    arguments: Sequence[str | Path], *, stderr: IO | None = None, **options: Any
) -> Iterator[tuple[Process, IO[str]]]:
    """Run `python ARGUMENTS` in a fork; yield the process and a stream of its output while it runs."""
    readable, writable = os.pipe()
    with open(readable, encoding="utf-8") as output, open(os.devnull, "r+") as nothing:
        with open(writable, "w") as end:
            process = Process(arguments, nothing, end, stderr or nothing, **options)
        try:
            yield process, output
        finally:
            process.kill()
            process.wait(60)


def run_fresh(
    code: str, folder: Path, *arguments: Any, installed: bool = False, cold: bool = False, **environment: str
) -> Any:
    """Run `code` in `folder` and return the JSON that it prints on its last line.

    The code can use the list `arguments`. Standard input is empty, so that prompts for user input fail.

    Args:
        installed: whether `code` can import the project.
        cold: whether to start a new interpreter instead of forking one that has imported torch and transformers.
    """
    prelude = PRELUDE.format(hidden=[] if installed else MODULES)
    command = ["-I", "-c", prelude + code, json.dumps(arguments)]
    environment = {
        "PATH": os.environ["PATH"],
        "HF_HOME": str(folder / "hf_home"),
        "OMP_NUM_THREADS": "1",
    } | environment
    if cold:
        process = subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=600,
        )  # fmt: skip
    else:
        process = run_python(command, cwd=folder, env=environment)
    assert process.returncode == 0, process.stderr
    assert "Do you wish to run" not in process.stdout + process.stderr, process.stdout
    return json.loads(process.stdout.splitlines()[-1])
