"""Plan a training run: choose options of `train` that suit the data, the machine and the time limit.

A plan has the format of a recipe. Its values come from the tuned recipes in `recipes/`, scaled to the number of rows.
"""

import math
import re
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import mean, median
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from vanilla_transformer.data.recognition import SAMPLE


Recipe = dict[str, Any]

# size of a translator -> number of steps below which the next smaller size learns more in the same time
FEWEST_OF_SIZE = {"base": 20_000, "medium": 3_000, "small": 500, "short": 0}
SIZE_FOR_ROWS = {"base": 1_000_000, "medium": 200_000}  # size -> number of rows from which it is tried
PHRASE = 25  # characters; phrases on average shorter than this are learned by the smallest translator
LONGEST_RUN = 24 * 60  # minutes, for a run without --minutes
FEWEST_STEPS = 50
PROBE_STEPS, PROBE_SECONDS = 8, 15.0  # maximum steps and seconds for measuring the speed
SAFETY = 0.95  # fraction of the remaining time to use, because other programs may slow training down
SHARE_OF_SCORING = 0.15  # fraction of the time for training and scoring that scoring may take
EVALUATIONS = 10
LARGEST_IN_MEMORY = 100_000_000  # bytes; larger files are streamed if the task allows it
OF_STREAM = {"streaming": True, "validation_fraction": 0.005, "max_eval_samples": 1000}
SMALL_TEXT = 3_000_000  # characters; language models for less text use characters as tokens
FEW_ROWS = 20_000  # with fewer rows, encoders overfit unless dropout is higher and the learning rate lower
KNOWN_WORDS = 0.65  # share of known words from which classifiers with few rows read words instead of parts of words
LITTLE_TEXT = 300_000  # characters; with less text, language models overfit without dropout
MOST_CHARACTERS = 350  # maximum number of distinct characters for a character or unigram tokenizer
MOST_TEXT_OF_UNIGRAM = 30_000_000  # characters; training a unigram tokenizer on more text takes minutes
LONG_TEXT = 400  # characters; longer rows are truncated and use smaller batches
LONGEST_PAIR = 1500  # characters; longer inputs would be truncated in training and take minutes to translate
# option given by the user -> options of the plan that no longer apply
REPLACES: dict[str, Set[str]] = {
    "num_train_epochs": {"max_steps"},
    "preset": {"num_layers", "encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads"},
    "learning_rate_scale": {"learning_rate", "lr_scheduler_type"},
    "optim": {"muon", "muon_momentum", "embedding_decay"},
    "average_checkpoints": {"load_best_model_at_end"},
    "streaming": {"concat_pairs"},
    "tokenizer_kind": {"lowercase"},
    "tokenizer_name_or_path": {"vocab_size", "tokenizer_kind", "lowercase"},
    "model_name_or_path": {
        *("num_layers", "encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads", "norm_position"),
        *("preset", "init", "vocab_size", "tokenizer_kind", "lowercase"),
    },
}


@dataclass
class PlanArguments:
    """Options of a planned training run, `train FILE ...`.

    Raises:
        ValueError: `minutes` is not positive.
    """

    minutes: float | None = field(
        default=None,
        metadata={
            "help": "With data files instead of a recipe: choose model and steps so that the whole command ends "
            "within this many minutes."
        },
    )

    def __post_init__(self):
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"--minutes {self.minutes} must be greater than 0.")


@dataclass(frozen=True)
class Facts:
    """Facts about the data that a plan depends on.

    Args:
        rows: number of rows; for a stream, an estimate.
        characters: number of characters in the longest field of a row, averaged over the rows.
        alphabet: number of distinct characters.
        known_words: share of the words in one half of the texts that also occur in the other half.
        is_stream: whether the rows are streamed.
    """

    rows: int
    characters: float
    alphabet: int
    known_words: float = 0.0
    is_stream: bool = False

    @classmethod
    def of(cls, rows: Dataset | IterableDataset, files: Sequence[str]) -> "Facts":
        """Return the facts about rows that were read from `files`, estimated from a sample."""
        is_stream = isinstance(rows, IterableDataset)
        sample = list(rows.take(SAMPLE) if is_stream else rows.select(range(0, len(rows), len(rows) // SAMPLE + 1)))
        texts = [[text for value in row.values() for text in as_texts(value)] for row in sample]
        characters = mean(max(map(len, each), default=0) for each in texts)
        alphabet = len({char for each in texts for text in each for char in text})
        size = mean(sum(len(text.encode()) for text in each) for each in texts)
        names = (
            10 * len(sample[0]) if ".json" in files[0] else 1
        )  # approximate bytes of a row in addition to its texts
        count = round(size_of(files) / (size + names)) if is_stream else len(rows)
        known_words = share_of_known_words([max(each, key=len, default="") for each in texts])
        return cls(count, characters, alphabet, known_words, is_stream)


def share_of_known_words(texts: Sequence[str]) -> float:
    """Return the share of the words in every second text that also occur in the other texts."""
    words = [re.findall(r"\w+", text.lower()) for text in texts]
    seen = set(chain(*words[::2]))
    return mean([word in seen for word in chain(*words[1::2])] or [0.0])


def size_of(files: Sequence[str]) -> int:
    """Return the total size of files in bytes. Compressed files count three times, as an estimate of their content."""
    return sum(Path(file).stat().st_size * (3 if file.endswith((".gz", ".parquet")) else 1) for file in files)


def how_to_read(files: Sequence[str], streams: bool) -> Recipe:
    """Return options that stream large files (plain text line by line) if the task supports streaming (`streams`)."""
    return {"streaming": True, "sample_by": "line"} if streams and size_of(files) > LARGEST_IN_MEMORY else {}


def as_texts(value: Any) -> list[str]:
    """Return the strings in a value. The tokens of a list are joined into one string."""
    if isinstance(value, list):
        return [" ".join(item for item in value if isinstance(item, str))]
    return [value] if isinstance(value, str) else []


def clamp(value: float, low: int, high: int) -> int:
    """Round a number to an integer between `low` and `high`."""
    return round(min(max(value, low), high))


def sizes(task: str, facts: Facts, on_cpu: bool) -> list[str]:
    """Return the model sizes that suit the data, the largest first. A CPU would take weeks for the base model."""
    if task != "translation":
        return ["small"]
    if facts.characters < PHRASE:
        return ["short"]
    larger = [size for size, rows in SIZE_FOR_ROWS.items() if facts.rows >= rows and not (on_cpu and size == "base")]
    return [*larger, "small", "short"]


def make_plan(task: str, facts: Facts, size: str = "small", processes: int = 1) -> Recipe:
    """Return the options for a task, including a number of steps that suits the data.

    Args:
        size: one of `sizes`.
        processes: number of processes that share a batch.
    """
    if task == "translation":
        plan = plan_base_translation(facts) if size == "base" else plan_translation(facts, size)
    elif task in ("language_modeling", "masked_language_modeling"):
        plan = plan_language_model(task, facts)
    else:
        plan = plan_encoder(task, facts)
    if "per_device_train_batch_size" in plan:  # tokens_per_batch already counts the tokens of all processes
        plan["per_device_train_batch_size"] = math.ceil(plan["per_device_train_batch_size"] / processes)
    return without_replaced(plan, {"streaming"}) | OF_STREAM if facts.is_stream else plan


def plan_base_translation(facts: Facts) -> Recipe:
    """Return the options of recipes/paper_base_wmt14_en_de.yaml, with 20 epochs as the paper's 100,000 steps."""
    steps = clamp(20 * facts.rows * facts.characters / 4 / 25_000, FEWEST_OF_SIZE["base"], 100_000)
    return {
        "preset": "base", "vocab_size": clamp(facts.rows / 100, 16_000, 37_000), "tokenizer_kind": "byte_bpe",
        "validation_fraction": held_out(facts.rows), "tokens_per_batch": 25_000, "max_steps": steps,
        "warmup_steps": 4000, "save_steps": 1500, "save_total_limit": 5, "average_checkpoints": 5, "num_beams": 4,
        "length_penalty": 0.6, "logging_steps": 50,
    }  # fmt: skip


def plan_translation(facts: Facts, size: str) -> Recipe:
    """Return the options of a recipe, by size.

    "small" is recipes/multi30k_en_de.yaml, "medium" has the model of recipes/checkpoints/en-es.yaml, and "short" is
    recipes/quickstart.yaml.

    Raises:
        ValueError: the texts are too long to be translated as one row each.
    """
    if facts.characters > LONGEST_PAIR:
        raise ValueError(
            f"The texts have about {facts.characters:,.0f} characters each, and a translator reads at most "
            f"{LONGEST_PAIR:,}: split them into sentences or paragraphs, one pair a row."
        )
    tokens = facts.rows * facts.characters / 4  # a token has about four characters
    steps = clamp(4.1 * math.sqrt(tokens), 400, 6000)
    vocab_size = clamp(facts.rows / 4, 1000, 2000 if size == "short" else 8000)
    common = {
        "tokenizer_kind": subwords(facts, vocab_size),
        "validation_fraction": held_out(facts.rows),
        "bucketing": "none",
        "max_steps": steps,
        "muon": True,
        "init": "small",
        "lr_scheduler_type": "linear",
        "warmup_steps": 0.1,
        "average_checkpoints": 1,
        "save_steps": 0.2,
        "save_total_limit": 2,
        "logging_steps": 50,
    }
    if size == "short":
        return {
            "encoder_layers": 2, "decoder_layers": 2, "d_model": 128, "d_ff": 512, "num_heads": 4, "dropout": 0.0,
            "vocab_size": vocab_size, **common, "tokens_per_batch": 800, "muon_momentum": 0.8, "learning_rate": 5e-3,
        }  # fmt: skip
    small = facts.rows < 5000
    model: Recipe = {"preset": "tiny"}
    if size == "medium":
        model = {"encoder_layers": 4, "decoder_layers": 3, "d_model": 192, "d_ff": 768, "num_heads": 6}
    return {
        **model, "norm_position": "pre", "dropout": 0.2, "dropout_start": 0.05,
        "vocab_size": vocab_size, **common,
        "tokens_per_batch": 2048 if small else 4096, "concat_pairs": 0.5,
        "weight_decay": 0.2, "embedding_decay": 0.2, "learning_rate": 1.2e-2, "length_penalty": 1.0,
    }  # fmt: skip


def plan_language_model(task: str, facts: Facts) -> Recipe:
    """Return the options of recipes/tiny_shakespeare.yaml, with a subword vocabulary if there is more text."""
    characters = facts.rows * facts.characters
    size = {"num_layers": 4, "num_heads": 4, "d_model": 128, "d_ff": 512, "dropout": 0.0, "label_smoothing": 0.0}
    plan = {
        "validation_fraction": 0.1, "learning_rate": 1e-3, "lr_scheduler_type": "cosine", "warmup_steps": 0.05,
        "adam_beta2": 0.99, "max_grad_norm": 1.0, "save_steps": 0.2, "save_total_limit": 2, "logging_steps": 50,
    }  # fmt: skip
    of_characters = task == "language_modeling" and characters < SMALL_TEXT and facts.alphabet <= MOST_CHARACTERS
    block = {"block_size": 64} if task == "language_modeling" else {}
    if of_characters:
        if characters < LITTLE_TEXT:
            size["dropout"] = 0.2
            plan |= best_of_run("loss")
        return {
            **size, **plan, **block, "tokenizer_kind": "character", "vocab_size": 400, "max_steps": 2000,
            "per_device_train_batch_size": 12,
        }  # fmt: skip
    batch = 16 if task == "language_modeling" else 32
    steps = clamp(4 * characters / 4 / (batch * 64), 1000, 20_000)
    return {
        **size, **plan, **block, "vocab_size": clamp(characters / 200, 1000, 8000), "max_steps": steps,
        "per_device_train_batch_size": batch,
    }  # fmt: skip


def plan_encoder(task: str, facts: Facts) -> Recipe:
    """Return the options for an encoder.

    The options come from recipes/clear.yaml for regression, from recipes/checkpoints/tagger.yaml for tagging, and from
    recipes/phrasebook_question_answering.yaml for question answering. The number of steps grows with the rows.
    """
    batch, steps, metric = 32, 14, "accuracy"
    model: Recipe = {"num_layers": 2, "d_model": 128, "d_ff": 256, "num_heads": 4, "norm_position": "pre"}
    few = facts.rows < FEW_ROWS
    model |= {"init": "small", "dropout": 0.3 if few else 0.1}
    others: Recipe = {
        "learning_rate": 1e-3 if few else 2e-3,
        "max_length": 256,
        "tokenizer_kind": subwords(facts, 8000),
    }
    if task != "tagging" and few and facts.known_words >= KNOWN_WORDS:
        others |= {"tokenizer_kind": "word", "lowercase": True}
    if task == "regression":
        model |= {"dropout": 0.2, "init": "default", "norm_position": "post"}
        others["learning_rate"] = 5e-4
        steps, metric = 30, "loss"  # the best correlation may have a far larger error
    elif task == "tagging":
        model |= {"num_layers": 3, "d_ff": 512, "dropout": 0.3, "init": "default", "norm_position": "post"}
        others |= {"learning_rate": 2e-3, "tokenizer_kind": "byte_bpe"}
        batch, steps, metric = 64, 26, "f1"
    elif task == "question_answering":
        model |= {"num_layers": 4, "d_ff": 512, "dropout": 0.05, "init": "default"}
        steps, metric = 40, "loss"
        others = {"learning_rate": 1e-3, "max_grad_norm": 1.0}
    return {
        **model, "vocab_size": 8000 if task != "question_answering" else 4000,
        "validation_fraction": held_out(facts.rows),
        "per_device_train_batch_size": 16 if facts.characters > LONG_TEXT else batch,
        "max_steps": clamp(steps * math.sqrt(facts.rows), 400, 20_000), **others, "lr_scheduler_type": "linear",
        "warmup_steps": 0.1, **best_of_run(metric), "logging_steps": 50,
    }  # fmt: skip


def best_of_run(metric: str) -> Recipe:
    """Return the options that keep the weights with the best validation score."""
    return {
        "eval_strategy": "steps", "eval_steps": 1 / EVALUATIONS, "save_strategy": "steps",
        "save_steps": 1 / EVALUATIONS, "save_total_limit": 1, "load_best_model_at_end": True,
        "metric_for_best_model": metric, "greater_is_better": metric != "loss",
    }  # fmt: skip


def subwords(facts: Facts, vocab_size: int) -> str:
    """Return the kind of subword tokenizer: byte-level BPE for much text or many distinct characters, else unigram."""
    fits = facts.alphabet <= min(MOST_CHARACTERS, vocab_size / 4)
    return "unigram" if fits and facts.rows * facts.characters <= MOST_TEXT_OF_UNIGRAM else "byte_bpe"


def held_out(rows: int) -> float:
    """Return the fraction of rows to hold out: 10 % of fewer than 2,000 rows, otherwise 5 % or at most 2,000 rows."""
    return 0.1 if rows < 2000 else round(min(0.05, 2000 / rows), 4)


def without_replaced(plan: Recipe, given: Set[str]) -> Recipe:
    """Return the plan without the options that the user has given, and without those that no longer apply."""
    gone = set(given).union(*(REPLACES.get(name, set()) for name in given))
    kept = {name: value for name, value in plan.items() if name not in gone}
    if "model_name_or_path" in given:  # a trained translator forgets at higher learning rates
        for name, divisor in (("learning_rate", 12), ("max_steps", 4)):
            if name in kept:
                kept[name] = type(kept[name])(kept[name] / divisor)
    return kept


@dataclass(frozen=True)
class Budget:
    """The cost of a plan, measured on this machine.

    Args:
        step: seconds per training step.
        setup: seconds to read and encode the data and to build the model.
        row: seconds to score a row. This is an overestimate, because an untrained translator generates longer outputs.
        rows: number of training rows; 0 for a stream.
        held_out: number of rows of each split that is scored.
        parameters: number of model parameters.
        memory: memory of the process in bytes.
    """

    step: float
    setup: float
    row: float
    rows: int
    held_out: Mapping[str, int]
    parameters: int
    memory: int

    def scored(self, plan: Recipe) -> int:
        """Return how many rows a run scores: all splits at the end, and the validation split also during training."""
        most = plan.get("max_eval_samples", math.inf)
        # At the end, the model runs on the validation rows twice: for the scores and for the examples.
        times = {"validation": 2 + EVALUATIONS if "eval_steps" in plan else 2}
        return sum(times.get(split, 1) * min(rows, most) for split, rows in self.held_out.items())

    def divide(self, plan: Recipe, seconds: float) -> tuple[float, float]:
        """Return the seconds for training and for scoring; the latter at most a fixed share, or what all rows need."""
        usable = max(0.0, SAFETY * seconds - self.setup)
        scoring = min(SHARE_OF_SCORING * usable, self.scored(plan) * self.row)
        return usable - scoring, scoring

    def steps_within(self, plan: Recipe, seconds: float) -> int:
        """Return the number of training steps that fit into `seconds`, leaving time for scoring."""
        return int(self.divide(plan, seconds)[0] / self.step)

    def suits(self, size: str, plan: Recipe, seconds: float) -> bool:
        """Return whether a model of this size learns more in `seconds` than one of the next smaller size."""
        return self.steps_within(plan, seconds) >= min(FEWEST_OF_SIZE[size], plan.get("max_steps", math.inf))

    def fit(self, plan: Recipe, seconds: float) -> Recipe:
        """Return the plan, with no more steps and scored rows than the time allows.

        Raises:
            ValueError: the time is too short for a useful model.
        """
        if self.steps_within(plan, seconds) < FEWEST_STEPS:
            missing = (self.setup + FEWEST_STEPS * self.step / (1 - SHARE_OF_SCORING)) / SAFETY - seconds
            raise ValueError(
                f"--minutes: on this machine {FEWEST_STEPS} steps of {self.step:.2g} s end about {missing / 60:.1f} "
                "minutes later: give more."
            )
        needed, given = self.scored(plan) * self.row, self.divide(plan, seconds)[1]
        rows = max(20, int(given / needed * max(self.held_out.values()))) if given < needed else None
        limited = {"max_eval_samples": rows} if rows else {}
        steps = {"max_steps": min(self.steps_within(plan, seconds), plan["max_steps"])} if "max_steps" in plan else {}
        return plan | limited | steps

    def describe(self, plan: Recipe, facts: Facts, passed: float) -> list[str]:
        """Return lines that describe the plan to the user. `passed` is the time used so far, in seconds."""
        steps = plan.get("max_steps", 0)
        seconds = passed + self.setup + steps * self.step + self.scored(plan) * self.row
        rows = f"{self.rows:,}" if self.rows else f"about {facts.rows:,}"
        held_out = ", ".join(f"{rows:,} for {split}" for split, rows in self.held_out.items()) or "none to score"
        length = f"{steps:,} steps of {self.step:.2g} s" if steps else f"steps of {self.step:.2g} s"
        time = f"about {max(0.5, round(seconds / 30) / 2):g} min in all" if steps else "set by the options"
        return [
            f"{rows} rows to train on, {held_out}; about {facts.characters:.0f} characters each",
            f"a model of {self.parameters / 1e6:.1f} million parameters",
            f"{length}: {time}, {self.memory / 2**30:.1f} GiB of memory",
        ]


class StepTimer(TrainerCallback):
    """Measure the time per training step, and stop training after a few steps."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record the time, and stop after a few steps."""
        self.times.append(time.perf_counter())
        if len(self.times) >= PROBE_STEPS or (len(self.times) > 2 and self.times[-1] - self.times[0] > PROBE_SECONDS):
            control.should_training_stop = True

    @property
    def seconds(self) -> float:
        """The median time per step in seconds, without the first steps, which allocate memory."""
        differences = [after - before for before, after in zip(self.times, self.times[1:], strict=False)]
        return median(differences[len(differences) // 3 :])
