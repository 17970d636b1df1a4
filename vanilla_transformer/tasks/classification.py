"""Classification: one class for each text."""

from typing import Any, ClassVar, cast

import numpy as np
from datasets import Dataset
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedConfig, PreTrainedTokenizerBase

from vanilla_transformer import VanillaTransformerForSequenceClassification
from vanilla_transformer.data.columns import CLASS, TEXT, Schema, as_list
from vanilla_transformer.tasks.metrics import CLASSIFICATION_SCORES, classification_scores
from vanilla_transformer.tasks.task import TruncatingTask


class ClassificationTask(TruncatingTask):
    """One class for each text."""

    name = "classification"
    data = Schema({"text": TEXT, "label": CLASS}, classes="label", phrasebook="classification")
    model_class = VanillaTransformerForSequenceClassification
    pipeline_tag = "text-classification"
    usage = """\
classify = pipeline("text-classification", model=folder, trust_remote_code=True)
print(classify("A sentence to classify."))"""
    metric_names: ClassVar[tuple[str, ...]] = CLASSIFICATION_SCORES
    problem_type: ClassVar[str] = "single_label_classification"

    @classmethod
    def fits(cls, config: PreTrainedConfig) -> bool:
        """Whether the config has the problem type of this task. By default, a single label means regression."""
        default = "regression" if config.num_labels == 1 else "single_label_classification"
        return (config.problem_type or default) == cls.problem_type

    def config_fields(self, rows: Dataset, model_options: Any) -> dict[str, Any]:
        """Return the names of all classes, in order.

        Raises:
            ValueError: no class occurs, or the same class occurs in every row.
        """
        names = class_names(rows["label"][:])
        if len(names) == 1 and self.problem_type == ClassificationTask.problem_type:
            raise ValueError(f"All rows of the training data are of class {names[0]!r}: there is nothing to learn.")
        return {"problem_type": self.problem_type, **label_fields(names)}

    @staticmethod
    def encode_label(label: Any, config: PreTrainedConfig) -> Any:
        """Return the label in the form that the model expects: here, the number of its class."""
        return cast(dict[str, int], config.label2id)[str(label)]

    def encode(self, rows: Dataset, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> Dataset:
        """Return rows of input_ids and labels."""
        encode_label, max_length = self.encode_label, self.arguments.max_length

        def encode_rows(rows: dict[str, list]) -> dict[str, list]:
            encoded = tokenizer(rows["text"], truncation=True, max_length=max_length, return_attention_mask=False)
            return {**encoded, "labels": [encode_label(label, config) for label in rows["label"]]}

        return rows.map(encode_rows, batched=True, remove_columns=["text", "label"], desc="tokenizing")

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> DataCollatorWithPadding:
        """Return the collator of transformers that pads."""
        return DataCollatorWithPadding(tokenizer)

    def metrics(self, config: PreTrainedConfig, prediction: EvalPrediction) -> dict[str, float]:
        """Compute accuracy and macro F1 of logits (rows, classes)."""
        predicted = np.asarray(prediction.predictions).argmax(axis=-1)
        return classification_scores(predicted, np.asarray(prediction.label_ids))


def class_names(labels: list) -> dict[int, str]:
    """Return the names of all classes by number. Integers come first, in numerical order.

    Raises:
        ValueError: there is no class.
    """
    classes = {name for label in labels for name in as_list(label)}
    if not classes:
        raise ValueError("No row of the training data has a class: there is nothing to learn.")
    numbers = {name: int(name) for name in classes if name.removeprefix("-").isdecimal()}
    return dict(enumerate(sorted(classes, key=lambda name: (name not in numbers, numbers.get(name, 0), name))))


def label_fields(names: dict[int, str]) -> dict[str, Any]:
    """Return the config fields that name the classes."""
    return {"id2label": names, "label2id": {name: number for number, name in names.items()}}
