"""Translate: the beam search's hypotheses, and what each target token attended to."""

import gradio as gr
import matplotlib
import torch
from matplotlib.figure import Figure

from loading import LONGEST_INPUT, Loaded, check_text


matplotlib.use("Agg")

ALTERNATIVES = 3
EXAMPLES = ["Wednesday, July 4, 2029", "12 kilometers or 3 miles", "1,250.00 US dollars", "Kenya, Peru, and Japan"]


@torch.inference_mode()
def translate(loaded: Loaded, text: str) -> list[tuple[str, float]]:
    """The best hypotheses of a beam search, each with its log-probability after the length penalty."""
    batch = loaded.tokenizer([text], return_tensors="pt")
    output = loaded.model.generate(
        **batch,
        num_beams=4,
        num_return_sequences=ALTERNATIVES,
        max_length=batch["input_ids"].shape[1] + 50,
        return_dict_in_generate=True,
        output_scores=True,
    )
    texts = loaded.tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
    return list(zip(texts, output.sequences_scores.tolist(), strict=True))


@torch.inference_mode()
def cross_attention(loaded: Loaded, source: str, target: str) -> tuple[list[str], list[str], torch.Tensor]:
    """Source tokens, target tokens, and the attention (layers, heads, target, source) of each to the source."""
    batch = loaded.tokenizer([source], return_tensors="pt")
    labels = loaded.tokenizer([target], return_tensors="pt")["input_ids"]
    output = loaded.model(**batch, labels=labels, output_attentions=True)
    names = [[loaded.tokenizer.decode([i]).strip() or "␣" for i in ids[0]] for ids in (batch["input_ids"], labels)]
    return names[0], names[1], torch.cat(output.cross_attentions)


def draw(source: list[str], target: list[str], weights: torch.Tensor) -> Figure:
    """Heat map of one attention matrix (target, source)."""
    figure = Figure(figsize=(1.5 + 0.35 * len(source), 1.2 + 0.3 * len(target)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(source)), source, rotation=60, ha="right")
    axes.set_yticks(range(len(target)), target)
    axes.set(xlabel="source", ylabel="target")
    return figure


def translate_tab(loaded: Loaded) -> None:
    """The components and events of the tab."""
    config = loaded.model.config
    layers, heads = config.decoder_layers, config.num_heads

    def respond(text: str, layer: int, head: str) -> tuple[str, list[list], Figure]:
        text = check_text(text, "to translate")
        hypotheses = translate(loaded, text)
        source, target, weights = cross_attention(loaded, text, hypotheses[0][0])
        chosen = weights[int(layer) - 1]
        matrix = chosen.mean(dim=0) if head == "mean" else chosen[int(head) - 1]
        return hypotheses[0][0], [[t, round(s, 3)] for t, s in hypotheses], draw(source, target, matrix)

    gr.Markdown(
        f"A translator, `{loaded.name}`. It knows what its training had: for the quickstart's model dates, amounts, "
        "countries and the like."
    )
    text = gr.Textbox(label="Text", placeholder=EXAMPLES[0], max_length=LONGEST_INPUT)
    with gr.Row():
        layer = gr.Dropdown([str(i + 1) for i in range(layers)], value=str(layers), label="Layer")
        head = gr.Dropdown(["mean", *(str(i + 1) for i in range(heads))], value="mean", label="Head")
    button = gr.Button("Translate", variant="primary")
    translation = gr.Textbox(label="Translation", buttons=["copy"])
    alternatives = gr.Dataframe(headers=["hypothesis", "score"], label="Beam search")
    gr.Markdown("**Cross-attention**: each row shows which tokens of the text one token of the translation looked at.")
    picture = gr.Plot(show_label=False)
    outputs = [translation, alternatives, picture]
    gr.on([button.click, text.submit], respond, [text, layer, head], outputs, api_name="translate")
    gr.Examples(EXAMPLES, text)
