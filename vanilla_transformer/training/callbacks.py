"""Callbacks for any Trainer: save a checkpoint on SIGTERM or Ctrl-C, and change the dropout rate during training."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.util import Finalize
from typing import Any

import torch
from accelerate.utils import reduce
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from vanilla_transformer.fast.transfer import AsyncScalars


logger = logging.getLogger(__name__)

PATIENCE = 6.0  # seconds to wait for the current step to end after a signal


class SaveOnSignal(TrainerCallback):
    """On SIGTERM or Ctrl-C, finish the step, save a checkpoint, and raise SystemExit(143) or KeyboardInterrupt.

    A run saved by Trainer's own `enable_jit_checkpoint` does not resume exactly: the checkpoint is saved after dropout
    has drawn random numbers, but before the optimizer step. Also, each of several processes uses its own timer.

    Args:
        save_model: function that saves the model, called before exiting if the step takes longer than `PATIENCE`.
    """

    received = 0  # number of the received signal, or 0 if there was none
    stopping = False  # whether all processes stop after the current step
    interrupting = False  # whether the checkpoint of this step is saved only because of the signal

    def __init__(self, save_model: Callable[[], Any]):
        self.save_model = save_model

    def receive(self, number: int, _: Any) -> None:
        """Remember the signal until the step ends. A second Ctrl-C stops the run immediately."""
        if not self.received and self.alone:
            self.timer.start()
            if number == signal.SIGINT:
                signal.signal(number, signal.default_int_handler)
        self.received = number

    def give_up(self) -> None:
        """Save the weights from before the current step, and exit. Python cannot interrupt the step itself."""
        self.save_model()
        logger.warning(
            "The step took too long and was abandoned. The weights from before the step are saved as the model; "
            "--resume_from_checkpoint true continues from the last checkpoint."
        )
        os._exit(128 + self.received)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        """Install the signal handlers. For SIGINT, keep a handler other than Python's default."""
        self.received, self.stopping, self.interrupting = 0, False, False
        self.alone = args.world_size == 1
        self.timer = threading.Timer(PATIENCE, self.give_up)
        self.timer.daemon = True
        self.scalars = AsyncScalars()
        self.previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():  # only the main thread may set signal handlers
            self.previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, self.receive)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self.previous[signal.SIGINT] = signal.signal(signal.SIGINT, self.receive)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        """Save and stop if any process has received a signal."""
        asked = self.received > 0
        if args.world_size > 1:
            # All processes must stop after the same step; otherwise one would wait for gradients forever. On GPUs,
            # that is the next step, because the sum arrives one step late.
            askers = reduce(torch.full((1,), float(asked), device=args.device), "sum")
            found = self.scalars.push(state.global_step, askers)
            asked = found is not None and found[1][0] > 0
        if asked:
            self.timer.cancel()
            self.received = self.received or signal.SIGTERM
            self.interrupting = not control.should_save
            self.stopping = control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        """Skip the actions at the end of an epoch if a signal interrupted the epoch."""
        if self.stopping and state.epoch % 1 and state.global_step < state.max_steps:
            # The resumed run performs them when it completes the epoch.
            control.should_log = control.should_evaluate = control.should_save = False
        elif control.should_save:
            self.interrupting = False

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        """Restore the previous signal handlers, and exit if a signal was received."""
        self.timer.cancel()
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        if self.stopping:
            args.distributed_state.wait_for_everyone()  # until each has written its part of the checkpoint
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received:
            raise SystemExit(128 + self.received)


def init_worker(exiting: Tensor, init: Callable[[int], None] | None, worker: int) -> None:
    """Make a DataLoader worker ignore SIGTERM until the main process exits, and call the original `worker_init_fn`."""
    signal.signal(signal.SIGTERM, lambda *_: exiting and os._exit(0))
    if init is not None:
        init(worker)


def survive_sigterm(loader: DataLoader) -> DataLoader:
    """Keep a loader's workers alive if SIGTERM is sent to the whole process group, because saving needs them."""
    inner = getattr(loader, "base_dataloader", loader)  # accelerate wraps the loader
    if inner.num_workers:
        # At exit, multiprocessing terminates the remaining workers and waits for them.
        exiting = torch.zeros((), dtype=torch.bool).share_memory_()
        Finalize(inner, exiting.fill_, (True,), exitpriority=0)
        inner.worker_init_fn = partial(init_worker, exiting, inner.worker_init_fn)
    return loader


class DropoutSchedule(TrainerCallback):
    """Change the dropout rate (section 5.4) linearly, from `start` at the first step to `config.dropout` at the last.

    The rate depends only on the step, so a resumed run continues with the same rates.

    Raises:
        ValueError: when training begins, if no `nn.Dropout` of the model has the rate `config.dropout`.
    """

    def __init__(self, start: float):
        self.start = self.end = start
        self.dropouts: list[nn.Dropout] = []

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Find the dropout modules with the rate `config.dropout`."""
        self.set_rate(self.end)  # in case an earlier run was interrupted
        model: PreTrainedModel = kwargs["model"]
        self.end = getattr(model.config, "dropout", 0.0)  # configs of other models may lack the field
        dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
        self.dropouts = [dropout for dropout in dropouts if dropout.p == self.end > 0]
        if not self.dropouts:
            raise ValueError(
                f"dropout_start={self.start} has no effect: {type(model).__name__} has no nn.Dropout with the rate "
                f"config.dropout={self.end}. Give a rate to end with, such as --dropout 0.3."
            )

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Set the dropout rate of this step."""
        done = state.global_step / max(1, state.max_steps - 1)
        self.set_rate(self.start + (self.end - self.start) * done)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Restore the model's own rate, even if training stopped early."""
        self.set_rate(self.end)

    def set_rate(self, rate: float) -> None:
        """Set the rate of all scheduled dropout modules."""
        for dropout in self.dropouts:
            dropout.p = rate
