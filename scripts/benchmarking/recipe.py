"""Train translators with Trainer to compare how soon each reaches a good score.

All share the data, tokenizer, size, dropout, number of steps, and about the number of tokens in a batch. The learning
rate warms up for a tenth of the steps and then falls linearly to zero. There is no label smoothing, so that losses are
comparable. The runs differ in these ways:

- Ours is pre-norm, with small initial weights, batches of mixed lengths, and Muon with the Multi30k recipe's rate.
- "Marian, its defaults" uses Seq2SeqTrainer's random batches with a fixed number of rows, in float32.
- "Marian, our batches" uses our batches, and bfloat16 where the processor supports it. Marian computes padding, of
  which batches of mixed lengths have much.
- "similar lengths" uses the paper's batches of similar lengths. torch.nn.Transformer uses only those, because a step
of
  mixed lengths takes three times as long.
"""

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from sacrebleu import corpus_bleu
from torch import Tensor, nn
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerBase, PrinterCallback, set_seed

from benchmarking.peers import SPECIAL, Size, TorchTransformer, causal_mask, translators
from benchmarking.results import OURS, Result, save_figure
from benchmarking.timing import Machine
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli.options import make_model, model_options
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.data.tokenizer import train_tokenizer
from vanilla_transformer.decoding import translate
from vanilla_transformer.files import open_output
from vanilla_transformer.modeling_vanilla_transformer import IGNORED_LABEL
from vanilla_transformer.tasks.translation import TranslationTask, encode_pairs
from vanilla_transformer.training.arguments import RecipeArguments
from vanilla_transformer.training.batching import row_lengths
from vanilla_transformer.training.trainer import RecipeSeq2SeqTrainer


EVALUATIONS = 10  # during each run, plus one before it
LONGEST = 256
TRANSLATED_AT_ONCE = 64
MUON_MOMENTUM = 0.8  # suits runs of several hundred steps
PARTS = (0.5, 0.9, 1.0)  # shares of the best improvement among the peers
SEED_RUN, PEER_DEFAULTS, PEER = "ours, another seed", "Marian, its defaults", "Marian, our batches"
PEER_SIMILAR, TORCH_SIMILAR = "Marian, similar lengths", "torch.nn.Transformer, similar lengths"


@dataclass(frozen=True)
class Point:
    """The state of a run at an evaluation. The seconds exclude evaluations."""

    seconds: float
    tokens: int
    positions: int
    loss: float
    bleu: float


@dataclass(frozen=True)
class Run:
    """How a model is built and trained.

    If `tokens_per_batch` is 0, batches have a fixed number of random rows.
    """

    make: Callable[[], nn.Module]
    tokens_per_batch: int
    precision: str
    learning_rate: float
    muon: bool = False
    bucketing: str = "none"
    seed: int = 0


class TorchTranslator(TorchTransformer):
    """A `torch.nn.Transformer` for Trainer, with greedy decoding."""

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore
        return {"loss": super().forward(input_ids, attention_mask, labels)}

    def generate(self, input_ids: Tensor, attention_mask: Tensor, max_length: int) -> Tensor:
        padding, end = attention_mask == 0, SPECIAL["eos_token_id"]
        memory = self.body.encoder(self.states(input_ids), src_key_padding_mask=padding)
        ids = input_ids.new_full((len(input_ids), 1), SPECIAL["decoder_start_token_id"])
        ended = torch.zeros_like(ids[:, 0], dtype=torch.bool)
        while ids.shape[1] < max_length and not ended.all():
            states = self.body.decoder(
                self.states(ids), memory, tgt_mask=causal_mask(ids), memory_key_padding_mask=padding
            )
            best = (states[:, -1] @ self.embed.weight.T).argmax(-1).masked_fill(ended, end)
            ids, ended = torch.cat([ids, best[:, None]], dim=1), ended | (best == end)
        return ids


class ObservedTrainer(RecipeSeq2SeqTrainer):
    """Records at each evaluation the training time, the number of tokens and positions, the loss and the BLEU score.

    BLEU is that of greedy translations of `pairs`. Tokens exclude padding.
    """

    def __init__(self, *arguments: Any, pairs: Dataset, **options: Any):
        super().__init__(*arguments, **options)
        self.pairs = pairs
        self.points: list[Point] = []
        self.tokens = self.positions = 0

    def train(self, *arguments: Any, **options: Any):
        self.started = time.perf_counter()
        return super().train(*arguments, **options)

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], *arguments: Any, **options: Any):
        self.tokens += int(inputs["attention_mask"].sum() + (inputs["labels"] != IGNORED_LABEL).sum())
        self.positions += inputs["input_ids"].numel() + inputs["labels"].numel()
        return super().training_step(model, inputs, *arguments, **options)

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        paused = time.perf_counter()
        metrics = super().evaluate(*arguments, **options)
        self.points.append(
            Point(paused - self.started, self.tokens, self.positions, metrics["eval_loss"], self.bleu())
        )
        self.started += time.perf_counter() - paused
        return metrics

    def bleu(self) -> float:
        sources, targets = list(self.pairs["source"]), list(self.pairs["target"])
        options = {} if isinstance(self.model, TorchTranslator) else {"num_beams": 1, "do_sample": False}
        outputs = [
            output
            for start in range(0, len(sources), TRANSLATED_AT_ONCE)
            for output in translate(
                sources[start : start + TRANSLATED_AT_ONCE], self.model, self.processing_class, **options
            )
        ]
        return corpus_bleu(outputs, [targets]).score


def seconds_to(value: float, points: list[Point], what: str) -> float:
    """Interpolate when a run first reached this validation loss or BLEU; infinity if it never did."""
    sign = -1 if what == "loss" else 1  # so that more is better
    values = [sign * getattr(point, what) for point in points]
    value *= sign
    if values[0] >= value:
        return points[0].seconds
    for (before, after), (low, high) in zip(pairwise(points), pairwise(values), strict=True):
        if high >= value:
            return before.seconds + (value - low) / (high - low) * (after.seconds - before.seconds)
    return float("inf")


def rates(points: list[Point]) -> list[float]:
    """Return the tokens per second between evaluations, without padding."""
    return [(b.tokens - a.tokens) / (b.seconds - a.seconds) for a, b in pairwise(points)]


def our_model(size: Size, tokenizer: PreTrainedTokenizerBase) -> nn.Module:
    """Build our model with a recipe's options, in this size."""
    options = model_options(VanillaTransformerConfig)(
        d_model=size.d_model,
        d_ff=size.d_ff,
        num_heads=size.num_heads,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        norm_position="pre",
        init="small",
        label_smoothing=0.0,
    )
    return make_model(VanillaTransformerForConditionalGeneration, options, tokenizer)


def runs(size: Size, tokenizer: PreTrainedTokenizerBase, tokens_per_batch: int, precision: str) -> dict[str, Run]:
    """Return the runs to compare, by name."""

    def ours() -> nn.Module:
        return our_model(size, tokenizer)

    marian = translators(size)["Marian"]
    return {
        OURS: Run(ours, tokens_per_batch, precision, 1.2e-2, muon=True),
        SEED_RUN: Run(ours, tokens_per_batch, precision, 1.2e-2, muon=True, seed=1),
        PEER_DEFAULTS: Run(marian, 0, "fp32", 3e-3, bucketing="length"),
        # At 3e-3 the peers hardly learn from batches of similar lengths; with random batches, 3e-3 is their best rate.
        PEER: Run(marian, tokens_per_batch, precision, 3e-3),
        PEER_SIMILAR: Run(marian, tokens_per_batch, precision, 1.5e-3, bucketing="length"),
        TORCH_SIMILAR: Run(lambda: TorchTranslator(size), tokens_per_batch, precision, 1.5e-3, bucketing="length"),
    }


def train(
    run: Run, tokenizer: PreTrainedTokenizerBase, datasets: dict[str, Dataset], pairs: Dataset, steps: int, rows: int,
    machine: Machine,
) -> list[Point]:  # fmt: skip
    """Train a model and return the points of its curve."""
    set_seed(run.seed)
    model = run.make()
    with tempfile.TemporaryDirectory() as folder:
        args = RecipeArguments(
            output_dir=folder,
            max_steps=steps,
            tokens_per_batch=run.tokens_per_batch,
            bucketing=run.bucketing,
            per_device_train_batch_size=rows,
            per_device_eval_batch_size=TRANSLATED_AT_ONCE,
            learning_rate=run.learning_rate,
            muon=run.muon,
            muon_momentum=MUON_MOMENTUM,
            warmup_steps=0.1,
            bf16=run.precision == "bf16",
            use_cpu=machine.device == "cpu",
            eval_on_start=True,
            eval_strategy="steps",
            eval_steps=max(1, steps // EVALUATIONS),
            prediction_loss_only=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=run.seed,
        )
        trainer = ObservedTrainer(
            model=model,
            args=args,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            processing_class=tokenizer,
            pairs=pairs,
            **datasets,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return trainer.points


def run_all(
    data: DataArguments, size: Size, steps: int, rows: int, precision: str, machine: Machine
) -> Iterator[tuple[str, list[Point]]]:
    """Yield the name and curve of each run.

    Batches have `rows` sentences on average; each evaluation translates as many.
    """
    splits = load_splits(data, TranslationTask.data)
    splits["validation"] = splits["validation"].select(range(min(len(splits["validation"]), rows)))
    tokenizer = train_tokenizer(texts_of(splits["train"], TranslationTask.data), vocab_size=size.vocab_size)
    size = replace(size, vocab_size=len(tokenizer))
    names = {"train_dataset": "train", "eval_dataset": "validation"}
    datasets = {name: encode_pairs(splits[split], tokenizer, LONGEST) for name, split in names.items()}
    # token budget that gives `rows` sentences per batch on average
    budget = int(rows * row_lengths(datasets["train_dataset"]).max(axis=1).mean())
    for name, run in runs(size, tokenizer, budget, precision).items():
        yield name, train(run, tokenizer, datasets, splits["validation"], steps, rows, machine)


def draw_curves(curves: dict[str, list[Point]]) -> Figure:
    """Plot validation loss and BLEU against training time.

    Both the time and the loss have logarithmic axes: equal ratios of times then look equal everywhere, and most of the
    loss disappears early.
    """
    figure, (losses, bleus) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    models = [name.split(",")[0] for name in curves]  # one colour per model
    for axes, what, title in ((losses, "loss", "validation loss"), (bleus, "bleu", "BLEU, greedy")):
        for place, (name, points) in enumerate(curves.items()):
            model = models[place]
            axes.plot(
                [point.seconds for point in points if point.tokens],
                [getattr(point, what) for point in points if point.tokens],
                label=name,
                marker=".",
                color=f"C{list(dict.fromkeys(models)).index(model)}",
                linestyle=("-", "--", ":")[models[:place].count(model)],
            )
        axes.set_xscale("log")
        if what == "loss":
            axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("seconds of training")
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
    figure.legend(*losses.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def measure_recipe(
    data: DataArguments, size: Size, steps: int, rows: int, precision: str, machine: Machine, folder: Path
) -> list[Result]:
    """Measure tokens per second, the time to equal validation loss and BLEU, and the final scores.

    After each run, the curves are plotted in recipe.png and written to recipe.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[Point]] = {}
    for name, points in run_all(data, size, steps, rows, precision, machine):
        curves[name] = points
        save_figure(draw_curves(curves), folder / "recipe.png")
        with open_output(str(folder / "recipe.json")) as stream:
            json.dump({name: [vars(point) for point in points] for name, points in curves.items()}, stream, indent=1)
    return results_of(curves, steps)


def results_of(curves: dict[str, list[Point]], steps: int) -> list[Result]:
    """Return the speed, times and final scores of the runs. A note lists the runs that did not reach a score."""
    peers = [point for name, points in curves.items() if name not in (OURS, SEED_RUN) for point in points]
    loss, bleu = min(p.loss for p in peers), max(p.bleu for p in peers)
    highest = max(p.loss for p in peers if not p.tokens)  # initial loss; some runs may rise above it later
    goals = [(f"validation loss {at:.2f}", "loss", at) for at in (highest + part * (loss - highest) for part in PARTS)]
    goals += [(f"BLEU {at:.1f}", "bleu", at) for at in (part * bleu for part in PARTS)]
    results = []
    for name, points in curves.items():
        padding = 1 - points[-1].tokens / points[-1].positions
        results.append(Result("recipe", name, "tokens/s", rates(points), f"{padding:.0%} of the positions padding"))
    for title, what, goal in goals:
        times = {name: seconds_to(goal, points, what) for name, points in curves.items()}
        late = [name for name, seconds in times.items() if math.isinf(seconds)]
        note = f"not reached: {'; '.join(late)}" if late else ""
        results += [
            Result(f"recipe, to {title}", name, "seconds", [seconds], note)
            for name, seconds in times.items()
            if name not in late
        ]
    for title, what, unit in (("validation loss", "loss", "nats"), ("BLEU", "bleu", "BLEU")):
        results += [
            Result(f"recipe, {title} after {steps} steps", name, unit, [getattr(points[-1], what)])
            for name, points in curves.items()
        ]
    return results
