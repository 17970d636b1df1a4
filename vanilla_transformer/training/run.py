"""A training script: from the command line to a model folder with weights, tokenizer, code and model card."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase, Trainer, set_seed

from vanilla_transformer.data.sources import DataArguments
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.data.tokenizer import KINDS, train_tokenizer
from vanilla_transformer.training.averaging import average_checkpoints, complete_checkpoints
from vanilla_transformer.training.model_card import CardFacts, write_model_card
from vanilla_transformer.training.options import make_model, model_options, parse_options
from vanilla_transformer.training.recipe import RecipeArguments
from vanilla_transformer.training.task import Notes, Scores, Task


@dataclass
class NewTokenizerArguments:
    vocab_size: int = field(default=8000, metadata={"help": "Tokens of a tokenizer that is trained, at most."})
    tokenizer_kind: str = field(
        default="byte_bpe", metadata={"help": f"How a tokenizer that is trained cuts text: {' or '.join(KINDS)}."}
    )
    lowercase: bool = field(default=False, metadata={"help": "Lower-case all text."})

    def train(self, texts: Iterable[str], template: str) -> PreTrainedTokenizerBase:
        return train_tokenizer(texts, template, self.tokenizer_kind, self.vocab_size, self.lowercase)


@dataclass
class TokenizerArguments(NewTokenizerArguments):
    tokenizer_name_or_path: str | None = field(
        default=None, metadata={"help": "Use this tokenizer (a folder or a Hub name) instead of training one."}
    )


def parse(task: Task, arguments: list[str] | None = None) -> tuple[Any, DataArguments, TokenizerArguments, Any]:
    """The options of a task's training script: of model, data, tokenizer and training.

    Raises:
        ValueError: the output folder holds an earlier run that is not to be resumed.
    """
    model = model_options(task.model_class.config_class)
    parsed = parse_options([model, DataArguments, TokenizerArguments, task.arguments_class], arguments)
    training = parsed[-1]
    folder = Path(training.output_dir)
    if training.do_train and not training.resume_from_checkpoint and folder.is_dir() and any(folder.iterdir()):
        raise ValueError(
            f"output_dir={folder} is not empty: continue it with --resume_from_checkpoint true, or choose another"
        )
    set_seed(training.seed)
    return parsed


def make_tokenizer(
    args: TokenizerArguments, model_name_or_path: str | None, texts: Iterable[str], template: str
) -> PreTrainedTokenizerBase:
    """The tokenizer that was asked for, else the one of the checkpoint, else one trained on `texts`."""
    name = args.tokenizer_name_or_path or model_name_or_path
    if name is not None:
        return AutoTokenizer.from_pretrained(name)
    return args.train(texts, template)


def train(trainer: Trainer) -> None:
    """Train, or go on from the last complete checkpoint, and leave the final weights in `trainer.model`."""
    arguments: RecipeArguments = trainer.args
    model_class = type(trainer.model)
    resume = arguments.resume_from_checkpoint
    if resume in ("true", "True", True):
        resume = bool(complete_checkpoints(Path(arguments.output_dir)))
    trainer.train(resume_from_checkpoint=resume)
    if trainer.is_fsdp_enabled:
        trainer.make_whole(model_class)
    folders = complete_checkpoints(Path(arguments.output_dir))[-arguments.average_checkpoints :]
    if arguments.average_checkpoints > 1 and folders:
        # Tied weights are stored once, under the name of their source.
        trainer.model.load_state_dict(average_checkpoints(folders), strict=False)


def print_scores(scores: Scores, notes: Notes) -> None:
    """A line for each split, and one for each note."""
    for split, values in scores.items():
        print(f"{split}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
    for name, text in notes.items():
        print(f"{name} signature: {text}")


def run(task: Task, arguments: list[str] | None = None) -> Scores:
    """Train a model, score it on the held-out splits, and save it with all that belongs to it.

    Args:
        arguments: of the command line; by default those that the process was started with.

    Returns:
        The scores by split.
    """
    options, data, tokenizing, training = parse(task, arguments)
    kind = task.data_for(training)
    splits = load_splits(data, kind)
    texts = texts_of(splits["train"], kind)
    tokenizer = make_tokenizer(tokenizing, options.model_name_or_path, texts, task.template)
    fields = task.config_fields(options, training, splits["train"])
    model = make_model(task.model_class, options, tokenizer, **fields)
    task.prepare(model, training)
    trainer = task.make_trainer(model, tokenizer, training, splits)
    if training.do_train:
        train(trainer)
    scores, notes = task.score(trainer, splits)
    tokenizer.backend_tokenizer.no_truncation()  # else the saved file would cut texts for good
    trainer.save_model()
    if trainer.is_world_process_zero():
        print_scores(scores, notes)
        facts = CardFacts(task.pipeline_tag, data.name, scores, notes)
        write_model_card(Path(training.output_dir), trainer.model, training, trainer.state, facts)
    return scores
