"""Classification of texts: one class of several, several classes at once, or a number."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
from datasets import Dataset
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from vanilla_transformer import VanillaTransformerForSequenceClassification
from vanilla_transformer.data.checks import as_list
from vanilla_transformer.tasks.metrics import (
    CLASSIFICATION_SCORES,
    REGRESSION_SCORES,
    classification_scores,
    regression_scores,
)
from vanilla_transformer.tasks.task import Notes, Task, measure, warned_of_cuts
from vanilla_transformer.training.recipe import PaperRecipe, RecipeArguments


# What the command line calls a task -> what a config calls it.
PROBLEMS = {
    "classification": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


@dataclass
class ClassifierArguments(RecipeArguments):
    """Options of training: the recipe's, which kind of labels, and the longest text.

    Raises:
        ValueError: an unknown kind of labels.
    """

    LEAST: ClassVar[dict[str, int]] = {**RecipeArguments.LEAST, "max_length": 1}

    task: str = field(
        default="classification",
        metadata={
            "help": "classification (one label per text), multi_label (a list of labels) or regression (numbers)."
        },
    )
    max_length: int = field(default=512, metadata={"help": "Truncate texts to this many tokens."})

    def __post_init__(self):
        super().__post_init__()
        if self.task not in PROBLEMS:
            raise ValueError(f"task={self.task!r} must be one of: {', '.join(PROBLEMS)}.")


def class_names(train: Dataset, task: str) -> dict[str, Any]:
    """The config's fields for the names of all classes, in order, or for the number of outputs.

    Raises:
        ValueError: there is no class at all, or one where each text has one.
    """
    labels = train["label"][:]
    if task == "regression":
        return {"problem_type": PROBLEMS[task], "num_labels": len(np.atleast_1d(labels[0]))}
    classes = {name for label in labels for name in as_list(label)}
    if not classes:
        raise ValueError("No row of the training data has a class: there is nothing to learn.")
    ordered = sorted(classes, key=lambda name: (isinstance(name, str), name))  # numbers by their size, before texts
    names = dict(enumerate(dict.fromkeys(map(str, ordered))))
    if task == "classification" and len(names) == 1:
        raise ValueError(f"All rows of the training data are of class {names[0]!r}: there is nothing to learn.")
    return {"problem_type": PROBLEMS[task], "id2label": names, "label2id": {name: i for i, name in names.items()}}


def saved_task(config: PreTrainedConfig) -> str:
    """What the command line calls the task of a model; one whose config says nothing has one class for each text."""
    tasks = {problem: task for task, problem in PROBLEMS.items()}
    return tasks.get(config.problem_type or "", "classification")


def encode_label(label: Any, config: PreTrainedConfig) -> Any:
    """A class id, a row of 0 and 1 for several classes, or a list of numbers."""
    if config.problem_type == "regression":
        return np.atleast_1d(label).astype(np.float32).tolist()
    if config.problem_type == "multi_label_classification":
        present, names = {str(name) for name in label}, cast(dict[int, str], config.id2label)
        return [float(names[i] in present) for i in range(len(names))]  # a saved config has them in the order of text
    return cast(dict[str, int], config.label2id)[str(label)]


def encode(rows: Dataset, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, max_length: int) -> Dataset:
    """Columns input_ids and labels in the place of text and label."""

    def encode_rows(rows: dict[str, list]) -> dict[str, list]:
        encoded = tokenizer(rows["text"], truncation=True, max_length=max_length, return_attention_mask=False)
        return {**encoded, "labels": [encode_label(label, config) for label in rows["label"]]}

    return rows.map(encode_rows, batched=True, remove_columns=["text", "label"], desc="tokenizing")


def scores_of(config: PreTrainedConfig, prediction: EvalPrediction) -> dict[str, float]:
    """The scores of a model's outputs (rows, classes), by what its config says of the problem."""
    outputs, labels = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
    if config.problem_type == "regression":
        return regression_scores(outputs, labels)
    if config.problem_type == "multi_label_classification":
        return classification_scores((outputs > 0).astype(int), labels.astype(int))
    return classification_scores(outputs.argmax(axis=-1), labels)


def evaluate(trainer: PaperRecipe, rows: Dataset) -> tuple[dict[str, float], Notes]:
    """Loss and scores on rows of text and label."""
    args = cast(ClassifierArguments, trainer.args)
    encoded = encode(rows, trainer.processing_class, trainer.model.config, args.max_length)
    return measure(trainer, encoded), {}


class ClassificationTask(Task):
    """One class, several, and numbers are data of three kinds, under the same head."""

    def data_for(self, arguments: ClassifierArguments) -> str:
        """The kind of labels that the arguments name."""
        return arguments.task


CLASSIFICATION = ClassificationTask(
    data="classification",
    model_class=VanillaTransformerForSequenceClassification,
    template="encoder",
    pipeline_tag="text-classification",
    arguments_class=ClassifierArguments,
    encode=lambda rows, tokenizer, config, args: encode(rows, tokenizer, config, args.max_length),
    augment=warned_of_cuts,
    collator=lambda tokenizer, model, args: DataCollatorWithPadding(tokenizer),
    evaluate=evaluate,
    metrics=scores_of,
    metric_names=lambda args: REGRESSION_SCORES if args.task == "regression" else CLASSIFICATION_SCORES,
    config_fields=lambda options, args, train: class_names(train, args.task),
    saved_options=lambda config: {"task": saved_task(config)},
)
