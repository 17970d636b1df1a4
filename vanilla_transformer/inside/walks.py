"""Walks: the steps that a worked example explains, or those of one layer of a model on a sentence."""

from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.decoding import longest_output
from vanilla_transformer.inside.readings import display_token, tokenizer_options
from vanilla_transformer.inside.recorder import Step, find_stacks, record
from vanilla_transformer.inside.rendering import Walk
from vanilla_transformer.inside.worked_examples import WorkedExample


LIKELIEST = 5  # words for each place that a walk ends with


def walk_example(example: WorkedExample, layer: int, head: int) -> Walk:
    """The steps that the source of a worked example explains. Layer and head are counted from 0."""
    steps = record(example.model(), example.inputs(), layer, head)
    steps_shown = (*example.steps, *example.beyond)
    wanted = {(part, name) for part, name in steps_shown if head == 0 or name not in example.first_head_only}
    shown = [as_given(step) for step in steps if (step.part, step.name) in wanted]
    beyond = frozenset((part, "vectors" if name == "embeddings" else name) for part, name in example.beyond)
    return Walk(example.title, example.note, shown, example.words(), [], example.printed_of(head), beyond)


def as_given(step: Step) -> Step:
    """The vectors that a worked example starts from are not learned: its step of that name is X."""
    return replace(step, name="vectors", equation="X") if step.name == "embeddings" else step


def words_of(ids: Tensor, tokenizer: PreTrainedTokenizerBase) -> list[list[str]]:
    """Each token of ids (batch, length) as a reader sees it, with marks for spaces and line breaks."""
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
    """The steps of one layer of a model on a sentence.

    Args:
        text: the sentence; for a translator, the source.
        target: what its decoder reads; by default, its own translation.
        stack: "encoder" or "decoder"; by default, the first one that the model has.
        layer, head: which one, counted from 0.

    Raises:
        ValueError: the model has no such stack, layer or head.
    """
    inputs = dict(tokenizer(text, return_tensors="pt", **tokenizer_options(model)).to(model.device))
    stack = stack or next(iter(find_stacks(model)))
    source_words = words = words_of(inputs["input_ids"], tokenizer)
    if model.config.is_encoder_decoder and stack == "decoder":
        translator: Any = model
        if target is None:
            output = translator.generate(
                **inputs, max_length=longest_output(model.config, inputs["input_ids"].shape[1])
            )
            inputs["decoder_input_ids"] = output[:, :-1]  # the last token is not read
        else:
            labels = tokenizer(text_target=target, return_tensors="pt", **tokenizer_options(model)).to(model.device)
            inputs["decoder_input_ids"] = translator.prepare_decoder_input_ids_from_labels(labels["input_ids"])
        words = words_of(inputs["decoder_input_ids"], tokenizer)
    steps = record(model, inputs, layer, head, stack)
    walk = Walk(f"{text!r} in the {stack}", f"Layer {layer + 1}, head {head + 1}.", steps, words, source_words)
    if steps[-1].name == "logits":
        logits = steps[-1]
        probabilities = logits.tensor.softmax(dim=-1)
        equation = f"p = softmax({logits.equation.partition(' = ')[0]})"
        softmax = Step(logits.part, "probabilities", equation, probabilities, logits.axes, logits.source)
        walk.steps = [*steps, softmax]
        name_the_likeliest(walk, probabilities[0], inputs["input_ids"][0], stack, tokenizer)
    return walk


def name_the_likeliest(
    walk: Walk, probabilities: Tensor, ids: Tensor, stack: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Put the likeliest words into the walk: those that may come next at each place, or those behind each mask.

    Args:
        probabilities: (length, vocab).
        ids: (length,), the text; its masks are looked for where there is an encoder alone.
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
