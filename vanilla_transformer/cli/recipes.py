"""Read recipes: files that contain the task and the options of `train`."""

import json
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

import yaml

from vanilla_transformer.cli.help import hint, normalize
from vanilla_transformer.tasks import task_names


class RecipeLoader(yaml.SafeLoader):
    """Load YAML, but read dates such as `run_name: 2026-11-26` as strings, like on the command line."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def is_recipe(argument: str) -> bool:
    """Whether a command-line argument is a recipe file."""
    is_file = argument.endswith((".yaml", ".yml", ".json")) and not argument.startswith("-")
    return is_file and not (argument.endswith(".json") and holds_rows(argument))


def holds_rows(file: str) -> bool:
    """Whether a JSON file contains data: a list, one object per line, or SQuAD's format."""
    try:
        with open(file, encoding="utf-8") as stream:
            lines = [line for line in (stream.readline(100_000), stream.readline(100_000)) if line.strip()]
    except (OSError, ValueError):
        return False
    first = "".join(lines).lstrip()
    return first.startswith("[") or '"data":' in first[:1000] or (len(lines) == 2 and lines[0].rstrip().endswith("}"))


def data_files(arguments: list[str]) -> tuple[str | None, list[str], list[str]]:
    """Split `[TASK] FILE ... [options]` into the task or None, the data files, and the options.

    The list of files is empty if a recipe or an option follows the task.
    """
    task = arguments[0] if arguments and arguments[0] in task_names() else None
    rest = arguments[1:] if task else arguments
    files = list(takewhile(lambda argument: not argument.startswith("-"), rest))
    if not files or is_recipe(files[0]) or not (Path(files[0]).is_file() or Path(files[0]).suffix):
        return task, [], rest
    return task, files, rest[len(files) :]


def load_recipe(file: str) -> dict[str, Any]:
    """Return the options of a YAML or JSON file, by name.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is not valid YAML or JSON, or is not a mapping of options to values.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
        options = (json.loads(text) if file.endswith(".json") else yaml.load(text, RecipeLoader)) or {}
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"{file} holds no options: give one a line, such as d_model: 128.")
    return options


def read_recipe(file: str, names: Iterable[str]) -> dict[str, Any]:
    """Return the options of a recipe without its task.

    Args:
        names: all valid options, with leading dashes.

    Raises:
        FileNotFoundError, ValueError: see `load_recipe`; also if an option is unknown.
    """
    options = {name: value for name, value in load_recipe(file).items() if name != "task"}
    for name in options:
        if normalize(name) not in names:
            raise ValueError(f"{file}: there is no option {name}{hint(f'--{name}', names)}")
    return options


def choose_task(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the name of the task, from the first argument or the recipe, and the remaining arguments.

    Raises:
        FileNotFoundError: the recipe does not exist.
        ValueError: no task is named, the task does not exist, or the recipe is for another task.
    """
    names = ", ".join(task_names())
    if not arguments:
        raise ValueError(f"Name data files, a task ({names}) or a recipe such as recipes/quickstart.yaml.")
    given = None if is_recipe(arguments[0]) else arguments[0]
    options = arguments if given is None else arguments[1:]
    in_recipe = load_recipe(options[0]).get("task") if options and is_recipe(options[0]) else None
    if given is None and in_recipe is None:
        raise ValueError(f"{arguments[0]} names no task: add a line such as task: translation, or name one before it.")
    name = given or in_recipe
    if name not in task_names():
        near = get_close_matches(str(name), task_names(), n=1)
        advice = f"did you mean {near[0]}?" if near else f"choose from {names}, or give a recipe."
        raise ValueError(f"There is no task {name!r}; {advice}")
    if in_recipe not in (None, name):
        raise ValueError(f"{options[0]} is a recipe for {in_recipe}, not for {name}.")
    return name, options
