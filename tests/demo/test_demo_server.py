"""Test the translation endpoint, and that the demo's server leaks nothing private and limits its queue."""

import sys
from math import log
from pathlib import Path

import httpx
import pytest

from demo_server import served
from family import decoder_only, encoder_decoder
from fresh_process import ROOT
from saved_models import TEXT, save, save_repeating
from vanilla_transformer.app import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return save(tmp_path_factory.mktemp("translate") / "translator", encoder_decoder, "seq2seq")


def test_leading_and_trailing_spaces_of_a_source_text_are_ignored(folder):
    with served(folder) as client:
        exact, slip = (client.predict(text, api_name="/translate") for text in (TEXT, f"  {TEXT}\n"))
    assert slip == exact


def test_scores_are_log_probabilities_divided_by_the_papers_length_penalty(tmp_path):
    """A hypothesis of n tokens has n - 1 words (probability 0.84 each) and the end token (0.16)."""
    folder, word = save_repeating(tmp_path / "model", p_end=0.16)
    scores = {word * (n - 1): ((n - 1) * log(0.84) + log(0.16)) / ((5 + n) / 6) ** 0.6 for n in range(1, 50)}
    expected = sorted(scores.items(), key=lambda item: -item[1])[:4]
    with served(folder) as client:
        found = client.predict(TEXT, api_name="/translate")
    assert found["translation"] == expected[0][0]
    assert [(each["text"], each["score"]) for each in found["hypotheses"]] == [
        (text, pytest.approx(score, abs=6e-4)) for text, score in expected
    ]


def test_text_longer_than_the_position_embeddings_gives_an_error(tmp_path):
    def make(**fields):
        return encoder_decoder(position_embedding="learned", max_position_embeddings=30, **fields)

    with served(save(tmp_path / "translator", make, "seq2seq")) as client:
        assert client.predict("one two", api_name="/translate")["hypotheses"]
        with pytest.raises(Exception, match="has learned 30 positions, and this text has"):
            client.predict("one two " * 20, api_name="/translate")


@pytest.fixture(scope="module")
def failing(tmp_path_factory) -> Path:
    """Save a language model that fails on any input, because token ids exceed its vocabulary size."""
    folder = tmp_path_factory.mktemp("private") / "failing"
    save(folder, lambda vocab_size, **fields: decoder_only(vocab_size=vocab_size // 2, **fields), "causal")
    return folder


def test_error_messages_reveal_nothing_about_the_server(failing, caplog):
    with served(str(failing)) as client:
        for name in ("/generate", "/next_tokens"):
            with pytest.raises(Exception) as caught:  # noqa: PT011 (any exception, the message is checked)
                client.predict(TEXT, api_name=name)
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
        name = Path(folder).name
        assert httpx.get(f"{client.src}models/{name}/config.json").json()["model_type"] == "vanilla_transformer"
        for path in (f"{name}/README.md", f"{name}/..%2f..%2fconfig.json", "other/config.json", "..%2f/config.json"):
            assert httpx.get(f"{client.src}models/{path}").status_code == 404
        for path in (f"{folder}/config.json", ROOT / "demo/app.py", "/etc/passwd"):
            assert httpx.get(f"{client.src}gradio_api/file={path}").status_code == 403


def test_uploads_and_calls_that_bypass_the_queue_are_rejected(folder):
    with served(folder) as client:
        upload = httpx.post(f"{client.src}gradio_api/upload", files={"files": ("any.txt", b"abc")})
        assert upload.status_code >= 400
        call = httpx.post(f"{client.src}gradio_api/run/translate", json={"data": ["one", None]})
        assert call.status_code >= 400


def test_full_queue_rejects_new_calls_and_serves_queued_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "WAITING", 4)
    with served(save(tmp_path / "model", decoder_only, "causal")) as client:
        jobs = [client.submit("one", 30, 0, 0, 1, 0, api_name="/generate") for _ in range(20)]
        errors = [job.exception(timeout=120) for job in jobs]
        assert client.predict("one", api_name="/next_tokens")
    refused = [str(error) for error in errors if error is not None]
    assert 0 < len(refused) <= 20 - app.WAITING
    assert set(refused) == {"Queue is full! Please try again."}
