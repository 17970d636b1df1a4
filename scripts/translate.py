"""Translate texts, or the lines of a file or of standard input, with a saved model.

python scripts/translate.py "I like to travel."
python scripts/translate.py --model FOLDER_OR_HUB_NAME < source.txt > target.txt
"""

from vanilla_transformer.cli.parser import run_command
from vanilla_transformer.cli.translate import main


if __name__ == "__main__":
    run_command(main)
