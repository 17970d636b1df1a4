"""Train a translator, or any other text-to-text model: by the paper's recipe, for millions of sentences, or by
another.

python scripts/train_translation.py --preset base --train_file train.en train.de --output_dir runs/en-de
python scripts/train_translation.py recipes/multi30k_en_de.yaml --train_file train.en train.de --output_dir runs/en-de
"""

from functools import partial

from vanilla_transformer.cli.parser import run_command
from vanilla_transformer.cli.train import run
from vanilla_transformer.tasks.translation import TranslationTask


main = partial(run, TranslationTask)

if __name__ == "__main__":
    run_command(main)
