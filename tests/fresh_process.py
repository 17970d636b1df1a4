"""Run code as a user elsewhere would: in a new process, in another folder, where this project cannot be imported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


ROOT = Path(__file__).parent.parent
MODULES = [path.stem for folder in (ROOT, ROOT / "scripts") for path in folder.glob("*.py")]
# `-I` leaves out the working folder and PYTHONPATH; an installed project is hidden by name.
PRELUDE = """
import json, sys
for name in {modules}:
    sys.modules[name] = None
arguments = json.loads(sys.argv[1])
"""


def run_fresh(code: str, folder: Path, *arguments: Any, **environment: str) -> Any:
    """Run `code` in `folder`; it reads the list `arguments` and prints JSON on its last line, which comes back.

    Nobody answers there: standard input is empty, so a question to the user fails the test.
    """
    process = subprocess.run(
        [sys.executable, "-I", "-c", PRELUDE.format(modules=MODULES) + code, json.dumps(arguments)],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HF_HOME": str(folder / "hf_home"), "OMP_NUM_THREADS": "1"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    assert "Do you wish to run" not in process.stdout + process.stderr, process.stdout
    return json.loads(process.stdout.splitlines()[-1])
