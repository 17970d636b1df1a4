"""Run a command for its user: an error that the user can fix takes one line on stderr and ends with exit code 2."""

import os
import sys
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any


# What the user can fix. Any other error is a defect of ours and keeps its traceback. Errors of libraries are listed by
# name, since an error before long work should not wait for their import.
USER_ERRORS = (ValueError, OSError, ImportError, FloatingPointError)
USER_ERRORS_OF_LIBRARIES = {"EntryNotFoundError", "StrictDataclassError", "SafetensorError"}

# The modules that each extra of pyproject.toml brings, and that are imported where they are needed.
EXTRAS = {
    "train": "accelerate babel datasets matplotlib pandas psutil pyarrow sacrebleu sacremoses scipy "
    "seqeval sklearn torchmetrics",
    "demo": "gradio",
    "serve": "fastapi openai uvicorn",
    "export": "ctranslate2 onnx onnxruntime onnxscript",
    "import": "google sentencepiece",
    "datastore": "faiss",
}


def run_command(main: Callable[[list[str]], Any]) -> None:
    """Run a command with the arguments of the command line, and exit with code 2 after a user's error.

    With `--traceback` the error keeps its traceback. Output is UTF-8 in any locale, except on a terminal.

    Args:
        main: the command, which takes its arguments.
    """
    if isinstance(sys.stdout, TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")
    arguments = [argument for argument in sys.argv[1:] if argument != "--traceback"]
    if len(arguments) < len(sys.argv) - 1:
        main(arguments)
        return
    try:
        try:
            main(arguments)
        finally:
            if sys.stdout:  # a service may have closed it
                sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` has: discard the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # 128 + SIGPIPE, as for a program that the signal ends
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
        sys.exit(2)


def explain(error: Exception) -> str | None:
    """Return the line that tells the user of an error, or None if it is a defect of ours."""
    if isinstance(error, ModuleNotFoundError):
        module = (error.name or "").partition(".")[0]
        for extra, modules in EXTRAS.items():
            if module in modules.split():
                install = f"pip install 'vanilla-transformer[{extra}]'"
                return f"{module} is not installed: the extra {extra} has it, {install}"
    line = " ".join(str(error).split()) or type(error).__name__
    if is_of_torch_save(error):
        return f"PyTorch could not write a file to its end; is the disk full? ({line})"
    names = {cls.__name__ for cls in type(error).__mro__}
    # tokenizers raises a bare Exception for errors of the file system.
    is_of_tokenizers = type(error) is Exception and "(os error " in line
    return line if isinstance(error, USER_ERRORS) or names & USER_ERRORS_OF_LIBRARIES or is_of_tokenizers else None


def is_of_torch_save(error: Exception) -> bool:
    """Whether PyTorch failed to write a file, for which it raises a bare RuntimeError."""
    frames = traceback.walk_tb(error.__traceback__)
    codes = {(frame.f_globals.get("__name__"), frame.f_code.co_name) for frame, _ in frames}
    return type(error) is RuntimeError and ("torch.serialization", "save") in codes
