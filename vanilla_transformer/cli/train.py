"""Train a model for a task: from the command line to a model folder with weights, tokenizer, code and model card.

vanilla-transformer train translation --preset base --train_file train.en train.de --output_dir runs/en-de
vanilla-transformer train recipes/multi30k_en_de.yaml --train_file train.en train.de --output_dir runs/en-de

A recipe is a YAML file of options that also names its task. Options after it override those in it. "train TASK --help"
shows the options of a task.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed

from vanilla_transformer.cli.model_card import CardFacts, write_model_card
from vanilla_transformer.cli.options import (
    check_model,
    is_recipe,
    load_recipe,
    make_model,
    model_options,
    parse_options,
)
from vanilla_transformer.data.sources import DataArguments, Rows
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.data.tokenizer import KINDS, train_tokenizer
from vanilla_transformer.data.tokenizer_cache import trained_once
from vanilla_transformer.fast.memory import keep_freed_memory
from vanilla_transformer.tasks import find_task, task_names
from vanilla_transformer.tasks.task import Notes, Scores, Task
from vanilla_transformer.training.averaging import load_average
from vanilla_transformer.training.checkpoints import checkpoints_to_average, last_checkpoint
from vanilla_transformer.training.folder_lock import sole_run
from vanilla_transformer.training.recipe import PaperRecipe, RecipeArguments


logger = logging.getLogger(__name__)

MODEL_CARD = "README.md"  # written last: the sign of a finished training


@dataclass
class NewTokenizerArguments:
    """Options of a tokenizer that is trained."""

    vocab_size: int = field(default=8000, metadata={"help": "Maximum vocabulary size of a newly trained tokenizer."})
    tokenizer_kind: str = field(
        default="byte_bpe", metadata={"help": f"How a newly trained tokenizer splits text: {', '.join(KINDS)}."}
    )
    lowercase: bool = field(default=False, metadata={"help": "Lower-case all text."})

    def train(self, texts: Iterable[str], template: str) -> PreTrainedTokenizerBase:
        """A tokenizer trained on the texts; see `train_tokenizer`, of its errors too."""
        return train_tokenizer(texts, template, self.tokenizer_kind, self.vocab_size, self.lowercase)


@dataclass
class TokenizerArguments(NewTokenizerArguments):
    """Options of the tokenizer: one that is there, or a new one."""

    tokenizer_name_or_path: str | None = field(
        default=None, metadata={"help": "Use this tokenizer (a folder or a Hub name) instead of training one."}
    )


def parse(task: Task, arguments: list[str] | None = None) -> tuple[Any, DataArguments, TokenizerArguments, Any]:
    """The options of a task's training script: of model, data, tokenizer and training.

    Raises:
        ValueError: the output folder holds an earlier run that is not to be resumed; nothing is to be trained, and no
            model named that is there; a best model by what the task does not measure; see also `check_model`.
    """
    model = model_options(cast(type, task.model_class.config_class))
    parsed = parse_options([model, DataArguments, TokenizerArguments, task.arguments_class], arguments)
    training = parsed[-1]
    folder = Path(training.output_dir)
    if training.do_train and not training.resume_from_checkpoint and folder.is_dir() and any(folder.iterdir()):
        raise ValueError(
            f"output_dir={folder} is not empty: continue it with --resume_from_checkpoint true, or choose another"
        )
    if not training.do_train and parsed[0].model_name_or_path is None:
        raise ValueError("do_train=False scores a model that is there: give it as --model_name_or_path.")
    check_metric(task, training)
    check_model(task.model_class, parsed[0])
    if unused := unused_options(parsed[0], parsed[2]):
        logger.warning("%s: without effect beside a checkpoint or tokenizer, which has its own.", ", ".join(unused))
    set_seed(training.seed)
    return parsed


def check_metric(task: Task, training: RecipeArguments) -> None:
    """Raise a ValueError if the best model is to be chosen by a score that there is not while the task is trained."""
    name = training.metric_for_best_model
    known = ("loss", *task.metric_names(training))
    if training.eval_strategy != "no" and name is not None and name.removeprefix("eval_") not in known:
        raise ValueError(
            f"metric_for_best_model={name} is not measured while this task is trained: choose from {', '.join(known)}."
        )


def unused_options(model: Any, tokenizing: TokenizerArguments) -> list[str]:
    """The options that were given for a new model or a new tokenizer, where one is there: a recipe may have them."""
    names: dict[str, Any] = {}
    if model.model_name_or_path is not None:
        names |= dict.fromkeys(("preset", "small_initial_weights"), model)
    if model.model_name_or_path is not None or tokenizing.tokenizer_name_or_path is not None:
        names |= dict.fromkeys((f.name for f in fields(NewTokenizerArguments)), tokenizing)
    given = {name: getattr(options, name) for name, options in names.items()}
    defaults = {f.name: f.default for options in (model, tokenizing) for f in fields(options)}
    return [f"--{name} {value}" for name, value in given.items() if value != defaults[name]]


def make_tokenizer(
    args: TokenizerArguments, model_name_or_path: str | None, rows: Rows, kind: str, template: str
) -> PreTrainedTokenizerBase:
    """The tokenizer that was asked for, else the one of the checkpoint, else one trained on `rows` for this `kind`."""
    name = args.tokenizer_name_or_path or model_name_or_path
    if name is not None:
        return AutoTokenizer.from_pretrained(name)
    options = (kind, args.vocab_size, args.tokenizer_kind, args.lowercase)
    return trained_once(lambda: args.train(texts_of(rows, kind), template), rows, template, *options)


def made_once(make: Callable[[], Any]) -> Any:
    """What the main process makes, in every process."""
    made = [make() if PartialState().is_main_process else None]
    return broadcast_object_list(made)[0]


def train(trainer: PaperRecipe) -> None:
    """Train, or go on from the last complete checkpoint, and leave the final weights in `trainer.model`.

    Raises:
        ValueError: a folder to resume that holds a finished model and no checkpoints.
    """
    arguments = trainer.args
    model_class = type(trainer.model)
    folder = Path(arguments.output_dir)
    resume = arguments.resume_from_checkpoint
    if resume is True and last_checkpoint(folder) is None:
        if (folder / MODEL_CARD).exists():
            raise ValueError(
                f"output_dir={folder} holds a finished model, and no checkpoint to resume from: choose another folder."
            )
        resume = None  # it was broken off before its first checkpoint, or never begun
    trainer.train(resume_from_checkpoint=resume)
    if trainer.is_fsdp_enabled:
        trainer.make_whole(model_class)
    trainer.accelerator.wait_for_everyone()  # until the last checkpoint is written and the oldest is gone
    folders = checkpoints_to_average(folder)
    last = folders[-arguments.average_checkpoints :]
    if len(last) < arguments.average_checkpoints > 1:
        logger.warning(
            "Found %d of average_checkpoints=%d: the final model is %s.",
            len(last), arguments.average_checkpoints, "their mean" if len(last) > 1 else "that of the last step",
        )  # fmt: skip
        arguments.average_checkpoints = max(1, len(last))  # which the card tells
    if arguments.average_checkpoints > 1:
        load_average(trainer.model, last)


def print_scores(scores: Scores, notes: Notes) -> None:
    """A line for each split, and one for each note."""
    for split, values in scores.items():
        print(f"{split}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
    for name, text in notes.items():
        print(f"{name} signature: {text}")


def choose_task(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the name of the task, which comes first or is in the recipe, and the arguments that follow it.

    Raises:
        FileNotFoundError: there is no such recipe.
        ValueError: no task is named, or none that there is; or the recipe is for another one.
    """
    names = ", ".join(task_names())
    if not arguments:
        raise ValueError(f"Name a task ({names}) or a recipe such as recipes/quickstart.yaml.")
    given = None if is_recipe(arguments[0]) else arguments[0]
    options = arguments if given is None else arguments[1:]
    in_recipe = load_recipe(options[0]).get("task") if options and is_recipe(options[0]) else None
    if given is None and in_recipe is None:
        raise ValueError(f"{arguments[0]} names no task: add a line such as task: translation, or name one before it.")
    name = given or in_recipe
    if name not in task_names():
        near = get_close_matches(str(name), task_names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose from {names}, or give a recipe."
        raise ValueError(f"There is no task {name!r}; {hint}")
    if in_recipe not in (None, name):
        raise ValueError(f"{options[0]} is a recipe for {in_recipe}, not for {name}.")
    return name, options


def main(arguments: list[str] | None = None) -> Scores:
    """Run the command `train TASK [RECIPE.yaml] [options]`; a recipe may name the task itself. Returns the scores.

    Raises:
        FileNotFoundError, ValueError: see `choose_task` and `run`.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] in (["-h"], ["--help"]):
        print(__doc__ + f"\nTasks: {', '.join(task_names())}")
        return {}
    name, options = choose_task(given)
    if name in ("multi_label", "regression"):
        options = [*options, "--task", name]
    return run(find_task(name), options)


def run(task: Task, arguments: list[str] | None = None) -> Scores:
    """Train a model, save it with all that belongs to it, score it on the held-out splits, and write its model card.

    With `do_train=False` a model that is there is scored, and nothing is saved.

    Args:
        arguments: of the command line; by default those that the process was started with.

    Returns:
        The scores by split.

    Raises:
        ValueError: another process trains into the folder; there are no training data, or none to validate on.
    """
    if int(os.environ.get("RANK", 0)):  # of a process that torchrun or accelerate started; the first tells it for all
        logging.getLogger("vanilla_transformer").setLevel(logging.ERROR)
    options, data, tokenizing, training = parse(task, arguments)
    if training.device.type == "cpu":
        keep_freed_memory()
    folder = Path(training.output_dir)
    with sole_run(folder) if training.do_train and training.process_index == 0 else nullcontext():
        kind = task.data_for(training)
        with training.main_process_first(desc="reading the data"):  # the others find them read
            splits = load_splits(data, kind)
        if "train" not in splits:
            raise ValueError(
                f"{data.name}: there is no training data: give --train_file, or a --dataset with a train split. "
                "scripts/evaluate_model.py scores a model without."
            )
        if "validation" not in splits and training.eval_strategy != "no":
            raise ValueError(
                f"eval_strategy={training.eval_strategy.value} needs validation data: give --validation_file, or a "
                "--validation_fraction above 0."
            )
        tokenizer = made_once(
            lambda: make_tokenizer(tokenizing, options.model_name_or_path, splits["train"], kind, task.template)
        )
        task_fields = task.config_fields(options, training, splits["train"])
        model = make_model(task.model_class, options, tokenizer, **task_fields)
        task.prepare(model, training)
        trainer = task.make_trainer(model, tokenizer, training, splits)
        if training.do_train:
            train(trainer)
            trainer.save_model()  # first: whatever fails while it is scored, the model is there

        def write_card(scores: Scores, notes: Notes) -> None:
            if training.do_train and trainer.is_world_process_zero():
                facts = CardFacts(task.pipeline_tag, data.name, scores, notes, data.languages(kind))
                write_model_card(folder, trainer.model, training, trainer.state, facts)

        try:
            if training.do_train and trainer.is_world_process_zero():
                task.finish(trainer, splits["train"])
            scores, notes = task.score(trainer, splits)
        except Exception:
            write_card({}, {})  # and its card
            raise
        if trainer.is_world_process_zero():
            print_scores(scores, notes)
        write_card(scores, notes)
    return scores
