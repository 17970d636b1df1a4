"""The paper's training recipe (section 5) on top of the library's Trainer: optimiser, schedule, batches by tokens."""

import json
import logging
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import pyarrow.compute as pc
import torch
from accelerate.data_loader import DataLoaderShard
from datasets import Dataset, IterableDataset
from datasets.distributed import split_dataset_by_node
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
)
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import SchedulerType, seed_worker

from vanilla_transformer.configuration_vanilla_transformer import require_private_names
from vanilla_transformer.fast.transfer import AsyncScalars, to_device
from vanilla_transformer.training.averaging import load_weights
from vanilla_transformer.training.batching import (
    TokenBudgetLoader,
    TokenBudgetSampler,
    TokenBudgetStream,
    row_lengths,
)
from vanilla_transformer.training.checkpoints import (
    RUN_FILE,
    TRAINER_STATE,
    checkpoint_folders,
    clear,
    is_complete,
    last_checkpoint,
    missing_state,
    share,
    was_interrupted,
)
from vanilla_transformer.training.collating import ArrowRows, PairCollator
from vanilla_transformer.training.growing_dropout import GrowingDropout
from vanilla_transformer.training.muon import muon_with_adam
from vanilla_transformer.training.precision import multiplies_bfloat16
from vanilla_transformer.training.same_run import OFF, check_same_run, digest
from vanilla_transformer.training.schedule import PaperSchedule
from vanilla_transformer.training.sigterm import SaveOnSigterm, outliving_sigterm


logger = logging.getLogger(__name__)

# What is overridden or called below of the library's private interface (and `_tr_loss`, made in training). Were
# one renamed, the library would not call ours any more, and say nothing.
PRIVATE_NAMES = (
    "_get_collator_with_removed_columns",
    "_get_dataloader",
    "_get_grad_norm",
    "_init_training_state",
    "_issue_warnings_after_load",
    "_load_best_model",
    "_load_from_checkpoint",
    "_remove_unused_columns",
    "_save",
    "_save_checkpoint",
)
PRIVATE_ATTRIBUTES = ("_created_lr_scheduler", "_train_batch_size")
require_private_names(Trainer, *PRIVATE_NAMES)


@dataclass
class RecipeArguments(Seq2SeqTrainingArguments):
    """The library's training arguments with the paper's values as defaults, and options for what only the paper has.

    Raises:
        ValueError: one of the library's schedules without a learning rate, or the paper's with one; label smoothing by
            the Trainer; a mean of checkpoints instead of the best one, or of more than are kept; a number that is too
            small to mean anything.
    """

    LEAST: ClassVar[dict[str, int]] = {"average_checkpoints": 1, "tokens_per_batch": 0}  # of what the options may be

    output_dir: str = field(default="runs/model", metadata={"help": "Folder for checkpoints and the final model."})
    do_train: bool = field(default=True, metadata={"help": "Train; with false, only evaluate."})
    schedule: Literal["paper", "library"] | None = field(
        default=None,
        metadata={
            "help": "paper (section 5.3): --learning_rate_scale * d_model^-0.5 * min(step^-0.5, step * "
            "warmup_steps^-1.5); library: --lr_scheduler_type with a peak of --learning_rate. The "
            "default is library if a --learning_rate is given, and paper otherwise."
        },
    )
    # The library's type has no None: these are settled when an instance is made.
    learning_rate: float | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Peak learning rate of one of the library's schedules."}
    )
    lr_scheduler_type: SchedulerType | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Which of the library's schedules to use; by default linear."}
    )
    learning_rate_scale: float = field(default=1.0, metadata={"help": "Factor that multiplies the paper's schedule."})
    warmup_steps: float = field(
        default=4000,
        metadata={"help": "Steps over which the learning rate rises; a number below 1 is a share of all steps."},
    )
    adam_beta2: float = field(default=0.98, metadata={"help": "Adam's beta2 (section 5.3)."})
    adam_epsilon: float = field(default=1e-9, metadata={"help": "Adam's epsilon (section 5.3)."})
    muon: bool = field(
        default=False,
        metadata={
            "help": "Train the layers' matrices with Muon and the rest with Adam: fewer steps to the same loss, in "
            "small translators less than half as many. Not for sharded weights (FSDP)."
        },
    )
    muon_momentum: float = field(
        default=0.95,
        metadata={
            "help": "Of Muon, from 0 to 1: how much of each step is that of the steps before. Less suits short runs."
        },
    )
    embedding_decay: float = field(
        default=0.0,
        metadata={
            "help": "With Muon: weight decay of the embeddings, which --weight_decay leaves alone. For data that come "
            "again and again."
        },
    )
    initial_dropout: float | None = field(
        default=None,
        metadata={
            "help": "Begin with this rate of dropout, which goes to --dropout step by step: little at first learns "
            "sooner, and more in the end learns less by heart."
        },
    )
    max_grad_norm: float = field(default=0.0, metadata={"help": "Clip gradients to this norm; 0 means no clipping."})
    tokens_per_batch: int = field(
        default=0,
        metadata={
            "help": "Fill batches with sequences of similar length, up to this many source tokens and as many "
            "target tokens, padding included (section 5.1: 25000). 0 means batches of "
            "--per_device_train_batch_size sequences."
        },
    )
    tokens_per_batch_of: Literal["step", "device"] = field(
        default="step",
        metadata={
            "help": "What --tokens_per_batch counts: the tokens of a whole step, over all devices and "
            "accumulation steps, or those that one device processes at once."
        },
    )
    mixed_lengths: bool = field(
        default=False,
        metadata={
            "help": "Fill the batches of --tokens_per_batch with sequences at random, and count no padding, which a "
            "packed model leaves out: in short runs fewer steps to the same loss than with similar lengths."
        },
    )
    average_checkpoints: int = field(
        default=1, metadata={"help": "Make the final model the mean of this many last checkpoints (section 6.1: 5)."}
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={
            "help": "Stop after this many evaluations without improvement in --metric_for_best_model; needs "
            "--load_best_model_at_end true."
        },
    )
    bf16: bool | None = field(  # type: ignore[assignment]  # settled likewise
        default=None,
        metadata={
            "help": "Multiply matrices in bfloat16, with weights and sums in float32. On by default if the "
            "processor has instructions for it."
        },
    )
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Log the last finite loss instead of one that is nan or inf."}
    )
    save_on_sigterm: bool = field(default=True, metadata={"help": "Save a checkpoint and exit on SIGTERM."})

    def __post_init__(self):
        for name, least in self.LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name}={value} must be at least {least}.")
        if self.label_smoothing_factor:
            # The Trainer would not shift the labels of a language model that is not the library's own.
            raise ValueError(
                f"label_smoothing_factor={self.label_smoothing_factor}: labels are smoothed in the model, so give "
                "--label_smoothing instead."
            )
        if self.early_stopping_patience is not None and not self.load_best_model_at_end:
            raise ValueError(
                f"early_stopping_patience={self.early_stopping_patience} needs --load_best_model_at_end true, "
                "with the same --eval_strategy and --save_strategy."
            )
        if not 0 <= self.muon_momentum < 1:
            raise ValueError(f"muon_momentum={self.muon_momentum} must be at least 0 and less than 1.")
        if self.embedding_decay < 0 or (self.embedding_decay and not self.muon):
            raise ValueError(
                f"embedding_decay={self.embedding_decay} must be at least 0, and needs --muon true: without it "
                "--weight_decay is of the embeddings as well."
            )
        if self.mixed_lengths and not self.tokens_per_batch:
            raise ValueError("mixed_lengths=True says how batches are filled up to --tokens_per_batch, which is 0.")
        if self.initial_dropout is not None:
            if not 0 <= self.initial_dropout < 1:
                raise ValueError(f"initial_dropout={self.initial_dropout} must be at least 0 and less than 1.")
            if self.torch_compile:
                raise ValueError(
                    f"initial_dropout={self.initial_dropout} is another rate at each step, for which --torch_compile "
                    "would compile the model anew: leave out one of the two."
                )
        if self.muon and self.fsdp:
            raise ValueError("muon=True needs whole matrices, but --fsdp shards them: leave out one of the two.")
        if self.muon and self.optim != type(self).optim:
            raise ValueError(f"optim={self.optim} has no effect beside muon=True: leave out one of the two.")
        if self.load_best_model_at_end and self.average_checkpoints > 1:
            if self.average_checkpoints != type(self).average_checkpoints:
                raise ValueError(
                    f"average_checkpoints={self.average_checkpoints} would put a mean in the place of the best model "
                    "that --load_best_model_at_end true asks for: choose one of them."
                )
            logger.warning("The final model is the best one, not the mean of the last checkpoints.")
            self.average_checkpoints = 1
        if 0 < (self.save_total_limit or 0) < self.average_checkpoints:
            if self.average_checkpoints != type(self).average_checkpoints:
                raise ValueError(
                    f"save_total_limit={self.save_total_limit} keeps too few checkpoints for a mean of "
                    f"average_checkpoints={self.average_checkpoints}: raise the one, or lower the other."
                )
            logger.warning(
                "The final model is the mean of %d checkpoints, as many as are kept.", self.save_total_limit
            )
            self.average_checkpoints = cast(int, self.save_total_limit)
        if self.greater_is_better is None and str(self.metric_for_best_model).removeprefix("eval_") == "rmse":
            self.greater_is_better = False  # the library knows it of losses alone
        # A command line gives texts.
        given = str(self.resume_from_checkpoint).lower()
        self.resume_from_checkpoint = {"true": True, "false": None}.get(given, self.resume_from_checkpoint)
        if self.bf16 is None:
            chosen = self.fp16 or "ACCELERATE_MIXED_PRECISION" in os.environ  # set by `accelerate launch`
            self.bf16 = not chosen and multiplies_bfloat16(self.device_type())
        elif self.bf16 and not multiplies_bfloat16(self.device_type()):
            logger.warning(
                "bf16=True: this %s has no instructions for products in bfloat16, which may take ten times as long as "
                "in float32 (--bf16 false).",
                "processor" if self.device_type() == "cpu" else self.device_type(),
            )
        if self.bf16 and not torch.accelerator.is_available():
            self.use_cpu = True  # without it the library takes bfloat16 for a slip
        self.settle_schedule()
        super().__post_init__()
        if self.device_type() == "cpu":
            self.dataloader_pin_memory = False  # which is for copies to a GPU; PyTorch warns of it where there is none

    def device_type(self) -> str:
        """Where training will run, before the library settles it: "cpu", "cuda" ..."""
        accelerator = None if self.use_cpu else torch.accelerator.current_accelerator(check_available=True)
        return accelerator.type if accelerator else "cpu"

    def __getstate__(self) -> dict[str, Any]:
        """What is written into a checkpoint: all but the token, which is nobody else's."""
        return vars(self) | {"hub_token": None}

    def settle_schedule(self) -> None:
        """Decide what is left open of the learning rate; arguments that are copied or read back mean the same."""
        if self.schedule is None:
            own = self.learning_rate is None and self.lr_scheduler_type is None
            self.schedule = "paper" if own else "library"
        self.lr_scheduler_type = SchedulerType(self.lr_scheduler_type or "linear")
        if self.schedule == "library" and self.learning_rate is None:
            raise ValueError(f"lr_scheduler_type={self.lr_scheduler_type.value} needs a --learning_rate.")
        if self.schedule == "paper":
            if self.learning_rate not in (None, self.learning_rate_scale):
                raise ValueError(
                    f"learning_rate={self.learning_rate} belongs to --schedule library; the paper's schedule has a "
                    f"--learning_rate_scale, here {self.learning_rate_scale}."
                )
            self.learning_rate = self.learning_rate_scale  # what the schedule multiplies


@torch.no_grad()
def load_into_shards(model: PreTrainedModel, folder: Path) -> None:
    """Load the weights of a checkpoint into a model that FSDP has sharded."""
    weights = load_weights(folder)
    for name, parameter in model.named_parameters():
        weight = weights[name].to(parameter.device, parameter.dtype)
        shard = cast(DTensor, parameter)
        shard.copy_(distribute_tensor(weight, shard.device_mesh, shard.placements))


def name_as_unsharded(model: PreTrainedModel) -> None:
    """FSDP2 makes a subclass of the model that it shards; what is saved should name ours, and carry its file."""
    sharded = type(model)
    if sharded.__name__.startswith("FSDP"):
        ours = sharded.__bases__[-1]
        sharded.__name__, sharded.__module__ = ours.__name__, ours.__module__


@torch.no_grad()
def check_finite(model: PreTrainedModel) -> None:
    """Raise a FloatingPointError for a weight that is not finite."""
    for name, weight in model.named_parameters():
        local = weight.to_local() if isinstance(weight, DTensor) else weight
        if not local.isfinite().all():
            raise FloatingPointError(f"{name} holds weights that are not finite, which are not saved. {DIVERGED}")


def sent(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Copy the tensors of a batch to the device asynchronously.

    Padding masks go as booleans: transformers' mask functions would convert them, and lose the host copy.
    """
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    masks = {name: mask for name, mask in tensors.items() if name.endswith("attention_mask") and mask.dim() == 2}
    tensors |= {name: mask.bool() for name, mask in masks.items()}
    return {**batch, **{name: to_device(value, device) for name, value in tensors.items()}}


def check_positions(model: PreTrainedModel, rows: Any, sides: tuple[str, ...] = ("input_ids", "labels")) -> None:
    """Raise a ValueError for rows longer than a table of learned positions, which is better known before training."""
    config = getattr(model, "config", None)
    if config is None or getattr(config, "position_embedding", None) != "learned" or not isinstance(rows, Dataset):
        return
    sides = sides if config.is_encoder_decoder else ("input_ids",)
    if "position_ids" in rows.features:  # of packed documents
        tables = rows.select_columns(["position_ids"]).with_format("arrow").iter(batch_size=10_000)
        longest = 1 + max(pc.max(pc.list_flatten(table["position_ids"])).as_py() for table in tables)
    else:
        tables = rows.select_columns(list(sides)).with_format("arrow").iter(batch_size=10_000)
        longest = max(pc.max(pc.list_value_length(table[side])).as_py() for table in tables for side in sides)
    if longest > config.max_position_embeddings:
        raise ValueError(
            f"A row has {longest} tokens, and the table of position_embedding='learned' has "
            f"max_position_embeddings={config.max_position_embeddings} rows: raise that, or cut the rows."
        )


EMPTY_STREAM = (
    "the held-out stream is empty, or too short to fill a row of a language model: give a longer one, hold out more "
    "(--validation_fraction), or lower --block_size."
)


def is_empty_stream(rows: Any) -> bool:
    """Whether a stream has no row. No more is read than for a first batch."""
    return isinstance(rows, IterableDataset) and next(iter(rows), None) is None


WITHOUT_WARM_UP = (SchedulerType.CONSTANT, SchedulerType.REDUCE_ON_PLATEAU)

DIVERGED = (
    "Training has diverged: lower the learning rate, clip gradients (--max_grad_norm), or look for extreme data."
)


if TYPE_CHECKING:
    Mixin = Trainer  # whose names it uses
else:
    Mixin = object


class PaperRecipe(Mixin):
    """Mixin for a Trainer whose arguments are `RecipeArguments`."""

    args: RecipeArguments
    model: PreTrainedModel
    processing_class: Any  # a tokenizer, if there is one

    def __init__(self, model: PreTrainedModel | None = None, *arguments: Any, **options: Any):
        # The library switches the cache off in the config, for as long as it trains: what is saved should not say so.
        self.saved_use_cache = getattr(getattr(model, "config", None), "use_cache", True)
        super().__init__(model, *arguments, **options)
        require_private_names(self, *PRIVATE_ATTRIBUTES)
        self.async_scalars = AsyncScalars()
        if self.args.save_on_sigterm:
            self.add_callback(SaveOnSigterm)
        if self.args.initial_dropout is not None:
            self.add_callback(GrowingDropout(self.args.initial_dropout))
        if self.args.early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(self.args.early_stopping_patience))

    @cached_property
    def run_facts(self) -> dict[str, Any]:
        """What has to be the same in a run that is resumed, beside model and tokenizer."""
        args = self.args
        name = "tokens_per_batch_of" if args.tokens_per_batch else "per_device_train_batch_size"
        batch = {name: getattr(args, name)}
        if not args.tokens_per_batch or args.tokens_per_batch_of == "device":
            batch["gradient_accumulation_steps x processes"] = args.gradient_accumulation_steps * args.world_size
        streams = isinstance(self.train_dataset, IterableDataset)
        return {
            "training rows": len(self.train_dataset) if isinstance(self.train_dataset, Dataset) else None,
            # Under another name of a stream, of which earlier versions wrote that it has none.
            "hash of the stream's first rows" if streams else "training data's hash": digest(self.train_dataset),
            "seed": args.seed,
            "data_seed": args.data_seed,
            "muon": args.muon,
            **({"muon_momentum": args.muon_momentum} if args.muon else {}),
            **{name: getattr(args, name) for name in OFF},
            **batch,
        }

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **options: Any):
        """As the library's, but True is the last complete checkpoint, and a run goes on from its own alone.

        Raises:
            FileNotFoundError: there is no such checkpoint.
            ValueError: a checkpoint that is not complete, of another run, or earlier than others in the folder; rows
                beyond learned positions; a best model by what is not measured; epochs of a stream, which has none; a
                stream without a row.
            FloatingPointError: the loss, a gradient or a weight is not finite any more.
        """
        metric = str(self.args.metric_for_best_model)
        if self.args.load_best_model_at_end and self.compute_metrics is None and not metric.endswith("loss"):
            raise ValueError(
                f"metric_for_best_model={metric}: while this task is trained, it measures the loss alone."
            )
        if isinstance(self.train_dataset, IterableDataset):
            for name in ("eval_strategy", "save_strategy"):
                if getattr(self.args, name) == "epoch":
                    raise ValueError(f"{name}=epoch: a stream is read until --max_steps, as one epoch; give steps.")
        if is_empty_stream(self.train_dataset):
            raise ValueError(
                "The training stream is empty, or too short to fill a row of a language model: give a longer one, or "
                "lower --block_size."
            )
        if self.args.eval_strategy != "no" and is_empty_stream(self.eval_dataset):
            raise ValueError(f"--eval_strategy: {EMPTY_STREAM}")
        for rows in (self.train_dataset, self.eval_dataset):
            check_positions(self.model, rows)
        if isinstance(self.train_dataset, IterableDataset):
            _ = self.run_facts  # whose first rows are read now, not while it trains
        if resume_from_checkpoint is True:
            run = Path(self.args.output_dir)
            checkpoint = last_checkpoint(run)
            if checkpoint is None:
                raise ValueError(f"output_dir={run} holds no complete checkpoint to resume from.")
            self.check_checkpoint(checkpoint)
            if self.is_world_process_zero():
                best = json.loads((checkpoint / TRAINER_STATE).read_text(encoding="utf-8")).get("best_global_step")
                clear(run, self.args.save_total_limit, str(run / f"checkpoint-{best}"))
            self.accelerator.wait_for_everyone()
            resume_from_checkpoint = str(checkpoint)
        elif resume_from_checkpoint:
            folder, run = Path(resume_from_checkpoint), Path(self.args.output_dir)
            self.check_checkpoint(folder)
            step = json.loads((folder / TRAINER_STATE).read_text(encoding="utf-8"))["global_step"]
            later = [other.name for other in checkpoint_folders(run) if int(other.name.split("-")[1]) > step]
            if later:  # it would be part of the mean, or what is resumed next
                raise ValueError(
                    f"output_dir={run} holds {later[-1]}, which is later than {folder.name} and not of the run that "
                    "goes on from there: move later ones away, or choose another folder."
                )
        return super().train(resume_from_checkpoint, *arguments, **options)

    def check_checkpoint(self, folder: Path) -> None:
        """Refuse a checkpoint that this run cannot go on from."""
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: there is no such folder.")
        if not is_complete(folder):
            raise ValueError(f"{folder} is not a complete checkpoint: it was cut off, or a file of it is damaged.")
        if missing_state(folder):
            raise ValueError(f"{folder} cannot be resumed: it lacks its {', '.join(missing_state(folder))}.")
        check_same_run(folder, self.run_facts, self.model.config, self.processing_class)

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, resume_from_checkpoint, trial
    ) -> tuple[int, int]:
        """As the library's, but a run that has ended trains no further, and one folder may be moved as a whole."""
        position = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if resume_from_checkpoint is None:
            return position
        best = Path(resume_from_checkpoint).with_name(f"checkpoint-{self.state.best_global_step}")
        if best.is_dir():
            self.state.best_model_checkpoint = str(best)
        ended = self.state.global_step >= max_steps
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback):
                saved = cast(dict[str, Any], self.state.stateful_callbacks).get(type(callback).__name__, {})
                counter = saved.get("attributes", {}).get("early_stopping_patience_counter", 0)
                callback.early_stopping_patience_counter = counter
                ended |= counter >= callback.early_stopping_patience
        return (num_train_epochs, 0) if ended else position

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """As the library's. Asked for before each step of the optimiser: the time to stop a run that diverged."""
        norm = super()._get_grad_norm(model, grad_norm)
        if self.accelerator.mixed_precision == "fp16":
            return norm  # a gradient scaler finds such gradients itself, and leaves the step out
        loss = self._tr_loss  # the sum since it was last logged
        numbers = torch.stack((loss, loss.new_zeros(()) + (norm.full_tensor() if isinstance(norm, DTensor) else norm)))
        found = self.async_scalars.push(self.state.global_step + 1, numbers)
        if found is not None and not math.isfinite(sum(found[1])):
            raise FloatingPointError("Step {}: loss {}, gradient norm {}. {}".format(found[0], *found[1], DIVERGED))
        return norm

    def get_batch_samples(
        self, epoch_iterator: Iterator[dict[str, Any]], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], torch.Tensor | int | None]:
        """As the library's, of batches on their way to the device, for which the host does not wait."""
        return super().get_batch_samples(map(partial(sent, device=device), epoch_iterator), num_batches, device)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        if not self.args.should_save:
            super()._save_checkpoint(model, trial)
            return
        run = Path(self.args.output_dir)
        folder = run / f"checkpoint-{self.state.global_step}"
        callbacks = self.callback_handler.callbacks
        interrupted = any(isinstance(callback, SaveOnSigterm) and callback.interrupting for callback in callbacks)
        facts = self.run_facts | {"interrupted": interrupted, "processes": self.args.world_size}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RUN_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        # What a termination has saved is obsolete now: a run that was not interrupted has nothing of the kind.
        kept = (folder, Path(self.state.best_model_checkpoint or folder))
        obsolete = [other for other in checkpoint_folders(run) if other not in kept and was_interrupted(other)]
        for other in obsolete:
            os.utime(other, (0, 0))  # the library deletes the oldest
        super()._save_checkpoint(model, trial)
        for other in obsolete:
            shutil.rmtree(other, ignore_errors=True)

    def save_model(self, *arguments: Any, **options: Any) -> None:
        """As the library's; also of a sharded model, the config names the model's own class.

        Raises:
            FloatingPointError: a weight is not finite.
        """
        check_finite(self.model)
        name_as_unsharded(self.model)
        super().save_model(*arguments, **options)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if isinstance(self.processing_class, PreTrainedTokenizerFast):  # else the saved file would cut texts for good
            self.processing_class.backend_tokenizer.no_truncation()
        config = self.model.config
        in_training, config.use_cache = config.use_cache, self.saved_use_cache
        super()._save(output_dir, state_dict)
        config.use_cache = in_training
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            share(folder)
            if folder == Path(self.args.output_dir):
                (folder / TRAINING_ARGS_NAME).unlink()  # a pickle, which only a checkpoint has a use for

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """As the library's, of which a weight that is tied to one that was loaded counted as missing."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result)

    # PyTorch cannot load into shards a module that two stacks share, as the embedding of an encoder-decoder is.
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        if self.is_fsdp_enabled:
            load_into_shards(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled:
            load_into_shards(self.model, Path(cast(str, self.state.best_model_checkpoint)))
        else:
            super()._load_best_model()

    def make_whole(self, model_class: type[PreTrainedModel]) -> None:
        """After training with FSDP: put the whole model in the place of its shards, in every process."""
        self.save_model()
        self.accelerator.wait_for_everyone()
        self.model = model_class.from_pretrained(self.args.output_dir).to(self.args.device)  # type: ignore[arg-type]
        self.is_fsdp_enabled = False

    def create_optimizer(self, model: torch.nn.Module | None = None) -> Optimizer:
        """The library's, or Muon with Adam."""
        if self.optimizer is None and self.args.muon:
            self.optimizer = muon_with_adam(
                cast(PreTrainedModel, self.model if model is None else model),
                lr=cast(float, self.args.learning_rate),
                momentum=self.args.muon_momentum,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
                weight_decay=self.args.weight_decay,
                embedding_decay=self.args.embedding_decay,
            )
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """The paper's schedule (section 5.3), or the library's where the arguments ask for it."""
        warmup_steps = max(1, self.args.get_warmup_steps(num_training_steps))
        rises = self.args.schedule == "paper" or self.args.lr_scheduler_type not in WITHOUT_WARM_UP
        too_short = rises and self.lr_scheduler is None and num_training_steps < warmup_steps
        if too_short and self.is_world_process_zero():
            logger.warning(
                "The learning rate rises for %d steps, and the run has %d: it ends at %.2g of its peak. Give fewer "
                "--warmup_steps, or make the run longer with --max_steps or --num_train_epochs.",
                warmup_steps, num_training_steps, num_training_steps / warmup_steps,
            )  # fmt: skip
        if self.args.schedule == "library":
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            schedule = PaperSchedule(self.model.config.d_model, warmup_steps)
            self.lr_scheduler = LambdaLR(cast(Optimizer, optimizer or self.optimizer), schedule)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def get_train_dataloader(self) -> DataLoader:
        """Batches filled up to `tokens_per_batch` (section 5.1), or the library's where that is 0."""
        args, streams = self.args, isinstance(self.train_dataset, IterableDataset)
        if not args.tokens_per_batch and not streams:
            loader = super().get_train_dataloader()
            if isinstance(loader, DataLoaderShard):
                loader.device = None  # `get_batch_samples` sends them
            return loader
        # Each process draws its own batches, so the loader is not prepared (which would share them out once more, and
        # of a stream have one process make batches for all, which fails where they are of several lengths).
        options: dict[str, Any] = {
            "pin_memory": args.dataloader_pin_memory and torch.cuda.is_available(),
            "num_workers": args.dataloader_num_workers,
            "worker_init_fn": partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index),
            "persistent_workers": args.dataloader_persistent_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
            "in_order": args.dataloader_in_order,
        }
        seed = args.seed if args.data_seed is None else args.data_seed
        if streams:
            options["collate_fn"] = self._get_collator_with_removed_columns(self.data_collator, description="training")
            share, parts = split_dataset_by_node(self.train_dataset, args.process_index, args.world_size), 1
            if not args.tokens_per_batch:
                # Without an end: a run that resumes would go on at another batch of the next pass.
                return self.kept_until_saved(DataLoader(share.repeat(None), self._train_batch_size, **options))
            if args.tokens_per_batch_of == "step":
                parts = args.world_size * args.gradient_accumulation_steps
            stream = TokenBudgetStream(share, args.tokens_per_batch // parts, seed, mixed_lengths=args.mixed_lengths)
            return self.kept_until_saved(DataLoader(stream, batch_size=None, **options))
        sampler = TokenBudgetSampler(
            row_lengths(self.train_dataset),
            args.tokens_per_batch,
            seed=seed,
            process_index=args.process_index,
            num_processes=args.world_size,
            accumulation_steps=args.gradient_accumulation_steps,
            per_device=args.tokens_per_batch_of == "device",
            mixed_lengths=args.mixed_lengths,
        )
        rows, collate = self._remove_unused_columns(self.train_dataset, description="training"), self.data_collator
        if isinstance(collate, PairCollator) and collate.takes_tables_of(rows.column_names):
            rows, collate = ArrowRows(rows), collate.collate_table
        return self.kept_until_saved(TokenBudgetLoader(rows, batch_sampler=sampler, collate_fn=collate, **options))

    def _get_dataloader(self, dataset: Any, *arguments: Any, **options: Any) -> DataLoader:
        if isinstance(dataset, IterableDataset) and self.args.world_size > 1:
            dataset = Dataset.from_list(list(dataset))  # else the batches of several lengths could not be shared out
        return self.kept_until_saved(super()._get_dataloader(dataset, *arguments, **options))

    def kept_until_saved(self, loader: DataLoader) -> DataLoader:
        """The loader, whose workers SIGTERM does not end before the run, where that saves a checkpoint first."""
        return outliving_sigterm(loader) if self.args.save_on_sigterm else loader

    @contextmanager
    def of_all_rows(self) -> Iterator[None]:
        """Only in training may the last batch be dropped."""
        in_training, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            yield
        finally:
            self.args.dataloader_drop_last = in_training

    def get_eval_dataloader(self, *arguments: Any, **options: Any) -> DataLoader:
        """As the library's, of all rows."""
        with self.of_all_rows():
            return super().get_eval_dataloader(*arguments, **options)

    def get_test_dataloader(self, *arguments: Any, **options: Any) -> DataLoader:
        """As the library's, of all rows."""
        with self.of_all_rows():
            return super().get_test_dataloader(*arguments, **options)


class RecipeTrainer(PaperRecipe, Trainer):
    """The library's Trainer with the paper's recipe."""


class RecipeSeq2SeqTrainer(PaperRecipe, Seq2SeqTrainer):
    """The same for models that are evaluated by what they generate."""
