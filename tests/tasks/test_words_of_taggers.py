"""Taggers tokenize a list of words like running text, with a space before each word."""

import json

import pytest
from transformers import AutoTokenizer, pipeline

from data_files import write
from small_data import train_and_validate_on
from vanilla_transformer.cli import train
from vanilla_transformer.data.tokenizer import KINDS, TEMPLATES, read_words_with_spaces, train_tokenizer
from vanilla_transformer.loading import CHECKPOINTS


SENTENCES = (
    "The flight to Peru leaves on May 3, 2031 at 9:40 AM and costs $300.",
    "Sales rose by 12% and will be counted again in 3 days.",
)
SMALL = "--num_layers 1 --d_model 16 --d_ff 16 --num_heads 2 --max_steps 2 --vocab_size 400 --use_cpu true".split()


def tokens_of(tokenizer, sentence):
    return tokenizer(sentence)["input_ids"], tokenizer(sentence.split(), is_split_into_words=True)["input_ids"]


@pytest.mark.parametrize("strategy", ["none", "simple", "first"])
@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_shipped_tagger_gives_the_same_result_for_words_and_text(sentence, strategy):
    tag = pipeline("token-classification", str(CHECKPOINTS / "tagger"), aggregation_strategy=strategy)
    (found,) = tag(sentence.split(), is_split_into_words=True)
    assert found == tag(sentence) != []


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
def test_any_tokenizer_can_encode_words_with_spaces(kind, template, lowercase, tmp_path):
    tokenizer = train_tokenizer(SENTENCES * 3, template, kind, 600, lowercase)
    read_words_with_spaces(tokenizer)
    once = tokenizer.backend_tokenizer.to_str()
    read_words_with_spaces(tokenizer)
    assert tokenizer.backend_tokenizer.to_str() == once
    tokenizer.save_pretrained(tmp_path)
    saved = AutoTokenizer.from_pretrained(tmp_path)
    for sentence in SENTENCES:
        text, words = tokens_of(saved, sentence)
        assert text == words
        decoded = saved.decode(text, skip_special_tokens=True).strip()
        if kind != "word":  # it puts spaces around punctuation
            assert decoded == (sentence.lower() if lowercase else sentence)


def test_offsets_of_split_words_are_relative_to_each_word():
    tokenizer = train_tokenizer([" in Norway now"] * 3, "encoder")
    read_words_with_spaces(tokenizer)
    words = tokenizer(["in", "Norway"], is_split_into_words=True, return_offsets_mapping=True)
    text = tokenizer("in Norway", return_offsets_mapping=True)
    assert words["offset_mapping"] == [(0, 0), (0, 2), (0, 6), (0, 0)]
    assert text["offset_mapping"] == [(0, 0), (0, 2), (3, 9), (0, 0)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_tagger_saves_a_tokenizer_that_adds_spaces(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"tokens": sentence.split(), "tags": ["B-X", *["O"] * (len(sentence.split()) - 1)]}
        for sentence in SENTENCES * 3
    ]
    options = [*train_and_validate_on(write("rows.jsonl", rows)), *SMALL, "--tokenizer_kind", kind]
    train.main(["tagging", *options, "--output_dir", "run"])
    text, words = tokens_of(AutoTokenizer.from_pretrained("run"), SENTENCES[0])
    assert text == words
    if kind == "byte_bpe":  # the first word of a sentence is also tokenized with a space
        assert "ĠThe" in json.loads((tmp_path / "run" / "tokenizer.json").read_text())["model"]["vocab"]


def test_a_tagger_fine_tuned_from_a_masked_lm_saves_a_tokenizer_that_adds_spaces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"tokens": sentence.split(), "tags": ["B-X", *["O"] * (len(sentence.split()) - 1)]}
        for sentence in SENTENCES * 3
    ]
    options = [*train_and_validate_on(write("rows.jsonl", rows)), "--max_steps", "1", "--use_cpu", "true"]
    options += ["--model_name_or_path", str(CHECKPOINTS / "masked-lm"), "--output_dir", "run"]
    train.main(["tagging", *options])
    text, words = tokens_of(AutoTokenizer.from_pretrained("run"), SENTENCES[0])
    assert text == words
