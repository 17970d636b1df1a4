"""Continue prompts, one per line of a file or of standard input, with a saved language model.

echo "To be" | python scripts/generate_text.py --model FOLDER_OR_HUB_NAME --max_new_tokens 100
"""

from vanilla_transformer.command_line import run_command
from vanilla_transformer.commands.generate import main


if __name__ == "__main__":
    run_command(main)
