"""Start the demo, `vanilla_transformer.app`, in a Hugging Face Space or a clone of this repository."""

from vanilla_transformer.cli.demo import main
from vanilla_transformer.cli.errors import run_command


if __name__ == "__main__":
    run_command(main)
