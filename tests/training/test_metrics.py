"""Metrics computed by this project, compared with values by hand."""

import numpy as np
import pytest

from vanilla_transformer.tasks.metrics import (
    BleuOptions,
    classification_scores,
    language_model_scores,
    moses_tokenized,
    question_answering_scores,
    regression_scores,
    tagging_scores,
    translation_scores,
)


def test_an_empty_answer_is_right_only_if_there_is_no_answer():
    predicted = {"a": "Oslo", "b": "", "c": "Oslo", "d": ""}
    references = {"a": ["in Oslo", "Oslo"], "b": [], "c": [], "d": ["Oslo"]}
    assert question_answering_scores(predicted, references) == pytest.approx({"exact_match": 50, "f1": 50})


def test_macro_f1_is_the_mean_over_the_classes_that_occur():
    """One of four rows is predicted as class 5, which does not occur. Class 0 has recall 1/2, and class 1 is right."""
    scores = classification_scores(np.array([0, 5, 1, 1]), np.array([0, 0, 1, 1]))
    assert scores == pytest.approx({"accuracy": 75, "macro_f1": 100 * (2 / 3 + 1) / 2})
    rows = np.array([[1, 0, 0], [1, 0, 1]])  # the third class is only predicted
    assert classification_scores(rows, np.array([[1, 0, 0], [1, 0, 0]])) == pytest.approx(
        {"accuracy": 50, "macro_f1": 100}
    )


def test_tags_without_prefixes_are_scored_like_inside_tags():
    """A class such as ORG is not O, although it begins with O."""
    tags, predicted = [["ORG", "ORG", "O", "PER"], ["O", "DATE"]], [["ORG", "O", "O", "PER"], ["O", "ORG"]]
    inside = ([[tag if tag == "O" else f"I-{tag}" for tag in row] for row in rows] for rows in (predicted, tags))
    plain = tagging_scores(predicted, tags)
    assert plain == tagging_scores(*inside) == pytest.approx(dict.fromkeys(("precision", "recall", "f1"), 100 / 3))


def test_rows_without_any_class_have_scores_too():
    nothing = np.zeros((2, 3), dtype=int)
    assert classification_scores(nothing, nothing) == {"accuracy": 100, "macro_f1": 0}


def test_regression_scores_are_correlations_and_the_root_mean_square_error():
    """The ranks 1, 2, 4, 3 of the predictions differ from 1, 2, 3, 4 by 0, 0, 1, 1: 1 - 6 · 2 / (4 · 15) = 0.8."""
    predicted, labels = np.array([1.0, 2.0, 7.0, 6.0]), np.array([1.0, 2.0, 3.0, 4.0])
    scores = regression_scores(predicted, labels)
    assert scores["spearman"] == pytest.approx(0.8)
    assert scores["pearson"] == pytest.approx(np.corrcoef(predicted, labels)[0, 1])
    assert scores["rmse"] == pytest.approx(np.sqrt((4**2 + 2**2) / 4))
    of_one_row = regression_scores(np.array([[1.0]]), np.array([[3.0]]))
    assert of_one_row["rmse"] == 2 and np.isnan(of_one_row["pearson"]) and np.isnan(of_one_row["spearman"])


def test_bits_per_byte_count_all_bits_of_all_tokens():
    """Ten tokens of ln 4 nats are two bits each, for a text of eight bytes."""
    assert language_model_scores(np.log(4), 10, 8) == pytest.approx({"perplexity": 4, "bits_per_byte": 2.5})


def test_case_is_ignored_on_request():
    texts, references = ["ein ROTES t-shirt ist neu"], ["Ein rotes T-Shirt ist neu"]
    assert translation_scores(texts, references, BleuOptions(lowercase=True))[0] == pytest.approx(
        {"bleu": 100, "chrf": 100, "exact_match": 100}
    )
    assert all(score < 90 for score in translation_scores(texts, references)[0].values())


def test_tokenized_bleu_uses_the_tokenisation_of_papers():
    """A reference has eight Moses tokens, ten with the hyphen split; the output has other quotes and dashes."""
    reference, hypothesis = 'Ein "rotes" T-Shirt - neu.', "Ein „rotes“ T-Shirt – neu."

    def scores(text: str, **options: bool) -> tuple[float, str]:
        found, notes = translation_scores([text], [reference], BleuOptions(moses_language="de", **options))
        return found["tokenized_bleu"], notes["tokenized BLEU"]

    assert scores(reference)[0] == pytest.approx(100)
    assert scores(hypothesis)[0] < 30
    found, signature = scores(hypothesis, normalize_punctuation=True)
    assert found == pytest.approx(100) and "punctuation normalised" in signature
    # Without its last two tokens, the output is right, so BLEU equals its brevity penalty, exp(1 - 8 / 6).
    cut = 'Ein "rotes" T-Shirt -'
    assert scores(cut)[0] == pytest.approx(100 * np.exp(1 - 8 / 6))
    assert scores(cut, split_compounds=True)[0] == pytest.approx(100 * np.exp(1 - 10 / 8))
    # result of Perl's s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g
    compounds = moses_tokenized(["T-Shirt, 3-2-1 - neu"], BleuOptions(moses_language="de", split_compounds=True))
    assert compounds == ["T ##AT##-##AT## Shirt , 3 ##AT##-##AT## 2-1 - neu"]
