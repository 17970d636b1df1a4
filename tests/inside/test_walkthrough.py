"""Test the `walk` command, which prints recorded steps in the terminal or writes them as an HTML page."""

import json
import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch
from transformers import AutoTokenizer

from family import encoder_only
from fresh_process import ROOT, run_python
from saved_models import with_tokenizer, write
from vanilla_transformer import VanillaTransformerForSequenceClassification, loading
from vanilla_transformer.cli import walk
from vanilla_transformer.inside.explanations import describe_step, explanation
from vanilla_transformer.inside.mathml import mathml
from vanilla_transformer.inside.walks import ask, walk_sentence
from vanilla_transformer.inside.worked_examples import EXAMPLES, own_example, walk_example
from vanilla_transformer.loading import load_model


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("translator")
    return write(folder, *with_tokenizer(texts=["three miles", "tres millas"] * 3, vocab_size=280))


def shown(capsys, *arguments: str) -> str:
    walk.main(list(arguments))
    return capsys.readouterr().out


def test_printed_example_shows_the_agreement_with_published_values(capsys):
    text = shown(capsys, "--example", "today")
    for expected in ("S = Q Kᵀ", "-0.52", "1.170", "softmax", "queries 3 × keys 3", "sunday", "as published"):
        assert expected in text


@pytest.mark.parametrize("precision", ["1", "5"])
def test_precision_sets_the_number_of_decimals(capsys, precision):
    decimals = re.findall(r"-?\d+\.(\d+) ", shown(capsys, "--precision", precision))
    assert {len(digits) for digits in decimals} == {int(precision)}


def test_causal_and_padding_masks_are_printed(capsys):
    causal = shown(capsys, "--example", "causal-mask")
    assert re.search(r"orange +■ +· +· +· +· +·", causal) and re.search(r"\. +■ +■ +■ +■ +■ +■", causal)
    padded = shown(capsys, "--example", "padding-mask")
    assert re.search(r"■ +■ +■ +· +·", padded)


def test_the_walk_through_a_decoder_includes_cross_attention(capsys, translator):
    given = ("--model", translator, "--text", "three miles", "--target", "tres millas")
    text = shown(capsys, *given, "--stack", "decoder", "--layer", "2", "--head", "3")
    assert "cross-attention" in text and "Layer 2, head 3" in text and "K = Z W_K" in text
    assert text.index("self-attention") < text.index("cross-attention") < text.index("feed-forward")
    assert "cross-attention" not in shown(capsys, *given, "--stack", "encoder")


def test_a_walk_through_a_layer_covers_both_stacks_and_the_output(capsys, translator):
    text = shown(capsys, "--model", translator, "--text", "three miles", "--target", "tres millas", "--layer", "1")
    assert text.index("in the encoder") < text.index("cross-attention") < text.index("p = softmax(logits)")
    lines = re.findall(r"^ *after (\S+) +(.+)$", text[text.index("the most probable words") :], re.M)
    model, tokenizer = load_model(translator), AutoTokenizer.from_pretrained(translator)
    batch = tokenizer("three miles", text_target="tres millas", return_tensors="pt")
    probabilities = model(**batch).logits[0].softmax(dim=-1).topk(5)
    assert len(lines) == batch["labels"].shape[1] and lines[0][0] == "<s>"
    for (_, said), expected in zip(lines, probabilities.values, strict=True):
        shown_values = [float(p) for p in re.findall(r"(\d+\.\d)%", said)]
        assert shown_values == pytest.approx((100 * expected).tolist(), abs=0.06)


def test_walk_without_a_model_uses_the_bundled_translator(capsys, translator, tmp_path, monkeypatch):
    (tmp_path / "en-es").symlink_to(translator)
    monkeypatch.setattr(loading, "CHECKPOINTS", tmp_path)
    text = shown(capsys, "--text", "three miles", "--layer", "2")
    assert "'three miles' in the encoder of en-es" in text and "'three miles' in the decoder of en-es" in text


SENTENCE = ("--text", "three miles", "--target", "tres millas")


def test_a_sentence_gets_a_summary_of_one_screen_that_says_how_to_see_more(capsys, translator):
    text = shown(capsys, "--model", translator, *SENTENCE)
    assert len(text.splitlines()) <= 24 and max(map(len, text.splitlines())) <= 110
    model, tokenizer = load_model(translator), AutoTokenizer.from_pretrained(translator)
    batch = tokenizer("three miles", text_target="tres millas", return_tensors="pt")
    best = model(**batch).logits[0].softmax(dim=-1).max(dim=-1).values
    predicted = re.findall(r"^\S+ +\S+ \d+% +\S+ (\d+)%", text, re.M)
    assert [int(percent) for percent in predicted] == [round(100 * p) for p in best.tolist()]
    for option in ("--layer 1", "--stack decoder --layer 1 --head 2", "--html walk.html"):
        assert option in text
    assert "equations" not in text and "S = Q Kᵀ" not in text


@pytest.mark.parametrize("option", [["--layer", "1"], ["--head", "2"], ["--stack", "encoder"]])
def test_a_layer_head_or_stack_is_shown_in_full(capsys, translator, option):
    assert "S = Q Kᵀ" in shown(capsys, "--model", translator, *SENTENCE, *option)


@pytest.mark.parametrize(("norm", "said"), [("post", "Post-norm, as in the paper"), ("pre", "Pre-norm, unlike the")])
def test_every_walk_says_where_its_model_normalises(capsys, tmp_path, norm, said):
    folder = write(tmp_path / norm, *with_tokenizer(texts=["three miles"] * 3, vocab_size=280, norm_position=norm))
    for options in ([], ["--layer", "1"]):
        assert said in " ".join(shown(capsys, "--model", folder, *SENTENCE, *options).split())
    assert "Post-norm, as in the paper" in walk_example(EXAMPLES["midwinter"], 0, 0).note


def test_ask_gives_the_probabilities_of_words_where_the_model_may_write_one(capsys, translator):
    model, tokenizer = load_model(translator), AutoTokenizer.from_pretrained(translator)
    begun, found = ask(model, tokenizer, "three miles", ["millas", "tres"], target="tres millas")
    source = tokenizer("three miles", return_tensors="pt")
    target = [1, *tokenizer(text_target="tres millas")["input_ids"]]

    def probability(step: int, word: str) -> float:
        """Return the probability of spelling the word token by token after `step` tokens, with or without a space."""
        total = 0.0
        for ids in {tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (word, f" {word}")}:
            written, product = target[: step + 1], 1.0
            for token in ids:
                logits = model(**source, decoder_input_ids=torch.tensor([written])).logits
                product *= logits[0, -1].softmax(dim=-1)[token].item()
                written = [*written, token]
            total += product
        return total

    step = next(i for i in range(len(target)) if tokenizer.decode(target[1 : i + 1]) == begun)
    assert found == pytest.approx({word: probability(step, word) for word in ("millas", "tres")}, rel=1e-3)
    given = ["--model", translator, "--target", "tres millas", "--ask", "millas", "tres"]
    printed = shown(capsys, *given, "three miles")
    assert printed == shown(capsys, *given, "--text", "three miles")
    assert re.findall(r"^(\w+) +\d", printed, re.M) == sorted(found, key=lambda word: -found[word])


def test_ask_needs_words_and_a_model_that_writes():
    with pytest.raises(ValueError, match="--ask needs words, and then a sentence"):
        walk.main(["--ask", "three miles"])
    with pytest.raises(ValueError, match="--ask needs a model that writes text; VanillaTransformerForSequence"):
        ask(encoder_only(VanillaTransformerForSequenceClassification), None, "three miles", ["miles"])


SECONDS = """
import sys
from time import process_time

sys.argv = ["vanilla-transformer"]
began = process_time()
import vanilla_transformer.modeling_vanilla_transformer
imported = process_time()
packages = {name.partition(".")[0] for name in sys.modules}
from vanilla_transformer.__main__ import command
command(["walk", "--example", "today"])
print(imported - began, process_time() - began)
print(*{name.partition(".")[0] for name in sys.modules} - packages - sys.stdlib_module_names)
print("vanilla_transformer.loading" in sys.modules)
"""


def test_the_example_starts_as_fast_as_the_model_file_is_imported():
    result = subprocess.run([sys.executable, "-c", SECONDS], capture_output=True, text=True, cwd=ROOT)
    seconds, more_packages, loads_models = result.stdout.splitlines()[-3:]
    assert set(more_packages.split()) <= {"rich", "pygments", "markdown_it", "mdurl"}  # rich and its dependencies
    assert loads_models == "False"
    importing, whole = map(float, seconds.split())
    assert whole <= 1.15 * importing


NUMBERS = {
    "words": ["a", "b", "a"],
    "X": [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]],
    "W_Q": [[1.0, 2.0], [0.5, -1.0]],
    "W_K": [[0.0, 1.0], [1.0, 0.0]],
    "W_V": [[2.0, 0.0], [0.0, 3.0]],
    "W_O": [[1.0, 1.0], [0.0, 1.0]],
}


def walked(file, head: int = 0) -> dict[str, torch.Tensor]:
    walk = walk_example(own_example(str(file)), 0, head)
    return {step.name: step.tensor[0] for step in walk.steps}


@pytest.mark.parametrize("heads", [1, 2])
def test_results_of_user_matrices_equal_equation_1(heads, tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(NUMBERS | {"heads": heads}))
    x, w_q, w_k, w_v, w_o = (torch.tensor(NUMBERS[name]) for name in ("X", "W_Q", "W_K", "W_V", "W_O"))
    results = []
    for head in range(heads):
        q, k, v = (part.chunk(heads, dim=-1)[head] for part in (x @ w_q, x @ w_k, x @ w_v))
        results.append((q @ k.T / q.shape[-1] ** 0.5).softmax(dim=-1) @ v)
        steps = walked(file, head)
        torch.testing.assert_close(steps["queries"], q)
        torch.testing.assert_close(steps["heads"], results[-1])
    torch.testing.assert_close(steps["output projection"], torch.cat(results, dim=-1) @ w_o)
    torch.testing.assert_close(steps["residual"], x + torch.cat(results, dim=-1) @ w_o)


def test_user_matrices_are_printed_with_their_words(capsys, tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(NUMBERS))
    text = shown(capsys, "--numbers", str(file))
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        assert re.search(rf"^ +{name} +1 +2 *$", text, re.M), name  # columns are labelled from 1
    assert re.search(r"^ +1 +0\.000 +1\.000 *$", text, re.M)  # first row of W_K
    assert re.search(r"^ +b +0\.500 +-1\.000 *$", text, re.M)  # query of word b


def test_user_matrices_are_not_described_as_learned(capsys, tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(NUMBERS))
    text = shown(capsys, "--numbers", str(file))
    assert "The vectors that the example starts from" in text and "the model has learned" not in text


def test_a_single_row_is_a_valid_example_without_warnings(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(NUMBERS | {"words": ["a"], "X": [[1.0, 0.0]]}))
    result = run_python(["-m", "vanilla_transformer", "walk", "--numbers", file])
    assert (result.returncode, result.stderr) == (0, "")


def test_example_file_in_the_docs_works():
    steps = walked(ROOT / "docs" / "examples" / "my_numbers.json")
    assert steps["queries"].tolist() == [[1, 1, 1], [1, 2, 0], [2, 1, 1]]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"W_Q": None}, "W_Q is not a matrix of numbers"),
        ({"W_K": [[1.0], [2.0]]}, "W_K has the shape (2, 1), but the other matrices need (2, 2)"),
        ({"W_V": [[1.0, 2.0]]}, "W_V has the shape (1, 2), but the other matrices need (2, 2)"),
        ({"X": [1.0, 2.0]}, "X must be a list of rows"),
        ({"words": ["a"]}, "words=['a'] must be a list of 3 names, one for each row of X"),
        ({"words": 3}, "words=3 must be a list of 3 names"),
        ({"X": [[1.0, 0.0], [0.0, 1.0], [1.0, math.inf]]}, "each a list of finite numbers"),
        ({"heads": 3}, "heads=3 must divide the columns of W_Q (2)"),
        ({"W_Z": [[1.0]]}, "must be a JSON object with X, W_Q, W_K and W_V"),
    ],
)
def test_error_for_a_matrix_of_the_wrong_shape_names_it(change, named, tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(NUMBERS | change))
    with pytest.raises(ValueError, match=re.escape(named)):
        walk.main(["--numbers", str(file)])


def test_today_example_marks_steps_that_its_source_omits(capsys):
    text = " ".join(shown(capsys, "--example", "today").split())
    ours = "our numbers, not published"
    assert text.index("1.170") < text.index(ours) < text.index("W_1")
    assert text.count(ours) == 6 and text.count("as published") == 9


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_step_of_a_walk_has_an_explanation(name):
    steps = walk_example(EXAMPLES[name], 0, 0).steps
    assert steps and all(re.fullmatch(r"[A-Z].+\.", explanation(step)) for step in steps)


def test_equations_are_typeset_in_a_page():
    page = ElementTree.fromstring(mathml("A = softmax(S / √d_k + M)").replace("&nbsp;", " "))
    assert page.tag == "math"
    (fraction,) = page.iter("mfrac")
    assert fraction.find("mi").text == "S" and [e.text for e in fraction.find("mrow/msub")] == ["d", "k"]
    assert "".join(page.itertext()) == "A=softmax(S√dk+M)"


def test_power_binds_more_tightly_than_fraction():
    page = ElementTree.fromstring(mathml("sin(pos / 10000^(2i/d_model))"))
    outer = next(page.iter("mfrac"))
    assert outer[0].text == "pos" and outer[1].tag == "msup" and outer[1][0].text == "10000"
    assert "".join(outer[1][1].itertext()) == "2i/dmodel"


def test_every_equation_of_the_recorder_is_valid_mathml(translator):
    model, tokenizer = load_model(translator), AutoTokenizer.from_pretrained(translator)
    for stack in ("encoder", "decoder"):
        for step in walk_sentence(model, tokenizer, "three miles", "tres millas", stack).steps:
            ElementTree.fromstring(mathml(step.equation).replace("&nbsp;", " "))


def test_a_line_can_break_between_two_equations(translator):
    model, tokenizer = load_model(translator), AutoTokenizer.from_pretrained(translator)
    (step,) = (step for step in walk_sentence(model, tokenizer, "three miles").steps if step.name == "positions")
    assert re.findall(r"</math>(, |$)", describe_step(step)["mathml"]) == [", ", ""]


def test_wide_terminals_show_all_eight_columns_of_two_heads(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(capsys, "--example", "today")
    part = text[text.index("C = Concat") : text.index("C W_O")]
    assert re.search(r"^ +1 +2 +3 +4 +5 +6 +7 +8 *$", part, re.M) and "…" not in part


def test_special_tokens_in_a_sentence_are_tokenised_as_text(translator):
    model, tokenizer = load_model(translator), AutoTokenizer.from_pretrained(translator)
    text = "three </s> miles"
    for stack in ("encoder", "decoder"):
        (words,) = walk_sentence(model, tokenizer, text, text, stack).words
        ids = tokenizer(text, split_special_tokens=True)["input_ids"]
        assert len(words) == len(ids) and "</s>" not in words[1:-1]


def test_partial_characters_are_shown_as_bytes_in_a_walk(translator):
    model, tokenizer = load_model(translator), AutoTokenizer.from_pretrained(translator)
    (words,) = walk_sentence(model, tokenizer, "我").words
    assert words[-4:-1] == ["E6", "88", "91"]


def test_translation_in_a_walk_is_limited_by_the_position_embeddings(capsys, tmp_path):
    sizes = {"position_embedding": "learned", "max_position_embeddings": 12, "eos_token_id": None}
    folder = write(tmp_path / "learned", *with_tokenizer(texts=["three miles"] * 3, vocab_size=280, **sizes))
    assert "cross-attention" in shown(capsys, "--model", folder, "--text", "three miles", "--stack", "decoder")


def test_the_page_is_self_contained_and_escapes_the_sentence(translator, tmp_path):
    page = tmp_path / "walk.html"
    walk.main(["--model", translator, "--text", "<b>three</b> & miles", "--html", str(page)])
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>") and "&lt;b&gt;three" in html and "<b>three" not in html
    assert not re.search(r"src=|<link|@import|url\(", html)
    assert html.count("<section>") > 20


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--layer", "3"], "no layer 3: the model has layers 1 to 2"),
        (["--layer", "0"], "no layer 0: the model has layers 1 to 2"),
        (["--head", "9"], "no head 9: the model has heads 1 to 4"),
        (["--stack", "middle"], "middle"),
        (["--example", "today"], "--text and --example exclude each other"),
        (["--numbers", "x.json"], "--text and --numbers exclude each other"),
    ],
)
def test_walk_rejects_a_missing_layer_head_or_stack(translator, arguments, named):
    with pytest.raises(ValueError, match=named):
        walk.main(["--model", translator, "--text", "three miles", *arguments])


def test_walk_rejects_a_model_without_a_sentence(translator):
    with pytest.raises(ValueError, match="--text"):
        walk.main(["--model", translator])


def test_walk_rejects_an_empty_sentence():
    with pytest.raises(ValueError, match="--text is empty"):
        walk.main(["--text", ""])


@pytest.mark.parametrize("arguments", [["--target", "x"], ["--stack", "decoder"]])
def test_walk_rejects_sentence_options_without_a_sentence(arguments):
    with pytest.raises(ValueError, match="needs a sentence: give --text"):
        walk.main(arguments)


def test_second_head_shows_only_the_published_steps(capsys):
    """The published example does not print the other steps of head 2."""
    first, second = shown(capsys, "--example", "today"), shown(capsys, "--example", "today", "--head", "2")
    for number, text in ((1, first), (2, second)):
        assert f"This is head {number} of 2." in " ".join(text.split())
    for step in ("Q = X W_Q", "S = Q Kᵀ", "softmax"):
        assert step in first and step not in second
    assert "100.000" not in second and "-0.097" in second
    assert [len(re.findall(r"as\s+published", text)) for text in (first, second)] == [9, 3]


def test_the_midwinter_example_shows_the_columns_that_its_source_prints(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    assert re.search(r"^ +1 +2 +3 +… +298 +299 +300 *$", shown(capsys, "--example", "midwinter"), re.M)
    walk.main(["--example", "midwinter", "--html", str(tmp_path / "walk.html")])
    names = [f"<th>{name}</th>" for name in (1, 2, 3, "…", 298, 299, 300)]
    assert "".join(names) in (tmp_path / "walk.html").read_text(encoding="utf-8")


def test_the_midwinter_example_shows_the_input_of_each_equation(capsys):
    text = shown(capsys, "--example", "midwinter")
    for step in ("keys", "values", "hidden"):
        assert f"\n{step} " in text
