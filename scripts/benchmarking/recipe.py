"""Measure complete training runs: how long each model takes to become a good translator.

All runs share the data, tokenizer, model size, dropout, number of steps and approximate number of tokens per batch.
The learning rate warms up over a tenth of the steps, then decays linearly to zero. Label smoothing is off, so that all
models minimise the same loss. Our model uses the options of the Multi30k recipe with the momentum of the quickstart;
the peers train with Adam.

"Marian, its defaults" trains like Seq2SeqTrainer: batches of a fixed number of random rows, in float32. The other
peers use our batches and precision. Peers also compute on padding, and batches of mixed lengths contain a lot of it.
Therefore, Marian also runs with batches of similar lengths, as in the paper, and torch.nn.Transformer only with those.
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
from benchmarking.results import OURS, Result
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli.options import make_model, model_options
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.data.tokenizer import train_tokenizer
from vanilla_transformer.decoding import translate
from vanilla_transformer.files import open_output
from vanilla_transformer.tasks.translation import TranslationTask, encode_pairs
from vanilla_transformer.training.arguments import RecipeArguments
from vanilla_transformer.training.batching import row_lengths
from vanilla_transformer.training.trainer import RecipeSeq2SeqTrainer


EVALUATIONS = 10  # number of evaluations during each run; another one precedes training
LONGEST = 256
TRANSLATED_AT_ONCE = 64
SEED_RUN, PEER_DEFAULTS, PEER = "ours, another seed", "Marian, its defaults", "Marian, our batches"
PEER_SIMILAR, TORCH_SIMILAR = "Marian, similar lengths", "torch.nn.Transformer, similar lengths"


@dataclass(frozen=True)
class Point:
    """Result of one evaluation: training time so far in seconds, validation loss, and BLEU of greedy translations."""

    seconds: float
    loss: float
    bleu: float


class TorchTranslator(TorchTransformer):
    """`TorchTransformer` with greedy search and the interface that Trainer expects."""

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


class TimedTrainer(RecipeSeq2SeqTrainer):
    """Trainer that records a `Point` at each evaluation, the first before training. Evaluation time does not count."""

    def __init__(self, *arguments: Any, pairs: Dataset, **options: Any):
        super().__init__(*arguments, **options)
        self.pairs = pairs
        self.points: list[Point] = []

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        seconds = self.points[-1].seconds + time.perf_counter() - self.resumed if self.points else 0.0
        metrics = super().evaluate(*arguments, **options)
        self.points.append(Point(seconds, metrics["eval_loss"], self.bleu()))
        self.resumed = time.perf_counter()
        return metrics

    def bleu(self) -> float:
        options = {} if isinstance(self.model, TorchTranslator) else {"num_beams": 1, "do_sample": False}
        outputs = [
            output
            for batch in self.pairs.iter(TRANSLATED_AT_ONCE)
            for output in translate(batch["source"], self.model, self.processing_class, **options)
        ]
        return corpus_bleu(outputs, [list(self.pairs["target"])]).score


def our_model(size: Size, tokenizer: PreTrainedTokenizerBase) -> nn.Module:
    """Return a new model of the given size with the options of the recipe."""
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


Run = tuple[Callable[[], nn.Module], dict[str, Any]]  # (function that builds the model, training options)


def runs(size: Size, tokenizer: PreTrainedTokenizerBase) -> dict[str, Run]:
    """Return the runs to compare, by name."""

    def ours() -> nn.Module:
        return our_model(size, tokenizer)

    marian, similar_lengths = translators(size)["Marian"], {"learning_rate": 1.5e-3, "bucketing": "length"}
    muon = {"learning_rate": 1.2e-2, "muon": True, "muon_momentum": 0.8}
    return {
        OURS: (ours, muon),
        SEED_RUN: (ours, muon | {"seed": 1}),
        PEER_DEFAULTS: (marian, {"learning_rate": 3e-3, "bucketing": "length", "tokens_per_batch": 0, "bf16": False}),
        # 3e-3 is the peers' best learning rate with random batches, but too high for batches of similar lengths.
        PEER: (marian, {"learning_rate": 3e-3}),
        PEER_SIMILAR: (marian, similar_lengths),
        TORCH_SIMILAR: (lambda: TorchTranslator(size), similar_lengths),
    }


def train(
    run: Run, tokenizer: PreTrainedTokenizerBase, datasets: dict[str, Dataset], pairs: Dataset, options: dict[str, Any]
) -> list[Point]:
    """Train a model and return the results of its evaluations."""
    make, own_options = run
    set_seed(own_options.get("seed", 0))
    model = make()
    with tempfile.TemporaryDirectory() as folder:
        args = RecipeArguments(
            output_dir=folder,
            warmup_steps=0.1,
            per_device_eval_batch_size=TRANSLATED_AT_ONCE,
            eval_on_start=True,
            eval_strategy="steps",
            prediction_loss_only=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **({"bucketing": "none", "seed": 0} | options | own_options),
        )
        trainer = TimedTrainer(
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
    data: DataArguments, size: Size, steps: int, rows: int, precision: str, device: str
) -> Iterator[tuple[str, list[Point]]]:
    """Yield the name and evaluation results of each run. Batches have `rows` sentence pairs on average."""
    splits = load_splits(data, TranslationTask.data)
    splits["validation"] = splits["validation"].select(range(min(len(splits["validation"]), rows)))
    tokenizer = train_tokenizer(texts_of(splits["train"], TranslationTask.data), vocab_size=size.vocab_size)
    size = replace(size, vocab_size=len(tokenizer))
    names = {"train_dataset": "train", "eval_dataset": "validation"}
    datasets = {name: encode_pairs(splits[split], tokenizer, LONGEST) for name, split in names.items()}
    options = {
        "max_steps": steps,
        "eval_steps": max(1, steps // EVALUATIONS),
        "per_device_train_batch_size": rows,
        "tokens_per_batch": int(rows * row_lengths(datasets["train_dataset"]).max(axis=1).mean()),
        "bf16": precision == "bf16",
        "use_cpu": device == "cpu",
    }
    for name, run in runs(size, tokenizer).items():
        yield name, train(run, tokenizer, datasets, splits["validation"], options)


def draw_curves(curves: dict[str, list[Point]]) -> Figure:
    """Draw validation loss and BLEU against training time.

    The time axis is logarithmic to show speed ratios as distances, the loss axis because the loss first falls fast.
    """
    figure, (losses, bleus) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    models = [name.split(",")[0] for name in curves]  # runs of the same model share a colour
    for axes, what, title in ((losses, "loss", "validation loss"), (bleus, "bleu", "BLEU, greedy")):
        for place, (name, points) in enumerate(curves.items()):
            model = models[place]
            axes.plot(
                [point.seconds for point in points[1:]],
                [getattr(point, what) for point in points[1:]],
                label=name,
                marker=".",
                color=f"C{list(dict.fromkeys(models)).index(model)}",
                linestyle=("-", "--", ":")[models[:place].count(model)],
            )
        axes.set(
            xscale="log", yscale="log" if what == "loss" else "linear", xlabel="seconds of training", ylabel=title
        )
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    figure.legend(*losses.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def seconds_to(bleu: float, points: list[Point]) -> float:
    """Interpolate the training time at which a run first reached this BLEU; return infinity if it never did."""
    for before, after in pairwise(points):
        if after.bleu >= bleu:
            share = (bleu - before.bleu) / (after.bleu - before.bleu) if after.bleu > before.bleu else 0.0
            return before.seconds + share * (after.seconds - before.seconds)
    return math.inf


def results_of(curves: dict[str, list[Point]]) -> list[Result]:
    """Return the duration and final scores of each run, and its time to the final BLEU of Marian with its defaults."""
    goal = curves[PEER_DEFAULTS][-1].bleu
    values: dict[tuple[str, str], Callable[[list[Point]], float]] = {
        ("recipe, whole run", "seconds"): lambda points: points[-1].seconds,
        (f"recipe, to BLEU {goal:.1f}", "seconds"): lambda points: seconds_to(goal, points),
        ("recipe, final validation loss", "nats"): lambda points: points[-1].loss,
        ("recipe, final BLEU", "BLEU"): lambda points: points[-1].bleu,
    }
    return [
        Result(section, name, unit, [value(points)])
        for (section, unit), value in values.items()
        for name, points in curves.items()
        if math.isfinite(value(points))
    ]


def measure_recipe(
    data: DataArguments, size: Size, steps: int, rows: int, precision: str, device: str, folder: Path
) -> list[Result]:
    """Train all models and return their results. After each run, update recipe.json and recipe.png with its curve."""
    folder.mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[Point]] = {}
    for name, points in run_all(data, size, steps, rows, precision, device):
        curves[name] = points
        draw_curves(curves).savefig(folder / "recipe.png", dpi=120)
        with open_output(str(folder / "recipe.json")) as stream:
            json.dump({name: [vars(point) for point in points] for name, points in curves.items()}, stream, indent=1)
    return results_of(curves)
