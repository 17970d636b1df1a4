"""Measure this project against others: the same work, in the same process, in alternating turns.

python scripts/benchmark.py                                              # all sections, which takes hours
python scripts/benchmark.py --device cuda                                # the paper's sizes on a GPU, within 8 minutes
python scripts/benchmark.py --quick true                                 # all at toy sizes, to see that they run
python scripts/benchmark.py --sections train decode --train_file train.jsonl.gz --columns source=en target=de

Prints a table of medians, spreads and ratios, and writes it as JSON and Markdown after each section. Only real tokens
count, not padding. Sequence lengths are those of the training texts: the phrasebook, or your own data.
"""

import platform
from datetime import date
from pathlib import Path

import torch
import transformers

from benchmarking.results import HEADER, Result, rows_of, write
from benchmarking.sections import BenchmarkArguments, measure
from vanilla_transformer.cli.errors import run_command
from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.files import markdown_table
from vanilla_transformer.loading import errors_only


def describe(device: str) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    return (
        f"{date.today()}, {name}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, Python {platform.python_version()}"
    )


def main(arguments: list[str] | None = None) -> list[Result]:
    """Run the benchmark, print and save the results, and return them."""
    args, data = CommandParser([BenchmarkArguments, DataArguments], __doc__).parse_args_into_dataclasses(arguments)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    results: list[Result] = []
    with errors_only(progress=False):
        for measured in measure(args, data):
            results += measured
            write(results, describe(args.device), Path(args.output))
    print(f"{markdown_table(HEADER, rows_of(results))}\n\n{describe(args.device)}")
    return results


if __name__ == "__main__":
    run_command(main)
