"""Tagging: a class for each word, such as named entities in the BIO scheme."""

import logging
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
from datasets import Dataset
from transformers import (
    DataCollatorForTokenClassification,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from vanilla_transformer import VanillaTransformerForTokenClassification
from vanilla_transformer.losses_vanilla_transformer import IGNORED_LABEL
from vanilla_transformer.tasks.metrics import TAGGING_SCORES, tagging_scores
from vanilla_transformer.tasks.task import Notes, Task, measure, warned_of_cuts
from vanilla_transformer.training.recipe import PaperRecipe, RecipeArguments


logger = logging.getLogger(__name__)


@dataclass
class TaggerArguments(RecipeArguments):
    """Options of training: the recipe's, and the longest sentence."""

    LEAST: ClassVar[dict[str, int]] = {**RecipeArguments.LEAST, "max_length": 1}

    max_length: int = field(default=512, metadata={"help": "Truncate sentences to this many tokens."})


def class_names(train: Dataset) -> dict[str, Any]:
    """The config's fields for the names of all classes, in order. What is no entity is called O where it is scored.

    Raises:
        ValueError: there is one class alone.
    """
    names = dict(enumerate(sorted({str(tag) for tags in train["tags"][:] for tag in tags})))
    if len(names) == 1:
        raise ValueError(f"All words of the training data have the tag {names[0]!r}: there is nothing to learn.")
    if "O" not in names.values():
        logger.warning("No tag is called O: each run of words with one tag is scored as an entity.")
    return {"id2label": names, "label2id": {name: i for i, name in names.items()}}


def encode(rows: Dataset, tokenizer: PreTrainedTokenizerBase, label2id: dict[str, int], max_length: int) -> Dataset:
    """Columns input_ids and labels: a word's class at its first token, none at its others."""

    def encode_rows(rows: dict[str, list]) -> dict[str, list]:
        # A word is encoded with the space before it, as in running text.
        words = [[f" {word}" if i else word for i, word in enumerate(sentence)] for sentence in rows["tokens"]]
        encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=max_length)
        labels = []
        for row, tags in enumerate(rows["tags"]):
            word_ids = encoded.word_ids(row)
            first = [
                word is not None and word != before
                for before, word in zip([None, *word_ids[:-1]], word_ids, strict=True)
            ]
            labels.append(
                [label2id[str(tags[w])] if f else IGNORED_LABEL for f, w in zip(first, word_ids, strict=True)]
            )
        return {"input_ids": encoded["input_ids"], "labels": labels}

    return rows.map(encode_rows, batched=True, remove_columns=["tokens", "tags"], desc="tokenizing")


def scores_of(config: PreTrainedConfig, prediction: EvalPrediction) -> dict[str, float]:
    """The scores of a model's outputs (sentences, tokens, classes) at the tokens that have a label."""
    tags = cast(dict[int, str], config.id2label)
    best = np.asarray(prediction.predictions).argmax(axis=-1)
    pairs = [
        [(tags[p], tags[t]) for p, t in zip(predicted, true, strict=True) if t != IGNORED_LABEL]
        for predicted, true in zip(best, prediction.label_ids, strict=True)
    ]
    return tagging_scores([[p for p, _ in row] for row in pairs], [[t for _, t in row] for row in pairs])


def evaluate(trainer: PaperRecipe, rows: Dataset) -> tuple[dict[str, float], Notes]:
    """Loss and scores on rows of tokens and tags. Words that are cut off are not scored, which is said."""
    args = cast(TaggerArguments, trainer.args)
    label2id = cast(dict[str, int], trainer.model.config.label2id)
    encoded = encode(rows, trainer.processing_class, label2id, args.max_length)
    cut = sum(
        len(tags) - sum(label != IGNORED_LABEL for label in labels)
        for tags, labels in zip(rows["tags"], encoded["labels"], strict=True)
        if len(labels) == args.max_length
    )
    if cut:
        message = "%d of %d words are not scored, since --max_length %d cuts their sentences before them."
        logger.warning(message, cut, sum(map(len, rows["tags"])), args.max_length)
    return measure(trainer, encoded), {}


TAGGING = Task(
    data="tagging",
    model_class=VanillaTransformerForTokenClassification,
    template="encoder",
    pipeline_tag="token-classification",
    arguments_class=TaggerArguments,
    encode=lambda rows, tokenizer, config, args: encode(
        rows, tokenizer, cast(dict[str, int], config.label2id), args.max_length
    ),
    augment=warned_of_cuts,
    collator=lambda tokenizer, model, args: DataCollatorForTokenClassification(tokenizer),
    evaluate=evaluate,
    metrics=scores_of,
    metric_names=lambda args: TAGGING_SCORES,
    config_fields=lambda options, args, train: class_names(train),
)
