"""Translate: the beam search's hypotheses, what each token attended to, and what each step could have written."""

from typing import NamedTuple

import gradio as gr
import torch
from matplotlib.figure import Figure
from torch import Tensor

from drawing import SEQUENTIAL, blank, name_cells
from loading import LONGEST_INPUT, Loaded, check_text, token_name, warn_of_unknown_letters
from reading import check_length, most_tokens
from vanilla_transformer.decoding import EXTRA_TOKENS


ALTERNATIVES = 3
MOST_TOKENS = 200  # of a translation
LONGEST_TRANSLATION = 2000  # characters
UNSURE = -1  # score: the quickstart's model is above -0.5 on its kind of phrases, and mostly below -1 on French ones
MOST_LIKELY = 5
DRAWN = 40  # tokens on each axis of a picture, at most
# Kind of attention -> what the rows and the columns of its picture are.
AXES = {
    "cross": ("being written", "read in the text"),
    "encoder self": ("looking", "looked at"),
    "decoder self": ("being written", "already written"),
}
EXAMPLES = ["Wednesday, July 4, 2029", "12 kilometers or 3 miles", "1,250.00 US dollars", "Kenya, Peru, and Japan"]


class Forward(NamedTuple):
    """What a model computes when it reads a text and writes a given translation."""

    source: list[int]  # the tokens of the text
    target: list[int]  # and of the translation, of which the last ends it
    attentions: dict[str, Tensor]  # kind -> (layers, heads, queries, keys)
    probabilities: Tensor  # of each token of the vocabulary at each step: (target, vocabulary)


@torch.inference_mode()
def translate(loaded: Loaded, text: str) -> list[tuple[str, float]]:
    """The best hypotheses of a beam search, each with its log-probability after the length penalty."""
    batch = loaded.tokenizer([text], return_tensors="pt")
    length = batch["input_ids"].shape[1]
    check_length(loaded, length)
    output = loaded.model.generate(
        **batch,
        num_beams=4,
        num_return_sequences=ALTERNATIVES,
        max_length=min(length + EXTRA_TOKENS, MOST_TOKENS, most_tokens(loaded)),
        return_dict_in_generate=True,
        output_scores=True,
    )
    texts = loaded.tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
    return list(zip(texts, output.sequences_scores.tolist(), strict=True))


def target_ids(loaded: Loaded, target: str) -> list[int]:
    """The tokens of a translation; of one that is too long, the first."""
    return loaded.tokenizer(target[:LONGEST_TRANSLATION])["input_ids"][: min(MOST_TOKENS, most_tokens(loaded))]


@torch.inference_mode()
def forward(loaded: Loaded, source: str, target: str) -> Forward:
    """One pass, in which every step of the decoder reads what the translation has before it.

    Raises:
        gr.Error: the text is empty or too long.
    """
    batch = loaded.tokenizer([check_text(source, "to translate")], return_tensors="pt")
    check_length(loaded, batch["input_ids"].shape[1])
    labels = target_ids(loaded, target)
    output = loaded.model(**batch, labels=torch.tensor([labels]), output_attentions=True)
    attentions = {
        "cross": torch.cat(output.cross_attentions),
        "encoder self": torch.cat(output.encoder_attentions),
        "decoder self": torch.cat(output.decoder_attentions),
    }
    return Forward(batch["input_ids"][0].tolist(), labels, attentions, output.logits[0].softmax(-1))


def draw(rows: list[str], columns: list[str], weights: Tensor, names: tuple[str, str]) -> Figure:
    """Heat map of one attention matrix (rows, columns)."""
    y, x = (
        f"{name}: the first {DRAWN} of {len(tokens)} tokens" if len(tokens) > DRAWN else name
        for name, tokens in zip(names, (rows, columns), strict=True)
    )
    rows, columns = rows[:DRAWN], columns[:DRAWN]
    figure, axes = blank(1.4 + 0.32 * len(columns), 1.3 + 0.32 * len(rows))
    axes.imshow(weights[: len(rows), : len(columns)].numpy(), cmap=SEQUENTIAL, vmin=0, vmax=1)
    axes.set(xlabel=x, ylabel=y)
    name_cells(axes, rows, columns)
    return figure


def attention_picture(loaded: Loaded, source: str, target: str, kind: str, layer: str, head: str) -> Figure:
    """One attention of one layer, in one head or in the mean over the heads."""
    seen = forward(loaded, source, target)
    layers = seen.attentions[kind]
    if int(layer) > len(layers):
        raise gr.Error(f"There are only {len(layers)} layers with {kind}-attention.")
    weights = layers[int(layer) - 1]
    read, written = ([loaded.tokenizer.decode([i]).strip() or "␣" for i in ids] for ids in (seen.source, seen.target))
    tokens = {
        "cross": (written, read),
        "encoder self": (read, read),
        "decoder self": (written, ["(start)", *written[:-1]]),
    }[kind]
    return draw(*tokens, weights.mean(dim=0) if head == "mean" else weights[int(head) - 1], AXES[kind])


def decoding_step(loaded: Loaded, source: str, target: str, step: int) -> tuple[list[tuple], dict[str, float]]:
    """What is written before a step, counted from 1, and at it; the most likely tokens with their probabilities."""
    seen = forward(loaded, source, target)
    if not 1 <= step <= len(seen.target):
        raise gr.Error(f"This translation has the steps 1 to {len(seen.target)}.")
    before, following = (
        loaded.tokenizer.decode(ids) for ids in (seen.target[: step - 1], seen.target[step - 1 : step])
    )
    probabilities, ids = seen.probabilities[step - 1].topk(MOST_LIKELY)
    names = [token_name(loaded, i) for i in ids.tolist()]
    return [(before, None), (following, "next")], dict(zip(names, probabilities.tolist(), strict=True))


def translate_tab(loaded: Loaded) -> None:
    """The components and events of the tab. It starts with an example translated, so nothing in it is empty."""
    config = loaded.model.config
    layers = [str(i + 1) for i in range(max(config.encoder_layers, config.decoder_layers))]
    heads = ["mean", *(str(i + 1) for i in range(config.num_heads))]

    def respond(text: str, layer: str, head: str, kind: str) -> tuple[str, list[list], Figure]:
        text = check_text(text, "to translate")
        unknown = warn_of_unknown_letters(loaded, text)
        hypotheses = translate(loaded, text)
        best, best_score = hypotheses[0]
        if best_score < UNSURE and not unknown:
            gr.Warning("The model is not sure of this. Is the text in its language, and of a kind that it knows?")
        rows = [[hypothesis, round(score, 3)] for hypothesis, score in hypotheses]
        return best, rows, attention_picture(loaded, text, best, kind, layer, head)

    def attend(text: str, translation: str, kind: str, layer: str, head: str) -> Figure:
        return attention_picture(loaded, text, translation, kind, layer, head)

    def step_to(source: str, target: str, step: int) -> tuple[list[tuple], dict[str, float]]:
        return decoding_step(loaded, source, target, step)

    def first_step(source: str, target: str) -> tuple[dict, list[tuple], dict[str, float]]:
        return gr.update(maximum=len(target_ids(loaded, target)), value=1), *step_to(source, target, 1)

    def most_likely(text: str, translation: str, step: int) -> dict[str, float]:
        return step_to(text, translation, step)[1]

    def pick(event: gr.SelectData) -> str:
        return event.row_value[0]

    example = EXAMPLES[0]
    best, rows, drawn = respond(example, str(config.decoder_layers), "mean", "cross")
    begun, first = step_to(example, best, 1)

    gr.Markdown(
        f"A translator, `{loaded.name}`. It knows what its training had: for the quickstart's model dates, amounts, "
        "countries and the like."
    )
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(example, label="Text", max_length=LONGEST_INPUT)
            gr.Examples(EXAMPLES, text)
            button = gr.Button("Translate", variant="primary")
            source = gr.Textbox(example, visible=False)  # stays while the next text is typed
            translation = gr.Textbox(
                best,
                label="Translation",
                info="Write your own and press Enter to see what the model makes of it.",
                interactive=True,
                max_length=LONGEST_TRANSLATION,
                buttons=["copy"],
            )
            gr.Markdown(
                "**Beam search** keeps the four most probable beginnings and goes on from each. The score is the "
                "logarithm of the probability, divided by a penalty for length: the nearer to 0, the better. "
                "Click a hypothesis to look into it."
            )
            alternatives = gr.Dataframe(
                rows,
                headers=["hypothesis", "score"],
                column_widths=["72%", "28%"],
                show_label=False,
                interactive=False,
                wrap=True,
                buttons=[],
            )
        with gr.Column():
            gr.Markdown(
                "### What it looked at\nEach row shows where one token looked: the bluer, the more. **Cross**: from "
                "the translation into the text. **Encoder self**: from the text into itself. **Decoder self**: from "
                "the translation back to what is already written; it cannot see what comes."
            )
            kind = gr.Radio(list(AXES), value="cross", label="Attention")
            with gr.Row():
                layer = gr.Dropdown(layers, value=str(config.decoder_layers), label="Layer", min_width=100)
                head = gr.Dropdown(heads, value="mean", label="Head", min_width=100)
            picture = gr.Plot(drawn, show_label=False, elem_classes="heat-map")
    gr.Markdown(
        "### Step by step\nThe decoder writes one token at a time. At each step it gives every token of its "
        f"vocabulary a probability; these are the {MOST_LIKELY} most likely."
    )
    with gr.Row():
        with gr.Column():
            step = gr.Slider(1, len(target_ids(loaded, best)), value=1, step=1, precision=0, label="Step")
            written = gr.HighlightedText(
                begun, label="Written, and what comes next", show_legend=False, color_map={"next": "blue"}
            )
        probable = gr.Label(first, label="Most likely next tokens", num_top_classes=MOST_LIKELY)

    pair, looks, steps = [source, translation], [kind, layer, head], [step, written, probable]
    kept = gr.on([button.click, text.submit], lambda text: text, text, source, api_visibility="private")
    translated = kept.success(
        respond, [source, layer, head, kind], [translation, alternatives, picture], api_name="translate"
    )
    translated.success(first_step, pair, steps, api_visibility="private")
    for changed in (alternatives.select(pick, None, translation, api_visibility="private"), translation.submit()):
        changed.success(attend, [*pair, *looks], picture, api_visibility="private").success(
            first_step, pair, steps, api_visibility="private"
        )
    gr.on([look.change for look in looks], attend, [*pair, *looks], picture, api_name="attention")
    step.change(step_to, [*pair, step], [written, probable], api_visibility="private", show_progress="hidden")
    gr.api(most_likely, api_name="decoding_step")
