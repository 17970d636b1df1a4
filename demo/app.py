"""Start the demo in a Space, or in a clone: the app itself is `vanilla_transformer.app`."""

from vanilla_transformer.cli.demo import main
from vanilla_transformer.cli.errors import run_command


if __name__ == "__main__":
    run_command(main)
