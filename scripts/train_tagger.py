"""Train a tagger, which gives each word a class, such as named entities in the BIO scheme.

python scripts/train_tagger.py --train_file train.jsonl --columns tags=ner_tags --output_dir runs/tagger
"""

from functools import partial

from vanilla_transformer.cli.parser import run_command
from vanilla_transformer.cli.train import run
from vanilla_transformer.tasks.tagging import TaggingTask


main = partial(run, TaggingTask)

if __name__ == "__main__":
    run_command(main)
