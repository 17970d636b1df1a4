"""Define the base class of all tasks, which describes a task, creates its trainer and computes its scores."""

import json
import logging
import math
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import torch
from datasets import Dataset, IterableDataset
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, Trainer

from vanilla_transformer.data.columns import Schema
from vanilla_transformer.training.arguments import RecipeArguments
from vanilla_transformer.training.batching import EMPTY_STREAM, is_empty_stream, row_lengths
from vanilla_transformer.training.trainer import RecipeTrainer, RecipeTrainerMixin


logger = logging.getLogger(__name__)

HELD_OUT = ("validation", "test")

Rows: TypeAlias = Dataset | IterableDataset
Scores = dict[str, dict[str, float]]  # split -> metric -> value
Notes = dict[str, str]  # details of the metrics, such as a sacreBLEU signature


class Example(NamedTuple):
    """A data row with the model's output for it. Higher scores are better."""

    source: str
    target: str
    output: str
    score: float


class Task:
    """Base class of the tasks that models are trained and scored on. Each subclass has its own module.

    Subclasses set the attributes below and implement `encode` and `collator`; all other methods have defaults.

    Attributes:
        name: task name for the command `train`; also the name of the subclass's module.
        data: columns of the data, and how rows are read and split.
        model_class: model class with the head for this task.
        template: special-token template for a tokenizer trained for this task, a key of `TEMPLATES`.
        pipeline_tag: the task's name on the Hub.
        usage: Python example for the model card; `folder` is a variable with the path of the model.
        arguments_class: dataclass with the options of `RecipeArguments` and of this task.
        trainer_class: Trainer class for this task.
        ranked_by: metric for comparing models; lower is better for loss and rmse, higher for all others.
        metric_names: metrics that `metrics` computes in addition to the loss; "loss" if it replaces the loss.
        in_one_process: whether `evaluate` runs in the main process only, because it is not distributed.
    """

    name: ClassVar[str]
    data: ClassVar[Schema]
    model_class: ClassVar[type[PreTrainedModel]]
    template: ClassVar[str] = "encoder"
    pipeline_tag: ClassVar[str]
    usage: ClassVar[str]
    arguments_class: ClassVar[type[RecipeArguments]] = RecipeArguments
    trainer_class: ClassVar[type[RecipeTrainerMixin]] = RecipeTrainer
    ranked_by: ClassVar[str] = "loss"
    metric_names: ClassVar[tuple[str, ...]] = ()
    in_one_process: ClassVar[bool] = False

    def __init__(self, arguments: Any):
        self.arguments = arguments

    @classmethod
    def auto_class(cls) -> str:
        """Return the name of the Auto class that loads models of this task."""
        auto_classes = cast(Any, cls.model_class.config_class).auto_classes
        return next(auto for auto, name in auto_classes.items() if name == cls.model_class.__name__)

    @classmethod
    def fits(cls, config: PreTrainedConfig) -> bool:
        """Whether a model with this config belongs to this task, since several tasks can share a model class."""
        return True

    @classmethod
    def saved_options(cls, config: PreTrainedConfig) -> dict[str, Any]:
        """Return the default options for scoring a saved model with this config."""
        return {}

    def config_fields(self, rows: Rows, model_options: Any) -> dict[str, Any]:
        """Return the config fields that depend on the unencoded training rows or on other options."""
        return {}

    def prepare(self, model: PreTrainedModel) -> None:
        """Prepare the model for training, for example by setting its generation config."""

    def encode(self, rows: Rows, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> Rows:
        """Convert the data's columns to model inputs.

        Raises:
            ValueError: a row cannot be encoded.
        """
        raise NotImplementedError

    def augment(self, rows: Rows) -> Rows:
        """Return the rows to train on, given the encoded training split."""
        return rows

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Callable[[list], dict[str, Any]]:
        """Return the function that collates encoded rows into a batch."""
        raise NotImplementedError

    def metrics(self, config: PreTrainedConfig, prediction: EvalPrediction) -> dict[str, float]:
        """Compute the metrics in `metric_names`; the Trainer calls this during evaluation."""
        raise NotImplementedError

    def evaluate(self, trainer: RecipeTrainerMixin, rows: Rows) -> tuple[dict[str, float], Notes]:
        """Return the model's loss and metrics on unencoded rows, and notes on the metrics."""
        return measure(trainer, self.encode(rows, trainer.processing_class, trainer.model.config)), {}

    def examples(self, trainer: RecipeTrainerMixin, rows: Dataset) -> list[Example]:
        """Return the model's output for each row; by default, an empty list."""
        return []

    def baselines(self, trainer: RecipeTrainerMixin, train: Dataset, rows: Dataset) -> Scores:
        """Return the scores on `rows` of simple baselines fitted to `train`, by baseline name."""
        return {}

    def shell_command(self, folder: str, row: dict[str, Any]) -> str:
        """Return a copyable shell command that runs the saved model on a row."""
        call = (
            f'pipeline("{self.pipeline_tag}", {as_code(folder)}, trust_remote_code=True)({self.pipeline_input(row)})'
        )
        return f"python -c {shlex.quote(f'from transformers import pipeline; print({call})')}"

    def pipeline_input(self, row: dict[str, Any]) -> str:
        """Return the arguments for calling a pipeline on a row, as Python code."""
        return as_code(row["text"])

    def is_worse(self, scores: dict[str, float], before: dict[str, float]) -> bool:
        """Whether `scores` are worse than `before` according to `ranked_by`."""
        new, old = (each.get(self.ranked_by, 0.0) for each in (scores, before))
        return new > old if self.ranked_by in ("loss", "rmse") else new < old

    def make_trainer(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, splits: Any
    ) -> RecipeTrainerMixin:
        """Create a trainer for the model, with the training and validation splits if they exist.

        All splits are encoded immediately, so that invalid rows are reported before training.

        Raises:
            ValueError: a row cannot be encoded.
        """
        with self.arguments.main_process_first(desc="encoding the data"):  # the other processes read the cached result
            encoded: dict[str, Rows] = {}
            for split, rows in splits.items():
                try:
                    encoded[split] = self.encode(rows, tokenizer, model.config)
                except ValueError as error:
                    raise ValueError(f"{split}: {error}") from error
            if "train" in encoded:
                encoded["train"] = self.augment(encoded["train"])
        return self.trainer_class(
            model=model,
            args=self.arguments,
            data_collator=self.collator(tokenizer, model),
            processing_class=tokenizer,
            compute_metrics=partial(self.metrics, model.config) if self.metric_names else None,
            train_dataset=encoded.get("train"),
            eval_dataset=encoded.get("validation"),
        )

    def score(self, trainer: RecipeTrainerMixin, splits: Any) -> tuple[Scores, Notes]:
        """Return the scores of each held-out split, omitting empty streams and splits that another process scores."""
        scores: Scores = {}
        notes: Notes = {}
        for split in (name for name in HELD_OUT if name in splits):
            if self.in_one_process and not trainer.is_world_process_zero():
                continue
            rows = splits[split]
            # `make_trainer` has already encoded all splits, but streams are encoded lazily.
            is_stream = isinstance(rows, IterableDataset)
            encoded = self.encode(rows, trainer.processing_class, trainer.model.config) if is_stream else rows
            if is_empty_stream(encoded):
                logger.warning("There are no scores of %s: %s", split, EMPTY_STREAM)
            else:
                scores[split], notes = self.evaluate(trainer, rows)
        return scores, notes


@dataclass
class TruncatingArguments(RecipeArguments):
    """Training options of the recipe, plus the maximum input length."""

    LIMITS = RecipeArguments.LIMITS | {"max_length": (1, math.inf)}

    max_length: int = field(default=512, metadata={"help": "Truncate texts to this many tokens."})


class TruncatingTask(Task):
    """A task whose inputs are truncated to `max_length` tokens."""

    arguments_class = TruncatingArguments

    arguments: TruncatingArguments

    def augment(self, rows: Rows) -> Rows:
        """Return the rows unchanged, after warning about truncated rows."""
        return warn_truncated(rows, self.arguments)


def warn_truncated(rows: Rows, arguments: Any) -> Rows:
    """Warn about encoded rows that reach `max_length` and were probably truncated. Return all rows unchanged."""
    if arguments.process_index == 0 and isinstance(rows, Dataset):
        truncated = int((row_lengths(rows).max(axis=1) >= arguments.max_length).sum())
        if truncated:
            logger.warning(
                "--max_length %d truncates %d of %d training rows.", arguments.max_length, truncated, len(rows)
            )
    return rows


def unwrap_for_eval(trainer: Trainer) -> Any:
    """Return the trained model in evaluation mode, without accelerate's wrappers for mixed precision."""
    model = trainer.accelerator.unwrap_model(cast(Any, trainer.model), keep_fp32_wrapper=False)
    vars(model).pop("forward", None)  # accelerate leaves an undecorated `forward` on the instance; restore the class's
    return model.eval()


@contextmanager
def scoring_aside(trainer: RecipeTrainerMixin) -> Iterator[None]:
    """Restore the random state, the wrapped `forward` and `use_cache` after scoring, so as not to affect training."""
    model = trainer.model
    wrapped = {name: value for name, value in vars(model).items() if name in ("forward", "_original_forward")}
    use_cache, model.config.use_cache = model.config.use_cache, trainer.saved_use_cache
    try:
        with torch.random.fork_rng():
            yield
    finally:
        model.config.use_cache = use_cache
        vars(model).update(wrapped)


def as_code(text: str) -> str:
    """Return the first 200 characters of a string as a Python literal."""
    return json.dumps(text if len(text) <= 200 else text[:200], ensure_ascii=False)


def measure(trainer: Trainer, rows: Rows) -> dict[str, float]:
    """Return the trainer's loss and metrics on encoded rows."""
    return plain_scores(trainer.evaluate(rows))


def plain_scores(metrics: dict[str, float]) -> dict[str, float]:
    """Return the loss and metrics of an evaluation without the "eval_" prefix and the timings."""
    kept = {name.removeprefix("eval_"): value for name, value in metrics.items() if name.startswith("eval_")}
    return {name: value for name, value in kept.items() if not name.endswith(("_time", "runtime", "second"))}
