"""Run `vanilla-transformer train` as a script, because torchrun and `accelerate launch` need a file path."""

from vanilla_transformer.cli.errors import run_command
from vanilla_transformer.cli.train import main


if __name__ == "__main__":
    run_command(main)
