"""Convert a published model of this architecture into one of ours, or one of ours into a Marian or GPT-2 model.

python scripts/import_checkpoint.py --source Helsinki-NLP/opus-mt-en-de --output runs/opus-mt-en-de
python scripts/import_checkpoint.py --source runs/opus-mt-en-de --output runs/marian-en-de --to marian

It can import Marian (opus-mt), FSMT (WMT19), M2M100 and NLLB, BART, GPT-1, GPT-2, BERT and DistilBERT. The new folder
has weights, code, generation settings and tokenizer, and gives the same logits and the same generated text.
"""

from vanilla_transformer.cli.import_checkpoint import main
from vanilla_transformer.cli.parser import run_command


if __name__ == "__main__":
    run_command(main)
