"""Build the tab "Look inside": positions, masks, a layer step by step, the learning rate and parameter counts.

The real model code computes everything. The tab needs no trained model, but shows the learned position embeddings of
loaded models.
"""

from collections.abc import Sequence
from typing import NamedTuple

import gradio as gr
import torch
from matplotlib.figure import Figure
from torch import Tensor

from vanilla_transformer.app.drawing import DIVERGING, GREY, add_scale, blank, heat_map
from vanilla_transformer.app.loading import Loaded
from vanilla_transformer.app.reading import check_text, refusal
from vanilla_transformer.app.walk import example_walk, offer_walks
from vanilla_transformer.configuration_vanilla_transformer import (
    PRESETS,
    VanillaTransformerConfig,
)
from vanilla_transformer.inside.recorder import record
from vanilla_transformer.modeling_vanilla_transformer import (
    VanillaTransformerDecoderModel,
    VanillaTransformerEncoderModel,
    VanillaTransformerForConditionalGeneration,
    sinusoids,
)
from vanilla_transformer.training.optimizer import PaperSchedule


MOST_WORDS = 16
PADDING = "<pad>"


class Mask(NamedTuple):
    """A kind of mask: it hides later tokens (`past_only`), padding (`padded`), or distant tokens (`near_only`)."""

    past_only: bool = False
    padded: bool = False
    near_only: bool = False


MASKS = {
    "padding": Mask(padded=True),
    "causal": Mask(past_only=True),
    "padding and causal": Mask(past_only=True, padded=True),
    "sliding window": Mask(near_only=True),
    "sliding window and causal": Mask(past_only=True, near_only=True),
}


def likeness(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return each position's distance from the middle row of a table (length, d_model), and its dot product with it.

    Dot products are divided by that of the middle row with itself.
    """
    middle = len(table) // 2
    products = table @ table[middle]
    return torch.arange(len(table)) - middle, products / products[middle]


def draw_positions(d_model: int, length: int) -> tuple[Figure, Figure]:
    """Draw the sinusoids (length, d_model) as a heat map, and the similarity of positions by distance.

    Random vectors stand for learned position embeddings before training.
    """
    sinusoidal = sinusoids(torch.arange(length)[None], d_model)[0]
    learned = torch.randn(length, d_model, generator=torch.Generator().manual_seed(0))
    heat_map, axes = blank(5, 3.4)
    image = axes.imshow(sinusoidal.numpy(), cmap=DIVERGING, vmin=-1, vmax=1, aspect="auto", interpolation="none")
    add_scale(heat_map, image)
    axes.set(xlabel="dimension", ylabel="position")
    alike, axes = blank(5, 3.4)
    axes.plot(*likeness(sinusoidal), label="sinusoidal")
    axes.plot(*likeness(learned), label="learned, before training")
    axes.set(xlabel="distance", ylabel="dot product (1: with itself)")
    axes.legend(frameon=False, labelcolor=GREY)
    return heat_map, alike


@torch.no_grad()
def allowed(kind: str, words: int, paddings: int, window: int) -> Tensor:
    """Return which keys each query may attend to, as a boolean mask (queries, keys).

    The mask is recorded from a small model of this kind with all weights 0.
    """
    mask = MASKS[kind]
    model_class = VanillaTransformerDecoderModel if mask.past_only else VanillaTransformerEncoderModel
    sizes = {"vocab_size": 3, "d_model": 2, "num_heads": 1, "d_ff": 1, "num_layers": 1}
    config = model_class.config_class(**sizes, sliding_window=window if mask.near_only else None)
    with torch.device("meta"):  # avoid drawing random numbers from the shared generator
        model = model_class(config).eval()
    model.to_empty(device="cpu")
    for weight in model.parameters():
        weight.zero_()
    real = torch.ones(1, words + paddings, dtype=torch.long)
    if mask.padded:
        real[:, words:] = 0
    steps = record(model, {"input_ids": torch.zeros_like(real), "attention_mask": real}, head=0)
    return next(step.tensor[0] == 0 for step in steps if step.name == "mask")


def draw_mask(text: str, kind: str, paddings: int, window: int) -> str:
    """Draw the attention mask of a sentence, treating each word as a token."""
    words = check_text(text, "to draw the mask of").split()
    if len(words) > MOST_WORDS:
        raise refusal(f"Please keep to {MOST_WORDS} words; this sentence has {len(words)}.")
    paddings = paddings if MASKS[kind].padded else 0
    names = words + [PADDING] * paddings
    may = allowed(kind, len(words), paddings, window).float()
    return heat_map(names, names, may, ("queries", "keys"))


def draw_schedule(d_model: int, warmup: int, steps: int = 20000) -> Figure:
    """Draw the learning rate schedule of section 5.3, computed by the scheduler used in training."""
    schedule = PaperSchedule(d_model, warmup)
    figure, axes = blank(6, 3)
    shown = range(1, steps + 1, 20)
    axes.plot(shown, [schedule(step - 1) for step in shown])
    axes.set(xlabel="step", ylabel="learning rate", xlim=(0, steps), ylim=(0, None))
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    return figure


def count_parameters(preset: str, vocab_size: int) -> str:
    """Count the parameters of a model from Table 3, by building it on the meta device."""
    config = VanillaTransformerConfig.from_preset(preset, vocab_size=vocab_size)
    with torch.device("meta"):
        count = VanillaTransformerForConditionalGeneration(config).num_parameters()
    return f"{count:,} parameters"


def inside_tab(models: Sequence[Loaded] = ()) -> None:
    """Add the components and events of the tab for the loaded models."""
    with gr.Accordion("Positions", open=True):
        positions_section()
    with gr.Accordion("Masks", open=False):
        masks_section()
    with gr.Accordion("One layer, step by step", open=False):
        example_walk()
    with gr.Accordion("Learning rate and parameters", open=False):
        training_section()
    if models:
        offer_walks(models)


def positions_section() -> None:
    """Add the components and events of the section on positions."""
    gr.Markdown(
        "Attention ignores the order of tokens, so a **positional encoding** is added to them. Left: one row per "
        "position, blue above 0 and orange below. Right: the similarity of positions by their distance. With "
        "sinusoids, near positions are similar, in both directions and from any start. Learned positions are random "
        "before training and become similar only by training."
    )
    with gr.Row():
        d_model = gr.Slider(8, 512, value=64, step=8, precision=0, label="d_model")
        length = gr.Slider(8, 256, value=64, step=8, precision=0, label="Positions")
    with gr.Row():
        pictures = [gr.Plot(picture, show_label=False, format="png") for picture in draw_positions(64, 64)]
    gr.on([d_model.release, length.release], draw_positions, [d_model, length], pictures, api_name="positions")


def masks_section() -> None:
    """Add the components and events of the section on masks."""
    gr.Markdown(
        "A **mask** decides which tokens attend to which: each row may attend to the blue columns. In an encoder, "
        "tokens attend to everything except padding. In a decoder, they attend only to earlier tokens, because they "
        "predict the later ones. In a sliding window, they attend only to near tokens. The masks are those of small "
        "real models; here, each word is one token."
    )
    sentence = gr.Textbox("orange is my favorite fruit", label="Sentence", max_length=200)
    with gr.Row():
        kind = gr.Dropdown(list(MASKS), value="padding and causal", label="Mask")
        paddings = gr.Slider(0, 5, value=2, step=1, precision=0, label="Padding")
        window = gr.Slider(1, 8, value=3, step=1, precision=0, label="Window", visible=False)
    drawn = draw_mask("orange is my favorite fruit", "padding and causal", 2, 3)
    picture = gr.HTML(drawn, apply_default_css=False)

    def fitting(kind: str) -> tuple[gr.Slider, gr.Slider]:
        return gr.Slider(visible=MASKS[kind].padded), gr.Slider(visible=MASKS[kind].near_only)

    kind.input(fitting, kind, [paddings, window], api_visibility="private")
    events = [sentence.submit, kind.input, paddings.release, window.release]
    gr.on(events, draw_mask, [sentence, kind, paddings, window], picture, api_name="mask")


def training_section() -> None:
    """Add the components and events of the section on the learning rate and parameter counts."""
    gr.Markdown(
        "The learning rate **rises during the warm-up**, then falls with the square root of the step. A wider model "
        "takes smaller steps."
    )
    with gr.Row():
        width = gr.Slider(64, 1024, value=512, step=64, precision=0, label="d_model")
        warmup = gr.Slider(100, 16000, value=4000, step=100, precision=0, label="Warm-up steps")
    rate = gr.Plot(draw_schedule(512, 4000), show_label=False, format="png")
    gr.on([width.release, warmup.release], draw_schedule, [width, warmup], rate, api_name="schedule")
    gr.Markdown("How large are the models of the paper's **Table 3**? The vocabulary is shared by both languages.")
    with gr.Row():
        row = gr.Dropdown(list(PRESETS), value="base", label="Row of Table 3")
        vocabulary = gr.Slider(1000, 100000, value=37000, step=1000, precision=0, label="Vocabulary")
    count = gr.Textbox(count_parameters("base", 37000), label="Size")
    gr.on([row.input, vocabulary.release], count_parameters, [row, vocabulary], count, api_name="count_parameters")
