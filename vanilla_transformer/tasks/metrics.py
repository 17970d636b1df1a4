"""Scores of each task, by the field's own tools. All take plain predictions and references and give named numbers."""

import math
import re
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics import f1_score as entity_f1
from seqeval.metrics import precision_score as entity_precision
from seqeval.metrics import recall_score as entity_recall
from sklearn.metrics import accuracy_score, f1_score
from torchmetrics.text import SQuAD


# Codes of the languages whose abbreviations Moses knows. It would read any other text as English, and not say so.
MOSES_LANGUAGES = sorted(set(NonbreakingPrefixes().available_langs.values()))

# The names of what is measured in training too, by which a best model can be chosen.
CLASSIFICATION_SCORES = ("accuracy", "macro_f1")
REGRESSION_SCORES = ("pearson", "spearman", "rmse")
TAGGING_SCORES = ("precision", "recall", "f1")


@dataclass
class BleuOptions:
    """How BLEU is computed.

    Args:
        lowercase: compare without regard to case.
        moses_language: language of the texts; if given, BLEU is also computed on text that Moses' tokenizer has cut,
            which is what papers of the time report ("tokenized BLEU").
        split_compounds: split words at hyphens for that score, as the script of the paper's authors does.
        normalize_punctuation: for that score, let Moses' normaliser write quotes, dashes and the like in one way, as
            it has done in the tokenised texts that Multi30k is published with (`lc.norm.tok`).
    """

    lowercase: bool = False
    moses_language: str | None = None
    split_compounds: bool = False
    normalize_punctuation: bool = False


def translation_scores(
    hypotheses: list[str], references: list[str], options: BleuOptions | None = None
) -> tuple[dict[str, float], dict[str, str]]:
    """sacreBLEU and chrF (0 to 100), exact match (percent); and the signatures that say how they were computed."""
    options = BleuOptions() if options is None else options
    metrics = {"bleu": BLEU(lowercase=options.lowercase), "chrf": CHRF(lowercase=options.lowercase)}
    scores = {name: metric.corpus_score(hypotheses, [references]).score for name, metric in metrics.items()}
    if options.lowercase:
        hypotheses, references = ([text.lower() for text in texts] for texts in (hypotheses, references))
    scores["exact_match"] = 100 * float(np.mean([h == r for h, r in zip(hypotheses, references, strict=True)]))
    notes = {"BLEU": str(metrics["bleu"].get_signature()), "chrF": str(metrics["chrf"].get_signature())}
    if options.moses_language is not None:
        tokenized = BLEU(tokenize="none", lowercase=options.lowercase, force=True)
        texts = [moses_tokenized(side, options) for side in (hypotheses, references)]
        scores["tokenized_bleu"] = tokenized.corpus_score(texts[0], [texts[1]]).score
        normalized = ", punctuation normalised" if options.normalize_punctuation else ""
        compounds = ", compounds split at hyphens" if options.split_compounds else ""
        notes["tokenized BLEU"] = (
            f"{tokenized.get_signature()}, Moses' tokenizer ({options.moses_language}){normalized}{compounds}"
        )
    return scores, notes


def moses_tokenized(texts: list[str], options: BleuOptions) -> list[str]:
    """The texts as Moses' tokenizer cuts them, with spaces between."""
    if options.normalize_punctuation:
        normalizer = MosesPunctNormalizer(options.moses_language)
        texts = [normalizer.normalize(text) for text in texts]
    tokenizer = MosesTokenizer(options.moses_language)
    cut = [tokenizer.tokenize(text, return_str=True, escape=False) for text in texts]
    if not options.split_compounds:
        return cut
    # As the authors' script, which looks at no letter twice: of 3-2-1 the first hyphen alone.
    return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text) for text in cut]


def language_model_scores(nats_per_token: float, tokens: int, text_bytes: int) -> dict[str, float]:
    """Perplexity per token, and bits per byte of the text, which compares models with different tokenizers."""
    return {
        "perplexity": math.exp(nats_per_token),
        "bits_per_byte": nats_per_token * tokens / (math.log(2) * text_bytes),
    }


def classification_scores(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy and macro F1 in percent. Multi-label (rows of 0 and 1): accuracy is that of whole rows.

    Macro F1 is the mean over the classes that occur in `labels`. A class that is only ever predicted would add an F1
    of 0 for a single error; as it is, that error only lowers the F1 of the right class.
    """
    occurring = np.unique(labels) if labels.ndim == 1 else np.flatnonzero(labels.any(axis=0))
    classes = occurring if len(occurring) else None  # none: rows of zeros alone
    macro_f1 = f1_score(labels, predicted, labels=classes, average="macro", zero_division=0)
    scores = (100 * float(accuracy_score(labels, predicted)), 100 * float(macro_f1))
    return dict(zip(CLASSIFICATION_SCORES, scores, strict=True))


def regression_scores(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Pearson's and Spearman's correlation and the root mean squared error; over several outputs their mean.

    Of a single row there is no correlation: it is nan.
    """
    predicted, labels = (np.asarray(values, dtype=float).reshape(len(values), -1) for values in (predicted, labels))
    columns = list(zip(predicted.T, labels.T, strict=True)) if len(labels) > 1 else []
    scores = (
        float(np.mean([pearsonr(*pair).statistic for pair in columns])) if columns else math.nan,
        float(np.mean([spearmanr(*pair).statistic for pair in columns])) if columns else math.nan,
        float(np.sqrt(np.mean((predicted - labels) ** 2))),
    )
    return dict(zip(REGRESSION_SCORES, scores, strict=True))


def tagging_scores(predicted: list[list[str]], tags: list[list[str]]) -> dict[str, float]:
    """Precision, recall and F1 of whole entities (seqeval), in percent.

    Of tags without a prefix such as B- or I-, a run of one and the same is an entity, unless it is O.
    """
    # Seqeval goes by the first letter: it would take ORG for O.
    predicted, tags = (
        [[tag if tag == "O" or tag[1:2] == "-" else f"I-{tag}" for tag in row] for row in rows]
        for rows in (predicted, tags)
    )
    scores = (entity_precision, entity_recall, entity_f1)
    values = (100 * float(score(tags, predicted, zero_division=0)) for score in scores)
    return dict(zip(TAGGING_SCORES, values, strict=True))


def question_answering_scores(predicted: dict[str, str], references: dict[str, list[str]]) -> dict[str, float]:
    """SQuAD's exact match and F1 in percent, of the best of each question's answers; both by question id.

    A question without an answer has an empty list, and "" is right there and nowhere else (SQuAD 2.0).
    """
    score = SQuAD(sync_on_compute=False)  # by one process, for which the others do not wait here
    answers = {key: references[key] or [""] for key in predicted}
    score.update(
        [{"id": key, "prediction_text": text} for key, text in predicted.items()],
        [{"id": key, "answers": {"text": texts, "answer_start": [0] * len(texts)}} for key, texts in answers.items()],
    )
    return {name: float(value) for name, value in score.compute().items()}
