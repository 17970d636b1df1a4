"""Average the last checkpoints of a run (section 6.1) into a complete model folder.

python scripts/average_checkpoints.py --run RUN_FOLDER --last 5 --output NEW_FOLDER
python scripts/average_checkpoints.py --checkpoints FOLDER FOLDER --output NEW_FOLDER
"""

from vanilla_transformer.command_line import run_command
from vanilla_transformer.commands.average import main


if __name__ == "__main__":
    run_command(main)
