"""Run code as a user elsewhere would: in a new process, in another folder, where this project cannot be imported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


ROOT = Path(__file__).parent.parent
MODULES = ["vanilla_transformer"]
# `-I` leaves out the working folder and the environment's paths; an installed project is hidden by name.
PRELUDE = """
import json, sys
for name in {hidden}:
    sys.modules[name] = None
arguments = json.loads(sys.argv[1])
"""
# For code that should ask nobody over the network: whom it asks comes into the list `asked`, and nobody answers.
UNDER_WATCH = """
import socket
asked = []
def refuse(*address, **options):
    asked.append(str(address))
    raise OSError("no network here")
socket.getaddrinfo = refuse
socket.socket.connect = lambda self, address: refuse(address)
"""


def run_fresh(code: str, folder: Path, *arguments: Any, installed: bool = False, **environment: str) -> Any:
    """Run `code` in `folder`; it reads the list `arguments` and prints JSON on its last line, which comes back.

    The project is importable there only where it is `installed`.
    Nobody answers there: standard input is empty, so a question to the user fails the test.
    """
    prelude = PRELUDE.format(hidden=[] if installed else MODULES)
    process = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            prelude + code,
            json.dumps(arguments),
        ],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HF_HOME": str(folder / "hf_home"), "OMP_NUM_THREADS": "1"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr
    assert "Do you wish to run" not in process.stdout + process.stderr, process.stdout
    return json.loads(process.stdout.splitlines()[-1])
