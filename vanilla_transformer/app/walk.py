"""Show one layer of a worked example or a loaded model step by step, each equation with its values."""

from collections.abc import Sequence
from functools import lru_cache

import gradio as gr

from vanilla_transformer.app.loading import Loaded
from vanilla_transformer.app.reading import check_length, check_text, encode, refusal
from vanilla_transformer.inside.recorder import find_stacks
from vanilla_transformer.inside.rendering import walk_html
from vanilla_transformer.inside.walks import walk_example, walk_sentence
from vanilla_transformer.inside.worked_examples import EXAMPLES


MOST_TOKENS = 24  # maximum number of tokens in a sentence
PRECISION = 3  # number of decimals to show

# Gradio marks dark mode with a class, but a standalone walk follows the browser's setting.
THEME = """<style>
.walk { max-width: none; padding: 0; background: none; color-scheme: light; }
.dark .walk { color-scheme: dark; }
.walk h1 { font-size: 1.25em; }
.walk h2 { font-size: 1.1em; }
</style>"""


@lru_cache
def walk_through_example(name: str, head: int = 1) -> str:
    """Return the walk through a worked example as HTML. Heads count from 1."""
    example = EXAMPLES[name]
    heads = example.model().config.num_heads
    check_number("head", head, heads)
    walk = walk_example(example, 0, head - 1)
    walk.note += f" This is head {head} of {heads}."
    return walk_html(walk, example.precision) + THEME


def check_number(name: str, number: int, most: int) -> None:
    if not 1 <= number <= most:
        raise refusal(f"There is no {name} {number}: choose from 1 to {most}.")


def check_tokens(loaded: Loaded, text: str) -> None:
    check_length(loaded, encode(loaded, text)["input_ids"].shape[1], repr(text), MOST_TOKENS)


def walk_through_model(loaded: Loaded, text: str, target: str, stack: str, layer: int, head: int) -> str:
    """Return the walk through a layer of a loaded model on a sentence as HTML. Layers and heads count from 1.

    The decoder of a translation model gets `target` as its target text, or the model's own translation if it is empty.
    """
    stacks = find_stacks(loaded.model)
    if stack not in stacks:
        raise refusal(f"{loaded.name} has no {stack}, only: {', '.join(stacks)}.")
    check_number("layer", layer, len(stacks[stack].layers))
    check_number("head", head, loaded.model.config.num_heads)
    text = check_text(text, "to walk through")
    target = check_text(target, "to walk through") if target.strip() else None
    for sentence in filter(None, (text, target)):
        check_tokens(loaded, sentence)
    walk = walk_sentence(loaded.model, loaded.tokenizer, text, target, stack, layer=layer - 1, head=head - 1)
    walk.note = f"Layer {layer}, head {head} of {loaded.name}."
    return walk_html(walk, PRECISION) + THEME


def example_walk() -> None:
    """Add the components and events for walks through worked examples."""
    gr.Markdown(
        "Every **equation** of a layer with the numbers that went through it, computed by the project's own code. "
        "If the source gives results, the walk shows the difference from ours. Blue is positive, orange negative."
    )
    titles = [(example.title, name) for name, example in EXAMPLES.items()]
    with gr.Row():
        name = gr.Dropdown(titles, value="today", label="Example", scale=3)
        head = gr.Slider(1, 2, value=1, step=1, precision=0, label="Head")
    page = gr.HTML(walk_through_example("today"))

    def choose(name: str) -> tuple[gr.Slider, str]:
        heads = EXAMPLES[name].model().config.num_heads
        return gr.Slider(maximum=max(heads, 2), value=1, visible=heads > 1), walk_through_example(name)

    name.input(choose, name, [head, page], api_visibility="private")
    head.release(walk_through_example, [name, head], page, api_name="walk")


def offer_walks(models: Sequence[Loaded]) -> None:
    """Add the endpoint for walks through a sentence. On the page, the explorer's boxes show the same data."""
    first = next(iter(find_stacks(models[0].model)))

    def walk(
        number: int = 0, text: str = "", target: str = "", stack: str = first, layer: int = 1, head: int = 1
    ) -> str:
        """Return the walk through one layer on a sentence as HTML. Models count from 0, layers and heads from 1."""
        if number not in range(len(models)):
            raise refusal(f"There are models 0 to {len(models) - 1}, and no {number}.")
        return walk_through_model(models[number], text, target, stack, layer, head)

    gr.api(walk, api_name="walk_sentence")
