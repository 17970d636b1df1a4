"""Train a text classifier: one class per text, several classes, or a number.

python scripts/train_classifier.py --task regression --train_file train.jsonl --columns label=score
"""

from functools import partial

from vanilla_transformer.cli.parser import run_command
from vanilla_transformer.cli.train import run
from vanilla_transformer.tasks.classification import ClassificationTask


main = partial(run, ClassificationTask)

if __name__ == "__main__":
    run_command(main)
