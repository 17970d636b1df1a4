"""Train a classifier of texts: one class of several, several classes at once, or a number.

python scripts/train_classifier.py --task regression --train_file train.jsonl --columns label=score
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vanilla_transformer import VanillaTransformerEncoderConfig, VanillaTransformerForSequenceClassification
from vanilla_transformer.data.checks import as_list
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.training.metrics import classification_scores, regression_scores
from vanilla_transformer.training.options import make_model
from vanilla_transformer.training.recipe import RecipeArguments, RecipeTrainer
from vanilla_transformer.training.run import (
    Evaluation,
    Scores,
    encoded_splits,
    make_tokenizer,
    measure,
    parse,
    run,
    score_splits,
)


PROBLEMS = {
    "classification": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


@dataclass
class ClassifierArguments(RecipeArguments):
    task: str = field(
        default="classification",
        metadata={
            "help": "classification (one label a text), multi_label (a list of labels) or regression (numbers)."
        },
    )
    max_length: int = field(default=512, metadata={"help": "Cut longer texts to so many tokens."})

    def __post_init__(self):
        super().__post_init__()
        if self.task not in PROBLEMS:
            raise ValueError(f"task={self.task!r} must be one of: {', '.join(PROBLEMS)}.")


def task_fields(train: Dataset, task: str) -> dict[str, Any]:
    """Config fields that the training data decide: the names of all classes, in order, or the number of outputs."""
    labels = train["label"][:]
    if task == "regression":
        return {"problem_type": PROBLEMS[task], "num_labels": len(np.atleast_1d(labels[0]))}
    classes = sorted({name for label in labels for name in as_list(label)})
    names = {i: str(name) for i, name in enumerate(classes)}
    return {"problem_type": PROBLEMS[task], "id2label": names, "label2id": {name: i for i, name in names.items()}}


def encode_label(label: Any, config: PreTrainedConfig) -> Any:
    """A class id, a row of 0 and 1 for several classes, or a list of numbers."""
    if config.problem_type == "regression":
        return np.atleast_1d(label).astype(np.float32).tolist()
    if config.problem_type == "multi_label_classification":
        present = {str(name) for name in label}
        return [float(name in present) for name in config.label2id]
    return config.label2id[str(label)]


def encode(rows: Dataset, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, max_length: int) -> Dataset:
    """Columns input_ids and labels in the place of text and label."""

    def encode_rows(rows: dict[str, list]) -> dict[str, list]:
        encoded = tokenizer(rows["text"], truncation=True, max_length=max_length, return_attention_mask=False)
        return {**encoded, "labels": [encode_label(label, config) for label in rows["label"]]}

    return rows.map(encode_rows, batched=True, remove_columns=["text", "label"], desc="tokenizing")


def scores_of(problem: str, prediction: EvalPrediction) -> dict[str, float]:
    if problem == "regression":
        return regression_scores(prediction.predictions, prediction.label_ids)
    if problem == "multi_label_classification":
        return classification_scores((prediction.predictions > 0).astype(int), prediction.label_ids.astype(int))
    return classification_scores(prediction.predictions.argmax(axis=-1), prediction.label_ids)


def make_trainer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: ClassifierArguments, splits: DatasetDict
) -> RecipeTrainer:
    return RecipeTrainer(
        model=model,
        args=args,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=partial(scores_of, model.config.problem_type),
        **encoded_splits(splits, lambda rows: encode(rows, tokenizer, model.config, args.max_length)),
    )


def evaluate(trainer: RecipeTrainer, splits: DatasetDict) -> Evaluation:
    def score(rows: Dataset) -> dict[str, float]:
        encoded = encode(rows, trainer.processing_class, trainer.model.config, trainer.args.max_length)
        return measure(trainer, encoded)

    return score_splits(splits, score), {}


def main(arguments: list[str] | None = None) -> Scores:
    """Run the script; returns the scores by split."""
    options, data, tokenizing, training = parse(VanillaTransformerEncoderConfig, ClassifierArguments, arguments)
    splits = load_splits(data, training.task)
    texts = texts_of(splits["train"], training.task)
    tokenizer = make_tokenizer(tokenizing, options.model_name_or_path, texts, "encoder")
    fields = task_fields(splits["train"], training.task)
    model = make_model(VanillaTransformerForSequenceClassification, options, tokenizer, **fields)
    trainer = make_trainer(model, tokenizer, training, splits)
    return run(trainer, splits, evaluate, "text-classification", data.name)


if __name__ == "__main__":
    main()
