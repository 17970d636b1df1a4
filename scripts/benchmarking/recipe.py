"""Section of training through the scripts: our defaults against Marian under Seq2SeqTrainer with those of the library.

All runs have the same data, tokenizer, size, optimiser, learning rate and number of steps, and about as many sentences
in a batch: 64 in random order, as Seq2SeqTrainer draws them, or as many tokens as that is, in sentences of similar
length. The learning rate is none of its defaults, which is for fine-tuning; nor is the scripts', whose warm-up alone
would take longer than these runs. No labels are smoothed, so that the losses are the same.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, set_seed

from benchmarking.peers import Size, translators
from benchmarking.results import OURS, Result, save_figure
from benchmarking.timing import Machine
from losses_vanilla_transformer import IGNORED_LABEL
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.data.sources import DataArguments
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.data.tokenizer import train_tokenizer
from vanilla_transformer.tasks.translation import encode
from vanilla_transformer.training.batching import row_lengths
from vanilla_transformer.training.options import make_model, model_options
from vanilla_transformer.training.recipe import RecipeArguments, RecipeSeq2SeqTrainer
from vanilla_transformer.training.task import encoded_splits


LEARNING_RATE = 1e-3
EVALUATIONS = 6  # during each run, and one before
LONGEST = 256
EVALUATED_ROWS = 256
SEED_RUN, PEER, PEER_AT_RANDOM = "ours, another seed", "Marian, our batches", "Marian, rows at random"


@dataclass(frozen=True)
class Point:
    """Where a run was when it was evaluated: training only, evaluations do not count."""

    seconds: float
    tokens: int
    positions: int
    loss: float


class ObservedTrainer(RecipeSeq2SeqTrainer):
    """Notes at each evaluation how long it has trained, on how many real tokens in how many positions."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.points: list[Point] = []
        self.tokens = self.positions = 0

    def train(self, *arguments: Any, **options: Any):
        self.started = time.perf_counter()
        return super().train(*arguments, **options)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *arguments: Any, **options: Any):
        self.tokens += int(inputs["attention_mask"].sum() + (inputs["labels"] != IGNORED_LABEL).sum())
        self.positions += inputs["input_ids"].numel() + inputs["labels"].numel()
        return super().training_step(model, inputs, *arguments, **options)

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        paused = time.perf_counter()
        metrics = super().evaluate(*arguments, **options)
        self.points.append(Point(paused - self.started, self.tokens, self.positions, metrics["eval_loss"]))
        self.started += time.perf_counter() - paused
        return metrics


def seconds_to(loss: float, points: list[Point]) -> float:
    """When a run first had this validation loss, on straight lines between its points; infinity if it never had."""
    if points[0].loss <= loss:
        return points[0].seconds
    for before, after in pairwise(points):
        if after.loss <= loss:
            share = (before.loss - loss) / (before.loss - after.loss)
            return before.seconds + share * (after.seconds - before.seconds)
    return float("inf")


def rates(points: list[Point]) -> list[float]:
    """Real tokens per second between the points."""
    return [(b.tokens - a.tokens) / (b.seconds - a.seconds) for a, b in pairwise(points)]


def our_model(size: Size, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """As the script makes it, in this size."""
    options = model_options(VanillaTransformerConfig)(
        d_model=size.d_model,
        d_ff=size.d_ff,
        num_heads=size.num_heads,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        label_smoothing=0.0,
    )
    return make_model(VanillaTransformerForConditionalGeneration, options, tokenizer)


def run(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    datasets: dict[str, Dataset],
    steps: int,
    rows: int,
    tokens_per_batch: int,
    precision: str,
    machine: Machine,
) -> list[Point]:
    """Train, and give the points of its curve. The batches are of `rows` in random order if of no number of tokens."""
    with tempfile.TemporaryDirectory() as folder:
        args = RecipeArguments(
            output_dir=folder,
            max_steps=steps,
            tokens_per_batch=tokens_per_batch,
            per_device_train_batch_size=rows,
            per_device_eval_batch_size=rows,
            learning_rate=LEARNING_RATE,
            warmup_steps=0.2,
            bf16=precision == "bf16",
            use_cpu=machine.device == "cpu",
            eval_on_start=True,
            eval_strategy="steps",
            eval_steps=max(1, steps // EVALUATIONS),
            prediction_loss_only=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = ObservedTrainer(
            model=model,
            args=args,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            processing_class=tokenizer,
            **datasets,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return trainer.points


def run_all(
    data: DataArguments, size: Size, steps: int, rows: int, precisions: list[str], machine: Machine
) -> dict[str, dict[str, list[Point]]]:
    """The curves by precision and by name."""
    splits = load_splits(data, "translation")
    splits["validation"] = splits["validation"].select(range(min(len(splits["validation"]), EVALUATED_ROWS)))
    tokenizer = train_tokenizer(texts_of(splits["train"], "translation"), vocab_size=size.vocab_size)
    size = replace(size, vocab_size=len(tokenizer))
    datasets = encoded_splits(splits, lambda split: encode(split, tokenizer, LONGEST))
    # As many tokens as make `rows` sentences a batch in the mean.
    budget = int(rows * row_lengths(datasets["train_dataset"]).max(axis=1).mean())

    def ours() -> PreTrainedModel:
        return our_model(size, tokenizer)

    kinds: dict[str, tuple[Callable[[], PreTrainedModel], int, int]] = {
        OURS: (ours, budget, 0),
        SEED_RUN: (ours, budget, 1),
        PEER: (translators(size)["Marian"], budget, 0),
        PEER_AT_RANDOM: (translators(size)["Marian"], 0, 0),
    }
    curves: dict[str, dict[str, list[Point]]] = {precision: {} for precision in precisions}
    for name, (make, tokens, seed) in kinds.items():
        for precision in precisions:
            set_seed(seed)
            curves[precision][name] = run(make(), tokenizer, datasets, steps, rows, tokens, precision, machine)
    return curves


def draw_curves(curves: dict[str, dict[str, list[Point]]]) -> Figure:
    """Validation loss against the time of training."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for style, (precision, by_name) in zip(("-", "--"), curves.items(), strict=False):
        for number, (name, points) in enumerate(by_name.items()):
            seconds, losses = [point.seconds for point in points], [point.loss for point in points]
            axes.plot(seconds, losses, style, color=f"C{number}", marker=".", label=f"{name}, {precision}")
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("validation loss")
    axes.legend(frameon=False)
    return figure


def measure_recipe(
    data: DataArguments, size: Size, steps: int, rows: int, precisions: list[str], machine: Machine, folder: Path
) -> list[Result]:
    """Real tokens per second, time to the same validation loss (plotted in recipe.png), and the last such loss."""
    curves = run_all(data, size, steps, rows, precisions, machine)
    folder.mkdir(parents=True, exist_ok=True)
    save_figure(draw_curves(curves), folder / "recipe.png")
    # The lowest loss that every run has reached.
    reached = max(min(point.loss for point in points) for by_name in curves.values() for points in by_name.values())
    speeds, times, losses = [], [], []
    for precision, by_name in curves.items():
        for name, points in by_name.items():
            padding = 1 - points[-1].tokens / points[-1].positions
            speeds.append(
                Result(
                    f"recipe, {precision}", name, "tokens/s", rates(points), f"{padding:.0%} of the positions padding"
                )
            )
            section = f"recipe, {precision}, to validation loss {reached:.2f}"
            times.append(Result(section, name, "seconds", [seconds_to(reached, points)]))
            losses.append(Result(f"recipe, {precision}, after {steps} steps", name, "nats", [points[-1].loss]))
    return speeds + times + losses
