"""Average the last checkpoints of a run (section 6.1) into a complete model folder.

python scripts/average_checkpoints.py --run RUN_FOLDER --last 5 --output NEW_FOLDER
python scripts/average_checkpoints.py --checkpoints FOLDER FOLDER --output NEW_FOLDER
"""

from vanilla_transformer.cli.average import main
from vanilla_transformer.cli.parser import run_command


if __name__ == "__main__":
    run_command(main)
