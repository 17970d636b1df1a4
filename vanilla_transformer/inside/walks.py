"""Walk through a model on a sentence: in a summary, or one layer in full; ask it for the probabilities of words."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.inside.explanations import arrangement
from vanilla_transformer.inside.predictions import Continuation, Translation
from vanilla_transformer.inside.readings import display_token, encode_text
from vanilla_transformer.inside.recorder import CROSS_ATTENTION, Step, find_stacks, record, unwrapped
from vanilla_transformer.inside.rendering import Walk


LIKELIEST = 5  # number of most probable words to show at each position
SUMMARY_ROWS, SUMMARY_WORDS = 10, 3  # positions, and words for each, in a summary that has to fit on one screen


def words_of(ids: Tensor, tokenizer: PreTrainedTokenizerBase) -> list[list[str]]:
    """Return the text of each token in `ids` (batch, length), with visible spaces and line breaks."""
    visible = str.maketrans({" ": "␣", "\n": "⏎"})
    return [[display_token(tokenizer, token).translate(visible) for token in row] for row in ids.tolist()]


class Reading(NamedTuple):
    """The inputs of one stack of a model, and the words at its positions and at the encoder's."""

    inputs: dict[str, Tensor]
    words: list[list[str]]
    source_words: list[list[str]]


def read(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, target: str | None, stack: str
) -> Reading:
    """Encode a sentence, and for the decoder of a translator its target: by default, the model's own translation."""
    if not (model.config.is_encoder_decoder and stack == "decoder"):
        inputs = encode_text(model, tokenizer, text)
        words = words_of(inputs["input_ids"], tokenizer)
        return Reading(inputs, words, words)
    inputs = Translation(model, tokenizer, text, target).inputs
    return Reading(inputs, *(words_of(inputs[name], tokenizer) for name in ("decoder_input_ids", "input_ids")))


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
    inputs, words, source_words = read(model, tokenizer, text, target, stack)
    steps = record(model, inputs, layer, head, stack)
    note = f"Layer {layer + 1}, head {head + 1}. {arrangement(model.config)}"
    walk = Walk(f"{text!r} in the {stack}", note, steps, words, source_words)
    if steps[-1].name == "logits":
        logits = steps[-1]
        probabilities = logits.tensor.softmax(dim=-1)
        equation = f"p = softmax({logits.equation.partition(' = ')[0]})"
        softmax = Step(logits.part, "probabilities", equation, probabilities, logits.axes, logits.source)
        walk.steps = [*steps, softmax]
        places = predicting_places(words[0], inputs["input_ids"][0], stack, tokenizer)
        walk.likeliest = [
            (name, likeliest_words(probabilities[0, place], tokenizer, LIKELIEST)) for place, name in places.items()
        ]
    return walk


def predicting_places(words: list[str], ids: Tensor, stack: str, tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Name the positions that predict a word: all of a decoder, and the mask tokens in the `ids` of an encoder."""
    if stack == "decoder":
        return {place: f"after {word}" for place, word in enumerate(words)}
    masks = [place for place, token in enumerate(ids.tolist()) if token == tokenizer.mask_token_id]
    return dict.fromkeys(masks, f"in place of {tokenizer.mask_token}")


def likeliest_words(probabilities: Tensor, tokenizer: PreTrainedTokenizerBase, count: int) -> list[tuple[str, float]]:
    """Return the most probable words at one position, given the probabilities (vocab,)."""
    values, tokens = probabilities.topk(min(count, len(probabilities)))
    return list(zip((word for (word,) in words_of(tokens[:, None], tokenizer)), values.tolist(), strict=True))


def summarize(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, target: str | None = None) -> str:
    """Return a summary of one screen: what the model reads, its sizes, and what each position attends to and predicts.

    The attention weights come from the last layer (in a translator, its cross-attention), averaged over the heads.
    """
    stacks, config = find_stacks(model), model.config
    lines = [arrangement(config)]
    for name, stack in stacks.items():
        inputs, words, source_words = read(model, tokenizer, text, target, name)
        layers = len(stack.layers)
        lines += [
            f"{name}: {len(words[0])} tokens, {layers} layers of {config.num_heads} heads, width {config.d_model}",
            f"  {' | '.join(words[0])}",
        ]
    steps = record(model, inputs, layers - 1, stack=name)  # of the last stack
    attention = next(step for step in reversed(steps) if step.name == "weights")
    is_cross = attention.part == CROSS_ATTENTION
    keys = source_words[0] if is_cross else words[0]
    lines += ["", f"Attention of the last layer{' to the source' * is_cross} (mean of its heads), and predictions:"]
    rows = [["position", "attends most to"]]
    for word, weights in zip(words[0], attention.tensor[0].mean(dim=0), strict=True):
        rows.append([word, f"{keys[int(weights.argmax())]} {weights.max():.0%}"])
    if steps[-1].name == "logits":
        rows[0].append("predicts")
        probabilities = steps[-1].tensor[0].softmax(dim=-1)
        for place in predicting_places(words[0], inputs["input_ids"][0], name, tokenizer):
            found = likeliest_words(probabilities[place], tokenizer, SUMMARY_WORDS)
            rows[place + 1].append("  ".join(f"{word} {probability:.0%}" for word, probability in found))
    left_out = [f"... and {len(rows) - 1 - SUMMARY_ROWS} more positions"] if len(rows) > SUMMARY_ROWS + 1 else []
    return "\n".join([*lines, *columns(rows[: SUMMARY_ROWS + 1]), *left_out])


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of text as lines with aligned columns."""
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    return ["   ".join(text.ljust(width) for text, width in zip(row, widths, strict=False)).rstrip() for row in rows]


@torch.inference_mode()
def ask(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    words: Sequence[str],
    target: str | None = None,
) -> tuple[str, dict[str, float]]:
    """Return the text before a step of generation, and the probability of each word at that step.

    A translator is asked at the step of its translation, or of `target`, at which the words are most probable. A
    language model is asked for the word after the text. A word of several tokens has the product of their
    probabilities.

    Raises:
        ValueError: the model does not generate text.
    """
    if not unwrapped(model).can_generate():
        raise ValueError(f"--ask needs a model that writes text; {type(unwrapped(model)).__name__} does not.")
    translates = model.config.is_encoder_decoder
    prediction: Any = (
        Translation(model, tokenizer, text, target) if translates else Continuation(model, tokenizer, text, "")
    )
    name = "decoder_input_ids" if translates else "input_ids"
    written = prediction.inputs[name][0].tolist()

    def probabilities(ids: list[int]) -> Tensor:
        inputs = prediction.inputs | {name: torch.tensor([ids], device=model.device)}
        return model(**inputs).logits[0].float().softmax(dim=-1)

    def spellings(word: str) -> set[tuple[int, ...]]:
        return {tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (word, f" {word}")}

    step = len(written) - 1
    if translates:
        first = list({spelling[0] for word in words for spelling in spellings(word)})
        step = int(probabilities(written)[:, first].sum(dim=-1).argmax())
    begun = written[: step + 1]
    found = dict.fromkeys(words, 0.0)
    for word in words:
        for ids in spellings(word):  # inside a text and at its start
            rows = probabilities([*begun, *ids[:-1]])[step:]
            found[word] += rows[range(len(ids)), ids].prod().item()
    return prediction.decode(begun), found
