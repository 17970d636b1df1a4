"""Run `vanilla-transformer train` as a file, for torchrun and `accelerate launch`, which need a path."""

from vanilla_transformer.cli.errors import run_command
from vanilla_transformer.cli.train import main


if __name__ == "__main__":
    run_command(main)
