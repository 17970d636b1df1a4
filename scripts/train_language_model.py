"""Train a causal language model.

python scripts/train_language_model.py --preset tiny --train_file shakespeare.txt --tokenizer_kind character
"""

from functools import partial

from vanilla_transformer.command_line import run_command
from vanilla_transformer.tasks import LANGUAGE_MODELING
from vanilla_transformer.training.run import run


main = partial(run, LANGUAGE_MODELING)

if __name__ == "__main__":
    run_command(main)
