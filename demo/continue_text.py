"""Generate: a language model goes on from a text, word by word, and shows what it could have said instead."""

import logging
from collections.abc import Iterator
from threading import Event, Thread

import gradio as gr
import torch
from torch import Tensor
from transformers import StoppingCriteriaList, TextIteratorStreamer, set_seed

from loading import LONGEST_INPUT, Loaded, check_text, token_name, warn_of_unknown_letters
from reading import check_length, cut, most_tokens


MOST_TOKENS = 200
LARGEST_SEED = 2**32 - 1
EXAMPLES = ["The parcel from", "The flight to Peru leaves on", "Sales rose by"]


def stream(
    loaded: Loaded, text: str, new_tokens: int, temperature: float, top_k: int, top_p: float, seed: int
) -> Iterator[str]:
    """The text, growing. A temperature of 0 always takes the most probable token.

    Raises:
        gr.Error: the model has no position left for a token, or it failed.
    """
    batch = loaded.tokenizer([text], return_tensors="pt")
    length = batch["input_ids"].shape[1]
    check_length(loaded, length + 1, "this text with one more token")
    new_tokens = min(new_tokens, most_tokens(loaded) - length)
    streamer = TextIteratorStreamer(loaded.tokenizer, skip_prompt=True, skip_special_tokens=True)
    stopped, failed = Event(), Event()
    sampling = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    options = {"max_new_tokens": new_tokens, "max_length": None, "streamer": streamer, **sampling}
    criteria = StoppingCriteriaList([lambda ids, scores, **_: torch.full((len(ids),), stopped.is_set())])

    def generate() -> None:
        try:
            set_seed(seed)
            loaded.model.generate(**batch, **options, stopping_criteria=criteria)
        except Exception:
            logging.exception("Generation failed.")
            failed.set()
            streamer.end()  # nobody has to wait for a token that does not come

    thread = Thread(target=generate, name="generation", daemon=True)
    thread.start()
    try:
        for piece in streamer:
            text += piece
            yield text
        if failed.is_set():
            raise gr.Error("The model failed while it went on from this text. Please try another one.")
    finally:
        stopped.set()  # the reader has gone, or has pressed the button
        thread.join()


@torch.inference_mode()
def next_tokens(loaded: Loaded, ids: Tensor, count: int = 10) -> dict[str, float]:
    """The most probable next tokens after `ids` (length,), with their probabilities."""
    probabilities, best = loaded.model(ids[None]).logits[0, -1].softmax(-1).topk(count)
    return dict(zip([token_name(loaded, i) for i in best.tolist()], probabilities.tolist(), strict=True))


def generate_tab(loaded: Loaded) -> None:
    """The components and events of the tab."""
    most = min(MOST_TOKENS, loaded.model.config.max_position_embeddings)

    def tokens_of(text: str) -> Tensor:
        ids = loaded.tokenizer(text, return_tensors="pt")["input_ids"][0]
        check_length(loaded, len(ids))
        return ids

    def respond(text: str, new_tokens: int, temperature: float, top_k: int, top_p: float, seed: int) -> Iterator[str]:
        text = check_text(text, "to go on from")
        warn_of_unknown_letters(loaded, text)
        yield from stream(loaded, text, new_tokens, temperature, top_k, top_p, seed)

    def alternatives(text: str, shown: int | None = None) -> dict[str, float]:
        """The most probable next tokens after the first characters of a text, by default after all of it."""
        return next_tokens(loaded, tokens_of(check_text(text, "to go on from")[:shown]))

    def pieces_of(text: str) -> list[tuple[str, None]]:
        return [(piece, None) for piece, _ in cut(loaded, text)]

    def before(text: str, event: gr.SelectData) -> dict[str, float]:
        """What the model could have said in the place of the piece that was clicked."""
        first = cut(loaded, text)[event.index][1][0]
        if first == 0:
            raise gr.Error("Nothing stands before the first token. Please click a later one.")
        return next_tokens(loaded, tokens_of(text)[:first])

    gr.Markdown(f"A language model goes on from your text: `{loaded.name}`. It writes what its training was like.")
    text = gr.Textbox(label="Text", placeholder=EXAMPLES[0], max_length=LONGEST_INPUT)
    gr.Examples(EXAMPLES, text)
    with gr.Row():
        new_tokens = gr.Slider(1, most, value=min(80, most), step=1, precision=0, label="New tokens, at most")
        temperature = gr.Slider(0, 2, value=0.8, step=0.05, label="Temperature (0: no chance)")
        top_k = gr.Slider(0, 100, value=0, step=1, precision=0, label="Top k (0: all)")
        top_p = gr.Slider(0.05, 1, value=1, step=0.05, label="Top p")
        seed = gr.Number(0, precision=0, minimum=0, maximum=LARGEST_SEED, label="Seed")
    with gr.Row():
        button = gr.Button("Generate", variant="primary")
        stop = gr.Button("Stop")
    result = gr.Textbox(label="Continued", lines=6, placeholder="The text will grow here.", buttons=["copy"])
    gr.Markdown("**Click a token** to see what the model could have said in its place.")
    pieces = gr.HighlightedText(label="Tokens", interactive=False, elem_classes="tokens")
    probable = gr.Label(label="Most probable tokens", num_top_classes=10)
    inputs = [text, new_tokens, temperature, top_k, top_p, seed]
    running = gr.on([button.click, text.submit], respond, inputs, result, api_name="generate")
    running.then(pieces_of, result, pieces, api_visibility="private")
    stop.click(None, cancels=running).then(pieces_of, result, pieces, api_visibility="private")
    pieces.select(before, result, probable, api_visibility="private")
    gr.api(alternatives, api_name="next_tokens")
