"""Dropout that grows over training: little while there is much to learn, more when the data come again and again."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class GrowingDropout(TrainerCallback):
    """Let the dropout of section 5.4 go from `first` to the model's own rate, in equal parts from step to step.

    Where the rate is depends on the step alone, so that a resumed run goes on with its own.

    Raises:
        ValueError: when training begins, for a model without an `nn.Dropout` that has its config's rate.
    """

    def __init__(self, first: float):
        self.first = self.last = first
        self.dropouts: list[nn.Dropout] = []

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Find the dropouts that have the rate of the config."""
        self.end()  # what a run that was broken off has left
        model: PreTrainedModel = kwargs["model"]
        self.last = getattr(model.config, "dropout", 0.0)  # models of others may have no such field
        dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
        self.dropouts = [dropout for dropout in dropouts if dropout.p == self.last > 0]
        if not self.dropouts:
            raise ValueError(
                f"initial_dropout={self.first} has nothing to grow: {type(model).__name__} has no nn.Dropout of the "
                f"rate config.dropout={self.last}; give one, such as --dropout 0.3."
            )

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Set the rate of a step: of the first to `first`, of the last to the model's own."""
        done = state.global_step / max(1, state.max_steps - 1)
        self.set_rate(self.first + (self.last - self.first) * done)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Leave the model with its own rate, also where training was stopped early."""
        self.end()

    def end(self) -> None:
        """Give the dropouts that were found their own rate, and let go of them."""
        self.set_rate(self.last)
        self.dropouts = []

    def set_rate(self, rate: float) -> None:
        """That of all of them."""
        for dropout in self.dropouts:
            dropout.p = rate
