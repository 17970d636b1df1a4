"""What differs from task to task; the rest of training is `vanilla_transformer.cli.train`."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from torch import Tensor
from torch.nn import functional as F
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, Trainer

from vanilla_transformer.losses_vanilla_transformer import IGNORED_LABEL
from vanilla_transformer.training.batching import row_lengths
from vanilla_transformer.training.recipe import (
    EMPTY_STREAM,
    PaperRecipe,
    RecipeArguments,
    RecipeTrainer,
    check_positions,
    is_empty_stream,
)


logger = logging.getLogger(__name__)

HELD_OUT = ("validation", "test")

Rows: TypeAlias = Dataset | IterableDataset
Scores = dict[str, dict[str, float]]  # by split and name
Notes = dict[str, str]  # on how scores were computed, such as a signature


@dataclass(frozen=True)
class Task:
    """A task that models are trained for and scored on: a head of the library, its data, and how the two meet.

    Args:
        data: what the data are for, a key of `COLUMNS`, which names their columns.
        model_class: the model with the head that the task needs.
        template: how a tokenizer that is trained for the task completes a text, a key of `TEMPLATES`.
        pipeline_tag: the task's name on the Hub.
        arguments_class: `RecipeArguments`, and what the task has beyond them.
        encode: (rows, tokenizer, config, arguments) -> rows with the model's inputs in the place of data columns.
        augment: (encoded rows, arguments) -> the rows to train on.
        collator: (tokenizer, model, arguments) -> the function that makes a batch of such rows.
        evaluate: (trainer, rows) -> scores by name, and notes; the rows have the data's columns.
        finish: (trainer, training rows) -> nothing; saves what a trained model has beside its weights. Only the main
            process runs it. The rows have the data's columns.
        in_one_process: `evaluate` knows nothing of other processes, so only the main one runs it.
        metrics: (config, prediction) -> scores by name, beside the loss, wherever the Trainer evaluates; one that is
            called "loss" takes its place.
        metric_names: (arguments) -> the names of these scores.
        read_when_scored: (rows, tokenizer, rows as encoded) -> rows with the `input_ids` that `evaluate` reads; None
            where it cuts them to what the model can read.
        config_fields: (options, arguments, rows) -> config fields that the training data or other options decide.
        prepare: (model, arguments) -> nothing; sets what the model has beside its config before it is trained.
        saved_options: (config) -> options that a saved model decides where it is scored, unless they are given.
        trainer_class: what trains it.
    """

    data: str
    model_class: type[PreTrainedModel]
    template: str
    pipeline_tag: str
    arguments_class: type[RecipeArguments]
    encode: Callable[[Rows, PreTrainedTokenizerBase, PreTrainedConfig, Any], Rows]
    collator: Callable[[PreTrainedTokenizerBase, PreTrainedModel, Any], Callable[[list], dict[str, Any]]]
    evaluate: Callable[[Any, Rows], tuple[dict[str, float], Notes]]
    augment: Callable[[Rows, Any], Rows] = lambda rows, arguments: rows
    finish: Callable[[Any, Rows], None] = lambda trainer, rows: None
    in_one_process: bool = False
    metrics: Callable[[PreTrainedConfig, EvalPrediction], dict[str, float]] | None = None
    metric_names: Callable[[Any], tuple[str, ...]] = lambda arguments: ()
    read_when_scored: Callable[[Any, Any, Rows], Rows | None] = lambda rows, tokenizer, encoded: encoded
    config_fields: Callable[[Any, Any, Rows], dict[str, Any]] = lambda options, arguments, rows: {}
    prepare: Callable[[PreTrainedModel, Any], None] = lambda model, arguments: None
    saved_options: Callable[[PreTrainedConfig], dict[str, Any]] = lambda config: {}
    trainer_class: type[PaperRecipe] = RecipeTrainer

    def data_for(self, arguments: Any) -> str:
        """What the data are for: `data`, unless a task has several kinds, of which its arguments name one."""
        return self.data

    def make_trainer(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, arguments: RecipeArguments, splits: Any
    ) -> PaperRecipe:
        """The trainer of a model, on the training and the validation split, as far as there are any."""
        with arguments.main_process_first(desc="encoding the data"):  # the others find them encoded
            # All of them: what cannot be encoded or read is said now, not when all is trained.
            encoded: dict[str, Rows] = {}
            for split, rows in splits.items():
                try:
                    encoded[split] = self.encode(rows, tokenizer, model.config, arguments)
                except ValueError as error:
                    raise ValueError(f"{split}: {error}") from error
            if getattr(model.config, "position_embedding", None) == "learned":
                for split in encoded.keys() & {*HELD_OUT}:
                    read = self.read_when_scored(splits[split], tokenizer, encoded[split])
                    check_positions(model, read, sides=("input_ids",))
            if "train" in encoded:
                encoded["train"] = self.augment(encoded["train"], arguments)
        return self.trainer_class(
            model=model,
            args=arguments,
            data_collator=self.collator(tokenizer, model, arguments),
            processing_class=tokenizer,
            compute_metrics=self.metrics and partial(self.metrics, model.config),
            train_dataset=encoded.get("train"),
            eval_dataset=encoded.get("validation"),
        )

    def score(self, trainer: PaperRecipe, splits: Any) -> tuple[Scores, Notes]:
        """The scores of each held-out split; in a process that does not evaluate, and of an empty stream, none."""
        scores: Scores = {}
        notes: Notes = {}
        config, args = trainer.model.config, trainer.args
        for split in (name for name in HELD_OUT if name in splits):
            if self.in_one_process and not trainer.is_world_process_zero():
                continue
            rows = splits[split]
            # Rows of other kinds are encoded before training, and refused there.
            encoded = rows if isinstance(rows, Dataset) else self.encode(rows, trainer.processing_class, config, args)
            if is_empty_stream(encoded):
                logger.warning("There are no scores of %s: %s", split, EMPTY_STREAM)
            else:
                scores[split], notes = self.evaluate(trainer, rows)
        return scores, notes


def warned_of_cuts(rows: Rows, args: Any) -> Rows:
    """The encoded rows, after a warning of those that are as long as training takes them, and most likely cut."""
    if args.process_index == 0 and isinstance(rows, Dataset):
        cut = int((row_lengths(rows).max(axis=1) >= args.max_length).sum())
        if cut:
            logger.warning("--max_length %d cuts %d of %d training rows.", args.max_length, cut, len(rows))
    return rows


def as_saved(trainer: Trainer) -> Any:
    """The trained model as those have it who load it: without the mixed precision that it was trained in."""
    return trainer.accelerator.unwrap_model(cast(Any, trainer.model), keep_fp32_wrapper=False).eval()


class PerTargetTrainer(RecipeTrainer):
    """Measures the mean over all targets: the library's is over batches, which have more or fewer of them."""

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As the library's, but in the place of logits and labels are, for each row, the sum of the losses of its
        targets, and how many these are: each (batch,).
        """
        only_logits = [*(ignore_keys or []), "hidden_states", "attentions"]
        loss, logits, labels = cast(Any, super().prediction_step(model, inputs, False, only_logits))
        if self.model.can_generate():
            logits, labels = logits[:, :-1], labels[:, 1:]
        losses = [
            F.cross_entropy(scores.float(), targets, ignore_index=IGNORED_LABEL, reduction="sum")
            for scores, targets in zip(logits, labels, strict=True)
        ]
        return loss, torch.stack(losses), (labels != IGNORED_LABEL).sum(dim=1)


def loss_per_target(config: PreTrainedConfig, prediction: EvalPrediction) -> dict[str, float]:
    """The loss of a `PerTargetTrainer`, which takes the place of the library's; nan where there is no target."""
    losses, numbers = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
    return {"loss": losses.sum(dtype=np.float64) / numbers.sum() if numbers.any() else math.nan}


def measure(trainer: Trainer, rows: Rows) -> dict[str, float]:
    """The loss, and what the trainer's `compute_metrics` gives, on encoded rows."""
    metrics = trainer.evaluate(rows)
    kept = {name.removeprefix("eval_"): value for name, value in metrics.items() if name.startswith("eval_")}
    return {name: value for name, value in kept.items() if not name.endswith(("_time", "runtime", "second"))}
