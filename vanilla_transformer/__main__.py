"""Entry point of `vanilla-transformer COMMAND` and `python -m vanilla_transformer COMMAND`.

Printing help and checking the names of options and files does not import torch and transformers, which takes seconds.
"""

import sys
from difflib import get_close_matches
from importlib import import_module

from vanilla_transformer.cli.errors import run_command
from vanilla_transformer.cli.help import all_help, before_dashes, check_names, trainer_options, values_of
from vanilla_transformer.cli.recipes import choose_task, data_files, is_recipe, read_recipe
from vanilla_transformer.data.arguments import file_formats
from vanilla_transformer.files import check_input, check_source
from vanilla_transformer.tasks import task_names


# Command -> module in `vanilla_transformer.cli`.
COMMANDS = {
    "train": "train",
    "translate": "translate",
    "generate": "generate",
    "evaluate": "evaluate",
    "serve": "serve",
    "demo": "demo",
    "tokenizer": "tokenizer",
    "quickstart": "quickstart",
    "average": "average",
    "datastore": "datastore",
    "estimate": "estimate",
    "walk": "walk",
    "import": "import_checkpoint",
    "export": "export",
    "push": "push",
}


def usage() -> str:
    """Return the output of `vanilla-transformer --help`: each command with the first line of its help."""
    lines = [f"  {name:<10} {all_help()[name].description.partition(chr(10))[0]}" for name in COMMANDS]
    return "\n".join(
        ["usage: vanilla-transformer COMMAND [options]", "", *lines, "", "COMMAND --help shows its options."]
    )


def is_answered(name: str, arguments: list[str]) -> bool:
    """Print the help of a command if requested, and return whether it was. Otherwise check options and file names.

    Raises:
        FileNotFoundError: a file or model folder does not exist.
        ValueError: a task or option does not exist, or a data file has an unknown suffix.
    """
    names, task, recipe = [name], None, None
    task_of_files, files, options = data_files(arguments) if name == "train" else (None, [], [])
    if files:  # without a task, the options of all tasks are accepted
        task, arguments = task_of_files, options
        names = [f"train {each}" for each in ([task] if task else task_names())]
        file_formats(files, parallel=len(files) == 2 and task in (None, "translation"))
    elif name == "train" and arguments[:1] not in (["-h"], ["--help"]):
        task, arguments = choose_task(arguments)
        names = [f"train {task}"]
        recipe = arguments[0] if arguments and is_recipe(arguments[0]) else None
    if {"-h", "--help"} & {*before_dashes(arguments)}:
        print(all_help()[names[0] if len(names) == 1 else name].render())
        return True
    known = [options for options in map(known_options, names) if options is not None]
    if len(known) == len(names):
        check_names(arguments, set().union(*known))
        if recipe is not None:
            read_recipe(recipe, known[0])
    check_files(name, arguments, task)
    return False


def known_options(name: str) -> set[str] | None:
    """Return the names of a command's options, or None if they are only known after importing its libraries."""
    text = all_help()[name]
    # `evaluate` also accepts the options of the model's task.
    texts = [text, *(all_help()[f"train {task}"] for task in task_names() if name == "evaluate")]
    trainers = trainer_options() if any(each.has_trainer_options for each in texts) else set()
    return None if text.passes_on or trainers is None else trainers.union(*(each.names for each in texts))


def check_files(name: str, arguments: list[str], task: str | None) -> None:
    """Check that the files and models on the command line exist, and that data files have a known suffix."""
    for option in ("--input", "--numbers"):
        for file in values_of(arguments, option):
            check_input(file)
    if name != "demo":  # the demo skips models that it cannot load
        models = [argument for argument in arguments[:1] if name == "serve" and not argument.startswith("-")]
        for option in ("--model", "--source", "--model_name_or_path"):
            models += values_of(arguments, option)[:1]
        for source in models:
            check_source(source, short_names=name == "import" or task is not None)
    for split in ("train", "validation", "test"):
        if files := values_of(arguments, f"--{split}_file"):
            # A later check rejects parallel files if the task does not support them.
            file_formats(files, parallel=len(files) == 2)


def command(arguments: list[str]) -> None:
    """Run the command named by the first argument.

    Raises:
        ValueError: the command does not exist; see also `is_answered`.
    """
    name, *arguments = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        advice = f"did you mean {near[0]}?" if near else f"choose one of: {', '.join(COMMANDS)}."
        raise ValueError(f"There is no command {name!r}; {advice}")
    sys.argv = [f"vanilla-transformer {name}", *arguments]  # the name shown in errors
    if not is_answered(name, arguments):
        if name == "demo":  # it listens before it imports PyTorch
            print("Starting the demo. Its address is printed below.", flush=True)
        import_module(f"vanilla_transformer.cli.{COMMANDS[name]}").main(arguments)


def main() -> None:
    """Run the `vanilla-transformer` console script."""
    sys.argv[0] = "vanilla-transformer"  # the name shown in errors
    run_command(command)


if __name__ == "__main__":
    main()
