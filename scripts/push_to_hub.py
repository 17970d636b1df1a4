"""Upload to the Hugging Face Hub: a saved model folder, this repository with its checkpoints, or the demo as a Space.

python scripts/push_to_hub.py runs/quickstart-en-es user/quickstart-en-es --dry_run
python scripts/push_to_hub.py . user/vanilla-transformer --repo
python scripts/push_to_hub.py demo user/vanilla-transformer-demo --space
"""

from vanilla_transformer.cli.parser import run_command
from vanilla_transformer.cli.push import main


if __name__ == "__main__":
    run_command(main)
