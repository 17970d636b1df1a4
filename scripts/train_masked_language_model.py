"""Pretrain an encoder to predict masked tokens. Other encoder tasks can start from it with --model_name_or_path.

python scripts/train_masked_language_model.py --preset tiny --train_file text.txt --output_dir runs/encoder
"""

from functools import partial

from vanilla_transformer.cli.parser import run_command
from vanilla_transformer.cli.train import run
from vanilla_transformer.tasks.masked_language_modeling import MaskedLanguageModelingTask


main = partial(run, MaskedLanguageModelingTask)

if __name__ == "__main__":
    run_command(main)
