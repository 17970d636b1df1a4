"""The paper's training recipe (section 5) on top of the library's Trainer: optimiser, schedule, batches by tokens."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer
from transformers.trainer_utils import SchedulerType

from batching import TokenBudgetLoader, TokenBudgetSampler


@dataclass
class RecipeArguments(Seq2SeqTrainingArguments):
    """The library's training arguments with the paper's values as defaults, and what the paper has beyond them.

    Raises:
        ValueError: a schedule of the library without its learning rate; label smoothing by the Trainer.
    """

    output_dir: str = field(default="runs/model", metadata={"help": "Folder for checkpoints and the final model."})
    do_train: bool = field(default=True, metadata={"help": "Train; with false only evaluate."})
    learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Peak learning rate of --lr_scheduler_type. None is the paper's schedule, section 5.3: "
            "d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)."
        },
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
    enable_jit_checkpoint: bool = field(default=True, metadata={"help": "On SIGTERM save a checkpoint and stop."})

    def __post_init__(self):
        self.paper_schedule = self.learning_rate is None
        if self.paper_schedule:
            if SchedulerType(self.lr_scheduler_type) != SchedulerType.LINEAR:
                raise ValueError(f"lr_scheduler_type={self.lr_scheduler_type} needs a --learning_rate.")
            self.learning_rate = self.learning_rate_scale
        if self.label_smoothing_factor:
            # The Trainer would not shift the labels of a language model that is not the library's own.
            raise ValueError(
                f"label_smoothing_factor={self.label_smoothing_factor}: labels are smoothed in the model, so give "
                "--label_smoothing instead."
            )
        super().__post_init__()


class PaperSchedule:
    """Section 5.3, Equation 3, of a step counted from 1. The scheduler of PyTorch counts from 0."""

    def __init__(self, d_model: int, warmup_steps: int):
        self.d_model, self.warmup_steps = d_model, warmup_steps

    def __call__(self, steps_done: int) -> float:
        step = steps_done + 1
        return self.d_model**-0.5 * min(step**-0.5, step * self.warmup_steps**-1.5)


def row_lengths(dataset) -> np.ndarray:
    """Tokens of each row: (rows, 1) of input_ids, or (rows, 2) where labels are sequences as well."""
    columns = [name for name in ("input_ids", "labels") if isinstance(dataset[0].get(name), list)]
    return np.array([[len(tokens) for tokens in dataset[name]] for name in columns]).T


class PaperRecipe:
    """Mixin for a Trainer whose arguments are `RecipeArguments`."""

    args: RecipeArguments

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        if not self.args.paper_schedule:
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
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
        )


class RecipeTrainer(PaperRecipe, Trainer):
    pass


class RecipeSeq2SeqTrainer(PaperRecipe, Seq2SeqTrainer):
    pass
