"""What every training script does around its model and data: options, tokenizer, training, averaging, saving, card."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase, Trainer, set_seed

from vanilla_transformer.data.sources import DataArguments
from vanilla_transformer.data.tokenizer import KINDS, train_tokenizer
from vanilla_transformer.training.averaging import average_checkpoints, complete_checkpoints
from vanilla_transformer.training.model_card import CardFacts, write_model_card
from vanilla_transformer.training.options import model_options, parse_options
from vanilla_transformer.training.recipe import RecipeArguments


HELD_OUT = ("validation", "test")

Scores = dict[str, dict[str, float]]  # by split and name
Evaluation = tuple[Scores, dict[str, str]]  # and notes on how they were computed


@dataclass
class TokenizerArguments:
    tokenizer_name_or_path: str | None = field(
        default=None, metadata={"help": "Use this tokenizer (a folder or a Hub name) instead of training one."}
    )
    vocab_size: int = field(default=8000, metadata={"help": "Tokens of a tokenizer that is trained."})
    tokenizer_kind: str = field(
        default="byte_bpe", metadata={"help": f"How a tokenizer that is trained cuts text: {' or '.join(KINDS)}."}
    )
    lowercase: bool = field(default=False, metadata={"help": "Lower-case all text."})


def parse(config_class: type, recipe_class: type[RecipeArguments], arguments: list[str] | None) -> tuple[Any, ...]:
    """The options of a training script: of model, data, tokenizer and training.

    Raises:
        ValueError: the output folder holds an earlier run that is not to be resumed.
    """
    parsed = parse_options([model_options(config_class), DataArguments, TokenizerArguments, recipe_class], arguments)
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
    return train_tokenizer(
        texts, template=template, kind=args.tokenizer_kind, vocab_size=args.vocab_size, lowercase=args.lowercase
    )


def encoded_splits(splits: Any, encode: Callable[[Any], Any]) -> dict[str, Any]:
    """The data of a Trainer, as far as there are any: `encode` of the training and of the validation split."""
    names = {"train_dataset": "train", "eval_dataset": "validation"}
    return {argument: encode(splits[split]) for argument, split in names.items() if split in splits}


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


def score_splits(splits: Any, score: Callable[[Any], dict[str, float]]) -> Scores:
    """`score` of each held-out split."""
    return {split: score(splits[split]) for split in HELD_OUT if split in splits}


def measure(trainer: Trainer, rows: Any) -> dict[str, float]:
    """The loss, and what the trainer's `compute_metrics` gives, on encoded rows."""
    metrics = trainer.evaluate(rows)
    kept = {name.removeprefix("eval_"): value for name, value in metrics.items() if name.startswith("eval_")}
    return {name: value for name, value in kept.items() if not name.endswith(("_time", "runtime", "second"))}


def print_scores(scores: Scores, notes: dict[str, str]) -> None:
    """A line for each split, and one for each note, such as a signature."""
    for split, values in scores.items():
        print(f"{split}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
    for name, text in notes.items():
        print(f"{name} signature: {text}")


def run(
    trainer: Trainer, splits: Any, evaluate: Callable[[Trainer, Any], Evaluation], pipeline_tag: str, dataset: str
) -> Scores:
    """Train, evaluate and save a model folder: weights, config, code, tokenizer, model card."""
    if trainer.args.do_train:
        train(trainer)
    scores, notes = evaluate(trainer, splits)
    trainer.processing_class.backend_tokenizer.no_truncation()  # else the saved file would cut texts for good
    trainer.save_model()
    if trainer.is_world_process_zero():
        print_scores(scores, notes)
        facts = CardFacts(pipeline_tag, dataset, scores, notes)
        write_model_card(Path(trainer.args.output_dir), trainer.model, trainer.args, trainer.state, facts)
    return scores
