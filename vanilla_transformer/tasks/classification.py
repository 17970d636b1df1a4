"""Sequence classification: predict one class per text."""

from typing import Any, ClassVar, cast

import numpy as np
import torch
from datasets import Dataset
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional as F
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedConfig, PreTrainedTokenizerBase

from vanilla_transformer import VanillaTransformerForSequenceClassification
from vanilla_transformer.data.columns import CLASS, TEXT, Schema, as_list
from vanilla_transformer.tasks.metrics import CLASSIFICATION_SCORES, classification_scores, predict_by_words
from vanilla_transformer.tasks.task import Example, Scores, TruncatingTask
from vanilla_transformer.training.trainer import RecipeTrainerMixin


class ClassificationTask(TruncatingTask):
    """One class for each text."""

    name = "classification"
    data = Schema({"text": TEXT, "label": CLASS}, classes="label", phrasebook="classification")
    model_class = VanillaTransformerForSequenceClassification
    pipeline_tag = "text-classification"
    usage = """\
classify = pipeline("text-classification", model=folder, trust_remote_code=True)
print(classify("A sentence to classify."))"""
    ranked_by = "accuracy"
    metric_names: ClassVar[tuple[str, ...]] = CLASSIFICATION_SCORES
    # scikit-learn models that serve as baselines, and the function that scores them.
    simple_models: ClassVar[dict[str, Any]] = {
        "majority class": DummyClassifier(strategy="most_frequent"),
        "TF-IDF with logistic regression": LogisticRegression(max_iter=200),
    }
    simple_scores: ClassVar[Any] = staticmethod(classification_scores)
    problem_type: ClassVar[str] = "single_label_classification"

    @classmethod
    def fits(cls, config: PreTrainedConfig) -> bool:
        """Whether the problem type in the config is that of this task. If unset, a single label means regression."""
        default = "regression" if config.num_labels == 1 else "single_label_classification"
        return (config.problem_type or default) == cls.problem_type

    def config_fields(self, rows: Dataset, model_options: Any) -> dict[str, Any]:
        """Return the config fields for the problem type and the class names.

        Raises:
            ValueError: the training data has no classes, or only one.
        """
        names = class_names(rows["label"][:])
        if len(names) == 1 and self.problem_type == ClassificationTask.problem_type:
            raise ValueError(f"All rows of the training data are of class {names[0]!r}: there is nothing to learn.")
        return {"problem_type": self.problem_type, **label_fields(names)}

    @staticmethod
    def encode_label(label: Any, config: PreTrainedConfig) -> Any:
        """Convert a label to the format that the model expects: here, the class id."""
        return cast(dict[str, int], config.label2id)[str(label)]

    def encode(self, rows: Dataset, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> Dataset:
        """Tokenize the rows into input_ids and labels."""
        encode_label, max_length = self.encode_label, self.arguments.max_length

        def encode_rows(rows: dict[str, list]) -> dict[str, list]:
            encoded = tokenizer(rows["text"], truncation=True, max_length=max_length, return_attention_mask=False)
            return {**encoded, "labels": [encode_label(label, config) for label in rows["label"]]}

        return rows.map(encode_rows, batched=True, remove_columns=["text", "label"], desc="tokenizing")

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> DataCollatorWithPadding:
        """Return transformers' padding collator."""
        return DataCollatorWithPadding(tokenizer)

    def examples(self, trainer: RecipeTrainerMixin, rows: Dataset) -> list[Example]:
        """Return the predicted label of each text. The score is the negative loss."""
        config = trainer.model.config
        found = trainer.predict(self.encode(rows, trainer.processing_class, config))
        values = torch.as_tensor(np.asarray(found.predictions)).float()
        losses = self.losses(values, torch.as_tensor(np.asarray(found.label_ids))).tolist()
        outputs = [self.label_text(row, config) for row in values.tolist()]
        targets = [", ".join(map(str, as_list(label))) for label in rows["label"]]
        return [Example(*each) for each in zip(rows["text"], targets, outputs, np.negative(losses), strict=True)]

    @staticmethod
    def losses(values: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each row, with shape (rows,)."""
        return F.cross_entropy(values, labels, reduction="none")

    @staticmethod
    def label_text(values: list[float], config: PreTrainedConfig) -> str:
        """Return the predicted label of a row as a string, given the model's outputs for it."""
        return cast(dict[int, str], config.id2label)[int(np.argmax(values))]

    def baselines(self, trainer: RecipeTrainerMixin, train: Dataset, rows: Dataset) -> Scores:
        """Return the scores of each of the `simple_models`."""
        config = trainer.model.config
        labels, wanted = (np.array([self.encode_label(x, config) for x in part["label"]]) for part in (train, rows))
        texts = list(train["text"]), list(rows["text"])
        return {
            name: self.simple_scores(predict_by_words(model, labels, *texts), wanted)
            for name, model in self.simple_models.items()
        }

    def metrics(self, config: PreTrainedConfig, prediction: EvalPrediction) -> dict[str, float]:
        """Compute accuracy and macro F1 from logits (rows, classes)."""
        predicted = np.asarray(prediction.predictions).argmax(axis=-1)
        return classification_scores(predicted, np.asarray(prediction.label_ids))


def class_names(labels: list) -> dict[int, str]:
    """Map class ids to the class names in the labels. Integers come first, in numerical order.

    Raises:
        ValueError: the labels contain no class.
    """
    classes = {name for label in labels for name in as_list(label)}
    if not classes:
        raise ValueError("No row of the training data has a class: there is nothing to learn.")
    numbers = {name: int(name) for name in classes if name.removeprefix("-").isdecimal()}
    return dict(enumerate(sorted(classes, key=lambda name: (name not in numbers, numbers.get(name, 0), name))))


def label_fields(names: dict[int, str]) -> dict[str, Any]:
    """Return the config fields `id2label` and `label2id`."""
    return {"id2label": names, "label2id": {name: number for number, name in names.items()}}
