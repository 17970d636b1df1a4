"""Write the help of all commands to vanilla_transformer/cli/help.json, so that `--help` need not import torch.

python scripts/documentation/command_help.py
"""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import transformers

from vanilla_transformer.__main__ import COMMANDS
from vanilla_transformer.cli import train
from vanilla_transformer.cli.help import FILE, Help
from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.tasks import find_task, task_names


PASS_ON = ("serve",)  # commands that forward options to another program


def parser_of(name: str, main: Callable[[list[str]], Any]) -> CommandParser:
    """Return the parser that a command creates when it is called with `--help`."""
    parsers: list[CommandParser] = []
    with (
        patch.object(sys, "argv", [f"vanilla-transformer {name}"]),
        patch.object(CommandParser, "print_help", lambda parser, file=None: parsers.append(parser)),
        suppress(SystemExit),
    ):
        main(["--help"])
    return parsers[0]


def parsers() -> dict[str, CommandParser]:
    """Return the parsers of all commands, including one of `train` for each task."""
    commands = {
        name: import_module(f"vanilla_transformer.cli.{module}").main
        for name, module in COMMANDS.items()
        if name != "train"
    }
    commands |= {f"train {name}": partial(train.run, find_task(name)) for name in task_names()}
    return {name: parser_of(name, main) for name, main in commands.items()}


def collect() -> dict[str, Any]:
    """Return the content of help.json."""
    made = parsers()
    texts = {name: replace(parser.describe(), passes_on=name in PASS_ON) for name, parser in made.items()}
    summaries = {name: (find_task(name).__doc__ or "").partition("\n")[0] for name in task_names()}
    texts["train"] = Help(
        "vanilla-transformer train [TASK] [FILE ... | RECIPE.yaml] [options]",
        train.__doc__ or "",
        [("tasks", summaries)],
    )
    groups: list[tuple[str, dict[str, str]]] = []  # distinct groups of options, which commands share
    for text in texts.values():
        groups += [group for group in text.groups if group not in groups]
    return {
        "commands": {
            name: asdict(text) | {"groups": [groups.index(group) for group in text.groups]}
            for name, text in sorted(texts.items())
        },
        "groups": [list(group) for group in groups],
        "trainer": {
            "version": transformers.__version__,
            "names": sorted(f"--{name}" for name in made["train translation"].trainer_options),
        },
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(collect(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
