"""Estimate what training will cost, before it begins: parameters, memory per GPU, operations per step, hours.

python scripts/estimate_cost.py --preset big --tokens_per_batch 25000 --gpus 8
python scripts/estimate_cost.py --preset base --gpus 1 --gradient_accumulation_steps 4 --steps 100000
"""

from vanilla_transformer.cli.estimate import main
from vanilla_transformer.cli.parser import run_command


if __name__ == "__main__":
    run_command(main)
