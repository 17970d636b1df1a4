"""What every command has around its work: options read into dataclasses, and a user's errors told in one line."""

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from huggingface_hub.errors import EntryNotFoundError, StrictDataclassError
from transformers import HfArgumentParser


# What a user can put right. Anything else is a defect of ours, whose traceback is wanted.
USER_ERRORS = (ValueError, OSError, ImportError, FloatingPointError, EntryNotFoundError, StrictDataclassError)

# For commands that load a model: `field(default=False, metadata=TRUST_REMOTE_CODE)`.
TRUST_REMOTE_CODE = {
    "help": "Run the Python files that lie beside the weights, in the place of the installed classes: as you, with "
    "your files and your network. Read them first."
}


class CommandParser(HfArgumentParser):
    """The library's parser, whose errors take one line and name the option that may have been meant.

    Args:
        dataclass_types: dataclasses of the options; none for options that are added one by one.
        description: what `--help` says first, such as the module's docstring: its lines stay as they are.
    """

    def __init__(self, dataclass_types: Any = None, description: str | None = None, **options):
        super().__init__(dataclass_types, description=description, formatter_class=HelpFormatter, **options)
        self.add_argument(
            "--traceback",
            action="store_true",
            default=argparse.SUPPRESS,
            help="Show where in the code an error comes from.",
        )

    def error(self, message: str) -> NoReturn:
        """End the process with status 2 and one line on stderr."""
        self.exit(2, f"{self.prog}: error: {message}; see --help\n")

    def parse_args_into_dataclasses(  # type: ignore[override]  # the library's other options as keywords
        self, args: list[str] | None = None, **options: Any
    ) -> tuple[Any, ...]:
        """An instance of each dataclass; then a namespace of the options that were added one by one, if there are any.

        Raises:
            ValueError: an option that none of them has.
        """
        options = {"look_for_args_file": False} | options | {"return_remaining_strings": True}
        *parsed, unknown = super().parse_args_into_dataclasses(args, **options)
        if unknown:
            raise ValueError(f"There is no option {' '.join(unknown)}{self.hint(unknown[0].split('=')[0])}")
        return tuple(part for part in parsed if part != argparse.Namespace(traceback=True))

    def has_option(self, name: str) -> bool:
        """Whether there is an option of this name, such as "--train_file"."""
        return name in self._option_string_actions

    def hint(self, name: str) -> str:
        """How an error goes on that tells of an unknown option."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        similar = difflib.get_close_matches(name, known, n=1) if name.startswith("-") else []
        return f"; did you mean {similar[0]}?" if similar else "; see --help"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions as they are written, and the defaults that there are."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, argparse.SUPPRESS, [], False) or "%(default)" in (action.help or ""):
            return action.help
        return f"{action.help} (default: %(default)s)"


def run_command(main: Callable[[list[str]], Any]) -> None:
    """Run a command as its user starts it: with the command line's arguments, and an exit code of 2 for bad input.

    What the user can put right is told in one line on stderr; with `--traceback` Python shows where it arose.

    Args:
        main: the command, which takes its arguments and raises one of `USER_ERRORS` for bad ones.
    """
    arguments = [argument for argument in sys.argv[1:] if argument != "--traceback"]
    if len(arguments) < len(sys.argv) - 1:
        main(arguments)
        return
    try:
        main(arguments)
    except USER_ERRORS as error:
        text = " ".join(str(error).split()) or type(error).__name__
        sys.exit(report(text))
    except KeyboardInterrupt:
        sys.exit(130)  # as the shell says of Ctrl-C


def report(message: str) -> int:
    """Print the error under the command's name; returns the exit code."""
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    return 2
