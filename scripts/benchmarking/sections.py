"""The sections of the benchmark and their sizes."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch

from benchmarking.decoding import measure_decoding
from benchmarking.peers import (
    SIZES,
    TOY,
    Makers,
    Size,
    classifiers,
    language_models,
    translators,
    with_compiled,
)
from benchmarking.processes import LENGTHS, MEMORY_VOCABULARY, measure_length, measure_memory, measure_startup
from benchmarking.recipe import measure_recipe
from benchmarking.results import Result
from benchmarking.timing import PRECISIONS, Machine
from benchmarking.training import Batch, Batches, block, measure_training, real_lengths
from vanilla_transformer.data.arguments import DataArguments


SECTIONS = ("train", "base", "language model", "classifier", "recipe", "decode", "memory", "length", "startup")
# Within 8 minutes on a GPU: the paper's sizes with its batch of 25,000 tokens, and nanoGPT's size
GPU_SECTIONS = ("base", "big", "gpt", "decode")
ALL_SECTIONS = (*SECTIONS, "big", "gpt")
GPU_TOKENS = 25_000  # source tokens, and also target tokens, per step (section 5.1)


@dataclass
class BenchmarkArguments:
    sections: list[str] = field(
        default_factory=list,
        metadata={
            "help": f"Sections: {', '.join(ALL_SECTIONS)}. The default on a CPU is all but big and gpt; on a GPU "
            f"{', '.join(GPU_SECTIONS)}."
        },
    )
    rounds: int = field(default=12, metadata={"help": "Number of rounds for each model."})
    quick: bool = field(default=False, metadata={"help": "Use toy sizes and two rounds, as a quick check."})
    precision: list[str] = field(
        default_factory=list,
        metadata={
            "help": f"Precision of training: {', '.join(PRECISIONS)}. The default is all that the device supports in "
            "hardware."
        },
    )
    device: str = field(
        default="",
        metadata={"help": "cpu or cuda. The default is cuda if there is a GPU.", "choices": ["", "cpu", "cuda"]},
    )
    threads: int = field(default=2, metadata={"help": "Number of CPU threads."})
    recipe_steps: int = field(default=700, metadata={"help": "Steps per run in the recipe section."})
    output: str = field(default="runs/benchmark", metadata={"help": "Folder for the results."})

    def __post_init__(self):
        for name, known in (("sections", ALL_SECTIONS), ("precision", PRECISIONS)):
            for value in getattr(self, name):
                if value not in known:
                    raise ValueError(f"{name}={value!r} must be among: {', '.join(known)}.")
        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no CUDA on this machine.")
        self.sections = self.sections or list(GPU_SECTIONS if self.device == "cuda" else SECTIONS)

    @property
    def machine(self) -> Machine:
        return Machine(self.device, self.threads)

    @property
    def precisions(self) -> list[str]:
        if self.device == "cuda" and not self.precision and self.machine.multiplies_bf16():
            return ["bf16"]
        return self.precision or list(PRECISIONS if self.machine.multiplies_bf16() else PRECISIONS[:1])


def measurements(args: BenchmarkArguments, data: DataArguments) -> dict[str, Callable[[], list[Result]]]:
    """Return the function that measures each section."""
    machine, rounds = args.machine, args.rounds
    rows, sizes, lengths, searches = 64, SIZES, LENGTHS, [(beams, batch) for beams in (1, 4) for batch in (1, 32, 64)]
    repeated, output_length, steps = 3, 32, args.recipe_steps
    memory = replace(SIZES["small"], vocab_size=MEMORY_VOCABULARY)
    on_gpu = machine.device == "cuda"
    gpt = (8, 1024)  # rows and length
    recipe_rows = 8 if args.quick else 256
    if on_gpu:
        searches = [(1, 64), (4, 64)]
    if args.quick:
        gpt = (2, 16)
        rounds, rows, sizes, lengths, searches = 2, 8, dict.fromkeys(SIZES, TOY), LENGTHS[:2], [(1, 1), (4, 2)]
        repeated, output_length, steps, memory = 1, 8, 6, TOY

    @cache
    def measured_lengths() -> list[tuple[int, int]]:
        return real_lengths(data, GPU_TOKENS // 2 if on_gpu else 1280)

    def pairs(size: Size, number: int) -> list[Batch]:
        lengths, count = measured_lengths(), rows
        if on_gpu and not args.quick:
            count = min(GPU_TOKENS * len(lengths) // sum(map(max, lengths)), len(lengths))
        batches = Batches(lengths, size.vocab_size, count)
        return [batches.pair(i) for i in range(number)]

    def sentences(size: Size) -> list[Batch]:
        batches = Batches(measured_lengths(), size.vocab_size, rows // 2)
        return [batches.sentences(i) for i in range(6)]

    def train(title: str, makers: Makers, batches: list[Batch], rounds: int) -> list[Result]:
        if on_gpu:
            makers = with_compiled(makers)
        return [
            result
            for precision in args.precisions
            for result in measure_training(f"train, {title}", makers, batches, rounds, machine, precision)
        ]

    small, base, causal, encoder = (sizes[name] for name in ("small", "base", "language model", "classifier"))
    return {
        "train": lambda: train("256 wide", translators(small), pairs(small, 6), rounds),
        "base": lambda: train("the paper's base", translators(base), pairs(base, 2), max(2, rounds // 4)),
        "big": lambda: train(
            "the paper's big", translators(sizes["big"]), pairs(sizes["big"], 2), max(2, rounds // 4)
        ),
        "gpt": lambda: train(
            "GPT of 124 M",
            language_models(sizes["gpt"], gpt[1]),
            [block(sizes["gpt"].vocab_size, *gpt)],
            max(2, rounds // 2),
        ),
        "language model": lambda: train(
            "language model", language_models(causal, 64), [block(causal.vocab_size, 12, 64)], rounds * 4
        ),
        "classifier": lambda: train("classifier", classifiers(encoder), sentences(encoder), rounds),
        "recipe": lambda: measure_recipe(
            data, sizes["recipe"], steps, recipe_rows, args.precisions[-1], machine, Path(args.output)
        ),
        "decode": lambda: measure_decoding(small, searches, output_length, max(2, rounds // 2), machine),
        "memory": lambda: measure_memory(memory, repeated, machine),
        "length": lambda: measure_length(sizes["length"], lengths, machine),
        "startup": lambda: measure_startup(small, repeated),
    }


def measure(args: BenchmarkArguments, data: DataArguments) -> Iterator[list[Result]]:
    """Yield the results of each requested section, and print its name when it begins."""
    sections = measurements(args, data)
    for section in args.sections:
        print(f"measuring: {section}", file=sys.stderr, flush=True)
        yield sections[section]()
