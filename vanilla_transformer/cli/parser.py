"""Parse the options of a command into dataclasses."""

import argparse
import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from vanilla_transformer.cli.help import Help, check_names, hint, normalize, options_in


# Use in commands that load a model: `field(default=False, metadata=TRUST_REMOTE_CODE)`.
TRUST_REMOTE_CODE = {
    "help": "Run the Python files in the model's folder instead of the installed classes. They run with "
    "your rights, and can use your files and your network: read them first."
}


class CommandParser(HfArgumentParser):
    """Like `HfArgumentParser`, but with a shorter help text and one-line errors.

    `--help` shows our own options in groups, and `--help_trainer` shows those of the Trainer. The error for an unknown
    option suggests a similar one.

    Args:
        dataclass_types: dataclasses of options; empty if all options are added with `add_argument`.
        description: docstring of the command's module, shown unchanged in the help.
    """

    def __init__(self, dataclass_types: Any = None, description: str | None = None, **options: Any):
        super().__init__(dataclass_types, description=description, **options)
        self.add_argument(
            "--traceback", action="store_true", default=argparse.SUPPRESS, help="Show where an error comes from."
        )
        if self.trainer_options:
            self.add_argument(
                "--help_trainer",
                action=TrainerHelp,
                help=f"Show the {len(self.trainer_options)} other options, those of the Trainer: --max_steps, "
                "--num_train_epochs, --per_device_train_batch_size, --save_steps, --resume_from_checkpoint ...",
            )

    @property
    def trainer_options(self) -> set[str]:
        """Names of Trainer's options, except those that our own dataclasses redefine."""
        names: set[str] = set()
        for dtype in self.dataclass_types:
            if is_trainers(dtype):
                classes = [cls for cls in dtype.__mro__ if not cls.__module__.startswith(("transformers", "builtins"))]
                ours = {name for cls in classes for name in vars(cls).get("__annotations__", {})}
                names |= {f.name for f in dataclasses.fields(dtype) if f.init} - ours
        return names

    @property
    def names(self) -> set[str]:
        """Names of all options, as returned by `normalize`."""
        return {normalize(option) for option in self._option_string_actions if option.startswith("--")}

    def describe(self, of_the_trainer: bool = False) -> Help:
        """Return the help for all options except Trainer's, or for Trainer's options only."""
        groups = [
            (title, {invocation(action): explanation(action) for action in actions})
            for title, actions in self.groups(of_the_trainer)
            if actions
        ]
        positional = " ".join(invocation(action) for action in self._actions if not action.option_strings)
        usage = self.usage or " ".join(filter(None, (self.prog, positional, "[options]")))
        return Help(usage, self.description or "", groups, has_trainer_options=bool(self.trainer_options))

    def groups(self, of_the_trainer: bool) -> Iterator[tuple[str, list[argparse.Action]]]:
        """Yield the title and options of each group: one group per dataclass, and one for all other options."""
        hidden = self.trainer_options
        # Use only the first action of each name. Trainer's `--no_x` is the same as `--x false`.
        shown = list({action.dest: action for action in reversed(self._actions)}.values())[::-1]
        if of_the_trainer:
            yield "options of the Trainer", [action for action in shown if action.dest in hidden]
            return
        grouped: set[str] = set()
        for dtype in self.dataclass_types:
            names = {f.name for f in dataclasses.fields(dtype)} - grouped
            grouped |= names
            yield group_title(dtype), [action for action in shown if action.dest in names - hidden]
        others = [action for action in shown if action.dest not in grouped]
        yield "arguments", [action for action in others if not action.option_strings]
        yield "help" if grouped else "options", [action for action in others if action.option_strings]

    def format_help(self) -> str:
        """Return the output of `--help`."""
        return self.describe().render() + "\n"

    def error(self, message: str) -> NoReturn:
        """Print one line on stderr and exit with status 2."""
        # show each option under one name only
        message = re.sub(r"argument (--\w+)(?:/--[\w-]+)+", r"argument \1", message)
        self.exit(2, f"{self.prog}: error: {message}; see --help\n")

    def parse_args_into_dataclasses(  # type: ignore[override]  # keyword-only, unlike in HfArgumentParser
        self, args: list[str] | None = None, **options: Any
    ) -> tuple[Any, ...]:
        """Return an instance of each dataclass and, if there are other options, a namespace with these.

        Raises:
            ValueError: an option does not exist.
        """
        args = sys.argv[1:] if args is None else args
        check_names(args, self.names)  # otherwise, argparse would report missing options first
        options = {"look_for_args_file": False} | options | {"return_remaining_strings": True}
        *parsed, unknown = super().parse_args_into_dataclasses(args, **options)
        if unknown:
            raise ValueError(f"There is no option {' '.join(unknown)}{hint(unknown[0], self.names)}")
        return tuple(part for part in parsed if part != argparse.Namespace(traceback=True))

    def given_names(self, args: Sequence[str]) -> set[str]:
        """Return the names of the fields set by the arguments. Options may be abbreviated or contain dashes."""
        names = self.names
        given: set[str] = set()
        for name in map(normalize, options_in(args)):
            given |= {name} if name in names else {option for option in names if option.startswith(name)}
        return {name.removeprefix("--") for name in given}


def is_trainers(dtype: type) -> bool:
    """Whether a dataclass extends `TrainingArguments`, which takes seconds to import."""
    return "TrainingArguments" in {cls.__name__ for cls in dtype.__mro__}


def group_title(dtype: type) -> str:
    """Return the title for the options of a dataclass, such as "data options" for DataArguments."""
    if is_trainers(dtype):
        return "training options"
    words = re.findall(r"[A-Z][a-z]+", re.sub(r"(Arguments|Options)$", "", dtype.__name__))
    return " ".join([*map(str.lower, words), "options"])


def invocation(action: argparse.Action) -> str:
    """Return an option and its value as shown in the help text, or the name of a positional argument."""
    if action.choices is not None:
        value = f"{{{','.join(map(str, action.choices))}}}"
    elif action.type is string_to_bool:
        value = "{true,false}"
    else:
        value = "N" if action.type in (int, float) else "TEXT" if action.option_strings else action.dest.upper()
    by_nargs = {0: "", "?": f"[{value}]", "*": f"[{value} ...]", "+": f"{value} [{value} ...]"}
    values = value if action.nargs is None else by_nargs.get(action.nargs, value)
    names = ", ".join(name for name in action.option_strings if "-" not in name.lstrip("-"))
    return f"{names} {values}".strip()


def explanation(action: argparse.Action) -> str:
    """Return the help text of an option, with its default if it has one."""
    text = (action.help or "").replace("%%", "%")
    silent = action.default is None or action.default is False or action.default in (argparse.SUPPRESS, [])
    return text if silent else f"{text} (default: {action.default})"


class TrainerHelp(argparse.Action):
    """Action for `--help_trainer`, which shows the Trainer options that `--help` leaves out."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None):
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print the help and exit."""
        assert isinstance(parser, CommandParser)
        print(parser.describe(of_the_trainer=True).render())
        parser.exit()
