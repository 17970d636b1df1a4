"""Train a model for a task: from the command line to a model folder with weights, tokenizer, code and model card.

vanilla-transformer train pairs.tsv
vanilla-transformer train classification reviews.csv --columns text=review label=stars --minutes 5
vanilla-transformer train recipes/multi30k_en_de.yaml --train_file train.en train.de --output_dir runs/en-de
vanilla-transformer train translation --preset base --train_file train.en train.de --output_dir runs/en-de

With data files, the command recognises the task by their columns, and plans model and training for the data, this
machine and --minutes. A recipe is a YAML file of options that also names its task. Options after files or a recipe
override the plan or the recipe. "train TASK --help" shows the options of a task.
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import psutil
import yaml
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset, IterableDataset, disable_progress_bars
from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.utils.logging import disable_progress_bar

from vanilla_transformer.cli.help import all_help, values_of
from vanilla_transformer.cli.model_card import MODEL_CARD, CardFacts
from vanilla_transformer.cli.options import (
    as_arguments,
    check_model,
    make_model,
    model_options,
    parse_options,
)
from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.cli.progress import ProgressLog
from vanilla_transformer.cli.recipes import choose_task, data_files
from vanilla_transformer.cli.report import finish, print_scores, say, say_how_to_continue
from vanilla_transformer.cli.tokenizer import NewTokenizerArguments, TokenizerArguments
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.data.recognition import recognise
from vanilla_transformer.data.sources import Rows, cache_folder
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.data.tokenizer import cached_tokenizer
from vanilla_transformer.fast.memory import keep_freed_memory
from vanilla_transformer.tasks import find_task
from vanilla_transformer.tasks.task import Scores, Task
from vanilla_transformer.training.averaging import load_average
from vanilla_transformer.training.checkpoints import LOCK_FILE, checkpoints_to_average, last_checkpoint, run_lock
from vanilla_transformer.training.plan import (
    LONGEST_RUN,
    Budget,
    Facts,
    PlanArguments,
    Recipe,
    StepTimer,
    how_to_read,
    make_plan,
    sizes,
    without_replaced,
)
from vanilla_transformer.training.trainer import RecipeTrainerMixin


logger = logging.getLogger(__name__)

PLAN_FILE = "recipe.yaml"  # written to the folder of a planned run
# Options for a short trial run that measures the speed
TRIAL = {
    "eval_strategy": IntervalStrategy.NO, "save_strategy": SaveStrategy.NO, "logging_strategy": IntervalStrategy.NO,
    "load_best_model_at_end": False, "early_stopping_patience": None, "report_to": [], "push_to_hub": False,
    "save_on_signal": False,
    "extra_tokens": 5,  # an untrained translator never generates an end token
}  # fmt: skip
TIMED_ROWS = 32  # number of rows for timing the scoring
NOT_PLANNED = {"minutes", "resume_from_checkpoint", "traceback"}
ROWS_FOR_TOKENIZER = 300_000  # number of rows of a stream on which its tokenizer is trained


def option_classes(task_class: type[Task]) -> list[type]:
    """Return the dataclasses that define the options of a task."""
    model = model_options(cast(type, task_class.model_class.config_class))
    return [model, DataArguments, TokenizerArguments, task_class.arguments_class, PlanArguments]


def parse(task_class: type[Task], arguments: list[str]) -> tuple[Any, DataArguments, TokenizerArguments, Task]:
    """Return the options for model, data and tokenizer, and the task with its training arguments.

    Raises:
        ValueError: the output folder contains a run that is not being resumed; training is off and no saved model is
            given; the metric for choosing the best model is unknown; see also `check_model`.
    """
    options, data, tokenizing, training, _ = parse_options(
        option_classes(task_class),
        arguments,
        f"Train a model. {task_class.__doc__}".partition("\n")[0],
        usage=f"vanilla-transformer train {task_class.name} [FILE ... | RECIPE.yaml] [options]",
    )
    folder = Path(training.output_dir)
    files = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if training.do_train and not training.resume_from_checkpoint and files - {LOCK_FILE, PLAN_FILE}:
        raise ValueError(
            f"output_dir={folder} is not empty: continue it with --resume_from_checkpoint true, or choose another"
        )
    if not training.do_train and options.model_name_or_path is None:
        raise ValueError("do_train=False scores a saved model: give it as --model_name_or_path.")
    task = task_class(training)
    check_metric(task)
    check_model(task.model_class, options)
    if unused := unused_options(options, tokenizing):
        logger.warning("%s: no effect, because the checkpoint or tokenizer has its own.", ", ".join(unused))
    set_seed(training.seed)
    return options, data, tokenizing, task


def check_metric(task: Task) -> None:
    """Raise a ValueError if the metric for choosing the best model is not computed during training."""
    name = task.arguments.metric_for_best_model
    known = list(dict.fromkeys(("loss", *task.metric_names)))
    if task.arguments.eval_strategy != "no" and name is not None and name.removeprefix("eval_") not in known:
        raise ValueError(
            f"metric_for_best_model={name} is not computed during training: choose from {', '.join(known)}."
        )


def unused_options(model: Any, tokenizing: TokenizerArguments) -> list[str]:
    """Return the given options that have no effect, because they only apply to a new model or tokenizer."""
    names = [f.name for f in fields(NewTokenizerArguments)]
    if model.model_name_or_path is not None:
        names = ["preset", "init", *names]
    elif tokenizing.tokenizer_name_or_path is None:
        return []
    given = vars(model) | vars(tokenizing)
    defaults = {f.name: f.default for options in (model, tokenizing) for f in fields(options)}
    return [f"--{name} {given[name]}" for name in names if given[name] != defaults[name]]


def make_tokenizer(
    args: TokenizerArguments, model_name_or_path: str | None, rows: Rows, task: Task
) -> PreTrainedTokenizerBase:
    """Load the given tokenizer or that of the checkpoint. If there is neither, train one on `rows`."""
    name = args.tokenizer_name_or_path or model_name_or_path
    if name is not None:
        return AutoTokenizer.from_pretrained(name)
    if isinstance(rows, IterableDataset):
        return args.train(texts_of(rows.take(ROWS_FOR_TOKENIZER), task.data), task.template)
    texts = partial(texts_of, rows, task.data)
    return cached_tokenizer(cache_folder(), texts, task.template, args.tokenizer_kind, args.vocab_size, args.lowercase)


def broadcast_from_main(make: Callable[[], Any]) -> Any:
    """Call `make` on the main process and broadcast the result."""
    made = [make() if PartialState().is_main_process else None]
    return broadcast_object_list(made)[0]


def train(trainer: RecipeTrainerMixin) -> None:
    """Train the model, or resume from the last complete checkpoint. `trainer.model` then has the final weights.

    Raises:
        ValueError: the run to resume has a finished model and no checkpoint.
    """
    arguments, model_class = trainer.args, type(trainer.model)
    folder, resume = Path(arguments.output_dir), arguments.resume_from_checkpoint
    if resume is True and last_checkpoint(folder) is None:
        if (folder / MODEL_CARD).exists():
            raise ValueError(
                f"output_dir={folder} contains a finished model and no checkpoint to resume: choose another folder."
            )
        resume = None  # the run stopped before its first checkpoint
    trainer.train(resume_from_checkpoint=resume)
    if trainer.is_fsdp_enabled:
        trainer.gather_full_model(model_class)
    trainer.accelerator.wait_for_everyone()  # wait until the last checkpoint is written and the oldest is deleted
    folders = checkpoints_to_average(folder)
    last = folders[-arguments.average_checkpoints :]
    if len(last) < arguments.average_checkpoints > 1:
        logger.warning(
            "Found %d of average_checkpoints=%d: the final model is %s.",
            len(last), arguments.average_checkpoints, "their mean" if len(last) > 1 else "the one of the last step",
        )  # fmt: skip
        arguments.average_checkpoints = max(1, len(last))  # the model card shows this number
    if arguments.average_checkpoints > 1:
        load_average(trainer.model, last)


def main(arguments: list[str] | None = None) -> Scores:
    """Run the command `train [TASK] [FILE ... | RECIPE.yaml] [options]`, and return the scores.

    Raises:
        FileNotFoundError, ValueError: see `choose_task`, `recognise` and `run`.
    """
    given = sys.argv[1:] if arguments is None else arguments
    disable_progress_bars()  # of datasets
    disable_progress_bar()  # of transformers
    if given[:1] in (["-h"], ["--help"]):
        print(all_help()["train"].render())
        return {}
    name, files, options = data_files(given)
    if files:
        return run_planned(name, files, options)
    name, options = choose_task(given)
    if values_of(options, "--minutes"):
        raise ValueError("--minutes is for a plan: give data files before the options, such as pairs.tsv --minutes 5.")
    return run(find_task(name), options)


def run_planned(name: str | None, files: list[str], given: list[str]) -> Scores:
    """Plan a training run for data files, and run it.

    Args:
        name: name of the task, or None to recognise it.
        given: command-line options, which override the plan.

    Raises:
        FileNotFoundError, ValueError: see `recognise` and `run`.
    """
    columns = dict(option.split("=", 1) for option in values_of(given, "--columns") if "=" in option)
    found = recognise(files, name, columns)
    task_class = find_task(found.task)
    recipe: Recipe = {
        "output_dir": f"runs/{Path(files[0]).name.partition('.')[0]}", "train_file": files,
        "columns": found.options, "drop_empty": True, **how_to_read(files, task_class.data.streams),
    }  # fmt: skip
    names = CommandParser(option_classes(task_class)).given_names(given) - NOT_PLANNED
    draft = without_replaced(make_plan(found.task, Facts(1000, 1, 1)), names)
    # this raises an error if the folder is not empty
    _, data, _, task = parse(task_class, [*as_arguments(recipe | draft), *given])
    file = Path(task.arguments.output_dir) / PLAN_FILE
    if not (task.arguments.resume_from_checkpoint and file.is_file()):
        which = ", ".join(f"{yours} as {ours}" for ours, yours in found.columns.items()) or "lines of text"
        say(f"{' '.join(files)}: {found.task}, with {which}. If this is wrong, name the task or the columns:")
        say(f"  train {' '.join([found.task, *files, *(['--columns', *found.options] if found.columns else [])])}")
        planned = recipe | plan_for_machine(task_class, data, recipe, given, names)
        planned = {"task": found.task} | with_given(task_class, planned, given, names)
        if PartialState().is_main_process:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(yaml.safe_dump(planned, sort_keys=False, allow_unicode=True), "utf-8")
        say(f"  saved as {file}; options override the plan, and --minutes N limits its time")
    PartialState().wait_for_everyone()
    resume = [f"--resume_from_checkpoint={value}" for value in values_of(given, "--resume_from_checkpoint")]
    return run(task_class, [str(file), *resume])


def with_given(task_class: type[Task], recipe: Recipe, given: list[str], names: set[str]) -> Recipe:
    """Return a recipe in which the command-line options `given` replace those named in `names`."""
    parsed = parse_options(option_classes(task_class), [*as_arguments(recipe), *given])
    values = {name: value for part in parsed for name, value in vars(part).items() if name in names}
    return recipe | {name: getattr(value, "value", value) for name, value in values.items()}


def plan_for_machine(
    task_class: type[Task], data: DataArguments, recipe: Recipe, given: list[str], names: set[str]
) -> Recipe:
    """Time a few training steps on the data, and return and print a plan for this machine.

    Args:
        recipe: options that specify the data.
        names: names of the options that the user has given.
    """
    rows = load_splits(data, task_class.data)["train"]
    facts = Facts.of(rows, data.train_file)
    minutes = parse_options([PlanArguments], [f"--minutes={value}" for value in values_of(given, "--minutes")])[
        0
    ].minutes

    state = PartialState()
    for size in sizes(task_class.name, facts, on_cpu=state.device.type == "cpu"):
        plan = without_replaced(make_plan(task_class.name, facts, size, state.num_processes), names)
        budget = try_out(task_class, [*as_arguments(recipe | plan), *given])
        left = 60 * (minutes or LONGEST_RUN) - seconds_since_start()
        if broadcast_from_main(partial(budget.suits, size, plan, left)):
            break
    # each process measures a different speed
    plan = broadcast_from_main(lambda: plan if minutes is None else budget.fit(plan, left))
    for line in budget.describe(plan, facts, seconds_since_start()):
        say(f"  {line}")
    return plan


def seconds_since_start() -> float:
    """Return the seconds since this process started, including several seconds for importing the libraries."""
    return time.time() - psutil.Process().create_time()


def try_out(task_class: type[Task], arguments: list[str]) -> Budget:
    """Train a few steps in a temporary folder and score a few rows. Return the measured cost."""
    with TemporaryDirectory() as folder:
        logging.disable(logging.WARNING)  # the real run logs the warnings
        try:
            begin = time.perf_counter()
            parsed = parse(task_class, [*arguments, f"--output_dir={folder}", "--resume_from_checkpoint=false"])
            task = parsed[-1]
            vars(task.arguments).update(TRIAL)
            splits, trainer = build(*parsed)
            setup = time.perf_counter() - begin
            trainer.add_callback(timer := StepTimer())
            trainer.train()
            of_stream = {"train": 0, "validation": parsed[1].max_eval_samples or 0}
            held_out = {
                split: len(rows) if isinstance(rows, Dataset) else of_stream[split] for split, rows in splits.items()
            }
            train_rows = held_out.pop("train")
            begin = time.perf_counter()
            for split in [*held_out][:1]:
                task.score(trainer, {split: splits[split].take(min(TIMED_ROWS, held_out[split]))})
            row = (time.perf_counter() - begin) / TIMED_ROWS
        finally:
            logging.disable(logging.NOTSET)
    memory = psutil.Process().memory_info().rss
    return Budget(timer.seconds, setup, row, train_rows, held_out, trainer.model.num_parameters(), memory)


def read_splits(data: DataArguments, task: Task) -> Any:
    """Return the splits of the data, with the columns of the task.

    Raises:
        ValueError: there is no training data, or evaluation during training is on and there is no validation data.
    """
    with task.arguments.main_process_first(desc="reading the data"):  # other processes read the cache
        splits = load_splits(data, task.data)
    if "train" not in splits:
        raise ValueError(
            f"{data.name}: there is no training data: give --train_file, or a --dataset with a train split. "
            "To score a model, use `vanilla-transformer evaluate`."
        )
    if "validation" not in splits and task.arguments.eval_strategy != "no":
        raise ValueError(
            f"eval_strategy={task.arguments.eval_strategy.value} needs validation data: give --validation_file, or a "
            "--validation_fraction above 0."
        )
    return splits


def build(
    options: Any, data: DataArguments, tokenizing: TokenizerArguments, task: Task
) -> tuple[Any, RecipeTrainerMixin]:
    """Return the splits of the data, and a trainer with the model and the tokenizer."""
    splits = read_splits(data, task)
    rows = splits["train"]
    tokenizer = broadcast_from_main(lambda: make_tokenizer(tokenizing, options.model_name_or_path, rows, task))
    model = make_model(task.model_class, options, tokenizer, **task.config_fields(rows, options))
    task.prepare(model)
    task.arguments.disable_tqdm = True
    trainer = task.make_trainer(model, tokenizer, splits)
    trainer.pop_callback(PrinterCallback)
    return splits, trainer


def run(task_class: type[Task], arguments: list[str]) -> Scores:
    """Train a model, save it with tokenizer and code, score it on the held-out splits, and write its model card.

    With `do_train=False`, a saved model is scored, and nothing is saved.

    Args:
        arguments: command-line options.

    Returns:
        The scores by split.

    Raises:
        ValueError: another process is training in this folder; see also `parse` and `read_splits`.
    """
    if int(os.environ.get("RANK", 0)):  # of several processes, only the first one logs
        logging.getLogger("vanilla_transformer").setLevel(logging.ERROR)
    options, data, tokenizing, task = parse(task_class, arguments)
    training = task.arguments
    if training.device.type == "cpu":
        keep_freed_memory()
    folder = Path(training.output_dir)
    with run_lock(folder) if training.do_train and training.process_index == 0 else nullcontext():
        splits, trainer = build(options, data, tokenizing, task)
        if not training.do_train:
            scores, notes = task.score(trainer, splits)
            print_scores(scores, notes)
            return scores
        rows = splits.get("validation")
        facts = CardFacts(data.name, languages=data.languages if task.data.parallel else None)
        if options.model_name_or_path is not None:
            facts.begin_from(options.model_name_or_path, task, trainer, rows)
        trainer.add_callback(ProgressLog(trainer, task, rows))
        try:
            train(trainer)
        except (KeyboardInterrupt, SystemExit):
            say_how_to_continue(trainer, task.name, arguments)
            raise
        trainer.save_model()  # before scoring, which may fail
        finish(task, trainer, splits, facts)
    return facts.metrics
