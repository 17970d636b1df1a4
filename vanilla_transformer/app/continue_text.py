"""Continue a text with a language model, token by token."""

import logging
from collections.abc import Iterator
from threading import Event, Thread

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TextIteratorStreamer,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from vanilla_transformer.app.loading import DemoModel
from vanilla_transformer.app.reading import MOST_TOKENS, check_length, check_number, check_text, encode, refusal
from vanilla_transformer.inside.readings import max_length


HOTTEST, MOST_CHOICES, LEAST_TOP_P = 2.0, 100, 0.05
LARGEST_SEED = 2**32 - 1


class GumbelNoise(LogitsProcessor):
    """A logits processor that adds Gumbel noise, so that the argmax is a sample from the softmax of the scores.

    It has its own random generator, because sampling in `generate` would use the global one that visitors share.

    Args:
        seed: seed of the generator; None for different samples each time.
    """

    def __init__(self, seed: int | None):
        self.generator = torch.Generator()
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        noise = torch.empty(scores.shape, dtype=torch.float64).exponential_(generator=self.generator).log().neg()
        return scores + noise.to(scores)


def sampling(temperature: float, top_k: int, top_p: float, seed: int | None) -> LogitsProcessorList:
    """Return logits processors that turn greedy decoding into sampling; an empty list for temperature 0."""
    processors = LogitsProcessorList()
    if temperature > 0:
        processors.append(TemperatureLogitsWarper(float(temperature)))
        if top_k > 0:
            processors.append(TopKLogitsWarper(top_k))
        if top_p < 1:
            processors.append(TopPLogitsWarper(top_p))
        processors.append(GumbelNoise(seed))
    return processors


def continue_text(
    loaded: DemoModel, text: str, new_tokens: int, temperature: float, top_k: int, top_p: float, seed: int | None
) -> Iterator[str]:
    """Yield the text as it grows. With temperature 0, decoding is greedy.

    Raises:
        gr.Error: an argument is invalid, the prompt already fills all position embeddings, or the model failed.
    """
    text = check_text(text, "to continue", keep_space=True)
    check_number("The number of new tokens", new_tokens, 1, min(MOST_TOKENS, max_length(loaded.model)))
    check_number("The temperature", temperature, 0, HOTTEST)
    check_number("Top k", top_k, 0, MOST_CHOICES)
    check_number("Top p", top_p, LEAST_TOP_P, 1)
    if seed is not None:
        check_number("The seed", seed, 0, LARGEST_SEED)
    batch = encode(loaded, text)
    length = batch["input_ids"].shape[1]
    check_length(loaded, length + 1, "this text with one more token")
    streamer = TextIteratorStreamer(loaded.tokenizer, skip_prompt=True, skip_special_tokens=True)
    stopped, failed = Event(), Event()
    options = {
        "max_new_tokens": min(new_tokens, max_length(loaded.model) - length),
        "max_length": None,
        "do_sample": False,
        "num_beams": 1,
        "logits_processor": sampling(temperature, top_k, top_p, seed),
        "stopping_criteria": StoppingCriteriaList(
            [lambda ids, scores, **_: torch.full((len(ids),), stopped.is_set())]
        ),
        "streamer": streamer,
    }

    def generate() -> None:
        try:
            loaded.model.generate(**batch, **options)
        except Exception:
            logging.exception("Generation failed.")
            failed.set()
            streamer.end()  # sentinel that ends the loop below

    thread = Thread(target=generate, name="generation", daemon=True)
    thread.start()
    try:
        for piece in streamer:
            text += piece
            yield text
        if failed.is_set():
            raise refusal("The model failed on this text. Please try another one.")
    finally:
        stopped.set()  # the visitor has left the page or pressed Stop
        thread.join()
