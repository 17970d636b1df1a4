"""The paper's training recipe (section 5) on top of the library's Trainer: optimiser, schedule, batches by tokens."""

import os
import signal
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate.utils import reduce
from torch.distributed.tensor import distribute_tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import SchedulerType, seed_worker

from vanilla_transformer.training.averaging import complete_checkpoints, load_weights
from vanilla_transformer.training.batching import TokenBudgetLoader, TokenBudgetSampler, row_lengths
from vanilla_transformer.training.schedule import PaperSchedule


@dataclass
class RecipeArguments(Seq2SeqTrainingArguments):
    """The library's training arguments with the paper's values as defaults, and what the paper has beyond them.

    Raises:
        ValueError: a schedule of the library without its learning rate, or the paper's with one; label smoothing by
            the Trainer.
    """

    output_dir: str = field(default="runs/model", metadata={"help": "Folder for checkpoints and the final model."})
    do_train: bool = field(default=True, metadata={"help": "Train; with false only evaluate."})
    schedule: Literal["paper", "library"] | None = field(
        default=None,
        metadata={
            "help": "paper (section 5.3): --learning_rate_scale * d_model^-0.5 * min(step^-0.5, step * "
            "warmup_steps^-1.5); library: --lr_scheduler_type, up to --learning_rate. By default library where a "
            "--learning_rate is given, else paper."
        },
    )
    learning_rate: float | None = field(
        default=None, metadata={"help": "Peak learning rate of a schedule of the library."}
    )
    lr_scheduler_type: SchedulerType | None = field(
        default=None, metadata={"help": "Which schedule of the library; by default linear."}
    )
    learning_rate_scale: float = field(default=1.0, metadata={"help": "Factor on the paper's schedule."})
    warmup_steps: float = field(default=4000, metadata={"help": "Steps of rising learning rate; below 1 a ratio."})
    adam_beta2: float = field(default=0.98, metadata={"help": "Adam's beta2 (section 5.3)."})
    adam_epsilon: float = field(default=1e-9, metadata={"help": "Adam's epsilon (section 5.3)."})
    max_grad_norm: float = field(default=0.0, metadata={"help": "Largest gradient norm; 0: no clipping."})
    tokens_per_batch: int = field(
        default=0,
        metadata={
            "help": "Fill each device's batches up to so many source and so many target tokens, padding included, "
            "with sequences of similar length (section 5.1: 25000). 0: --per_device_train_batch_size sequences."
        },
    )
    average_checkpoints: int = field(
        default=1, metadata={"help": "The final model is the mean of so many last checkpoints (section 6.1: 5)."}
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={
            "help": "Stop after so many evaluations without a better --metric_for_best_model; needs "
            "--load_best_model_at_end true."
        },
    )
    bf16: bool | None = field(
        default=None,
        metadata={
            "help": "Multiply matrices in bfloat16, with weights and sums in float32. By default where the processor "
            "has instructions for it."
        },
    )
    save_on_sigterm: bool = field(default=True, metadata={"help": "On SIGTERM save a checkpoint and exit."})

    def __post_init__(self):
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
        if self.bf16 is None:
            chosen = self.fp16 or "ACCELERATE_MIXED_PRECISION" in os.environ  # set by `accelerate launch`
            self.bf16 = not chosen and multiplies_bfloat16(self.use_cpu)
        if self.bf16 and not torch.accelerator.is_available():
            self.use_cpu = True  # without it the library takes bfloat16 for a slip
        self.settle_schedule()
        super().__post_init__()

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


def multiplies_bfloat16(use_cpu: bool = False) -> bool:
    """Whether the accelerator, or else the processor, has instructions for matrix products in bfloat16."""
    if torch.accelerator.is_available() and not use_cpu:
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))


class SaveOnSigterm(TrainerCallback):
    """On SIGTERM: end the step, save a checkpoint, and exit with status 143, as a terminated process does.

    The library's own `enable_jit_checkpoint` saves before the optimiser's step, when dropout has drawn its numbers
    already, so that a resumed run draws others; and each of several processes saves when its own timer says so.
    """

    asked = False  # by a signal to this process
    stopping = False  # all processes, after the present step

    def ask(self, *_: Any) -> None:
        self.asked = True

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        self.asked = self.stopping = False
        self.installed = threading.current_thread() is threading.main_thread()  # no other thread may handle signals
        if self.installed:
            self.previous = signal.signal(signal.SIGTERM, self.ask)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        asked = self.asked
        if args.world_size > 1:
            # All stop after the same step: one that went on would wait for the others' gradients.
            asked = reduce(torch.tensor(float(asked), device=args.device), "sum").item() > 0
        if asked:
            self.asked = self.stopping = control.should_save = control.should_training_stop = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        if self.installed:
            signal.signal(signal.SIGTERM, self.previous)
        if self.stopping:
            args.distributed_state.wait_for_everyone()  # until each has written its part
        if self.asked:
            raise SystemExit(128 + signal.SIGTERM)


@torch.no_grad()
def load_into_shards(model: PreTrainedModel, folder: Path) -> None:
    """Load the weights of a checkpoint into a model that FSDP has sharded."""
    weights = load_weights(folder)
    for name, parameter in model.named_parameters():
        weight = weights[name].to(parameter.device, parameter.dtype)
        parameter.copy_(distribute_tensor(weight, parameter.device_mesh, parameter.placements))


def name_as_unsharded(model: PreTrainedModel) -> None:
    """FSDP2 makes a subclass of the model that it shards; what is saved should name ours, and carry its file."""
    sharded = type(model)
    if sharded.__name__.startswith("FSDP"):
        ours = sharded.__bases__[-1]
        sharded.__name__, sharded.__module__ = ours.__name__, ours.__module__


class PaperRecipe:
    """Mixin for a Trainer whose arguments are `RecipeArguments`."""

    args: RecipeArguments

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        if self.args.save_on_sigterm:
            self.add_callback(SaveOnSigterm)
        if self.args.early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(self.args.early_stopping_patience))

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **options: Any):
        """As the library's, but True is the last complete checkpoint, and never one that was cut off."""
        if resume_from_checkpoint is True:
            complete = complete_checkpoints(Path(self.args.output_dir))
            if not complete:
                raise ValueError(f"output_dir={self.args.output_dir} holds no complete checkpoint to resume from.")
            resume_from_checkpoint = str(complete[-1])
        return super().train(resume_from_checkpoint, *arguments, **options)

    # PyTorch cannot load into shards a module that two stacks share, as the embedding of an encoder-decoder is.
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: PreTrainedModel | None = None) -> None:
        if self.is_fsdp_enabled:
            load_into_shards(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled:
            load_into_shards(self.model, Path(self.state.best_model_checkpoint))
        else:
            super()._load_best_model()

    def save_model(self, *arguments: Any, **options: Any) -> None:
        name_as_unsharded(self.model)
        super().save_model(*arguments, **options)

    def make_whole(self, model_class: type[PreTrainedModel]) -> None:
        """After training with FSDP: put the whole model in the place of its shards, in every process."""
        self.save_model()
        self.accelerator.wait_for_everyone()
        self.model = model_class.from_pretrained(self.args.output_dir).to(self.args.device)
        self.is_fsdp_enabled = False

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        if self.args.schedule == "library":
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            warmup_steps = max(1, self.args.get_warmup_steps(num_training_steps))
            schedule = PaperSchedule(self.model.config.d_model, warmup_steps)
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, schedule)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def get_train_dataloader(self) -> DataLoader:
        if not self.args.tokens_per_batch:
            return super().get_train_dataloader()
        # Each process draws its own batches, so the loader is not prepared (which would share them out once more).
        sampler = TokenBudgetSampler(
            row_lengths(self.train_dataset),
            self.args.tokens_per_batch,
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
            process_index=self.args.process_index,
            num_processes=self.args.world_size,
        )
        return TokenBudgetLoader(
            self._remove_unused_columns(self.train_dataset, description="training"),
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
            num_workers=self.args.dataloader_num_workers,
            worker_init_fn=partial(
                seed_worker, num_workers=self.args.dataloader_num_workers, rank=self.args.process_index
            ),
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
            in_order=self.args.dataloader_in_order,
        )


class RecipeTrainer(PaperRecipe, Trainer):
    pass


class RecipeSeq2SeqTrainer(PaperRecipe, Seq2SeqTrainer):
    pass
