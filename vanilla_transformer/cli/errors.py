"""Run a command. For errors that the user can fix, print one line on stderr and exit with code 2."""

import os
import sys
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any


# Errors that the user can fix. Any other error is a bug and keeps its traceback. Errors from libraries are listed by
# name, because importing the libraries takes seconds.
USER_ERRORS = (ValueError, OSError, ImportError, FloatingPointError)
USER_ERRORS_OF_LIBRARIES = {*"DatasetsError EntryNotFoundError HTTPError SafetensorError StrictDataclassError".split()}

# Modules that are installed by each extra of pyproject.toml. Commands import them only when needed.
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
    """Run a command with the command-line arguments, and exit with code 2 after a user error.

    With `--traceback`, errors keep their traceback. Output is UTF-8 in any locale, except on a terminal.

    Args:
        main: the function of the command, which takes a list of arguments.
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
            if sys.stdout:  # stdout may be closed when run as a service
                sys.stdout.flush()
    except BrokenPipeError:  # a program such as `head` closed the pipe: discard the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # 128 + SIGPIPE, the exit code of a program killed by that signal
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT, the exit code after Ctrl-C
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
        sys.exit(2)


def explain(error: Exception) -> str | None:
    """Return the one-line message for a user error, or None if the error is a bug."""
    if isinstance(error, ModuleNotFoundError):
        module = (error.name or "").partition(".")[0]
        for extra, modules in EXTRAS.items():
            if module in modules.split():
                install = f"pip install 'vanilla-transformer[{extra}]'"
                return f"{module} is not installed. It is part of the extra {extra}: {install}"
    line = " ".join(str(error).split()) or type(error).__name__
    if is_of_torch_save(error):
        return f"PyTorch could not finish writing a file; is the disk full? ({line})"
    names = {cls.__name__ for cls in type(error).__mro__}
    # tokenizers raises a bare Exception for file errors
    is_of_tokenizers = type(error) is Exception and "(os error " in line
    return line if isinstance(error, USER_ERRORS) or names & USER_ERRORS_OF_LIBRARIES or is_of_tokenizers else None


def is_of_torch_save(error: Exception) -> bool:
    """Whether the error is from `torch.save`, which raises a bare RuntimeError if it cannot write a file."""
    frames = traceback.walk_tb(error.__traceback__)
    codes = {(frame.f_globals.get("__name__"), frame.f_code.co_name) for frame, _ in frames}
    return type(error) is RuntimeError and ("torch.serialization", "save") in codes
