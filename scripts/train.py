"""Run `vanilla-transformer train` from a file, because torchrun and `accelerate launch` need a path."""

from vanilla_transformer.cli.errors import run_command
from vanilla_transformer.cli.train import main


if __name__ == "__main__":
    run_command(main)
