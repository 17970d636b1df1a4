"""Show help and check option names without importing the libraries of a command. Importing torch takes seconds.

`help.json` contains the help of each command. `make help` generates it from the parsers of the commands.
"""

import difflib
import json
import re
import shutil
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any


FILE = Path(__file__).with_name("help.json")
INDENT = 24  # column where the description of an option starts
MAX_WIDTH = 110


@dataclass(frozen=True)
class Help:
    """The help of one command.

    Args:
        groups: (title, descriptions by option). The option includes its value, as in "--port N".
        has_trainer_options: whether the command also accepts Trainer's options, which are not in its help.
        passes_on: whether the command passes unknown options to another program.
    """

    usage: str
    description: str
    groups: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    has_trainer_options: bool = False
    passes_on: bool = False

    def render(self) -> str:
        """Return the output of `--help`, wrapped to the width of the terminal."""
        width = min(shutil.get_terminal_size().columns - 2, MAX_WIDTH)
        lines = [f"usage: {self.usage}", "", *self.description.strip().splitlines()]
        for title, options in self.groups:
            lines += ["", f"{title}:"]
            for option, explanation in options.items():
                explained = textwrap.wrap(explanation, max(width - INDENT, 20)) or [""]
                beside = len(option) + 4 <= INDENT
                lines += [f"  {option:<{INDENT - 2}}{explained[0]}".rstrip()] if beside else [f"  {option}"]
                lines += [" " * INDENT + line for line in explained[beside:]]
        return "\n".join(lines)

    @property
    def names(self) -> set[str]:
        """Names of the options in the help."""
        return {name for _, options in self.groups for option in options for name in re.findall(r"--\w+", option)}


@cache
def load() -> dict[str, Any]:
    """Read help.json."""
    return json.loads(FILE.read_text(encoding="utf-8"))


@cache
def all_help() -> dict[str, Help]:
    """Return the help of each command. For `train`, each task has its own entry, such as "train tagging"."""
    content = load()
    texts = {}
    for name, text in content["commands"].items():
        groups = [tuple(content["groups"][number]) for number in text.pop("groups")]
        texts[name] = Help(groups=groups, **text)
    return texts


def trainer_options() -> set[str] | None:
    """Return the names of Trainer's options, or None if help.json is for another version of transformers."""
    from importlib.metadata import version

    options = load()["trainer"]
    return {*options["names"]} if version("transformers") == options["version"] else None


def normalize(option: str) -> str:
    """Return the name of an option with underscores instead of dashes, and without its value."""
    return "--" + option.partition("=")[0].removeprefix("--").replace("-", "_")


def is_option(argument: str) -> bool:
    """Whether a command-line argument is a long option, such as `--port` or `--port=8000`."""
    return re.match(r"--\w[\w-]*(=|$)", argument) is not None


def before_dashes(arguments: Iterable[str]) -> list[str]:
    """Return the arguments before "--"."""
    return list(takewhile(lambda argument: argument != "--", arguments))


def options_in(arguments: Iterable[str]) -> list[str]:
    """Return the arguments before "--" that are options."""
    return [argument for argument in before_dashes(arguments) if is_option(argument)]


def check_names(arguments: Iterable[str], names: Iterable[str]) -> None:
    """Raise a ValueError if an option is unknown. Unique prefixes of options are accepted."""
    known = sorted(names)
    for option in options_in(arguments):
        name = normalize(option)
        if not any(other.startswith((name, name.replace("--no_", "--", 1))) for other in known):
            raise ValueError(f"There is no option {option}{hint(option, known)}")


def hint(option: str, names: Iterable[str]) -> str:
    """Return the end of the error message for an unknown option: a similar option, or a reference to --help."""
    similar = difflib.get_close_matches(normalize(option), names, n=1) if is_option(option) else []
    return f"; did you mean {similar[0]}?" if similar else "; see --help"


def values_of(arguments: list[str], name: str) -> list[str]:
    """Return the values of an option on the command line, whether they follow a space or "="."""
    values: list[str] = []
    taking = False
    for argument in before_dashes(arguments):
        if is_option(argument):
            taking = normalize(argument) == name
            if taking and "=" in argument:
                values.append(argument.partition("=")[2])
        elif taking:
            values.append(argument)
    return values
