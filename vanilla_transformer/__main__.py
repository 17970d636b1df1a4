"""`vanilla-transformer`, or `python -m vanilla_transformer`: the commands that need no clone of the repository."""

import sys
from importlib import import_module


# Sub-command -> module in `vanilla_transformer.commands`.
COMMANDS = {
    "translate": "translate",
    "generate": "generate",
    "evaluate": "evaluate",
    "average": "average",
    "walk": "walk",
    "import": "import_checkpoint",
    "export": "export",
    "push": "push",
}


def first_line(module: str) -> str:
    return (import_module(f"vanilla_transformer.commands.{module}").__doc__ or "").partition("\n")[0]


def usage() -> str:
    lines = [f"  {name:<10} {first_line(module)}" for name, module in COMMANDS.items()]
    return "\n".join(
        ["usage: vanilla-transformer COMMAND [options]", "", *lines, "", "COMMAND --help shows its options."]
    )


def main() -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return
    if name not in COMMANDS:
        sys.exit(f"vanilla-transformer: there is no command {name!r}; there are: {', '.join(COMMANDS)}.")
    sys.argv = [f"vanilla-transformer {name}", *arguments]  # what the command's help calls itself
    import_module(f"vanilla_transformer.commands.{COMMANDS[name]}").main()


if __name__ == "__main__":
    main()
