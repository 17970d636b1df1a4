"""What every command has around its work: options read into dataclasses, and a user's errors told in one line."""

import argparse
import dataclasses
import difflib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

import torch
from huggingface_hub.errors import EntryNotFoundError, StrictDataclassError
from safetensors import SafetensorError
from transformers import HfArgumentParser, TrainingArguments
from transformers.hf_argparser import string_to_bool

from vanilla_transformer.files import check_input


# What a user can put right. Anything else is a defect of ours, whose traceback is wanted. Safetensors tells of a full
# disk by an error of its own.
USER_ERRORS = (
    ValueError, OSError, ImportError, FloatingPointError, EntryNotFoundError, StrictDataclassError, SafetensorError,
)  # fmt: skip

# The modules that each extra of pyproject.toml brings, and that are imported where they are needed.
EXTRAS = {
    "train": "accelerate babel datasets pandas pyarrow sacrebleu sacremoses scipy seqeval sklearn torchmetrics",
    "demo": "gradio matplotlib",
    "serve": "fastapi openai uvicorn",
    "export": "ctranslate2 onnx onnxruntime onnxscript",
    "import": "google sentencepiece",
    "datastore": "faiss",
}

# For commands that load a model: `field(default=False, metadata=TRUST_REMOTE_CODE)`.
TRUST_REMOTE_CODE = {
    "help": "Run the Python files beside the weights instead of the installed classes. They run with "
    "your rights, and can use your files and your network: read them first."
}


class CommandParser(HfArgumentParser):
    """The library's parser with a help that can be read: our options in groups, the Trainer's own on demand.

    Its errors take one line and name the option that may have been meant.

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
        if self.trainer_options:
            self.usage = "%(prog)s [RECIPE.yaml] [options]"  # a list of hundreds is no help
            self.add_argument(
                "--help_trainer",
                action=TrainerHelp,
                help=f"Show the {len(self.trainer_options)} other options, those of the library's Trainer: "
                "--max_steps, --num_train_epochs, --per_device_train_batch_size, --save_steps, "
                "--resume_from_checkpoint ...",
            )

    @property
    def trainer_options(self) -> set[str]:
        """The names of options that the Trainer has, and that no class of ours says anything of."""
        names: set[str] = set()
        for dtype in self.dataclass_types:
            if issubclass(dtype, TrainingArguments):
                ours = {name for cls in dtype.__mro__ if is_ours(cls) for name in vars(cls).get("__annotations__", {})}
                names |= {f.name for f in dataclasses.fields(dtype) if f.init} - ours
        return names

    def groups(self, of_the_trainer: bool) -> Iterator[tuple[str, list[argparse.Action]]]:
        """Titles of options and the options: a group for each dataclass, and one for what else there is."""
        hidden = self.trainer_options
        shown = [action for action in self._actions if not is_second_name(action)]
        if of_the_trainer:
            yield "options of the library's Trainer", [action for action in shown if action.dest in hidden]
            return
        grouped: set[str] = set()
        for dtype in self.dataclass_types:
            names = {f.name for f in dataclasses.fields(dtype)} - grouped
            grouped |= names
            yield group_title(dtype), [action for action in shown if action.dest in names - hidden]
        others = [action for action in shown if action.dest not in grouped]
        yield "arguments", [action for action in others if not action.option_strings]
        yield "help" if grouped else "options", [action for action in others if action.option_strings]

    def format_help(self, of_the_trainer: bool = False) -> str:
        """The text of `--help`, or that of `--help_trainer`."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(None if of_the_trainer else self.description)
        for title, actions in self.groups(of_the_trainer):
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        """End the process with status 2 and one line on stderr."""
        message = re.sub(
            r"argument (--\w+)(?:/--[\w-]+)+", r"argument \1", message
        )  # one of an option's names will do
        if choice := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            near = difflib.get_close_matches(choice[1], re.findall(r"[^\s,']+", choice[2]), n=1)
            message += f"; did you mean {near[0]}?" if near else ""
        self.exit(2, f"{self.prog}: error: {message}; see --help\n")

    def parse_args_into_dataclasses(  # type: ignore[override]  # the library's other options as keywords
        self, args: list[str] | None = None, **options: Any
    ) -> tuple[Any, ...]:
        """An instance of each dataclass; then a namespace of the options that were added one by one, if there are any.

        Raises:
            ValueError: an option that none of them has.
        """
        args = sys.argv[1:] if args is None else args
        self.check_names(args)
        if any(not action.option_strings for action in self._actions):
            args = list(self.switched_on(args))
        options = {"look_for_args_file": False} | options | {"return_remaining_strings": True}
        *parsed, unknown = super().parse_args_into_dataclasses(args, **options)
        if unknown:
            raise ValueError(f"There is no option {' '.join(unknown)}{self.hint(unknown[0].split('=')[0])}")
        return tuple(part for part in parsed if part != argparse.Namespace(traceback=True))

    def switched_on(self, args: Sequence[str]) -> Iterator[str]:
        """The arguments, with true behind each switch that a text to work on follows, as in `--datastore "a text"`."""
        for i, (argument, following) in enumerate(zip_longest(args, args[1:], fillvalue="")):
            if argument == "--":
                yield from args[i:]
                return
            yield argument
            action = self._option_string_actions.get(argument)
            if action is not None and action.type is string_to_bool and not is_truth_value(following):
                yield "true"

    def check_names(self, args: Sequence[str]) -> None:
        """Raise a ValueError for the first option that there is not, before others are found to be missing."""
        for argument in args:
            name = argument.split("=")[0]
            if argument == "--":
                return
            if re.fullmatch(r"--\w[\w-]*", name) and not any(o.startswith(name) for o in self._option_string_actions):
                raise ValueError(f"There is no option {argument}{self.hint(name)}")

    def has_option(self, name: str) -> bool:
        """Whether there is an option of this name, such as "--train_file"."""
        return name in self._option_string_actions

    def given_names(self, args: Sequence[str]) -> set[str]:
        """The names of the options among arguments, also of those with dashes or shortened, which parse as well."""
        actions = self._option_string_actions
        names: set[str] = set()
        for name in (argument.split("=")[0] for argument in args if re.match(r"--\w", argument)):
            meant = [name] if name in actions else [option for option in actions if option.startswith(name)]
            names |= {actions[option].dest for option in meant}
        return names

    def hint(self, name: str) -> str:
        """How an error goes on that tells of an unknown option."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        similar = difflib.get_close_matches(name, known, n=1) if name.startswith("-") else []
        return f"; did you mean {similar[0]}?" if similar else "; see --help"


def is_ours(cls: type) -> bool:
    """Whether a class of options is this project's."""
    return not cls.__module__.startswith(("transformers", "builtins"))


def is_truth_value(text: str) -> bool:
    """Whether it is one of the words, such as true, no or 1, that a switch can be given."""
    try:
        string_to_bool(text)
    except argparse.ArgumentTypeError:
        return False
    return True


def is_second_name(action: argparse.Action) -> bool:
    """Whether it is the library's `--no_x` beside `--x false`, which says the same."""
    return isinstance(action, argparse._StoreFalseAction)


def group_title(dtype: type) -> str:
    """What a dataclass is, as its docstring begins: "Options of the data: where ..." gives "options of the data"."""
    words = re.split(r"[:.,\n]", (dtype.__doc__ or "").strip())[0]
    return words[:1].lower() + words[1:] if words.lower().startswith("options") else "options"


class TrainerHelp(argparse.Action):
    """`--help_trainer`: what `--help` leaves out."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None):
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print it and end the process."""
        assert isinstance(parser, CommandParser)
        print(parser.format_help(of_the_trainer=True), end="")
        parser.exit()


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions as they are written, one name of each option, and the defaults that there are."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = [name for name in action.option_strings if "-" not in name.lstrip("-")]
        if not names or action.nargs == 0:
            return ", ".join(names) or super()._format_action_invocation(action)
        return f"{', '.join(names)} {self._format_args(action, self._get_default_metavar_for_optional(action))}"

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        if action.type in (int, float):
            return "N"
        return "{true,false}" if action.type is string_to_bool else "TEXT"

    def _get_help_string(self, action: argparse.Action) -> str | None:
        silent = action.default is None or action.default is False or action.default in (argparse.SUPPRESS, [])
        if silent or "%(default)" in (action.help or ""):
            return action.help
        return f"{action.help} (default: %(default)s)"


def check_text(text: str) -> None:
    """Raise a ValueError for a text whose bytes on the command line are not UTF-8, which nobody could encode again."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} is not UTF-8 (at character {error.start + 1}): write it in UTF-8.") from error


def check_texts(texts: list[str], file: str) -> None:
    """Look, before long work begins, whether what a command is to read is there: texts, or the lines of a file.

    Raises:
        ValueError: both are given, or a text is not UTF-8.
        FileNotFoundError: there is no such file.
    """
    if texts and file != "-":
        raise ValueError(f"Give texts or --input {file}, not both.")
    for text in texts:
        check_text(text)
    check_input(file)


def check_device(name: str) -> None:
    """Raise a ValueError, before long work begins, for a device that PyTorch does not find on this machine."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    counts = {"cpu": 1} | ({accelerator.type: torch.accelerator.device_count()} if accelerator else {})
    found = [device for kind, count in counts.items() for device in (kind, *(f"{kind}:{i}" for i in range(count)))]
    if name not in found:
        raise ValueError(f"--device {name}: PyTorch finds {', '.join(found)} on this machine.")


def run_command(main: Callable[[list[str]], Any]) -> None:
    """Run a command as its user starts it: with the command line's arguments, and an exit code of 2 for bad input.

    What the user can put right is told in one line on stderr; with `--traceback` Python shows where it arose. What is
    printed is UTF-8, as what is read, whatever the locale; only a terminal is given what it can show.

    Args:
        main: the command, which takes its arguments and raises one of `USER_ERRORS` for bad ones.
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
            if sys.stdout:  # there is none where a service has closed it
                sys.stdout.flush()
    except BrokenPipeError:  # who reads the output has seen enough, as `head` has: the rest of it goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # 128 + SIGPIPE, as the shell says of it
    except USER_ERRORS as error:
        sys.exit(report(in_one_line(error)))
    except RuntimeError as error:
        if not is_of_torch_save(error):
            raise
        sys.exit(report(f"PyTorch could not write a file to its end; is the disk full? ({in_one_line(error)})"))
    except KeyboardInterrupt:
        sys.exit(130)  # as the shell says of Ctrl-C


def is_of_torch_save(error: RuntimeError) -> bool:
    """Whether PyTorch could not write a file: it has no type for that, and several words."""
    frames = traceback.walk_tb(error.__traceback__)
    return type(error) is RuntimeError and any(frame.f_code is torch.save.__code__ for frame, _ in frames)


def in_one_line(error: Exception) -> str:
    """What the error says; of a module that an extra brings, how to install that."""
    module = ((isinstance(error, ModuleNotFoundError) and error.name) or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules.split():
            return f"{module} is not installed: the extra {extra} has it, pip install 'vanilla-transformer[{extra}]'"
    return " ".join(str(error).split()) or type(error).__name__


def report(message: str) -> int:
    """Print the error under the command's name; returns the exit code."""
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    return 2
