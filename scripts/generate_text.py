"""Continue prompts, one per line of a file or of standard input, with a saved language model.

echo "To be" | python scripts/generate_text.py --model FOLDER_OR_HUB_NAME --max_new_tokens 100
"""

from vanilla_transformer.cli.generate import main
from vanilla_transformer.cli.parser import run_command


if __name__ == "__main__":
    run_command(main)
