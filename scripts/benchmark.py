"""Compare this project with others: models do the same work in the same process and take turns (A B B A ...).

python scripts/benchmark.py                                              # all sections, which takes hours
python scripts/benchmark.py --device cuda                                # the paper's sizes on a GPU, within 8 minutes
python scripts/benchmark.py --quick true                                 # toy sizes, to check that everything runs
python scripts/benchmark.py --sections train decode --train_file train.jsonl.gz --columns source=en target=de

After each section, writes the results so far as JSON, Markdown and a picture; at the end, prints a table of medians,
spreads and ratios to our model. Padding does not count as tokens. Lengths are those of the training texts (the
phrasebook, or your own data).
"""

import platform
import resource
from datetime import date
from pathlib import Path

import torch
import transformers

from benchmarking.results import HEADER, Result, rows_of, write
from benchmarking.sections import BenchmarkArguments, measure
from benchmarking.timing import Machine
from vanilla_transformer.cli.errors import run_command
from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.files import markdown_table
from vanilla_transformer.loading import errors_only


def describe(machine: Machine) -> str:
    device = torch.cuda.get_device_name() if machine.device == "cuda" else f"{platform.machine()} CPU"
    return (
        f"{date.today()}, {device}, {machine.threads} threads, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, Python {platform.python_version()}, peak memory of the run "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB"
    )


def main(arguments: list[str] | None = None) -> list[Result]:
    """Run the benchmark and return its results."""
    args, data = CommandParser([BenchmarkArguments, DataArguments], __doc__).parse_args_into_dataclasses(arguments)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    results: list[Result] = []
    with errors_only(progress=False):
        for measured in measure(args, data):
            results += measured
            write(results, describe(args.machine), Path(args.output))
    print(f"{markdown_table(HEADER, rows_of(results))}\n\n{describe(args.machine)}")
    return results


if __name__ == "__main__":
    run_command(main)
