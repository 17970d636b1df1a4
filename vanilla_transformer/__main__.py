"""`vanilla-transformer`, or `python -m vanilla_transformer`: the commands that need no clone of the repository."""

import ast
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from vanilla_transformer.cli.parser import run_command


# Sub-command -> module in `vanilla_transformer.cli`.
COMMANDS = {
    "train": "train",
    "translate": "translate",
    "generate": "generate",
    "evaluate": "evaluate",
    "average": "average",
    "datastore": "datastore",
    "estimate": "estimate",
    "walk": "walk",
    "import": "import_checkpoint",
    "export": "export",
    "push": "push",
    "serve": "serve",
    "tokenizer": "tokenizer",
    "quickstart": "quickstart",
    "demo": "demo",
}


def first_line(module: str) -> str:
    """What a command's help says first; it is not imported, since that may need an extra that is not there."""
    spec = find_spec(f"vanilla_transformer.cli.{module}")
    code = Path(cast(str, cast(ModuleSpec, spec).origin)).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(code)) or "").partition("\n")[0]


def usage() -> str:
    """The text of `vanilla-transformer --help`: each command with its first line."""
    lines = [f"  {name:<10} {first_line(module)}" for name, module in COMMANDS.items()]
    return "\n".join(
        ["usage: vanilla-transformer COMMAND [options]", "", *lines, "", "COMMAND --help shows its options."]
    )


def command(arguments: list[str]) -> None:
    """Run the sub-command that the first argument names.

    Raises:
        ValueError: there is none of this name.
    """
    name, *arguments = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return
    if name not in COMMANDS:
        raise ValueError(f"There is no command {name!r}; choose one of: {', '.join(COMMANDS)}.")
    sys.argv = [f"vanilla-transformer {name}", *arguments]  # what the command's help calls itself
    import_module(f"vanilla_transformer.cli.{COMMANDS[name]}").main(arguments)


def main() -> None:
    """The console command."""
    sys.argv[0] = "vanilla-transformer"  # what errors and help call it
    run_command(command)


if __name__ == "__main__":
    main()
