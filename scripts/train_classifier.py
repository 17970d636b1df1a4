"""Train a text classifier: one class per text, several classes, or a number.

python scripts/train_classifier.py --task regression --train_file train.jsonl --columns label=score
"""

from functools import partial

from vanilla_transformer.command_line import run_command
from vanilla_transformer.tasks import CLASSIFICATION
from vanilla_transformer.training.run import run


main = partial(run, CLASSIFICATION)

if __name__ == "__main__":
    run_command(main)
