"""Multi-label classification: predict any number of classes per text."""

from typing import Any, ClassVar, cast

import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from torch import Tensor
from torch.nn import functional as F
from transformers import EvalPrediction, PreTrainedConfig

from vanilla_transformer.data.columns import CLASSES, TEXT, Schema
from vanilla_transformer.tasks.classification import ClassificationTask
from vanilla_transformer.tasks.metrics import classification_scores


class MultiLabelTask(ClassificationTask):
    """Any number of classes for each text: labels are lists of classes."""

    name = "multi_label"
    data = Schema({"text": TEXT, "label": CLASSES}, classes="label")
    problem_type = "multi_label_classification"
    simple_models: ClassVar[dict[str, Any]] = {
        "most frequent value of each class": DummyClassifier(strategy="most_frequent"),
        "TF-IDF with logistic regression": OneVsRestClassifier(LogisticRegression(max_iter=200)),
    }

    @staticmethod
    def encode_label(label: Any, config: PreTrainedConfig) -> list[float]:
        """Return a multi-hot vector: 1 for each class of the text, 0 for all other classes."""
        present, names = {str(name) for name in label}, cast(dict[int, str], config.id2label)
        return [float(names[i] in present) for i in range(len(names))]  # saved configs sort their keys as strings

    @staticmethod
    def losses(values: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each row (rows,), averaged over all classes."""
        return F.binary_cross_entropy_with_logits(values, labels.float(), reduction="none").mean(dim=1)

    @staticmethod
    def label_text(values: list[float], config: PreTrainedConfig) -> str:
        """Return the names of the predicted classes, separated by commas."""
        return ", ".join(cast(dict[int, str], config.id2label)[i] for i, value in enumerate(values) if value > 0)

    def metrics(self, config: PreTrainedConfig, prediction: EvalPrediction) -> dict[str, float]:
        """Compute exact-row accuracy and macro F1 from logits (rows, classes)."""
        predicted = np.asarray(prediction.predictions) > 0
        return classification_scores(predicted.astype(int), np.asarray(prediction.label_ids).astype(int))
