"""Score a saved model on any data, with the metrics of its task.

python scripts/evaluate_model.py --model runs/en-de --test_file test.jsonl --columns source=en target=de
python scripts/evaluate_model.py --model runs/classifier --dataset user/reviews --splits test=dev --scores scores.json

The options of the task's training script work here too, such as --per_device_eval_batch_size.
"""

from vanilla_transformer.cli.evaluate import main
from vanilla_transformer.cli.parser import run_command


if __name__ == "__main__":
    run_command(main)
