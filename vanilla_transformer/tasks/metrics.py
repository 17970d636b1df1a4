"""Compute the metrics of each task from predictions and references, using standard libraries."""

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics import f1_score as entity_f1
from seqeval.metrics import precision_score as entity_precision
from seqeval.metrics import recall_score as entity_recall
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import accuracy_score, f1_score
from sklearn.pipeline import make_pipeline
from torchmetrics.text import SQuAD


logger = logging.getLogger(__name__)

# Languages for which Moses has a list of abbreviations; it silently treats all others as English. "zh" and "yue" are
# excluded because Moses then does not split Chinese sentences, whereas as English it splits them into characters.
MOSES_LANGUAGES = sorted({*NonbreakingPrefixes().available_langs.values()} - {"zh", "yue"})

# sacreBLEU's tokenizers for scripts that its default tokenizer cannot split into words. Japanese comes first, because
# Japanese text also contains Chinese characters.
SCRIPTS = {
    "ja-mecab": re.compile("[\u3040-\u30ff]"),  # Japanese kana
    "zh": re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),
    "char": re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]"),  # Thai, Lao, Tibetan, Burmese and Khmer
    "ko-mecab": re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]"),  # in Korean, particles are attached to words
}
SPACELESS = re.compile("|".join(SCRIPTS[name].pattern for name in ("ja-mecab", "zh", "char")))
LEAST_SHARE = 0.2  # minimum share of all letters; smaller shares are foreign names in text of another script

# Metrics that are also computed during training, so that they can be used to select the best model.
CLASSIFICATION_SCORES = ("accuracy", "macro_f1")
REGRESSION_SCORES = ("pearson", "spearman", "rmse")
TAGGING_SCORES = ("precision", "recall", "f1")


def bleu_tokenizer(references: list[str]) -> str:
    """Return the name of the sacreBLEU tokenizer for the script of the references.

    The default, 13a, splits at spaces and punctuation, so it would treat a Chinese sentence as one word.
    """
    text = "".join(references)
    least = LEAST_SHARE * sum(map(str.isalpha, text))
    fitting = [name for name, script in SCRIPTS.items() if len(script.findall(text)) > least]
    if not fitting:
        return "13a"
    try:
        BLEU(tokenize=fitting[0])
    except (ImportError, RuntimeError):  # MeCab may not be installed
        extra = fitting[0].removesuffix("-mecab")
        logger.warning("BLEU compares characters. To compare words, run: pip install 'sacrebleu[%s]'", extra)
        return "char"
    return fitting[0]


def translation_scores(
    hypotheses: list[str],
    references: list[str],
    lowercase: bool = False,
    moses_language: str | None = None,
    split_compounds: bool = False,
    normalize_punctuation: bool = False,
) -> tuple[dict[str, float], dict[str, str]]:
    """Return BLEU and chrF (0 to 100), exact match (percent), and the sacreBLEU signatures.

    BLEU uses the tokenizer that `bleu_tokenizer` selects for the script of the references.

    Args:
        lowercase: ignore case.
        moses_language: language of the references. If given, also compute BLEU on text tokenised by Moses ("tokenized
            BLEU"), which papers of 2017 usually report: see `moses_tokenized`.
        split_compounds, normalize_punctuation: see `moses_tokenized`.
    """
    tokenizer = bleu_tokenizer(references)
    metrics = {"bleu": BLEU(lowercase, tokenize=tokenizer), "chrf": CHRF(lowercase=lowercase)}
    scores = {name: metric.corpus_score(hypotheses, [references]).score for name, metric in metrics.items()}
    if lowercase:
        hypotheses, references = ([text.lower() for text in texts] for texts in (hypotheses, references))
    scores["exact_match"] = 100 * float(np.mean([h == r for h, r in zip(hypotheses, references, strict=True)]))
    notes = {"BLEU": str(metrics["bleu"].get_signature()), "chrF": str(metrics["chrf"].get_signature())}
    if moses_language is not None:
        tokenized = BLEU(tokenize="none", lowercase=lowercase, force=True)
        how = (moses_language, split_compounds, normalize_punctuation)
        texts = [moses_tokenized(side, *how) for side in (hypotheses, references)]
        scores["tokenized_bleu"] = tokenized.corpus_score(texts[0], [texts[1]]).score
        normalized = ", punctuation normalised" if normalize_punctuation else ""
        compounds = ", compounds split at hyphens" if split_compounds else ""
        signature = f"{tokenized.get_signature()}, Moses' tokenizer ({moses_language}){normalized}{compounds}"
        notes["tokenized BLEU"] = signature
    return scores, notes


def moses_tokenized(
    texts: list[str], language: str, split_compounds: bool = False, normalize_punctuation: bool = False
) -> list[str]:
    """Return the texts tokenised by Moses, with spaces between tokens.

    Args:
        split_compounds: split words at hyphens, like the evaluation script of the paper's authors.
        normalize_punctuation: first normalise quotes, dashes and other punctuation with Moses, as in the tokenised
            files of Multi30k (`lc.norm.tok`).
    """
    if normalize_punctuation:
        normalizer = MosesPunctNormalizer(language)
        texts = [normalizer.normalize(text) for text in texts]
    tokenizer = MosesTokenizer(language)
    tokenized = [tokenizer.tokenize(text, return_str=True, escape=False) for text in texts]
    if not split_compounds:
        return tokenized
    # As in the authors' script, matches do not overlap, so only the first hyphen of 3-2-1 is split.
    return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text) for text in tokenized]


def perplexity(nats: float) -> float:
    """Return exp(nats), or infinity if the result is too large for a float."""
    return math.exp(nats) if nats < 709 else math.inf


def language_model_scores(nats_per_token: float, tokens: int, text_bytes: int) -> dict[str, float]:
    """Return the perplexity per token, and bits per byte, which is comparable between different tokenizers."""
    return {
        "perplexity": perplexity(nats_per_token),
        "bits_per_byte": nats_per_token * tokens / (math.log(2) * text_bytes),
    }


def predict_by_words(model: Any, labels: np.ndarray, train: list[str], texts: list[str]) -> np.ndarray:
    """Fit a scikit-learn model to TF-IDF features of the training texts, and return its predictions for `texts`."""
    words = TfidfVectorizer(token_pattern=r"\w+|[^\w\s]", max_features=20_000)
    return make_pipeline(words, model).fit(train, labels).predict(texts)


def unigram_loss(train: Iterable[int], tokens: Iterable[int], vocab_size: int) -> float:
    """Return the loss per token (nats) of a unigram model with add-one smoothing, estimated from `train`."""
    counts, seen = Counter(train), Counter(tokens)
    total = counts.total() + vocab_size
    return -sum(n * math.log((counts[token] + 1) / total) for token, n in seen.items()) / max(1, seen.total())


def classification_scores(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return accuracy and macro F1 in percent. For multi-label data (rows of 0 and 1), accuracy requires exact rows.

    Macro F1 averages only over classes that occur in `labels`. Otherwise, a class that occurs only in wrong
    predictions would contribute an F1 of 0.
    """
    occurring = np.unique(labels) if labels.ndim == 1 else np.flatnonzero(labels.any(axis=0))
    classes = occurring if len(occurring) else None  # None if no row has a class
    macro_f1 = f1_score(labels, predicted, labels=classes, average="macro", zero_division=0)
    scores = (100 * float(accuracy_score(labels, predicted)), 100 * float(macro_f1))
    return dict(zip(CLASSIFICATION_SCORES, scores, strict=True))


def regression_scores(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return Pearson's and Spearman's correlation, averaged over the outputs, and the root mean squared error.

    For a single row, the correlations are NaN.
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
    """Return entity-level precision, recall and F1 (seqeval), in percent.

    For tags without a prefix such as B- or I-, each run of equal tags other than O is an entity.
    """
    # seqeval uses the first letter as the prefix and would treat ORG as O
    predicted, tags = (
        [[tag if tag == "O" or tag[1:2] == "-" else f"I-{tag}" for tag in row] for row in rows]
        for rows in (predicted, tags)
    )
    scores = (entity_precision, entity_recall, entity_f1)
    values = (100 * float(score(tags, predicted, zero_division=0)) for score in scores)
    return dict(zip(TAGGING_SCORES, values, strict=True))


def question_answering_scores(predicted: dict[str, str], references: dict[str, list[str]]) -> dict[str, float]:
    """Return SQuAD's exact match and F1 in percent, each computed against the best-matching reference answer.

    An unanswerable question has an empty list of references, and its correct prediction is "" (SQuAD 2.0). F1 compares
    words, or characters in scripts without spaces between words, such as Chinese.

    Args:
        predicted: predicted answer by question id.
        references: reference answers by question id.
    """

    def spaced(text: str) -> str:
        return SPACELESS.sub(r" \g<0> ", text)

    score = SQuAD(sync_on_compute=False)  # only the main process computes the metric
    answers = {key: [spaced(text) for text in references[key] or [""]] for key in predicted}
    score.update(
        [{"id": key, "prediction_text": spaced(text)} for key, text in predicted.items()],
        [{"id": key, "answers": {"text": texts, "answer_start": [0] * len(texts)}} for key, texts in answers.items()],
    )
    return {name: float(value) for name, value in score.compute().items()}
