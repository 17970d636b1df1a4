"""Train a classifier of texts: one class of several, several classes at once, or a number.

python scripts/train_classifier.py --task regression --train_file train.jsonl --columns label=score
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from datasets import DatasetDict
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedTokenizerBase

from data_loading import load_splits
from metrics import classification_scores, regression_scores
from model_card import CardFacts
from model_options import make_model
from recipe import RecipeArguments, RecipeTrainer
from training import make_tokenizer, parse, print_scores, save, score_splits, train
from vanilla_transformer import VanillaTransformerEncoderConfig, VanillaTransformerForSequenceClassification


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


def known_labels(splits: DatasetDict) -> list[Any]:
    """All labels of the training split, in order."""
    found: set[Any] = set()
    for value in splits["train"]["label"]:
        found.update(value if isinstance(value, list) else [value])
    return sorted(found)


def encode(
    splits: DatasetDict, tokenizer: PreTrainedTokenizerBase, labels: list[Any] | None, args: ClassifierArguments
):
    """Columns input_ids and labels: a class id, a row of 0 and 1, or numbers where `labels` is None."""
    ids = {label: i for i, label in enumerate(labels or ())}

    def encode_label(label: Any) -> Any:
        if labels is None:
            return np.atleast_1d(label).astype(np.float32).tolist()
        if args.task == "multi_label":
            return [float(name in label) for name in labels]
        return ids[label]

    def encode_rows(rows: dict[str, list]) -> dict[str, list]:
        encoded = tokenizer(rows["text"], truncation=True, max_length=args.max_length, return_attention_mask=False)
        return {**encoded, "labels": [encode_label(label) for label in rows["label"]]}

    return splits.map(encode_rows, batched=True, remove_columns=["text", "label"], desc="tokenizing")


def scores_of(task: str, prediction: EvalPrediction) -> dict[str, float]:
    if task == "regression":
        return regression_scores(prediction.predictions, prediction.label_ids)
    if task == "multi_label":
        return classification_scores((prediction.predictions > 0).astype(int), prediction.label_ids.astype(int))
    return classification_scores(prediction.predictions.argmax(axis=-1), prediction.label_ids)


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Run the script; returns the scores by split."""
    options, data, tokenizing, training = parse(VanillaTransformerEncoderConfig, ClassifierArguments, arguments)
    regression = training.task == "regression"
    splits = load_splits(data, "regression" if regression else "classification")
    labels = None if regression else known_labels(splits)
    tokenizer = make_tokenizer(tokenizing, options.model_name_or_path, splits["train"]["text"], "encoder")
    encoded = encode(splits, tokenizer, labels, training)
    if regression:
        task_fields = {"num_labels": len(encoded["train"][0]["labels"])}
    else:
        task_fields = {"id2label": {i: str(label) for i, label in enumerate(labels)}}
        task_fields["label2id"] = {name: i for i, name in task_fields["id2label"].items()}
    model = make_model(
        VanillaTransformerForSequenceClassification,
        options,
        tokenizer,
        problem_type=PROBLEMS[training.task],
        **task_fields,
    )
    trainer = RecipeTrainer(
        model=model,
        args=training,
        train_dataset=encoded["train"],
        eval_dataset=encoded["validation"],
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda prediction: scores_of(training.task, prediction),
    )
    if training.do_train:
        train(trainer)
    scores = score_splits(trainer, encoded)
    print_scores(scores)
    save(trainer, CardFacts("text-classification", data.name, scores))
    return scores


if __name__ == "__main__":
    main()
