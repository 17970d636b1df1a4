"""Build walks through a worked example, or through one layer of a model on a sentence."""

from dataclasses import replace

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.inside.predictions import Translation
from vanilla_transformer.inside.readings import display_token, encode_text
from vanilla_transformer.inside.recorder import Step, find_stacks, record
from vanilla_transformer.inside.rendering import Walk
from vanilla_transformer.inside.worked_examples import WorkedExample


LIKELIEST = 5  # number of most probable words to show at each position


def walk_example(example: WorkedExample, layer: int, head: int) -> Walk:
    """Return the walk through a worked example, with the steps that it covers. Layer and head are indices from 0."""
    steps = record(example.model(), example.inputs(), layer, head)
    steps_shown = (*example.steps, *example.beyond)
    wanted = {(part, name) for part, name in steps_shown if head == 0 or name not in example.first_head_only}
    shown = [as_given(step) for step in steps if (step.part, step.name) in wanted]
    beyond = frozenset((part, as_given_name(name)) for part, name in example.beyond)
    printed = {(part, as_given_name(name)): values for (part, name), values in example.printed_of(head).items()}
    return Walk(example.title, example.note, shown, example.words(), [], printed, example.edges, beyond)


def as_given(step: Step) -> Step:
    """Rename the step "embeddings" of a worked example, because its vectors X are given and not learned."""
    return replace(step, name=as_given_name(step.name), equation="X") if step.name == "embeddings" else step


def as_given_name(name: str) -> str:
    """Return the name to display for a step of a worked example."""
    return "vectors" if name == "embeddings" else name


def words_of(ids: Tensor, tokenizer: PreTrainedTokenizerBase) -> list[list[str]]:
    """Return the text of each token in `ids` (batch, length), with visible spaces and line breaks."""
    visible = str.maketrans({" ": "␣", "\n": "⏎"})
    return [[display_token(tokenizer, token).translate(visible) for token in row] for row in ids.tolist()]


def walk_sentence(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    target: str | None = None,
    stack: str | None = None,
    layer: int = 0,
    head: int = 0,
) -> Walk:
    """Return a walk through one layer of a model on a sentence.

    Args:
        text: the sentence; for a translation model, the source.
        target: target text for the decoder of a translation model; by default, the model's own translation.
        stack: "encoder" or "decoder"; by default, the first one of the model.
        layer, head: indices from 0.

    Raises:
        ValueError: the model has no such stack, layer or head.
    """
    stack = stack or next(iter(find_stacks(model)))
    if model.config.is_encoder_decoder and stack == "decoder":
        prediction = Translation(model, tokenizer, text, target)
        inputs, words = prediction.inputs, words_of(prediction.inputs["decoder_input_ids"], tokenizer)
        source_words = words_of(inputs["input_ids"], tokenizer)
    else:
        inputs = encode_text(model, tokenizer, text)
        source_words = words = words_of(inputs["input_ids"], tokenizer)
    steps = record(model, inputs, layer, head, stack)
    walk = Walk(f"{text!r} in the {stack}", f"Layer {layer + 1}, head {head + 1}.", steps, words, source_words)
    if steps[-1].name == "logits":
        logits = steps[-1]
        probabilities = logits.tensor.softmax(dim=-1)
        equation = f"p = softmax({logits.equation.partition(' = ')[0]})"
        softmax = Step(logits.part, "probabilities", equation, probabilities, logits.axes, logits.source)
        walk.steps = [*steps, softmax]
        add_likeliest_words(walk, probabilities[0], inputs["input_ids"][0], stack, tokenizer)
    return walk


def add_likeliest_words(
    walk: Walk, probabilities: Tensor, ids: Tensor, stack: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Add the most probable words to the walk: after each position, or for each mask token of an encoder.

    Args:
        probabilities: (length, vocab).
        ids: input ids (length,), to locate the mask tokens of an encoder's input.
    """
    if stack == "encoder":
        masks = [place for place, token in enumerate(ids.tolist()) if token == tokenizer.mask_token_id]
        places = dict.fromkeys(masks, f"in place of {tokenizer.mask_token}")
    else:
        places = {place: f"after {word}" for place, word in enumerate(walk.words[0])}
    for place, name in places.items():
        values, tokens = probabilities[place].topk(min(LIKELIEST, probabilities.shape[-1]))
        words = [word for (word,) in words_of(tokens[:, None], tokenizer)]
        walk.likeliest.append((name, list(zip(words, values.tolist(), strict=True))))
