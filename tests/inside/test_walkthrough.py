"""The walk-through prints what the recorder has seen, in the terminal or as a page."""

import re

import pytest

from saved_models import with_tokenizer, write
from vanilla_transformer.commands import walk


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("translator")
    return write(folder, *with_tokenizer(texts=["three miles", "tres millas"] * 3, vocab_size=280))


def shown(capsys, *arguments: str) -> str:
    walk.main(list(arguments))
    return capsys.readouterr().out


def test_a_worked_example_is_printed_with_its_numbers_and_their_agreement(capsys):
    text = shown(capsys, "--example", "today")
    for expected in ("S = Q Kᵀ", "-0.52", "1.170", "softmax", "queries 3 × keys 3", "sunday", "as printed"):
        assert expected in text


@pytest.mark.parametrize("precision", ["1", "5"])
def test_precision_is_the_number_of_decimals(capsys, precision):
    decimals = re.findall(r"-?\d+\.(\d+) ", shown(capsys, "--precision", precision))
    assert {len(digits) for digits in decimals} == {int(precision)}


def test_the_masks_of_a_sentence_and_of_a_padded_batch_are_drawn(capsys):
    causal = shown(capsys, "--example", "causal-mask")
    assert re.search(r"orange +■ +· +· +· +· +·", causal) and re.search(r"\. +■ +■ +■ +■ +■ +■", causal)
    padded = shown(capsys, "--example", "padding-mask")
    assert re.search(r"■ +■ +■ +· +·", padded)


def test_the_decoder_of_a_translator_is_walked_through_cross_attention(capsys, translator):
    given = ("--model", translator, "--text", "three miles", "--target", "tres millas")
    text = shown(capsys, *given, "--stack", "decoder", "--layer", "2", "--head", "3")
    assert "cross-attention" in text and "Layer 2, head 3" in text and "K = Z W_K" in text
    assert text.index("self-attention") < text.index("cross-attention") < text.index("feed-forward")
    assert "cross-attention" not in shown(capsys, *given)  # the encoder, unless asked for the decoder


def test_the_page_needs_no_other_file_and_escapes_the_sentence(translator, tmp_path):
    page = tmp_path / "walk.html"
    walk.main(["--model", translator, "--text", "<b>three</b> & miles", "--html", str(page)])
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>") and "&lt;b&gt;three" in html and "<b>three" not in html
    assert not re.search(r"(src|href)=|@import|url\(", html)
    assert html.count("<section>") > 20


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--layer", "3"], "no layer 3: the model has layers 1 to 2"),
        (["--layer", "0"], "no layer 0: the model has layers 1 to 2"),
        (["--head", "9"], "no head 9: the model has heads 1 to 4"),
        (["--stack", "middle"], "middle"),
        (["--example", "today"], "--example today has a model of its own"),
    ],
)
def test_what_the_model_has_not_is_refused_by_name(translator, arguments, named):
    with pytest.raises(ValueError, match=named):
        walk.main(["--model", translator, "--text", "three miles", *arguments])


def test_a_model_without_a_sentence_is_refused(translator):
    with pytest.raises(ValueError, match="--text"):
        walk.main(["--model", translator])


@pytest.mark.parametrize("arguments", [["--text", "12 miles"], ["--target", "x"], ["--stack", "decoder"]])
def test_a_sentence_without_a_model_is_refused(arguments):
    with pytest.raises(ValueError, match="give --model too"):
        walk.main(arguments)


def test_of_a_head_whose_numbers_are_made_up_only_what_the_source_prints_is_shown(capsys):
    """Of head 2 a stand-in of hundreds gives the outcome."""
    first, second = shown(capsys, "--example", "today"), shown(capsys, "--example", "today", "--head", "2")
    assert "This is head 1 of 2." in first and "This is head 2 of 2." in second
    for step in ("Q = X W_Q", "S = Q Kᵀ", "softmax"):
        assert step in first and step not in second
    assert "100.000" not in second and "-0.097" in second
    assert [len(re.findall(r"as\s+printed", text)) for text in (first, second)] == [5, 3]


def test_midwinter_shows_what_enters_each_equation(capsys):
    text = shown(capsys, "--example", "midwinter")
    for step in ("keys", "values", "hidden"):
        assert f"\n{step} " in text
