"""Scores of each task, by the field's own tools. All take plain predictions and references and give named numbers."""

import math

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics import f1_score as entity_f1
from seqeval.metrics import precision_score as entity_precision
from seqeval.metrics import recall_score as entity_recall
from sklearn.metrics import accuracy_score, f1_score
from torchmetrics.text import SQuAD


def translation_scores(
    hypotheses: list[str], references: list[str], lowercase: bool = False
) -> tuple[dict[str, float], dict[str, str]]:
    """sacreBLEU and chrF (0 to 100), exact match (percent); and the signatures that say how they were computed."""
    bleu, chrf = BLEU(lowercase=lowercase), CHRF()
    scores = {
        "bleu": bleu.corpus_score(hypotheses, [references]).score,
        "chrf": chrf.corpus_score(hypotheses, [references]).score,
        "exact_match": 100 * float(np.mean([h == r for h, r in zip(hypotheses, references, strict=True)])),
    }
    return scores, {"BLEU": str(bleu.get_signature()), "chrF": str(chrf.get_signature())}


def language_model_scores(nats_per_token: float, tokens: int, text_bytes: int) -> dict[str, float]:
    """Perplexity per token, and bits per byte of the text, which compares models with different tokenizers."""
    return {
        "perplexity": math.exp(nats_per_token),
        "bits_per_byte": nats_per_token * tokens / (math.log(2) * text_bytes),
    }


def classification_scores(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy and macro F1 in percent. Multi-label (rows of 0 and 1): accuracy is that of whole rows."""
    return {
        "accuracy": 100 * float(accuracy_score(labels, predicted)),
        "macro_f1": 100 * float(f1_score(labels, predicted, average="macro", zero_division=0)),
    }


def regression_scores(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Pearson's and Spearman's correlation and the root mean squared error; over several outputs their mean."""
    predicted, labels = (np.asarray(values, dtype=float).reshape(len(values), -1) for values in (predicted, labels))
    columns = list(zip(predicted.T, labels.T, strict=True))
    return {
        "pearson": float(np.mean([pearsonr(*pair).statistic for pair in columns])),
        "spearman": float(np.mean([spearmanr(*pair).statistic for pair in columns])),
        "rmse": float(np.sqrt(np.mean((predicted - labels) ** 2))),
    }


def tagging_scores(predicted: list[list[str]], tags: list[list[str]]) -> dict[str, float]:
    """Precision, recall and F1 of whole entities (seqeval), in percent."""
    scores = {"precision": entity_precision, "recall": entity_recall, "f1": entity_f1}
    return {name: 100 * float(score(tags, predicted, zero_division=0)) for name, score in scores.items()}


def question_answering_scores(predicted: dict[str, str], references: dict[str, list[str]]) -> dict[str, float]:
    """SQuAD's exact match and F1 in percent, of the best of each question's answers; both by question id."""
    score = SQuAD()
    score.update(
        [{"id": key, "prediction_text": text} for key, text in predicted.items()],
        [
            {"id": key, "answers": {"text": references[key], "answer_start": [0] * len(references[key])}}
            for key in predicted
        ],
    )
    return {name: float(value) for name, value in score.compute().items()}
