"""Check that generated text depends only on the seed and the model, not on other visitors."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import gradio as gr
import pytest
import torch

from demo_server import served
from family import decoder_only
from saved_models import save
from vanilla_transformer.app.continue_text import continue_text, sampling
from vanilla_transformer.app.loading import DemoModel


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampling")
    with served(*(save(folder / name, decoder_only, "causal") for name in ("one", "two"))) as client:
        yield client


def generate(client, seed: int | None, model: int = 0) -> str:
    return client.predict("one two", 20, 1.0, 0, 1, seed, model, api_name="/generate")["text"]


def test_seeded_text_is_reproducible_while_other_users_generate(client):
    alone = [generate(client, seed) for seed in range(4)]
    assert len(set(alone)) == 4
    done = Event()

    def disturb(_: int) -> None:
        while not done.is_set():
            torch.manual_seed(0)
            torch.rand(3)
            generate(client, 7, model=1)

    with ThreadPoolExecutor(3) as others:
        running = others.map(disturb, range(3))
        found = [generate(client, seed) for seed in range(4)]
        done.set()
    assert found == alone and list(running) == [None] * 3


def test_generated_texts_differ_without_a_seed(client):
    assert generate(client, None) != generate(client, None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((1.0, 0, 1.0), [0.5, 0.3, 0.15, 0.05]),
        ((0.5, 0, 1.0), [0.6849, 0.2466, 0.0616, 0.0068]),  # normalised squares of the probabilities
        ((1.0, 2, 1.0), [0.625, 0.375, 0, 0]),
        ((1.0, 0, 0.7), [0.625, 0.375, 0, 0]),
    ],
)
def test_sample_frequencies_match_the_models_distribution(options, expected):
    draws = 40_000
    scores = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(draws, 4)
    chosen = sampling(*options, seed=0)(torch.zeros(draws, 1, dtype=torch.long), scores.clone()).argmax(-1)
    frequencies = torch.bincount(chosen, minlength=4) / draws
    # tolerance: about five standard deviations
    torch.testing.assert_close(frequencies, torch.tensor(expected), rtol=0, atol=0.012)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": float("nan")}, "The temperature must be a number from 0 to 2.0, not nan"),
        ({"top_p": float("nan")}, "Top p must be a number from 0.05 to 1, not nan"),
        ({"top_k": None}, "Top k must be a number from 0 to 100, not None"),
    ],
)
def test_invalid_sampling_options_give_a_clear_error(options, message, tmp_path):
    model = DemoModel(save(tmp_path / "model", decoder_only, "causal"))
    usual = {"text": "one", "new_tokens": 5, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0}
    with pytest.raises(gr.Error, match=message):
        next(continue_text(model, **(usual | options)))
