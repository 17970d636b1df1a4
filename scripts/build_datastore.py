"""Let a saved translator look up pairs of texts while it translates: keep what it makes of them beside it.

python scripts/build_datastore.py --model runs/en-de --train_file pairs.jsonl --columns source=en target=de
python scripts/translate.py --model runs/en-de --datastore < source.txt > target.txt
"""

from vanilla_transformer.cli.datastore import main
from vanilla_transformer.cli.parser import run_command


if __name__ == "__main__":
    run_command(main)
