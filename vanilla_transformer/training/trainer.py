"""Trainers with the paper's recipe (section 5): optimizer, schedule, token-budget batches, and exact resuming."""

import json
import logging
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate.data_loader import DataLoaderShard
from datasets import Dataset, IterableDataset
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
    Trainer,
)
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import SchedulerType, seed_worker

from vanilla_transformer.configuration_vanilla_transformer import check_private_api
from vanilla_transformer.fast.transfer import AsyncScalars, to_device
from vanilla_transformer.modeling_vanilla_transformer import IGNORED_LABEL
from vanilla_transformer.training.arguments import RecipeArguments
from vanilla_transformer.training.averaging import load_weights
from vanilla_transformer.training.batching import (
    EMPTY_STREAM,
    check_positions,
    dataset_fingerprint,
    is_empty_stream,
    stream_loader,
    token_budget_loader,
)
from vanilla_transformer.training.callbacks import DropoutSchedule, SaveOnSignal, survive_sigterm
from vanilla_transformer.training.checkpoints import (
    RUN_FILE,
    TRAINER_STATE,
    check_digests,
    check_same_run,
    checkpoint_folders,
    is_complete,
    last_checkpoint,
    make_readable,
    missing_state,
    prune_checkpoints,
    step_of,
    was_interrupted,
    write_digests,
)
from vanilla_transformer.training.optimizer import PaperSchedule, muon_with_adam


logger = logging.getLogger(__name__)

# Private methods of Trainer that are overridden below. If transformers renamed one, its override would never run.
check_private_api(
    Trainer,
    "_get_dataloader",
    "_get_grad_norm",
    "_init_training_state",
    "_issue_warnings_after_load",
    "_load_best_model",
    "_load_from_checkpoint",
    "_save",
    "_save_checkpoint",
)

WITHOUT_WARMUP = (SchedulerType.CONSTANT, SchedulerType.REDUCE_ON_PLATEAU)
DIVERGED = (
    "Training has diverged: lower the learning rate, clip gradients (--max_grad_norm), or look for extreme data."
)


@torch.no_grad()
def load_into_shards(model: PreTrainedModel, folder: Path) -> None:
    """Load the weights of a checkpoint into a model that FSDP has sharded.

    PyTorch's own loading does not support a module shared by two stacks, such as the embedding of an encoder-decoder.
    """
    weights = load_weights(folder)
    for name, parameter in model.named_parameters():
        weight = weights[name].to(parameter.device, parameter.dtype)
        shard = cast(DTensor, parameter)
        shard.copy_(distribute_tensor(weight, shard.device_mesh, shard.placements))


def restore_class_name(model: PreTrainedModel) -> None:
    """Restore the original class name of a model before saving, because FSDP2 replaces the class with a subclass."""
    sharded = type(model)
    if sharded.__name__.startswith("FSDP"):
        original = sharded.__bases__[-1]
        sharded.__name__, sharded.__module__ = original.__name__, original.__module__


@torch.no_grad()
def check_finite(model: PreTrainedModel) -> None:
    """Raise a FloatingPointError if a weight is not finite."""
    for name, weight in model.named_parameters():
        local = weight.to_local() if isinstance(weight, DTensor) else weight
        if not local.isfinite().all():
            raise FloatingPointError(f"{name} has weights that are not finite, so the model is not saved. {DIVERGED}")


def send_batch(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Start copying the tensors of a batch to the device.

    Padding masks are sent as booleans. Otherwise, transformers would convert them, and the host copy would be lost.
    """
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    masks = {name: mask for name, mask in tensors.items() if name.endswith("attention_mask") and mask.dim() == 2}
    tensors |= {name: mask.bool() for name, mask in masks.items()}
    return {**batch, **{name: to_device(value, device) for name, value in tensors.items()}}


def count_tokens(batch: Mapping[str, Any]) -> int:
    """Count the input tokens of a batch without padding and, for an encoder-decoder, its target tokens."""
    ids, mask = batch.get("input_ids", torch.empty(0)), batch.get("attention_mask")
    tokens = ids.numel() if mask is None else int(mask.sum())
    return tokens + (int((batch["labels"] != IGNORED_LABEL).sum()) if "decoder_input_ids" in batch else 0)


if TYPE_CHECKING:
    Base = Trainer
else:
    Base = object


class RecipeTrainerMixin(Base):
    """Mixin for a Trainer whose arguments are `RecipeArguments`."""

    args: RecipeArguments
    model: PreTrainedModel
    processing_class: Any  # a tokenizer or None
    tokens_seen: int = 0  # training tokens processed by this process
    loss_sum: Tensor | float = 0.0  # sum of the losses of the training steps

    def __init__(self, model: PreTrainedModel | None = None, *arguments: Any, **options: Any):
        # Trainer sets config.use_cache to False during training, but `_save` saves the model's original value.
        self.saved_use_cache = getattr(getattr(model, "config", None), "use_cache", True)
        super().__init__(model, *arguments, **options)
        self.scalars = AsyncScalars()
        if self.args.save_on_signal:
            self.add_callback(SaveOnSignal(self.save_model))
        if self.args.dropout_start is not None:
            self.add_callback(DropoutSchedule(self.args.dropout_start))
        if self.args.early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(self.args.early_stopping_patience))

    @cached_property
    def run_facts(self) -> dict[str, Any]:
        """Return the options and data properties that must not change when a run is resumed."""
        args = self.args
        names = ["seed", "data_seed", "muon", "embedding_decay", "dropout_start", "tokens_per_batch", "bucketing"]
        names += ["muon_momentum"] if args.muon else []
        names += ["tokens_per_batch_of" if args.tokens_per_batch else "per_device_train_batch_size"]
        facts = {name: getattr(args, name) for name in names}
        if not args.tokens_per_batch or args.tokens_per_batch_of == "device":
            facts["gradient_accumulation_steps x processes"] = args.gradient_accumulation_steps * args.world_size
        rows = self.train_dataset
        return facts | {
            "training rows": len(rows) if isinstance(rows, Dataset) else None,
            "dataset fingerprint": dataset_fingerprint(rows),
        }

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **options: Any):
        """Like `Trainer.train`, but True resumes from the last complete checkpoint.

        Raises:
            FileNotFoundError: the checkpoint does not exist.
            ValueError: the checkpoint is incomplete, from another run, or older than others in the folder; a row is
                longer than the table of learned position embeddings; an option does not suit the task or a stream.
            FloatingPointError: a gradient or a weight is no longer finite.
        """
        self.check_options()
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(self.prepare_resume(Path(self.args.output_dir)))
        elif resume_from_checkpoint:
            self.check_checkpoint(Path(resume_from_checkpoint))
        return super().train(resume_from_checkpoint, *arguments, **options)

    def check_options(self) -> None:
        """Raise a ValueError before the first step if training would later fail because of an option or a row."""
        if isinstance(self.train_dataset, IterableDataset):
            for name in ("eval_strategy", "save_strategy"):
                if getattr(self.args, name) == "epoch":
                    raise ValueError(f"{name}=epoch: a stream is read until --max_steps, as one epoch; give steps.")
            _ = self.run_facts  # read the first rows now instead of during training
        if is_empty_stream(self.train_dataset):
            raise ValueError(
                "The training stream is empty, or too short to fill a row of a language model: give a longer one, or "
                "lower --block_size."
            )
        if self.args.eval_strategy != "no" and is_empty_stream(self.eval_dataset):
            raise ValueError(f"--eval_strategy: {EMPTY_STREAM}")
        for rows in (self.train_dataset, self.eval_dataset):
            check_positions(self.model, rows)

    def prepare_resume(self, run: Path) -> Path:
        """Return the last complete checkpoint of a run, after deleting what an interruption has left behind.

        Raises:
            ValueError: there is no complete checkpoint, or it is from another run.
        """
        checkpoint = last_checkpoint(run)
        if checkpoint is None:
            raise ValueError(f"output_dir={run} holds no complete checkpoint to resume from.")
        check_same_run(checkpoint, self.run_facts, self.model.config, self.processing_class)
        if self.is_world_process_zero():
            best = json.loads((checkpoint / TRAINER_STATE).read_text(encoding="utf-8")).get("best_global_step")
            prune_checkpoints(checkpoint, self.args.save_total_limit, str(run / f"checkpoint-{best}"))
        self.accelerator.wait_for_everyone()
        return checkpoint

    def check_checkpoint(self, folder: Path) -> None:
        """Raise an error if this run cannot resume from a checkpoint, or if the output folder has later checkpoints.

        The later checkpoints would become part of the average, or be resumed next time.
        """
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: there is no such folder.")
        if not is_complete(folder):
            raise ValueError(f"{folder} is not a complete checkpoint: a file is missing or damaged.")
        check_digests(folder)
        if missing_state(folder):
            raise ValueError(f"{folder} cannot be resumed: it lacks its {', '.join(missing_state(folder))}.")
        check_same_run(folder, self.run_facts, self.model.config, self.processing_class)
        run = Path(self.args.output_dir)
        step = json.loads((folder / TRAINER_STATE).read_text(encoding="utf-8"))["global_step"]
        later = [other.name for other in checkpoint_folders(run) if step_of(other) > step]
        if later:
            raise ValueError(
                f"output_dir={run} holds {later[-1]}, which is later than {folder.name}: move later checkpoints away, "
                "or choose another folder."
            )

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, resume_from_checkpoint, trial
    ) -> tuple[int, int]:
        """Like `Trainer._init_training_state`, but does not continue a finished run, and supports moved folders."""
        position = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if resume_from_checkpoint is None:
            return position
        best = Path(resume_from_checkpoint).with_name(f"checkpoint-{self.state.best_global_step}")
        if best.is_dir():
            self.state.best_model_checkpoint = str(best)
        stopped = self.restore_patience()
        return (num_train_epochs, 0) if stopped or self.state.global_step >= max_steps else position

    def restore_patience(self) -> bool:
        """Restore the early-stopping counter from a checkpoint, and return whether the run had stopped early."""
        stopped = False
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback):
                saved = cast(dict[str, Any], self.state.stateful_callbacks).get(type(callback).__name__, {})
                counter = saved.get("attributes", {}).get("early_stopping_patience_counter", 0)
                callback.early_stopping_patience_counter = counter
                stopped |= counter >= callback.early_stopping_patience
        return stopped

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """Like `Trainer._get_grad_norm`, which runs before each step, but raises an error if training diverges."""
        norm = super()._get_grad_norm(model, grad_norm)
        if self.accelerator.mixed_precision == "fp16":
            return norm  # the gradient scaler skips steps whose gradients are not finite
        whole = norm.full_tensor() if isinstance(norm, DTensor) else torch.as_tensor(norm)
        found = self.scalars.push(self.state.global_step + 1, whole.reshape(1))
        if found is not None and not math.isfinite(found[1][0]):
            raise FloatingPointError(f"Step {found[0]}: the gradient norm is {found[1][0]}. {DIVERGED}")
        return norm

    def get_batch_samples(
        self, epoch_iterator: Iterator[dict[str, Any]], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], torch.Tensor | int | None]:
        """Like `Trainer.get_batch_samples`, but counts tokens and copies the batches to the device asynchronously."""

        def send(batch: dict[str, Any]) -> dict[str, Any]:
            self.tokens_seen += count_tokens(batch)
            return send_batch(batch, device)

        return super().get_batch_samples(map(send, epoch_iterator), num_batches, device)

    def training_step(self, *arguments: Any, **options: Any) -> torch.Tensor:
        """Like `Trainer.training_step`, but adds the loss to `loss_sum`, which callbacks may read and reset."""
        loss = super().training_step(*arguments, **options)
        self.loss_sum = self.loss_sum + loss
        return loss

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Like `Trainer._save_checkpoint`, but adds `RUN_FILE`, and deletes earlier checkpoints saved on SIGTERM."""
        if not self.args.should_save:
            super()._save_checkpoint(model, trial)
            return
        run = Path(self.args.output_dir)
        folder = run / f"checkpoint-{self.state.global_step}"
        callbacks = self.callback_handler.callbacks
        interrupted = any(isinstance(callback, SaveOnSignal) and callback.interrupting for callback in callbacks)
        facts = self.run_facts | {"interrupted": interrupted, "processes": self.args.world_size}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RUN_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        # This checkpoint supersedes those saved on SIGTERM, which an uninterrupted run would not have.
        kept = (folder, Path(self.state.best_model_checkpoint or folder))
        superseded = [other for other in checkpoint_folders(run) if other not in kept and was_interrupted(other)]
        for other in superseded:
            os.utime(other, (0, 0))  # Trainer deletes the oldest checkpoints first
        super()._save_checkpoint(model, trial)
        write_digests(folder)
        for other in superseded:
            shutil.rmtree(other, ignore_errors=True)

    def save_model(self, *arguments: Any, **options: Any) -> None:
        """Like `Trainer.save_model`, but saves the original class name if FSDP has replaced it.

        Raises:
            FloatingPointError: a weight is not finite.
        """
        check_finite(self.model)
        restore_class_name(self.model)
        super().save_model(*arguments, **options)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Like `Trainer._save`, but saves the original `use_cache`, and saves the arguments only in checkpoints."""
        if isinstance(self.processing_class, PreTrainedTokenizerFast):
            # otherwise, the truncation settings would be saved with the tokenizer
            self.processing_class.backend_tokenizer.no_truncation()
        config = self.model.config
        in_training, config.use_cache = config.use_cache, self.saved_use_cache
        super()._save(output_dir, state_dict)
        config.use_cache = in_training
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            make_readable(folder)
            if folder == Path(self.args.output_dir):
                (folder / TRAINING_ARGS_NAME).unlink()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Like `Trainer._issue_warnings_after_load`, but does not report tied weights as missing."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        """Like `Trainer._load_from_checkpoint`, but loads FSDP models with `load_into_shards`."""
        if self.is_fsdp_enabled:
            load_into_shards(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        """Like `Trainer._load_best_model`, but loads FSDP models with `load_into_shards`."""
        if self.is_fsdp_enabled:
            load_into_shards(self.model, Path(cast(str, self.state.best_model_checkpoint)))
        else:
            super()._load_best_model()

    def gather_full_model(self, model_class: type[PreTrainedModel]) -> None:
        """Replace the FSDP-sharded model with the full model in every process after training."""
        self.save_model()
        self.accelerator.wait_for_everyone()
        self.model = model_class.from_pretrained(self.args.output_dir).to(self.args.device)  # type: ignore[arg-type]
        self.is_fsdp_enabled = False

    def create_optimizer(self, model: torch.nn.Module | None = None) -> Optimizer:
        """Like `Trainer.create_optimizer`, but builds Muon with Adam if `args.muon` is set."""
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
        """Like `Trainer.create_scheduler`, but builds the schedule of section 5.3 if `args.schedule` is "paper"."""
        given = self.lr_scheduler is not None
        warmup_steps = max(1, self.args.get_warmup_steps(num_training_steps))
        warms_up = self.args.schedule == "paper" or self.args.lr_scheduler_type not in WITHOUT_WARMUP
        if warms_up and not given and num_training_steps < warmup_steps and self.is_world_process_zero():
            logger.warning(
                "The learning rate rises for %d steps, and the run has %d: it ends at %.2g of its peak. Give fewer "
                "--warmup_steps, or make the run longer with --max_steps or --num_train_epochs.",
                warmup_steps, num_training_steps, num_training_steps / warmup_steps,
            )  # fmt: skip
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if self.args.schedule == "library" or given:
            return scheduler
        schedule = PaperSchedule(self.model.config.d_model, warmup_steps)
        self.lr_scheduler = LambdaLR(cast(Optimizer, optimizer or self.optimizer), schedule)
        return self.lr_scheduler

    def get_train_dataloader(self) -> DataLoader:
        """Like `Trainer.get_train_dataloader`, but fills batches up to `tokens_per_batch` (section 5.1)."""
        loader, args = super().get_train_dataloader(), self.args
        stream = isinstance(self.train_dataset, IterableDataset)
        if not args.tokens_per_batch and not stream:
            if isinstance(loader, DataLoaderShard):
                loader.device = None  # `get_batch_samples` copies the batches to the device
            return loader
        # Each process builds its own batches. accelerate would distribute them a second time. For a stream, it would
        # build the batches of all processes in one process, which fails if their lengths differ.
        options: dict[str, Any] = {
            "collate_fn": loader.collate_fn,
            "pin_memory": args.dataloader_pin_memory,
            "num_workers": args.dataloader_num_workers,
            "worker_init_fn": partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index),
            "persistent_workers": args.dataloader_persistent_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
            "in_order": args.dataloader_in_order,
        }
        build = stream_loader if stream else token_budget_loader
        loader = build(self.train_dataset if stream else loader.dataset, args, options)
        return survive_sigterm(loader) if args.save_on_signal else loader

    def _get_dataloader(self, dataset: Any, *arguments: Any, **options: Any) -> DataLoader:
        """Like `Trainer._get_dataloader`, but ignores `dataloader_drop_last` in evaluation."""
        drop_last, is_training = self.args.dataloader_drop_last, options.get("is_training", False)
        if isinstance(dataset, IterableDataset) and self.args.world_size > 1 and not is_training:
            dataset = Dataset.from_list(list(dataset))  # accelerate cannot distribute batches of different lengths
        self.args.dataloader_drop_last = drop_last and is_training
        loader = super()._get_dataloader(dataset, *arguments, **options)
        self.args.dataloader_drop_last = drop_last
        return survive_sigterm(loader) if self.args.save_on_signal else loader


class RecipeTrainer(RecipeTrainerMixin, Trainer):
    """Trainer with the paper's training recipe."""


class RecipeSeq2SeqTrainer(RecipeTrainerMixin, Seq2SeqTrainer):
    """Seq2SeqTrainer with the paper's training recipe, for models whose generated text is evaluated."""
