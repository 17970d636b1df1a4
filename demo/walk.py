"""One layer step by step: every equation with the numbers that went through it, in an example or in a loaded model."""

import copy
from collections.abc import Sequence
from functools import lru_cache

import gradio as gr

from loading import Loaded, check_text, refusal
from reading import check_length
from vanilla_transformer.inside.recorder import find_stacks
from vanilla_transformer.inside.rendering import walk_html
from vanilla_transformer.inside.walks import walk_example, walk_sentence
from vanilla_transformer.inside.worked_examples import EXAMPLES


MOST_TOKENS = 24  # of a sentence
PRECISION = 3  # decimals
SENTENCES = ["Wednesday, July 4, 2029", "The tank holds 3 liters"]

# The page knows whether it is dark by a class, where a walk by itself asks the browser.
THEME = """<style>
.walk { max-width: none; padding: 0; background: none; color-scheme: light; }
.dark .walk { color-scheme: dark; }
.walk h1 { font-size: 1.25em; }
.walk h2 { font-size: 1.1em; }
</style>"""


@lru_cache
def walk_through_example(name: str, head: int = 1) -> str:
    """The steps that the source of a worked example explains, as HTML. Heads are counted from 1."""
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
    tokens = len(loaded.tokenizer(text)["input_ids"])
    check_length(loaded, tokens)
    if tokens > MOST_TOKENS:
        raise refusal(f"Please keep to {MOST_TOKENS} tokens; {text!r} has {tokens}.")


def walk_through_model(loaded: Loaded, text: str, target: str, stack: str, layer: int, head: int) -> str:
    """The steps of a layer of a loaded model on a sentence, as HTML. Layers and heads are counted from 1.

    A decoder that attends to an encoder reads `target`, or where that is empty its own translation.
    """
    stacks = find_stacks(loaded.model)
    if stack not in stacks:
        raise refusal(f"{loaded.name} has no {stack}, only: {', '.join(stacks)}.")
    check_number("layer", layer, len(stacks[stack].layers))
    check_number("head", head, loaded.model.config.num_heads)
    text, target = check_text(text, "to walk through"), target.strip()
    for sentence in filter(None, (text, target)):
        check_tokens(loaded, check_text(sentence, "to walk through"))
    walk = walk_sentence(loaded.model, loaded.tokenizer, text, target or None, stack, layer=layer - 1, head=head - 1)
    walk.note = f"Layer {layer}, head {head} of {loaded.name}."
    return walk_html(walk, PRECISION) + THEME


def twin(loaded: Loaded) -> Loaded:
    """The same weights in modules of its own: what the recorder attaches to them does not reach other tabs."""
    weights = {id(tensor): tensor for tensor in (*loaded.model.parameters(), *loaded.model.buffers())}
    return Loaded(loaded.name, loaded.head, copy.deepcopy(loaded.model, weights), loaded.tokenizer, loaded.examples)


def example_walk() -> None:
    """The components and events of the walk through published examples."""
    gr.Markdown(
        "Every **equation** of a layer with the numbers that went through it, computed by the project's own code. "
        "Where a source prints results, the walk says how near ours are. Blue is positive, orange negative."
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


def sentence_walk(models: Sequence[Loaded]) -> None:
    """The components and events of the walk through a sentence of the visitor's in one of the models."""
    models = [twin(loaded) for loaded in models]
    stacks = [find_stacks(loaded.model) for loaded in models]
    layers = [max(len(stack.layers) for stack in found.values()) for found in stacks]
    heads = [loaded.model.config.num_heads for loaded in models]

    def choose(number: int) -> tuple[gr.Radio, gr.Slider, gr.Slider, gr.Textbox]:
        two = len(stacks[number]) == 2
        return (
            gr.Radio(value=next(iter(stacks[number])), visible=two),
            gr.Slider(maximum=max(2, layers[number]), value=1),
            gr.Slider(maximum=max(2, heads[number]), value=1),
            gr.Textbox(visible=two),
        )

    def respond(number: int, text: str, target: str, stack: str, layer: int, head: int) -> str:
        return walk_through_model(models[number], text, target, stack, layer, head)

    gr.Markdown(
        "The same with **your sentence** in one of the models of this page: what went into a layer, what it computed, "
        "and what came out. Of long matrices the middle is left out."
    )
    two = len(stacks[0]) == 2
    with gr.Row():
        names = [(loaded.name, number) for number, loaded in enumerate(models)]
        number = gr.Dropdown(names, value=0, label="Model")
        number.api_info = lambda: {"type": "integer", "enum": list(range(len(models)))}  # Gradio would say strings
        stack = gr.Radio(["encoder", "decoder"], value=next(iter(stacks[0])), label="Stack", visible=two)
        layer = gr.Slider(1, max(2, *layers), value=1, step=1, precision=0, label="Layer")
        head = gr.Slider(1, max(2, *heads), value=1, step=1, precision=0, label="Head")
    text = gr.Textbox(label="Sentence", placeholder=SENTENCES[0])
    target = gr.Textbox(
        "",
        label="What the decoder has written",
        placeholder="Leave it empty for the model's own translation.",
        visible=two,
    )
    gr.Examples(SENTENCES, text)
    button = gr.Button("Show the steps", variant="primary")
    page = gr.HTML()
    number.input(choose, number, [stack, layer, head, target], api_visibility="private")
    gr.on(
        [button.click, text.submit, target.submit],
        respond,
        [number, text, target, stack, layer, head],
        page,
        api_name="walk_sentence",
        concurrency_limit=1,  # the recorder watches one run at a time
    )
