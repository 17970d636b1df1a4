"""Translate lines of text with a saved model: from a file or standard input to a file or standard output.

python scripts/translate.py --model FOLDER_OR_HUB_NAME < source.txt > target.txt
"""

from vanilla_transformer.command_line import run_command
from vanilla_transformer.commands.translate import main


if __name__ == "__main__":
    run_command(main)
