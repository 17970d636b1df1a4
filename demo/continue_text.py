"""Generate: a language model goes on from a text, word by word, and shows what it could have said instead."""

from collections.abc import Iterator
from threading import Event, Thread

import gradio as gr
import torch
from transformers import StoppingCriteriaList, TextIteratorStreamer, set_seed

from loading import LONGEST_INPUT, Loaded, check_text


MOST_TOKENS = 200
PATIENCE = 30  # seconds until a token that does not come is given up


def stream(
    loaded: Loaded, text: str, new_tokens: int, temperature: float, top_k: int, top_p: float, seed: int
) -> Iterator[str]:
    """The text, growing. A temperature of 0 always takes the most probable token."""
    batch = loaded.tokenizer([text], return_tensors="pt")
    streamer = TextIteratorStreamer(loaded.tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=PATIENCE)
    stopped = Event()
    sampling = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": int(top_k), "top_p": top_p}
    options = {"max_new_tokens": int(new_tokens), "max_length": None, "streamer": streamer, **sampling}
    criteria = StoppingCriteriaList([lambda ids, scores, **_: torch.full((len(ids),), stopped.is_set())])

    def generate() -> None:
        set_seed(int(seed))
        loaded.model.generate(**batch, **options, stopping_criteria=criteria)

    Thread(target=generate, daemon=True).start()
    try:
        for piece in streamer:
            text += piece
            yield text
    finally:
        stopped.set()  # the reader has gone, or has pressed the button


@torch.inference_mode()
def next_tokens(loaded: Loaded, text: str, count: int = 10) -> dict[str, float]:
    """The most probable next tokens after the text, with their probabilities."""
    logits = loaded.model(**loaded.tokenizer([text], return_tensors="pt")).logits[0, -1]
    probabilities, ids = logits.softmax(-1).topk(min(count, len(logits)))
    names = zip(map(loaded.tokenizer.decode, ids[:, None]), loaded.tokenizer.convert_ids_to_tokens(ids), strict=True)
    # A part of a character has no text of its own.
    shown = [token if "\ufffd" in text else repr(text) for text, token in names]
    return dict(zip(shown, probabilities.tolist(), strict=True))


def generate_tab(loaded: Loaded) -> None:
    """The components and events of the tab."""
    most = min(MOST_TOKENS, loaded.model.config.max_position_embeddings)

    def respond(text: str, new_tokens: int, temperature: float, top_k: int, top_p: float, seed: int) -> Iterator[str]:
        text = check_text(text, "to go on from")
        yield from stream(loaded, text, min(new_tokens, most), temperature, top_k, top_p, seed)

    def alternatives(text: str, shown: int | None = None) -> dict[str, float]:
        return next_tokens(loaded, check_text(text, "to go on from")[:shown])

    def tokens_of(text: str) -> list[tuple[str, None]]:
        ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [(loaded.tokenizer.decode([i]), None) for i in ids]

    def before(spans: list, event: gr.SelectData) -> dict[str, float]:
        """What the model could have said at the token that was clicked."""
        text = "".join(span["token"] if isinstance(span, dict) else span[0] for span in spans[: event.index])
        return next_tokens(loaded, text)

    gr.Markdown(f"A language model goes on from your text: `{loaded.name}`.")
    text = gr.Textbox(label="Text", placeholder="The", max_length=LONGEST_INPUT)
    with gr.Row():
        new_tokens = gr.Slider(1, most, value=min(80, most), step=1, label="New tokens, at most")
        temperature = gr.Slider(0, 2, value=0.8, step=0.05, label="Temperature (0: no chance)")
        top_k = gr.Slider(0, 100, value=0, step=1, label="Top k (0: all)")
        top_p = gr.Slider(0.05, 1, value=1, step=0.05, label="Top p")
        seed = gr.Number(0, precision=0, label="Seed")
    with gr.Row():
        button = gr.Button("Generate", variant="primary")
        stop = gr.Button("Stop")
    result = gr.Textbox(label="Continued", lines=6, buttons=["copy"])
    gr.Markdown("**Click a token** to see what the model could have said in its place.")
    spans = gr.HighlightedText(label="Tokens", show_legend=False, interactive=False)
    probable = gr.Label(label="Most probable tokens", num_top_classes=10)
    inputs = [text, new_tokens, temperature, top_k, top_p, seed]
    running = gr.on([button.click, text.submit], respond, inputs, result, api_name="generate")
    running.then(tokens_of, result, spans, api_visibility="private")
    stop.click(None, cancels=running).then(tokens_of, result, spans, api_visibility="private")
    spans.select(before, spans, probable, api_visibility="private")
    gr.api(alternatives, api_name="next_tokens")
