"""Measure this project beside its peers: the same work, the same process, in turns (A B A B ...).

python scripts/benchmark.py                                              # all sections, about ten minutes on two cores
python scripts/benchmark.py --sections train decode --train_file train.jsonl.gz --columns source=en target=de

Prints a table of medians, spreads and ratios to ours, and writes it as JSON, as a picture and as Markdown. Tokens are
real ones: padding does not count. Lengths are those of the training texts (the phrasebook, or your own data).
"""

import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import matplotlib


matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
import transformers
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import HfArgumentParser

from benchmark_peers import SIZES, Size, classifiers, language_models, translators
from data_loading import DataArguments, load_splits, texts_of
from model_card import markdown_table
from text_io import open_output
from tokenizer_training import train_tokenizer


SECTIONS = ("train", "base", "language model", "classifier", "decode", "memory", "startup")
BATCH = 64
MEMORY_VOCABULARY = 32_000
CHUNK = 512  # positions whose logits are held at once, where ours is to save memory
MIB = 2**20


@dataclass
class BenchmarkArguments:
    sections: list[str] = field(
        default_factory=lambda: list(SECTIONS), metadata={"help": f"What to measure: {', '.join(SECTIONS)}."}
    )
    rounds: int = field(default=12, metadata={"help": "Turns of each model."})
    threads: int = field(default=2, metadata={"help": "CPU threads."})
    output: str = field(default="runs/benchmark", metadata={"help": "Folder for benchmark.json, .md and .png."})

    def __post_init__(self):
        for section in self.sections:
            if section not in SECTIONS:
                raise ValueError(f"sections={section!r} must be among: {', '.join(SECTIONS)}.")


@dataclass
class Result:
    """What was measured of one model in one section.

    Args:
        values: one for each turn, in `unit`; more is better, unless `unit` is one of time or memory.
    """

    section: str
    model: str
    unit: str
    values: list[float]
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles over the median."""
        if len(self.values) < 4:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4)
        return (high - low) / 2 / self.median


def in_turns(tasks: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run each task once unmeasured, then `rounds` times in turns; what each returns over the seconds that it took."""
    rates: dict[str, list[float]] = {name: [] for name in tasks}
    for task in tasks.values():
        task()
    for _ in range(rounds):
        for name, task in tasks.items():
            start = time.perf_counter()
            amount = task()
            rates[name].append(amount / (time.perf_counter() - start))
    return rates


def matrix_rate() -> float:
    """Floating-point operations per second of a large matrix product, the best of some."""
    a, b = torch.randn(2, 1024, 1024)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    return 2 * 1024**3 / min(times)


class Batches:
    """Random tokens in sequences as long as those of real data."""

    def __init__(self, data: DataArguments, vocab_size: int, rows: int):
        splits = load_splits(data, "translation")
        train = splits["train"].shuffle(seed=0)
        tokenizer = train_tokenizer(texts_of(train.select(range(min(len(train), 5000))), "translation"))
        train = train.select(range(min(len(train), rows * 20)))
        sides = (tokenizer(list(train[side]))["input_ids"] for side in ("source", "target"))
        self.lengths = list(zip(*([len(ids) for ids in side] for side in sides), strict=True))
        self.vocab_size, self.rows = vocab_size, rows
        self.random = torch.Generator().manual_seed(0)

    def ids(self, lengths: list[int], padding: int) -> Tensor:
        ids = torch.full((len(lengths), max(lengths)), padding)
        for row, length in enumerate(lengths):
            ids[row, :length] = torch.randint(4, self.vocab_size, (length,), generator=self.random)
        return ids

    def pair(self, number: int) -> tuple[dict[str, Tensor], int]:
        """Inputs of a training step of a translator, and their real tokens."""
        start = number * self.rows % (len(self.lengths) - self.rows + 1)
        source, target = zip(*self.lengths[start : start + self.rows], strict=True)
        ids = self.ids(list(source), 0)
        inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": self.ids(list(target), -100)}
        return inputs, sum(source) + sum(target)

    def sentences(self, number: int) -> tuple[dict[str, Tensor], int]:
        """Inputs of a training step of a classifier, and their real tokens."""
        inputs, _ = self.pair(number)
        labels = torch.randint(2, (self.rows,), generator=self.random)
        return inputs | {"labels": labels}, int(inputs["attention_mask"].sum())


class Trainee:
    """A model with its optimiser, that takes a step at each call and counts its real tokens."""

    def __init__(self, model: nn.Module, batches: list[tuple[dict[str, Tensor], int]]):
        self.model, self.batches, self.step = model.train(), batches, 0
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss(self, inputs: dict[str, Tensor]) -> Tensor:
        output = self.model(**inputs)
        return output if isinstance(output, Tensor) else output.loss

    def __call__(self) -> float:
        inputs, tokens = self.batches[self.step % len(self.batches)]
        self.step += 1
        self.loss(inputs).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return tokens

    def flops_per_token(self) -> float:
        """Of matrix products, padding included, over all batches. Fused attention is not counted, which is little."""
        with FlopCounterMode(display=False) as counter:
            for inputs, _ in self.batches:
                self.loss(inputs).backward()
        self.optimizer.zero_grad()
        return counter.get_total_flops() / sum(tokens for _, tokens in self.batches)


def measure_training(
    section: str, models: dict[str, nn.Module], batches: list[tuple[dict[str, Tensor], int]], rounds: int
) -> list[Result]:
    """Training steps: real tokens per second, and which share of the matrix products' rate that is."""
    trainees = {name: Trainee(model, batches) for name, model in models.items()}
    work, rate = trainees["ours"].flops_per_token(), matrix_rate()
    results = []
    for name, rates in in_turns(trainees, rounds).items():
        share = statistics.median(rates) * work / rate
        results.append(Result(section, name, "tokens/s", rates, f"{share:.0%} of the matrix rate"))
    return results


def measure_decoding(size: Size, rounds: int) -> list[Result]:
    """Generation of 32 tokens by `generate`: tokens per second."""
    models = {name: model.eval() for name, model in translators(size).items() if name in ("ours", "Marian")}
    results = []
    for beams, batch in ((1, 1), (1, 32), (4, 1), (4, 32)):
        ids = torch.randint(4, size.vocab_size, (batch, 16))
        options = {"num_beams": beams, "min_new_tokens": 32, "max_new_tokens": 32, "do_sample": False}

        def task(model: nn.Module, ids: Tensor = ids, options: dict = options) -> Callable[[], float]:
            def generate() -> float:
                with torch.inference_mode():
                    model.generate(ids, attention_mask=torch.ones_like(ids), **options)
                return 32 * len(ids)

            return generate

        tasks = {name: task(model) for name, model in models.items()}
        section = f"decode, {beams} beam{'s' * (beams > 1)}, batch {batch}"
        rates = in_turns(tasks, max(2, rounds // 2))
        results += [Result(section, name, "tokens/s", values) for name, values in rates.items()]
    return results


# One training step in a process of its own: the growth of its peak memory, in bytes. (What `resource` calls the peak
# of a process begins with that of its parent.)
STEP = """
import sys, torch
from benchmark_peers import Size, translators

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024

torch.set_num_threads(int(sys.argv[3]))
name, chunk = sys.argv[1], int(sys.argv[4])
model = translators(Size(256, 1024, 4, 3, int(sys.argv[2])))[name].train()
if chunk:
    model.config.loss_chunk_size = chunk

def step(ids):
    output = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
    (output if torch.is_tensor(output) else output.loss).backward()

step(torch.ones(1, 2).long() * 5)
before = peak()
step(torch.randint(4, int(sys.argv[2]), (64, 24)))
print(peak() - before)
"""


def run_python(code: str, *arguments: Any) -> tuple[str, float]:
    """What a fresh process prints, and the seconds that it took."""
    path = f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}\n"
    start = time.perf_counter()
    command = [sys.executable, "-c", path + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip(), time.perf_counter() - start


def measure_memory(threads: int) -> list[Result]:
    """Memory that a training step needs beyond the model and its gradients (Linux)."""
    models = {name: (name, 0) for name in ("ours", "Marian", "BART", "torch.nn.Transformer")}
    models[f"ours, {CHUNK} positions at a time"] = ("ours", CHUNK)
    values: dict[str, list[float]] = {label: [] for label in models}
    for _ in range(3):
        for label, (name, chunk) in models.items():
            printed, _ = run_python(STEP, name, MEMORY_VOCABULARY, threads, chunk)
            values[label].append(max(float(printed), 1.0) / MIB)
    note = f"vocabulary {MEMORY_VOCABULARY:,}"
    return [Result("memory of a step", label, "MiB", measured, note) for label, measured in values.items()]


def measure_startup(rounds: int) -> list[Result]:
    """Seconds to import transformers' models and ours on top, and to load a saved model, each in fresh processes."""
    imports = "from transformers import PreTrainedModel, PreTrainedConfig, GenerationMixin, EncoderDecoderCache\n"
    with tempfile.TemporaryDirectory() as folder:
        translators(SIZES["small"])["ours"].save_pretrained(folder)
        codes = {
            "transformers alone": imports,
            "ours": f"{imports}import vanilla_transformer",
            "load a saved model": f"{imports}import vanilla_transformer as v\n"
            f"v.VanillaTransformerForConditionalGeneration.from_pretrained({folder!r})",
        }
        times: dict[str, list[float]] = {name: [] for name in codes}
        for _ in range(max(3, rounds // 3)):
            for name, code in codes.items():
                times[name].append(run_python(code)[1])
    return [Result("startup", name, "seconds", values) for name, values in times.items()]


def measure(args: BenchmarkArguments, data: DataArguments) -> list[Result]:
    """All sections that were asked for, with a line of progress for each."""
    small, rounds = SIZES["small"], args.rounds

    def pairs(size: Size) -> list[tuple[dict[str, Tensor], int]]:
        batches = Batches(data, size.vocab_size, BATCH)
        return [batches.pair(i) for i in range(6)]

    def blocks() -> list[tuple[dict[str, Tensor], int]]:
        size = SIZES["language model"]
        ids = torch.randint(0, size.vocab_size, (12, 64))
        return [({"input_ids": ids, "labels": ids}, ids.numel())]

    def sentences() -> list[tuple[dict[str, Tensor], int]]:
        batches = Batches(data, SIZES["classifier"].vocab_size, 32)
        return [batches.sentences(i) for i in range(6)]

    sections: dict[str, Callable[[], list[Result]]] = {
        "train": lambda: measure_training("train, 256 wide", translators(small), pairs(small), rounds),
        "base": lambda: measure_training(
            "train, the paper's base", translators(SIZES["base"]), pairs(SIZES["base"])[:2], max(2, rounds // 4)
        ),
        "language model": lambda: measure_training(
            "train, language model", language_models(SIZES["language model"], 64), blocks(), rounds * 4
        ),
        "classifier": lambda: measure_training(
            "train, classifier", classifiers(SIZES["classifier"]), sentences(), rounds
        ),
        "decode": lambda: measure_decoding(small, rounds),
        "memory": lambda: measure_memory(args.threads),
        "startup": lambda: measure_startup(rounds),
    }
    results = []
    for section in args.sections:
        print(f"measuring: {section}", file=sys.stderr, flush=True)
        results += sections[section]()
    return results


def rows_of(results: list[Result]) -> list[tuple[str, ...]]:
    """Section, model, median, spread, and ours over theirs: above 1 where more is better and ours is ahead."""
    ours = {result.section: result.median for result in results if result.model == "ours"}
    return [
        (
            result.section,
            result.model,
            f"{result.median:,.4g} {result.unit}",
            f"± {result.spread:.0%}" if result.spread else "",
            f"{ours[result.section] / result.median:.2f}",
            result.note,
        )
        for result in results
    ]


def draw(results: list[Result], file: Path) -> None:
    """Each section's medians relative to ours, as bars."""
    ours = {result.section: result.median for result in results if result.model == "ours"}
    shown = [result for result in results if result.section in ours]
    figure, axes = plt.subplots(figsize=(8, 0.32 * len(shown) + 1), layout="constrained")
    names = [f"{result.section}: {result.model}" for result in shown]
    ratios = [result.median / ours[result.section] for result in shown]
    axes.barh(names, ratios, color=["#1f6feb" if result.model == "ours" else "#9aa4af" for result in shown])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("relative to ours (tokens/s: longer is faster; MiB and seconds: shorter is better)")
    figure.savefig(file, dpi=120)
    plt.close(figure)


def describe_machine(threads: int) -> str:
    return (
        f"{date.today()}, {platform.machine()} CPU, {threads} threads, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, Python {platform.python_version()}, peak memory of the run "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB"
    )


def main(arguments: list[str] | None = None) -> list[Result]:
    """Run the script; returns the results."""
    args, data = HfArgumentParser([BenchmarkArguments, DataArguments]).parse_args_into_dataclasses(arguments)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    results = measure(args, data)
    table = markdown_table(("what", "model", "median", "spread", "ours / theirs", ""), rows_of(results))
    machine = describe_machine(args.threads)
    print(f"{table}\n\n{machine}")
    folder = Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    with open_output(str(folder / "benchmark.md")) as stream:
        stream.write(f"{table}\n\n{machine}\n")
    with open_output(str(folder / "benchmark.json")) as stream:
        json.dump({"machine": machine, "results": [vars(result) for result in results]}, stream, indent=1)
    draw(results, folder / "benchmark.png")
    return results


if __name__ == "__main__":
    main()
