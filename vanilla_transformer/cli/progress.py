"""Print the progress of training: a line every few seconds, and from time to time a score and two examples."""

import time
from datetime import timedelta
from textwrap import shorten
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from vanilla_transformer.cli.report import line_of, say
from vanilla_transformer.tasks.task import Task, measure, plain_scores, scoring_aside
from vanilla_transformer.training.trainer import RecipeTrainerMixin


LINE_SECONDS = 5.0
LOOK_SECONDS = 20.0  # minimum seconds between two scores of validation rows
LOOK_SHARE = 0.05  # maximum fraction of the training time for scoring
LOOK_ROWS = 32  # number of validation rows to score
BAR = 20  # width of the progress bar in characters


def first(rows: Any, most: int) -> Dataset:
    """Return the first rows of a dataset."""
    return rows.select(range(min(len(rows), most)))


class ProgressLog(TrainerCallback):
    """Print steps, loss, tokens per second and remaining time, and the model's outputs for some validation rows.

    Args:
        rows: validation rows with the original columns. If there are none, or for a stream, nothing is scored.
    """

    def __init__(self, trainer: RecipeTrainerMixin, task: Task, rows: Any):
        self.trainer, self.task = trainer, task
        # With several processes, all would have to score at the same time.
        self.rows = rows if isinstance(rows, Dataset) and trainer.args.world_size == 1 else None
        self.shows_scores = False
        self.shown = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Start the timers."""
        self.shows_scores = True
        self.began = self.told = time.perf_counter()
        self.next_look = self.began + LOOK_SECONDS
        self.first = self.told_step = state.global_step
        self.trainer.tokens_seen, self.trainer.loss_sum = 0, 0.0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Print a line every few seconds and at the last step."""
        step, now, trainer = state.global_step, time.perf_counter(), self.trainer
        if now - self.told < LINE_SECONDS and step < state.max_steps:
            return
        loss = float(trainer.loss_sum) / (step - self.told_step)
        speed = trainer.tokens_seen * args.world_size / (now - self.told)
        left = timedelta(seconds=round((now - self.began) / (step - self.first) * (state.max_steps - step)))
        bar = "#" * (BAR * step // state.max_steps)
        steps = f"step {step:,} of {state.max_steps:,}"
        say(f"[{bar:-<{BAR}}] {steps}, loss {loss:.3f}, {speed:,.0f} tokens/s, {left} left")
        self.told, self.told_step = now, step
        trainer.tokens_seen, trainer.loss_sum = 0, 0.0

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Score validation rows from time to time, before a step: by then, Trainer has finished its own evaluation."""
        begin = time.perf_counter()
        if self.rows and begin > self.next_look:
            self.shows_scores = False
            with scoring_aside(self.trainer):
                self.look()
            self.shows_scores = True
            end = time.perf_counter()
            self.next_look = end + max(LOOK_SECONDS, (end - begin) / LOOK_SHARE)

    def look(self) -> None:
        """Print two examples and, unless Trainer evaluates the model itself, the score of some validation rows."""
        trainer, rows = self.trainer, first(self.rows, LOOK_ROWS)
        if trainer.args.eval_strategy == "no":
            if self.task.in_one_process:
                scores, _ = self.task.evaluate(trainer, rows)
                trainer.log({f"eval_{name}": value for name, value in scores.items()})
            else:
                scores = measure(trainer, first(trainer.eval_dataset, LOOK_ROWS))
            say(line_of(f"{len(rows)} rows of validation", scores))
        two = rows.select([self.shown % len(rows), (self.shown + 1) % len(rows)])
        self.shown += 2
        for example in self.task.examples(trainer, two):
            for name in ("source", "target", "output"):
                say(f"    {name}  {shorten(getattr(example, name), 100)}")

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Print the scores of Trainer's evaluation."""
        if self.shows_scores:
            say(line_of("validation", plain_scores(kwargs["metrics"])))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Stop printing, because the report contains the final scores."""
        self.shows_scores = False
