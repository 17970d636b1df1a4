"""The demo answers over its API as the model does, and says in plain words what is wrong with an input."""

from pathlib import Path

import pytest
from gradio_client import Client
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from app import LONGEST_INPUT, build
from decoding import paper_decoding, translate
from family import encoder_decoder
from tokenizer_training import train_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "model"
    tokenizer = train_tokenizer(["one two three", "uno dos tres"] * 3, vocab_size=300)
    model = encoder_decoder(vocab_size=len(tokenizer))
    model.generation_config.update(**paper_decoding())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def client(folder):
    """A client of the demo on a real HTTP server."""
    app = build(str(folder))
    _, url, _ = app.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
    yield Client(url, verbose=False)
    app.close()


def test_a_text_is_translated_as_by_the_model(client, folder):
    translation, alternatives, picture = client.predict("one two", "2", "mean", api_name="/translate")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    assert translation == translate(["one two"], model, AutoTokenizer.from_pretrained(folder))[0]
    assert len(alternatives["data"]) == 3 and alternatives["data"][0][0] == translation
    assert picture["type"] == "matplotlib"


@pytest.mark.parametrize(
    ("text", "message"),
    [("  ", "Please type something"), ("a" * (LONGEST_INPUT + 1), f"keep to {LONGEST_INPUT} characters")],
)
def test_bad_input_is_answered_in_plain_words(client, text, message):
    with pytest.raises(Exception, match=message):
        client.predict(text, "1", "1", api_name="/translate")
