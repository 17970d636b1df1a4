"""Define the sections of the benchmark and the model sizes they use."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch

from benchmarking.decoding import measure_decoding
from benchmarking.peers import SIZES, TOY, Makers, Size, classifiers, language_models, translators
from benchmarking.recipe import measure_recipe
from benchmarking.results import Result
from benchmarking.training import Batch, Batches, block, measure_length, measure_memory, measure_training, real_lengths
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.training.arguments import has_bf16_matmul


SECTIONS = ("train", "base", "language model", "classifier", "recipe", "decode", "memory", "length")
# Models of the paper's sizes with its batch size, and of nanoGPT's size; they take about 8 minutes on a GPU.
GPU_SECTIONS = ("base", "big", "gpt", "decode")
ALL_SECTIONS = (*SECTIONS, "big", "gpt")
GPU_TOKENS = 25_000  # number of source tokens, and of target tokens, per step (section 5.1 of the paper)
PRECISIONS = ("fp32", "bf16")


@dataclass
class BenchmarkArguments:
    sections: list[str] = field(
        default_factory=list,
        metadata={
            "help": f"What to measure. By default, on a CPU all but big and gpt; on a GPU {', '.join(GPU_SECTIONS)}.",
            "choices": ALL_SECTIONS,
        },
    )
    rounds: int = field(default=12, metadata={"help": "Number of rounds for each model."})
    quick: bool = field(default=False, metadata={"help": "Use toy sizes and two rounds, as a quick check."})
    precision: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Precision of training; by default, those that the device has instructions for.",
            "choices": PRECISIONS,
        },
    )
    device: str = field(
        default="",
        metadata={"help": "cpu or cuda; by default, cuda if there is a GPU.", "choices": ["", "cpu", "cuda"]},
    )
    threads: int = field(default=2, metadata={"help": "Number of CPU threads."})
    recipe_steps: int = field(default=700, metadata={"help": "Steps per run in the recipe section."})
    output: str = field(default="runs/benchmark", metadata={"help": "Folder for the results."})

    def __post_init__(self):
        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no CUDA on this machine.")
        on_gpu = self.device == "cuda"
        self.sections = self.sections or list(GPU_SECTIONS if on_gpu else SECTIONS)
        if not self.precision:
            has_bf16 = has_bf16_matmul(self.device)
            self.precision = ["bf16"] if on_gpu and has_bf16 else list(PRECISIONS[: 1 + has_bf16])


def measurements(args: BenchmarkArguments, data: DataArguments) -> dict[str, Callable[[], list[Result]]]:
    """Return a function for each section that runs its measurements."""
    device, on_gpu, quick = args.device, args.device == "cuda", args.quick
    sizes = dict.fromkeys(SIZES, TOY) if quick else SIZES
    rounds, few_rounds = (2, 2) if quick else (args.rounds, max(2, args.rounds // 4))
    rows = 8 if quick else 64
    searches = [(1, 1), (4, 2)] if quick else [(beams, batch) for beams in (1, 4) for batch in (1, 64)]

    @cache
    def lengths() -> list[tuple[int, int]]:
        return real_lengths(data, GPU_TOKENS // 2 if on_gpu else 1280)

    def pairs(size: Size, number: int) -> list[Batch]:
        count = min(GPU_TOKENS * len(lengths()) // sum(map(max, lengths())), len(lengths())) if on_gpu else rows
        batches = Batches(lengths(), size.vocab_size, count)
        return [batches.pair(i) for i in range(number)]

    def sentences(size: Size) -> list[Batch]:
        batches = Batches(lengths(), size.vocab_size, rows // 2)
        return [batches.sentences(i) for i in range(6)]

    def train(title: str, makers: Makers, batches: list[Batch], rounds: int) -> list[Result]:
        return [
            result
            for precision in args.precision
            for result in measure_training(f"train, {title}", makers, batches, rounds, device, precision)
        ]

    def translation(title: str, size: Size, number: int, rounds: int) -> list[Result]:
        return train(title, translators(size), pairs(size, number), rounds)

    def gpt(title: str, size: Size, rows: int, length: int, rounds: int) -> list[Result]:
        return train(title, language_models(size, length), [block(size.vocab_size, rows, length)], rounds)

    return {
        "train": lambda: translation("256 wide", sizes["small"], 6, rounds),
        "base": lambda: translation("the paper's base", sizes["base"], 2, few_rounds),
        "big": lambda: translation("the paper's big", sizes["big"], 2, few_rounds),
        "gpt": lambda: gpt("GPT of 124 M", sizes["gpt"], *((2, 16) if quick else (8, 1024)), few_rounds),
        "language model": lambda: gpt("language model", sizes["language model"], 12, 64, rounds * 4),
        "classifier": lambda: train(
            "classifier", classifiers(sizes["classifier"]), sentences(sizes["classifier"]), rounds
        ),
        "recipe": lambda: measure_recipe(
            data,
            sizes["recipe"],
            steps=6 if quick else args.recipe_steps,
            rows=8 if quick else 256,
            precision=args.precision[-1],
            device=device,
            folder=Path(args.output),
        ),
        "decode": lambda: measure_decoding(sizes["small"], searches, 8 if quick else 32, few_rounds, device),
        "memory": lambda: measure_memory(replace(sizes["small"], vocab_size=32_000), rows, 24),
        "length": lambda: measure_length(sizes["length"], [128] if quick else [1024, 8192], 64, device),
    }


def measure(args: BenchmarkArguments, data: DataArguments) -> Iterator[list[Result]]:
    """Yield the results of each section in `args`, and print which section is running."""
    sections = measurements(args, data)
    for section in args.sections:
        print(f"measuring: {section}", file=sys.stderr, flush=True)
        yield sections[section]()
