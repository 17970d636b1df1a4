"""Train a causal language model.

python scripts/train_language_model.py --preset tiny --train_file shakespeare.txt --tokenizer_kind character
"""

from functools import partial

from vanilla_transformer.cli.parser import run_command
from vanilla_transformer.cli.train import run
from vanilla_transformer.tasks.language_modeling import LanguageModelingTask


main = partial(run, LanguageModelingTask)

if __name__ == "__main__":
    run_command(main)
