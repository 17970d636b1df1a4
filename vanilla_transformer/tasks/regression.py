"""Regression: predict one or more numbers per text."""

from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from sklearn.linear_model import Ridge
from torch import Tensor
from torch.nn import functional as F
from transformers import EvalPrediction, PreTrainedConfig

from vanilla_transformer.data.columns import NUMBERS, TEXT, Schema
from vanilla_transformer.tasks.classification import ClassificationTask
from vanilla_transformer.tasks.metrics import REGRESSION_SCORES, regression_scores


class RegressionTask(ClassificationTask):
    """One number, or several, for each text: a label is a number or a list of numbers."""

    name = "regression"
    data = Schema({"text": TEXT, "label": NUMBERS}, phrasebook="regression")
    metric_names = REGRESSION_SCORES
    ranked_by = "rmse"
    problem_type = "regression"
    simple_models: ClassVar[dict[str, Any]] = {"TF-IDF with ridge regression": Ridge()}
    simple_scores: ClassVar[Any] = staticmethod(regression_scores)

    def config_fields(self, rows: Dataset, model_options: Any) -> dict[str, Any]:
        """Return the config fields for the problem type and the number of outputs."""
        return {"problem_type": self.problem_type, "num_labels": len(np.atleast_1d(rows[0]["label"]))}

    @staticmethod
    def encode_label(label: Any, config: PreTrainedConfig) -> list[float]:
        """Return the label as a list of floats."""
        return np.atleast_1d(label).astype(np.float32).tolist()

    @staticmethod
    def losses(values: Tensor, labels: Tensor) -> Tensor:
        """Return the mean squared error of each row, with shape (rows,)."""
        return F.mse_loss(values, labels, reduction="none").mean(dim=1)

    @staticmethod
    def label_text(values: list[float], config: PreTrainedConfig) -> str:
        """Return the predicted numbers, rounded and separated by commas."""
        return ", ".join(f"{value:.4g}" for value in values)

    def metrics(self, config: PreTrainedConfig, prediction: EvalPrediction) -> dict[str, float]:
        """Compute the correlations and the root mean squared error from predictions (rows, outputs)."""
        return regression_scores(np.asarray(prediction.predictions), np.asarray(prediction.label_ids))
