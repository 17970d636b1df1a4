"""Report on a trained model: scores compared with baselines, best and worst examples, and commands to try next."""

import shlex
from pathlib import Path
from textwrap import shorten
from typing import Any

from accelerate import PartialState
from datasets import Dataset

from vanilla_transformer.cli.model_card import BEFORE, CardFacts, write_model_card
from vanilla_transformer.files import markdown_table
from vanilla_transformer.tasks.task import HELD_OUT, Example, Notes, Scores, Task
from vanilla_transformer.training.checkpoints import last_checkpoint
from vanilla_transformer.training.trainer import RecipeTrainerMixin


EXAMPLES_FILE = "examples.md"
EXAMPLE_ROWS = 200  # number of validation rows from which the best and worst examples are chosen
BASELINE_ROWS = 10_000  # maximum number of training rows for fitting a baseline


def say(line: str) -> None:
    """Print a line without buffering, on the main process only."""
    if PartialState().is_main_process:
        print(line, flush=True)


def line_of(name: str, scores: dict[str, float]) -> str:
    """Format scores as one line."""
    return f"{name}: " + ", ".join(f"{metric} {value:.4g}" for metric, value in scores.items())


def print_scores(scores: Scores, notes: Notes, baselines: dict[str, Scores] | None = None) -> None:
    """Print the scores of each split, the scores of its baselines below them, and the notes."""
    for split, values in scores.items():
        say(line_of(split, values))
        for name, others in (baselines or {}).get(split, {}).items():
            say(line_of(f"  {name}", others))
    for name, text in notes.items():
        say(f"{name} signature: {text}")


def finish(task: Task, trainer: RecipeTrainerMixin, splits: Any, facts: CardFacts) -> None:
    """Score a trained model, compare it with baselines, write examples and model card, and print next commands.

    Args:
        facts: facts for the model card. This function adds the scores.
    """
    is_main, folder = trainer.is_world_process_zero(), Path(trainer.args.output_dir)
    rows = splits.get("validation")
    try:
        facts.metrics, facts.notes = task.score(trainer, splits)
        if isinstance(rows, Dataset) and (is_main or not task.in_one_process):
            examples = task.examples(trainer, rows.select(range(min(len(rows), EXAMPLE_ROWS))))
            if examples and is_main:
                write_examples(folder / EXAMPLES_FILE, examples)
        if is_main and all(isinstance(part, Dataset) for part in splits.values()):
            train = splits["train"].shuffle(seed=0)
            train = train.select(range(min(len(train), BASELINE_ROWS)))
            for split in set(HELD_OUT) & set(splits):
                facts.baselines.setdefault(split, {}).update(task.baselines(trainer, train, splits[split]))
    finally:
        if is_main:
            write_model_card(folder, trainer.model, task, trainer.state, facts)
    print_scores(facts.metrics, facts.notes, facts.baselines)
    before = facts.baselines.get("validation", {}).get(BEFORE)
    if before and facts.metrics and task.is_worse(facts.metrics["validation"], before):
        say(f"This training made the model worse on validation: {facts.origin} is better.")
    name, row = shlex.quote(str(folder)), next(iter(splits["train"] if rows is None else rows))
    say(f"The model is in {folder}, with its card (README.md) and curves (curves.png). Next:")
    say(f"  {task.shell_command(str(folder), row)}")
    say(f"  vanilla-transformer demo {name}")
    say(f"  vanilla-transformer push {name} YOUR_NAME/{shlex.quote(folder.resolve().name)}")


def write_examples(file: Path, examples: list[Example]) -> None:
    """Write the ten best and ten worst examples as Markdown tables."""
    ranked = sorted(examples, key=lambda example: -example.score)
    lines = [f"# Examples from {len(ranked)} rows of validation"]
    for title, part in {"The ten best": ranked[:10], "The ten worst": ranked[10:][-10:][::-1]}.items():
        cells = [[shorten(text, 300).replace("|", "\\|") for text in example[:3]] for example in part]
        table = [(*texts, f"{example.score:.4g}") for texts, example in zip(cells, part, strict=True)]
        lines += [f"## {title}", markdown_table(("source", "target", "output", "score"), table)]
    file.write_text("\n\n".join(lines) + "\n", encoding="utf-8")


def say_how_to_continue(trainer: RecipeTrainerMixin, task: str, arguments: list[str]) -> None:
    """Print where an interrupted run has saved its model, and the command that continues the run."""
    resumes = any(option.startswith("--resume_from_checkpoint") for option in arguments)
    given = arguments if resumes else [*arguments, "--resume_from_checkpoint", "true"]
    state, checkpoint = trainer.state, last_checkpoint(Path(trainer.args.output_dir))
    model = f"The model so far is in {checkpoint}." if checkpoint else "There is no checkpoint yet."
    say(f"Stopped at step {state.global_step:,} of {state.max_steps:,}. {model} Continue with:")
    say("  " + shlex.join(["vanilla-transformer", "train", task, *given]))
