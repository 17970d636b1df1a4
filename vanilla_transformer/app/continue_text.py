"""Build the tab "Generate": a language model continues a prompt and shows alternatives to each token."""

import logging
from collections.abc import Iterator
from threading import Event, Thread

import gradio as gr
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

from vanilla_transformer.app.loading import Loaded
from vanilla_transformer.app.reading import (
    MOST_TOKENS,
    check_length,
    check_number,
    check_text,
    encode,
    is_integer,
    refusal,
    refusing,
    token_name,
    warn_of_unknown_letters,
)
from vanilla_transformer.inside.readings import encode_text, max_length, split_text, tokenizer_options


HOTTEST, MOST_CHOICES, LEAST_TOP_P = 2.0, 100, 0.05
LARGEST_SEED = 2**32 - 1
SHOWN = 10  # number of most probable tokens to show


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


def stream(
    loaded: Loaded, text: str, new_tokens: int, temperature: float, top_k: int, top_p: float, seed: int | None
) -> Iterator[str]:
    """Yield the text as it grows. With temperature 0, decoding is greedy.

    Raises:
        gr.Error: the prompt already fills all position embeddings, or the model failed.
    """
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


class Writer:
    """A language model behind the tab and the API."""

    def __init__(self, loaded: Loaded):
        self.loaded = loaded
        self.most = min(MOST_TOKENS, max_length(loaded.model))

    def generate(
        self, text: str, new_tokens: int, temperature: float, top_k: int, top_p: float, seed: int | None
    ) -> Iterator[str]:
        text = check_text(text, "to continue", keep_space=True)
        check_number("The number of new tokens", new_tokens, 1, self.most)
        check_number("The temperature", temperature, 0, HOTTEST)
        check_number("Top k", top_k, 0, MOST_CHOICES)
        check_number("Top p", top_p, LEAST_TOP_P, 1)
        if seed is not None:
            check_number("The seed", seed, 0, LARGEST_SEED)
        warn_of_unknown_letters(self.loaded, text)
        yield from stream(self.loaded, text, new_tokens, temperature, top_k, top_p, seed)

    def ids(self, text: str) -> Tensor:
        with refusing():
            return encode_text(self.loaded.model, self.loaded.tokenizer, text)["input_ids"][0]

    @torch.inference_mode()
    def probabilities(self, ids: Tensor) -> Tensor:
        """Return the probability of each token (vocab_size,) after `ids` (length,)."""
        return self.loaded.model(ids[None]).logits[0, -1].softmax(-1)

    def most_probable(self, ids: Tensor) -> dict[str, float]:
        probabilities, best = self.probabilities(ids).topk(SHOWN)
        return dict(zip([token_name(self.loaded, i) for i in best.tolist()], probabilities.tolist(), strict=True))

    def next_tokens(self, text: str, shown: int | None = None) -> dict[str, float]:
        """Return the most probable tokens after `shown` characters of a text, by default after the whole text."""
        if shown is not None and not (is_integer(shown) and shown >= 0):
            raise refusal(f"The number of characters must be an integer from 0, not {shown!r:.50}.")
        return self.most_probable(self.ids(check_text(text, "to continue", keep_space=True)[:shown]))

    def cut(self, text: str) -> list[tuple[str, list[int]]]:
        return split_text(self.loaded.tokenizer, text, **tokenizer_options(self.loaded.model))

    def pieces(self, text: str, chosen: int | None = None) -> list[tuple[str, str | None]]:
        """Split the text into tokens, and mark the one at index `chosen`, if given."""
        return [(piece, "chosen" if i == chosen else None) for i, (piece, _) in enumerate(self.cut(text))]

    def before(self, text: str, event: gr.SelectData) -> tuple[list[tuple[str, str | None]], str, dict[str, float]]:
        """Return the most probable tokens at the clicked position, and the clicked token's probability and rank."""
        _, (first, *_) = self.cut(text)[event.index]
        if first == 0:
            raise refusal(
                "The first token has no alternatives, because nothing is before it. Please click a later one."
            )
        ids = self.ids(text)
        probabilities = self.probabilities(ids[:first])
        own = probabilities[ids[first]]
        rank = int((probabilities > own).sum()) + 1
        told = f"Token {first + 1}, {token_name(self.loaded, int(ids[first]))}: {own:.3g}, number {rank:,} of all"
        return self.pieces(text, event.index), told, self.most_probable(ids[:first])


def generate_tab(loaded: Loaded) -> None:
    """Add the components and events of the tab."""
    writer = Writer(loaded)
    gr.Markdown(f"The language model `{loaded.name}` continues your text, in the style of its training data.")
    offered = [example["text"] for example in loaded.examples]
    text = gr.Textbox(offered[0], label="Text")
    examples = gr.Examples(offered, text)
    with gr.Row():
        new_tokens = gr.Slider(
            1, writer.most, value=min(80, writer.most), step=1, precision=0, label="Maximum number of new tokens"
        )
        temperature = gr.Slider(0, HOTTEST, value=0.8, step=0.05, label="Temperature (0: likeliest)")
        top_k = gr.Slider(0, MOST_CHOICES, value=0, step=1, precision=0, label="Top k (0: all)")
        top_p = gr.Slider(LEAST_TOP_P, 1, value=1, step=0.05, label="Top p")
        seed = gr.Number(
            0, precision=0, minimum=0, maximum=LARGEST_SEED, label="Seed (empty: a different text each time)"
        )
    with gr.Row():
        button = gr.Button("Generate", variant="primary")
        stop = gr.Button("Stop")
    result = gr.Textbox(label="Continued", lines=4, placeholder="The text will grow here.")
    with gr.Row():
        with gr.Column():
            gr.Markdown("**Click a token** to see the alternatives at its position.")
            pieces = gr.HighlightedText(
                label="Tokens",
                interactive=False,
                show_legend=False,
                color_map={"chosen": "blue"},
                elem_classes="tokens",
            )
        with gr.Column():
            told = gr.Textbox(label="The clicked token, its probability and rank", placeholder="Click a token first.")
            probable = gr.Label(label="Most probable tokens there", num_top_classes=SHOWN)
    options = [new_tokens, temperature, top_k, top_p, seed]
    inputs = [text, *options]
    asked = gr.on([button.click, text.submit], writer.generate, inputs, result, api_name="generate")
    private = {"api_name": "generate_example", "api_visibility": "private"}
    running = [asked, examples.load_input_event.success(writer.generate, inputs, result, **private)]
    for ended in (*running, stop.click(None, cancels=running)):
        ended.then(writer.pieces, result, pieces, api_visibility="private")
    pieces.select(writer.before, result, [pieces, told, probable], api_visibility="private")
    gr.api(writer.next_tokens, api_name="next_tokens")
