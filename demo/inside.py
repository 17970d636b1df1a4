"""Look inside: positions, masks, one layer step by step, the learning rate and the parameters, each by the real code.

No trained model is needed: the pictures come from the project's own modules, and the numbers from worked examples.
"""

import sys
from functools import partial
from pathlib import Path

import gradio as gr
import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor


matplotlib.use("Agg")
# In a clone the modules lie in other folders; in a Space all files lie together.
sys.path += [str(Path(__file__).resolve().parent.parent / folder) for folder in ("", "scripts")]

from configuration_vanilla_transformer import PRESETS  # noqa: E402
from loading import check_text  # noqa: E402
from modeling_vanilla_transformer import sinusoids  # noqa: E402
from recorder import record  # noqa: E402
from step_rendering import Walk, walk_html  # noqa: E402
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration  # noqa: E402
from worked_examples import EXAMPLES, WorkedExample  # noqa: E402


MASKS = ("padding", "causal", "padding and causal", "sliding window")
MOST_WORDS = 16
PADDING = "<pad>"


def draw_positions(d_model: int, length: int) -> tuple[Figure, Figure]:
    """The encodings (length, d_model) as a heat map, and their dot products with the middle position by distance.

    The learned encodings of the second picture are as they are before training: random.
    """
    d_model, length = int(d_model), int(length)
    sinusoidal = sinusoids(torch.arange(length)[None], d_model)[0]
    learned = torch.randn(length, d_model, generator=torch.Generator().manual_seed(0)) * 0.5**0.5
    heat_map = Figure(figsize=(6, 3.5), layout="constrained")
    axes = heat_map.subplots()
    heat_map.colorbar(axes.imshow(sinusoidal, cmap="RdBu", vmin=-1, vmax=1, aspect="auto"))
    axes.set(xlabel="dimension", ylabel="position")
    products = Figure(figsize=(6, 3), layout="constrained")
    axes = products.subplots()
    middle = length // 2
    for name, table in (("sinusoidal", sinusoidal), ("learned, before training", learned)):
        axes.plot(torch.arange(length) - middle, table @ table[middle], label=name)
    axes.set(xlabel="distance", ylabel="dot product")
    axes.legend()
    return heat_map, products


def allowed(kind: str, words: int, paddings: int, window: int) -> Tensor:
    """Which keys each query may attend to: (queries, keys), true where it may."""
    length = words + paddings
    real = torch.ones(length, length, dtype=torch.bool)
    real[:, words:] = False
    past = torch.ones(length, length, dtype=torch.bool).tril()
    positions = torch.arange(length)
    near = (positions[:, None] - positions).abs() < window
    return {"padding": real, "causal": past, "padding and causal": real & past, "sliding window": near & past}[kind]


def draw_mask(text: str, kind: str, paddings: int, window: int) -> Figure:
    """The mask of a sentence, whose words stand for tokens."""
    words = check_text(text, "to draw the mask of").split()
    if len(words) > MOST_WORDS:
        raise gr.Error(f"Please keep to {MOST_WORDS} words; this sentence has {len(words)}.")
    names = words + [PADDING] * int(paddings)
    figure = Figure(figsize=(1.5 + 0.4 * len(names),) * 2, layout="constrained")
    axes = figure.subplots()
    axes.imshow(allowed(kind, len(words), int(paddings), int(window)), cmap="Blues", vmin=0, vmax=1.5)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="may be looked at (blue)", ylabel="looks")
    return figure


def walk(example: WorkedExample, head: int = 0) -> str:
    """The steps that the source of a worked example explains, as HTML."""
    steps = record(example.model(), example.inputs(), 0, head)
    shown = [step for step in steps if (step.part, step.name) in example.steps]
    return walk_html(Walk(example.title, example.note, shown, example.words(), [], example.printed), example.precision)


def draw_schedule(d_model: int, warmup: int, steps: int = 30000) -> Figure:
    """The learning rate of section 5.3 by step."""
    step = torch.arange(1, steps + 1, dtype=torch.float64)
    rate = d_model**-0.5 * torch.minimum(step**-0.5, step * warmup**-1.5)
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(step, rate)
    axes.set(xlabel="step", ylabel="learning rate")
    return figure


def count_parameters(preset: str, vocab_size: int) -> str:
    """How many parameters a translator of a row of Table 3 has, counted on the real model without its weights."""
    config = VanillaTransformerConfig.from_preset(preset, vocab_size=int(vocab_size))
    with torch.device("meta"):
        count = VanillaTransformerForConditionalGeneration(config).num_parameters()
    return f"{count:,} parameters"


def inside_tab() -> None:
    """The components and events of the tab."""
    with gr.Accordion("Positions", open=True):
        gr.Markdown(
            "A Transformer sees a set of tokens; the **positional encoding** tells it their order. Each row is one "
            "position. Below: how alike positions are. Sinusoids are more alike the nearer they are; learned ones "
            "start out random, and only training relates them."
        )
        with gr.Row():
            d_model = gr.Slider(8, 512, value=64, step=8, label="d_model")
            length = gr.Slider(8, 256, value=64, step=8, label="Positions")
        start = draw_positions(64, 64)
        pictures = [gr.Plot(start[0], show_label=False), gr.Plot(start[1], show_label=False)]
        gr.on([d_model.release, length.release], draw_positions, [d_model, length], pictures, api_name="positions")
    with gr.Accordion("Masks", open=False):
        gr.Markdown("A **mask** says who may look at whom. Words stand for tokens; blue is allowed.")
        sentence = gr.Textbox("orange is my favorite fruit", label="Sentence", max_length=200)
        with gr.Row():
            kind = gr.Dropdown(list(MASKS), value="causal", label="Mask")
            paddings = gr.Slider(0, 5, value=2, step=1, label="Padding")
            window = gr.Slider(1, 8, value=3, step=1, label="Window")
        mask = gr.Plot(draw_mask("orange is my favorite fruit", "causal", 2, 3), show_label=False)
        inputs = [sentence, kind, paddings, window]
        gr.on(
            [sentence.submit, kind.change, paddings.release, window.release], draw_mask, inputs, mask, api_name="mask"
        )
    with gr.Accordion("One layer, step by step", open=False):
        gr.Markdown("Every **equation** of a layer with the numbers that went through it, from published examples.")
        titles = [(example.title, name) for name, example in EXAMPLES.items()]
        preset = gr.Dropdown(titles, value="today", label="Example")
        page = gr.HTML(partial(walk, EXAMPLES["today"]))
        preset.change(lambda name: walk(EXAMPLES[name]), preset, page, api_name="walk")
    with gr.Accordion("Learning rate and parameters", open=False):
        gr.Markdown("The rate **rises during the warm-up**, then falls with the square root of the step.")
        with gr.Row():
            width = gr.Slider(64, 1024, value=512, step=64, label="d_model")
            warmup = gr.Slider(100, 16000, value=4000, step=100, label="Warm-up steps")
        rate = gr.Plot(draw_schedule(512, 4000), show_label=False)
        gr.on([width.release, warmup.release], draw_schedule, [width, warmup], rate, api_name="schedule")
        with gr.Row():
            row = gr.Dropdown(list(PRESETS), value="base", label="Row of Table 3")
            vocabulary = gr.Slider(1000, 100000, value=37000, step=1000, label="Vocabulary")
        count = gr.Textbox(count_parameters("base", 37000), label="Size")
        gr.on(
            [row.change, vocabulary.release], count_parameters, [row, vocabulary], count, api_name="count_parameters"
        )
