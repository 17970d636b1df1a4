"""A run that is terminated saves a checkpoint first."""

import copy
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any

import torch
from accelerate.utils import reduce
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from vanilla_transformer.fast.transfer import AsyncScalars


class SaveOnSigterm(TrainerCallback):
    """On SIGTERM: end the step, save a checkpoint, and exit with status 143, as a terminated process does.

    The library's own `enable_jit_checkpoint` saves before the optimiser's step, when dropout has drawn its numbers
    already, so that a resumed run draws others; and each of several processes saves when its own timer says so.
    """

    asked = False  # by a signal to this process
    stopping = False  # all processes, after the present step
    interrupting = False  # what is saved now would not be saved otherwise

    def ask(self, *_: Any) -> None:
        """The handler of the signal: remember it until the step ends."""
        self.asked = True

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        """Listen to the signal."""
        self.asked = self.stopping = self.interrupting = False
        self.async_scalars = AsyncScalars()
        self.installed = threading.current_thread() is threading.main_thread()  # no other thread may handle signals
        if self.installed:
            self.previous = signal.signal(signal.SIGTERM, self.ask)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        """If any process was asked to: save after this step, and stop."""
        asked = self.asked
        if args.world_size > 1:
            # All stop after the same step (on GPUs, the next): one that went on would wait for the others' gradients.
            askers = reduce(torch.full((1,), float(asked), device=args.device), "sum")
            found = self.async_scalars.push(state.global_step, askers)
            asked = found is not None and found[1][0] > 0
        if asked:
            self.interrupting = not control.should_save
            self.asked = self.stopping = control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        """Leave out what the library does at the end of an epoch, if this one is broken off."""
        if self.stopping and state.epoch % 1 and state.global_step < state.max_steps:
            # The epoch has not ended: what is due at its end is due in the run that goes on.
            control.should_log = control.should_evaluate = control.should_save = False
        elif control.should_save:
            self.interrupting = False

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        """Hand the signal back, and exit if it has come."""
        if self.installed:
            signal.signal(signal.SIGTERM, self.previous)
        if self.stopping:
            args.distributed_state.wait_for_everyone()  # until each has written its part
        if self.asked:
            raise SystemExit(128 + signal.SIGTERM)


def with_sigterm_blocked(context: BaseContext) -> Any:
    """A context that forks as `context` does, and whose processes begin with SIGTERM blocked.

    One that comes before `begin_worker` would else be for PyTorch's own handler, which ends the worker.
    """

    class Worker(context.Process):  # type: ignore[name-defined]
        def run(self) -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            super().run()

    blocking: Any = copy.copy(context)
    blocking.Process = Worker
    return blocking


def begin_worker(unneeded: Tensor, begin: Callable[[int], None] | None, worker: int) -> None:
    """The `worker_init_fn` of a worker that SIGTERM does not end before it is unneeded; `begin` is another such."""
    signal.signal(signal.SIGTERM, lambda *_: unneeded and os._exit(0))
    if hasattr(signal, "pthread_sigmask"):  # not on Windows, which does not fork either
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    if begin is not None:
        begin(worker)


def outliving_sigterm(loader: DataLoader) -> DataLoader:
    """The loader, whose workers go on where SIGTERM comes to all processes of a run, which needs them until it saves.

    As this process exits, Python ends by SIGTERM those that are left, and waits for them. One that is stuck where its
    loader is left alone in mid-epoch lives until then.
    """
    inner = getattr(loader, "base_dataloader", loader)  # accelerate wraps it
    if inner.num_workers:
        unneeded = torch.zeros((), dtype=torch.bool).share_memory_()
        Finalize(inner, unneeded.fill_, (True,), exitpriority=0)
        inner.worker_init_fn = partial(begin_worker, unneeded, inner.worker_init_fn)
        context = inner.multiprocessing_context or multiprocessing.get_context()
        if context.get_start_method() == "fork":
            inner.multiprocessing_context = with_sigterm_blocked(context)
    return loader
