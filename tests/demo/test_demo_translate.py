"""Test the translation endpoints: hypotheses, attention and scores, messages, and that nothing private leaks."""

import re
import sys
import warnings
from math import log
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest
import torch
from gradio_client import Client
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from demo_server import served, started
from family import decoder_only, encoder_decoder
from fresh_process import ROOT
from saved_models import TEXT, save, save_repeating
from vanilla_transformer.app import app
from vanilla_transformer.app.loading import load
from vanilla_transformer.app.reading import warn_of_unknown_letters
from vanilla_transformer.app.translation import AXES, LONGEST_TRANSLATION, MOST_LIKELY, MOST_TOKENS, Translator, draw
from vanilla_transformer.decoding import EXTRA_TOKENS


TRANSLATION = "uno dos"


# --- Attention and decoding steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """Save a translation model with different numbers of encoder and decoder layers."""
    folder = tmp_path_factory.mktemp("translate") / "translator"
    return save(folder, lambda **fields: encoder_decoder(encoder_layers=3, **fields), "seq2seq")


@pytest.fixture(scope="module")
def client(folder):
    with served(folder) as client:
        yield client


@pytest.fixture(scope="module")
def truth(folder):
    """Return the tokenizer, the ids of source and target, and the model's output with teacher forcing."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    source, target = (tokenizer(text, return_tensors="pt")["input_ids"] for text in (TEXT, TRANSLATION))
    begun = torch.cat([torch.tensor([[model.config.decoder_start_token_id]]), target[:, :-1]], dim=1)
    with torch.no_grad():
        output = model(source, decoder_input_ids=begun, output_attentions=True)
    return tokenizer, source[0].tolist(), target[0].tolist(), output


def read_table(html: str) -> tuple[list[str], list[str], torch.Tensor]:
    """Return the row labels, column labels and values of a heat map."""
    head, body = ElementTree.fromstring(html).findall("div/table/*")[1:]
    rows = [row.find("th").text or "" for row in body]
    numbers = [[float(cell.find("span").text) for cell in row.findall("td")] for row in body]
    return rows, [cell.find("span").text or "" for cell in head.findall("tr/th")], torch.tensor(numbers)


def test_ctranslate2_finds_the_same_hypotheses_as_pytorch(folder):
    plain, fast = (app.load_all((folder,), False, engine)[0] for engine in ("pytorch", "ctranslate2"))
    assert fast.engine and plain.engine is None
    for expected, found in zip(Translator(plain).search(TEXT), Translator(fast).search(TEXT), strict=True):
        assert (found.text, found.ids) == (expected.text, expected.ids)
        assert found.score == pytest.approx(expected.score, rel=1e-4)


def test_demo_command_translates_with_int8_weights(tmp_path):
    model = save(tmp_path / "translator", encoder_decoder, "seq2seq")
    with started("--model", model, "--engine", "ctranslate2", "--quantization", "int8") as (address, _):
        translation = Client(address, verbose=False).predict(TEXT, "2", "mean", api_name="/translate")[0]
    assert isinstance(translation, str)


@pytest.mark.parametrize(
    ("kind", "attribute", "layer"),
    [("cross", "cross_attentions", 2), ("encoder self", "encoder_attentions", 3),
     ("decoder self", "decoder_attentions", 1)],
)  # fmt: skip
@pytest.mark.parametrize("head", ["mean", "3"])
def test_attention_heat_map_equals_the_models_weights(folder, truth, kind, attribute, layer, head):
    tokenizer, source, target, output = truth
    rows, columns, drawn = read_table(Translator(load(folder)).attend(TEXT, TRANSLATION, kind, str(layer), head))
    attention = output[attribute][layer - 1][0]
    expected = attention.mean(0) if head == "mean" else attention[int(head) - 1]
    torch.testing.assert_close(drawn, expected, rtol=1e-3, atol=1e-6)
    written = [tokenizer.decode([i]).strip() for i in target]
    read = [tokenizer.decode([i]).strip() for i in source]
    assert rows == (read if kind == "encoder self" else written)
    assert columns == (["(start)", *written[:-1]] if kind == "decoder self" else read)


def test_each_kind_layer_and_head_gives_a_different_heat_map(client):
    choices = [(kind, layer, head) for kind in AXES for layer in "12" for head in ("mean", "3")]
    pictures = {client.predict(TEXT, TRANSLATION, *choice, api_name="/attention") for choice in choices}
    assert len(pictures) == len(choices)


def test_layer_and_head_may_be_given_as_numbers(client):
    number, text = (
        client.predict(TEXT, TRANSLATION, "cross", *of, api_name="/attention") for of in [(2, 1), ("2", "1")]
    )
    assert number == text


def test_missing_layer_gives_a_clear_error(client):
    with pytest.raises(Exception, match=r"There is no layer '3', only: 1, 2\."):
        client.predict(TEXT, TRANSLATION, "cross", "3", "mean", api_name="/attention")


def test_decoding_step_returns_the_five_most_probable_tokens(client, truth):
    tokenizer, _, target, output = truth
    for step in range(1, len(target) + 1):
        found = client.predict(TEXT, TRANSLATION, step, api_name="/decoding_step")
        probabilities, ids = output.logits[0, step - 1].softmax(-1).topk(MOST_LIKELY)
        assert list(found.values()) == pytest.approx(probabilities.tolist(), abs=1e-5)
        for name, i in zip(found, ids.tolist(), strict=True):
            assert name in (repr(tokenizer.decode([i])), tokenizer.convert_ids_to_tokens(i))
    for step in (0, len(target) + 1):
        with pytest.raises(Exception, match=f"has the steps 1 to {len(target)}"):
            client.predict(TEXT, TRANSLATION, step, api_name="/decoding_step")


def test_leading_and_trailing_spaces_of_a_source_text_are_ignored(client):
    exact, slip = (client.predict(text, TRANSLATION, 1, api_name="/decoding_step") for text in (TEXT, f"  {TEXT}\n"))
    assert slip == exact


@pytest.mark.parametrize("text", [TEXT, "zzz qqq", "12 o'clock, née", "три"])
def test_hypothesis_is_shown_with_its_generated_tokens(folder, client, text):
    """The untrained model generates token ids that the tokenizer would not produce for the same text."""
    loaded = load(folder)
    inputs = loaded.tokenizer(text, return_tensors="pt")
    length = inputs["input_ids"].shape[1] + EXTRA_TOKENS
    (ids,) = loaded.model.generate(**inputs, num_beams=4, max_length=length)
    written = [i for i in ids.tolist()[1:] if i != loaded.tokenizer.pad_token_id]
    best = client.predict(text, "1", "mean", api_name="/translate")[0]
    assert best == loaded.tokenizer.decode(written, skip_special_tokens=True)

    translator = Translator(loaded)
    assert translator.predict(text, best)[0].chosen == written
    with torch.no_grad():
        probabilities = loaded.model(**inputs, decoder_input_ids=ids[None, :-1]).logits[0].softmax(-1)
    for step in (1, len(written)):
        found = client.predict(text, best, step, api_name="/decoding_step")
        expected = probabilities[step - 1].topk(MOST_LIKELY).values
        assert list(found.values()) == pytest.approx(expected.tolist(), abs=1e-5)


def test_scores_are_log_probabilities_divided_by_the_papers_length_penalty(tmp_path):
    """A hypothesis of n tokens has n - 1 words (probability 0.84 each) and the end token (0.16)."""
    folder, word = save_repeating(tmp_path / "model", p_end=0.16)
    scores = {word * (n - 1): ((n - 1) * log(0.84) + log(0.16)) / ((5 + n) / 6) ** 0.6 for n in range(1, 50)}
    expected = sorted(scores.items(), key=lambda item: -item[1])[:3]
    with served(folder) as client:
        best, table, _ = client.predict(TEXT, "2", "mean", "cross", api_name="/translate")
    assert best == expected[0][0]
    for (text, score), row in zip(expected, table, strict=True):
        assert row == [text, pytest.approx(score, abs=6e-4)]


def test_heat_map_escapes_words_and_draws_the_largest_weight_in_full_blue():
    words, weights = [r"$\frac{1$", "<b>", "नमस्ते"], torch.tensor([[0.5, 0.25, 0.0]] * 3)
    drawn = draw(words, words[::-1], weights, ("a", "b & c"))
    assert read_table(drawn)[:2] == (words, words[::-1])
    shades = re.findall(r"background: #\w{6}(\w\w)", drawn)
    assert shades == ["ff", "80", "00"] * 3
    assert "Rows: a. Columns: b &amp; c. No colour means 0, full blue means 0.5." in drawn


def test_translation_that_is_too_long_is_truncated(folder):
    translator = Translator(load(folder))
    longest, long = (translator.target_ids(TEXT, TRANSLATION * times) for times in (LONGEST_TRANSLATION, 100))
    assert longest == long and len(long) == MOST_TOKENS


def test_text_longer_than_the_position_embeddings_gives_an_error(tmp_path):
    def make(**fields):
        return encoder_decoder(position_embedding="learned", max_position_embeddings=30, **fields)

    with served(save(tmp_path / "translator", make, "seq2seq")) as client:
        assert client.predict("one two", "2", "mean", api_name="/translate")[1]
        with pytest.raises(Exception, match="has learned 30 positions, and this text has"):
            client.predict("one two " * 20, "2", "mean", api_name="/translate")


# --- Messages to visitors


@pytest.mark.parametrize(("text", "warned"), [("Οδυσσέας", True), ("one Ιθάκη", True), ("one two Ω", False)])
def test_letters_missing_from_the_vocabulary_give_a_warning(folder, text, warned):
    loaded = load(folder)
    with warnings.catch_warnings(record=True, action="always") as caught:
        warn_of_unknown_letters(loaded, text)
    told = [warning for warning in caught if "never seen most of these letters" in str(warning.message)]
    assert len(told) == warned


@pytest.fixture(scope="module")
def failing(tmp_path_factory) -> Path:
    """Save a language model that fails on any input, because token ids exceed its vocabulary size."""
    folder = tmp_path_factory.mktemp("private") / "failing"
    save(folder, lambda vocab_size, **fields: decoder_only(vocab_size=vocab_size // 2, **fields), "causal")
    return folder


def test_error_messages_reveal_nothing_about_the_server(failing, caplog):
    with served(str(failing)) as client:
        for name in ("/generate", "/next_tokens", "/walk_sentence"):
            arguments = (0, TEXT, "", "decoder", 1, 1) if name == "/walk_sentence" else (TEXT,)
            with pytest.raises(Exception) as caught:  # noqa: PT011 (any exception, the message is checked)
                client.predict(*arguments, api_name=name)
            told = "".join(map(str, (caught.value, caught.value.__cause__, caught.value.__context__)))
            for secret in (str(ROOT), str(failing.parent), sys.prefix, "Traceback", "ValueError", "vocabulary"):
                assert secret not in told
    # the details appear only in the server's log
    assert "Generation failed" in caplog.text and "the vocabulary has" in caplog.text


def test_the_page_reveals_no_paths_and_serves_no_files(folder):
    with served(folder) as client:
        page, config, api = (httpx.get(client.src + path).text for path in ("", "config", "gradio_api/info"))
        for secret in (str(ROOT), str(Path(folder).parent), sys.prefix):
            assert all(secret not in text for text in (page, config, api))
        for path in (f"{folder}/config.json", ROOT / "demo/app.py", "/etc/passwd"):
            assert httpx.get(f"{client.src}gradio_api/file={path}").status_code == 403


def test_uploads_and_calls_that_bypass_the_queue_are_rejected(folder):
    with served(folder) as client:
        upload = httpx.post(f"{client.src}gradio_api/upload", files={"files": ("any.txt", b"abc")})
        assert upload.status_code >= 400
        call = httpx.post(f"{client.src}gradio_api/run/translate", json={"data": ["one", "1", "mean", "cross"]})
        assert call.status_code >= 400


def test_full_queue_rejects_new_calls_and_serves_queued_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "WAITING", 4)
    with served(save(tmp_path / "model", decoder_only, "causal")) as client:
        jobs = [client.submit("one", 30, 0, 0, 1, 0, api_name="/generate") for _ in range(20)]
        errors = [job.exception(timeout=120) for job in jobs]
        assert client.predict("one", None, api_name="/next_tokens")
    refused = [str(error) for error in errors if error is not None]
    assert 0 < len(refused) <= 20 - app.WAITING
    assert set(refused) == {"Queue is full! Please try again."}
