"""Compare our own metrics with values computed by hand or by other programs."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from data_files import write
from family import encoder_decoder
from saved_models import save
from vanilla_transformer.cli import evaluate
from vanilla_transformer.tasks.metrics import (
    MOSES_LANGUAGES,
    bleu_tokenizer,
    classification_scores,
    language_model_scores,
    moses_tokenized,
    question_answering_scores,
    regression_scores,
    tagging_scores,
    translation_scores,
)


def test_an_empty_answer_is_correct_only_for_unanswerable_questions():
    predicted = {"a": "Oslo", "b": "", "c": "Oslo", "d": ""}
    references = {"a": ["in Oslo", "Oslo"], "b": [], "c": [], "d": ["Oslo"]}
    assert question_answering_scores(predicted, references) == pytest.approx({"exact_match": 50, "f1": 50})


def test_macro_f1_averages_over_the_classes_that_occur_in_the_labels():
    """One of four rows is predicted as class 5, which no label has. Class 0 has recall 1/2, and class 1 recall 1."""
    scores = classification_scores(np.array([0, 5, 1, 1]), np.array([0, 0, 1, 1]))
    assert scores == pytest.approx({"accuracy": 75, "macro_f1": 100 * (2 / 3 + 1) / 2})
    rows = np.array([[1, 0, 0], [1, 0, 1]])  # the third class occurs only in the predictions
    assert classification_scores(rows, np.array([[1, 0, 0], [1, 0, 0]])) == pytest.approx(
        {"accuracy": 50, "macro_f1": 100}
    )


def test_tags_without_iob_prefix_are_scored_like_inside_tags():
    """The tag ORG differs from the tag O (no entity), although it starts with O."""
    tags, predicted = [["ORG", "ORG", "O", "PER"], ["O", "DATE"]], [["ORG", "O", "O", "PER"], ["O", "ORG"]]
    inside = ([[tag if tag == "O" else f"I-{tag}" for tag in row] for row in rows] for rows in (predicted, tags))
    plain = tagging_scores(predicted, tags)
    assert plain == tagging_scores(*inside) == pytest.approx(dict.fromkeys(("precision", "recall", "f1"), 100 / 3))


def test_multi_label_scores_are_defined_for_rows_without_labels():
    nothing = np.zeros((2, 3), dtype=int)
    assert classification_scores(nothing, nothing) == {"accuracy": 100, "macro_f1": 0}


def test_regression_metrics_are_correlations_and_root_mean_square_error():
    """The predictions have ranks 1, 2, 4, 3 instead of 1, 2, 3, 4, so Spearman's rho is 1 - 6 · 2 / (4 · 15) = 0.8."""
    predicted, labels = np.array([1.0, 2.0, 7.0, 6.0]), np.array([1.0, 2.0, 3.0, 4.0])
    scores = regression_scores(predicted, labels)
    assert scores["spearman"] == pytest.approx(0.8)
    assert scores["pearson"] == pytest.approx(np.corrcoef(predicted, labels)[0, 1])
    assert scores["rmse"] == pytest.approx(np.sqrt((4**2 + 2**2) / 4))
    of_one_row = regression_scores(np.array([[1.0]]), np.array([[3.0]]))
    assert of_one_row["rmse"] == 2 and np.isnan(of_one_row["pearson"]) and np.isnan(of_one_row["spearman"])


def test_perplexity_of_a_diverged_model_is_infinite():
    assert language_model_scores(1000.0, 10, 8)["perplexity"] == np.inf


def test_bits_per_byte_is_the_total_loss_in_bits_divided_by_the_number_of_bytes():
    """The loss of ln 4 nats is 2 bits per token. Ten tokens have 20 bits, divided by eight bytes."""
    assert language_model_scores(np.log(4), 10, 8) == pytest.approx({"perplexity": 4, "bits_per_byte": 2.5})


def test_metrics_ignore_case_on_request():
    texts, references = ["ein ROTES t-shirt ist neu"], ["Ein rotes T-Shirt ist neu"]
    assert translation_scores(texts, references, lowercase=True)[0] == pytest.approx(
        {"bleu": 100, "chrf": 100, "exact_match": 100}
    )
    assert all(score < 90 for score in translation_scores(texts, references)[0].values())


def test_tokenized_bleu_uses_the_same_tokenisation_as_papers():
    """The reference has eight Moses tokens, or ten with hyphens split. The output has different quotes and dashes."""
    reference, hypothesis = 'Ein "rotes" T-Shirt - neu.', "Ein „rotes“ T-Shirt – neu."

    def scores(text: str, **options: bool) -> tuple[float, str]:
        found, notes = translation_scores([text], [reference], moses_language="de", **options)
        return found["tokenized_bleu"], notes["tokenized BLEU"]

    assert scores(reference)[0] == pytest.approx(100)
    assert scores(hypothesis)[0] < 30
    found, signature = scores(hypothesis, normalize_punctuation=True)
    assert found == pytest.approx(100) and "punctuation normalised" in signature
    # The output only lacks the last two tokens, so BLEU equals the brevity penalty, exp(1 - 8 / 6).
    cut = 'Ein "rotes" T-Shirt -'
    assert scores(cut)[0] == pytest.approx(100 * np.exp(1 - 8 / 6))
    assert scores(cut, split_compounds=True)[0] == pytest.approx(100 * np.exp(1 - 10 / 8))
    # the result of Perl's s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g
    compounds = moses_tokenized(["T-Shirt, 3-2-1 - neu"], "de", split_compounds=True)
    assert compounds == ["T ##AT##-##AT## Shirt , 3 ##AT##-##AT## 2-1 - neu"]


# sacreBLEU tokenizer -> references in its languages, whose scripts may have no spaces between words.
CHINESE = ["今天天气很好，我们去公园吧。", "他昨天买了一本新书。", "这个问题很难回答。"]
LANGUAGES = {
    "zh": ["今天天气很好，我们去公园吧。", "我用 iPhone 15 Pro Max 打电话给 Alexander。", "這個問題很難回答。"],
    "ja-mecab": ["私は毎日日本語を勉強します。", "コンピューターを使う"],
    "ko-mecab": ["나는 매일 한국어를 공부합니다."],
    "char": ["ฉันเรียนภาษาไทยทุกวัน", "ភាសាខ្មែរ", "မြန်မာဘာသာ", "ພາສາລາວ", "བོད་སྐད།"],
    "13a": ["I like to travel.", "मुझे घूमना पसंद है।", "Мы уже три года живём в Пекине (北京).", "123 + 4", ""],
}


@pytest.mark.parametrize(("tokenizer", "text"), [(name, text) for name, texts in LANGUAGES.items() for text in texts])
def test_bleu_uses_the_tokenizer_for_the_target_language(tokenizer, text, caplog):
    needs_mecab = tokenizer.endswith("mecab")
    assert bleu_tokenizer([text]) in ({tokenizer, "char"} if needs_mecab else {tokenizer})
    assert not caplog.messages or (needs_mecab and f"sacrebleu[{tokenizer[:2]}]" in caplog.text)


def test_translations_with_one_wrong_character_each_have_high_scores():
    translations = [text.replace("天", "夭", 1).replace("买", "卖").replace("难", "易") for text in CHINESE]
    scores, notes = translation_scores(translations, CHINESE)
    assert scores["bleu"] == BLEU(tokenize="zh").corpus_score(translations, [CHINESE]).score > 60
    assert "tok:zh" in notes["BLEU"]


def test_a_translator_into_chinese_is_scored_by_characters(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = save(tmp_path / "model", encoder_decoder, "seq2seq")
    file = write("rows.jsonl", [{"source": "one", "target": text} for text in CHINESE])
    evaluate.main(["--model", model, "--test_file", file, "--use_cpu", "true"])
    assert "tok:zh" in capsys.readouterr().out


def test_moses_splits_sentences_into_several_tokens():
    text = "这个问题很难回答。"
    for language in MOSES_LANGUAGES:
        assert len(moses_tokenized([text], language)[0].split()) == len(text)


def test_answers_in_languages_without_spaces_are_compared_by_character():
    """北京市 and 北京 share two characters, so precision is 1 and recall is 2/3."""
    predicted, references = {"a": "北京", "b": "北京市"}, {"a": ["北京市"], "b": ["北京市"]}
    assert question_answering_scores(predicted, references) == pytest.approx({"exact_match": 50, "f1": 90})
