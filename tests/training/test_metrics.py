"""Scores that the tools of a task do not give by themselves."""

import pytest

from vanilla_transformer.training.metrics import question_answering_scores


def test_no_answer_is_right_where_there_is_none_and_wrong_elsewhere():
    predicted = {"a": "Oslo", "b": "", "c": "Oslo", "d": ""}
    references = {"a": ["in Oslo", "Oslo"], "b": [], "c": [], "d": ["Oslo"]}
    assert question_answering_scores(predicted, references) == pytest.approx({"exact_match": 50, "f1": 50})
