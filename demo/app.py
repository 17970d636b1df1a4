"""A translator to try in the browser: translations, their alternatives, and what each target token attended to.

    python demo/app.py --model runs/quickstart-en-es

The model comes through the Auto classes from a folder or the Hub, with the code that lies beside its weights.
"""

import argparse
from pathlib import Path

import gradio as gr
import matplotlib
import torch
from matplotlib.figure import Figure
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer


matplotlib.use("Agg")

LONGEST_INPUT = 300  # characters
ALTERNATIVES = 3
EXAMPLES = ["Wednesday, July 4, 2029", "12 kilometers or 3 miles", "1,250.00 US dollars", "Kenya, Peru, and Japan"]


class Translator:
    """A saved encoder-decoder with its tokenizer."""

    def __init__(self, name: str):
        self.tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
        # Only the eager form of attention returns its weights.
        self.model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True, attn_implementation="eager")
        self.model.eval()

    @torch.inference_mode()
    def translate(self, text: str) -> list[tuple[str, float]]:
        """The best hypotheses of a beam search, each with its log-probability after the length penalty."""
        batch = self.tokenizer([text], return_tensors="pt")
        output = self.model.generate(
            **batch,
            num_beams=4,
            num_return_sequences=ALTERNATIVES,
            max_length=batch["input_ids"].shape[1] + 50,
            return_dict_in_generate=True,
            output_scores=True,
        )
        texts = self.tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
        return list(zip(texts, output.sequences_scores.tolist(), strict=True))

    @torch.inference_mode()
    def cross_attention(self, source: str, target: str) -> tuple[list[str], list[str], torch.Tensor]:
        """Source tokens, target tokens, and the attention (layers, heads, target, source) of each to the source."""
        batch = self.tokenizer([source], return_tensors="pt")
        labels = self.tokenizer([target], return_tensors="pt")["input_ids"]
        output = self.model(**batch, labels=labels, output_attentions=True)
        names = [[self.tokenizer.decode([i]).strip() or "␣" for i in ids[0]] for ids in (batch["input_ids"], labels)]
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


def build(model: str) -> gr.Blocks:
    """The app on one model."""
    translator = Translator(model)
    config = translator.model.config
    layers, heads = config.decoder_layers, config.num_heads

    def respond(text: str, layer: int, head: str) -> tuple[str, list[list], Figure]:
        text = text.strip()
        if not text:
            raise gr.Error("Please type something to translate.")
        if len(text) > LONGEST_INPUT:
            raise gr.Error(f"Please keep to {LONGEST_INPUT} characters; this text has {len(text)}.")
        hypotheses = translator.translate(text)
        source, target, weights = translator.cross_attention(text, hypotheses[0][0])
        chosen = weights[int(layer) - 1]
        matrix = chosen.mean(dim=0) if head == "mean" else chosen[int(head) - 1]
        return hypotheses[0][0], [[t, round(s, 3)] for t, s in hypotheses], draw(source, target, matrix)

    with gr.Blocks(title="Vanilla Transformer") as app:
        gr.Markdown(
            "# Vanilla Transformer\nA translator after *Attention Is All You Need*. It knows what its training had: "
            f"for the quickstart's model dates, amounts, countries and the like. Model: `{Path(model).name}`"
        )
        text = gr.Textbox(label="Text", placeholder=EXAMPLES[0], max_length=LONGEST_INPUT)
        with gr.Row():
            layer = gr.Dropdown([str(i + 1) for i in range(layers)], value=str(layers), label="Layer")
            head = gr.Dropdown(["mean", *(str(i + 1) for i in range(heads))], value="mean", label="Head")
        button = gr.Button("Translate", variant="primary")
        translation = gr.Textbox(label="Translation", buttons=["copy"])
        alternatives = gr.Dataframe(headers=["hypothesis", "score"], label="Beam search")
        gr.Markdown(
            "**Cross-attention**: each row shows which tokens of the text one token of the translation looked at."
        )
        picture = gr.Plot(show_label=False)
        outputs = [translation, alternatives, picture]
        gr.on([button.click, text.submit], respond, [text, layer, head], outputs, api_name="translate")
        gr.Examples(EXAMPLES, text)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="runs/quickstart-en-es", help="Folder of a translator, or its name on the Hub."
    )
    parser.add_argument("--port", type=int, default=7860)
    arguments = parser.parse_args()
    if not Path(arguments.model).is_dir() and arguments.model.startswith(("runs/", "./", "/")):
        parser.error(f"{arguments.model}: there is no such folder. Train one first with: make quickstart")
    build(arguments.model).queue(max_size=32, default_concurrency_limit=1).launch(server_port=arguments.port)


if __name__ == "__main__":
    main()
