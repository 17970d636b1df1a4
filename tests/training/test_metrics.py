"""Scores that the tools of a task do not give by themselves."""

import numpy as np
import pytest

from vanilla_transformer.training.metrics import (
    BleuOptions,
    classification_scores,
    question_answering_scores,
    translation_scores,
)


def test_no_answer_is_right_where_there_is_none_and_wrong_elsewhere():
    predicted = {"a": "Oslo", "b": "", "c": "Oslo", "d": ""}
    references = {"a": ["in Oslo", "Oslo"], "b": [], "c": [], "d": ["Oslo"]}
    assert question_answering_scores(predicted, references) == pytest.approx({"exact_match": 50, "f1": 50})


def test_macro_f1_is_the_mean_over_the_classes_that_occur():
    """One of four is taken for class 5, which does not occur: class 0 has recall 1/2, and class 1 is right."""
    scores = classification_scores(np.array([0, 5, 1, 1]), np.array([0, 0, 1, 1]))
    assert scores == pytest.approx({"accuracy": 75, "macro_f1": 100 * (2 / 3 + 1) / 2})
    rows = np.array([[1, 0, 0], [1, 0, 1]])  # the third class is only predicted
    assert classification_scores(rows, np.array([[1, 0, 0], [1, 0, 0]])) == pytest.approx(
        {"accuracy": 50, "macro_f1": 100}
    )


def test_rows_without_any_class_have_scores_too():
    nothing = np.zeros((2, 3), dtype=int)
    assert classification_scores(nothing, nothing) == {"accuracy": 100, "macro_f1": 0}


def test_tokenized_bleu_is_that_of_texts_as_papers_cut_them():
    """A reference of eight tokens by Moses, ten with the hyphen split; the other has other quotes and dashes."""
    reference, hypothesis = 'Ein "rotes" T-Shirt - neu.', "Ein „rotes“ T-Shirt – neu."

    def scores(text: str, **options: bool) -> tuple[float, str]:
        found, notes = translation_scores([text], [reference], BleuOptions(moses_language="de", **options))
        return found["tokenized_bleu"], notes["tokenized BLEU"]

    assert scores(reference)[0] == pytest.approx(100)
    assert scores(hypothesis)[0] < 30
    found, signature = scores(hypothesis, normalize_punctuation=True)
    assert found == pytest.approx(100) and "punctuation normalised" in signature
    # Without the last two tokens all that is there is right: BLEU is its brevity penalty, exp(1 - 8 / 6) and so on.
    cut = 'Ein "rotes" T-Shirt -'
    assert scores(cut)[0] == pytest.approx(100 * np.exp(1 - 8 / 6))
    assert scores(cut, split_compounds=True)[0] == pytest.approx(100 * np.exp(1 - 10 / 8))
