"""Consensus decoding: the beam that is likely and like the others, from the command to the saved model."""

import pytest
import torch
from sacrebleu import sentence_bleu
from transformers import AutoTokenizer

from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.commands import translate as command
from vanilla_transformer.consensus import choose, likeness
from vanilla_transformer.decoding import translate
from vanilla_transformer.loading import shipped_model


TEXTS = [
    "My brother has never been to the big city, but he would like to go there next summer.",
    "I like to travel.",
    "The children were playing in the garden when it began to rain, so they went home.",
    "Do you know where the old man with the red hat lives?",
]


@pytest.fixture(scope="module")
def translator():
    folder = shipped_model("en-es")
    return VanillaTransformerForConditionalGeneration.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def test_likeness_is_the_mean_of_bleu_as_it_is_defined():
    """1 with itself; with the other 4 of 5 words, 3 of 4 pairs, 2 of 3 triples and 1 of 2 fours are right."""
    bleu = (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4)
    assert likeness([[11, 12, 13, 14, 15], [11, 12, 13, 14, 16]]) == pytest.approx([(1 + bleu) / 2] * 2)
    assert likeness([[7, 8, 9, 10]]) == pytest.approx([1.0])


def test_the_best_score_wins_unless_it_is_alone_and_weight_is_given_to_that():
    hypotheses, scores = [[9, 8, 7, 6, 5], [1, 2, 3, 4, 5], [1, 2, 3, 4, 6]], [-1.0, -1.1, -1.2]
    assert [choose(hypotheses, scores, weight) for weight in (0.0, 0.1, 1.0)] == [0, 0, 1]


def test_what_the_library_fills_up_with_where_a_search_found_too_few_is_no_hypothesis():
    assert choose([[1, 2, 3, 4], [8, 9], [8, 9]], [-1.0, -1e9 / 200, -1e9], 5.0) == 0
    assert choose([[1], [2]], [-1e9, -1e9], 1.0) == 0


def expected_consensus(model, tokenizer, text: str, weight: float, num_beams: int) -> tuple[str, str]:
    """The consensus, and the likeliest, from a plain call of generate for one text."""
    batch = tokenizer([text], return_tensors="pt")
    all_beams = {"num_beams": num_beams, "num_return_sequences": num_beams}
    with torch.inference_mode():
        output = model.generate(
            **batch, **all_beams, max_length=batch["input_ids"].shape[1] + 50,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    found = tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
    tokens = [" ".join(str(i) for i in row.tolist() if i not in tokenizer.all_special_ids) for row in output.sequences]
    values = [
        score + weight * sum(sentence_bleu(one, [other], tokenize="none").score for other in tokens) / 100 / num_beams
        for one, score in zip(tokens, output.sequences_scores.tolist(), strict=True)
    ]
    return found[max(range(num_beams), key=values.__getitem__)], found[0]


@pytest.mark.parametrize("engine", ["pytorch", "ctranslate2"])
def test_the_command_prints_the_consensus_of_each_texts_beams(engine, translator, tmp_path, capsys):
    """In a batch whose shorter outputs are filled up, by either engine."""
    wanted = [expected_consensus(*translator, text, weight=3.0, num_beams=6) for text in TEXTS]
    assert any(consensus != likeliest for consensus, likeliest in wanted)
    (tmp_path / "texts").write_text("\n".join(TEXTS) + "\n")
    options = ["--num_beams", "6", "--consensus", "3", "--engine", engine, "--input", str(tmp_path / "texts")]
    command.main(options)
    assert capsys.readouterr().out.splitlines() == [consensus for consensus, _ in wanted]


def test_without_weight_it_is_the_search_as_it_was(translator):
    model, tokenizer = translator
    plain = translate(TEXTS, model, tokenizer, num_beams=4)
    assert plain == translate(TEXTS, model, tokenizer, consensus=1e-9, num_beams=4)
    assert plain == translate(TEXTS, model, tokenizer, consensus=0.0, num_beams=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"consensus": 1.0, "num_beams": 1}, r"consensus=1\.0 chooses among beams, of which there is 1"),
        ({"consensus": -1.0}, r"consensus=-1\.0 must not be negative"),
    ],
)
def test_no_consensus_of_one_beam_or_below_zero(options, message, translator):
    with pytest.raises(ValueError, match=message):
        translate(TEXTS[:1], *translator, **options)
