"""Look into a model on one text: all of its attention, each step of its answer, and what every part does.

    from vanilla_transformer.inside import explore
    explore(model, tokenizer, "Wednesday, July 4, 2029")  # in a notebook, the living picture
    explore(model, tokenizer, "Wednesday, July 4, 2029").save("wednesday.html")  # a page that needs nothing else

`explore_data` is the same as data, which is all that the picture is drawn from.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.inside.interventions import (
    UNCHANGED,
    Changes,
    as_json,
    attentions_of,
    by_query,
    changed,
    reach,
)
from vanilla_transformer.inside.palette import css
from vanilla_transformer.inside.readings import (
    INPUTS,
    LONGEST_ANSWER,
    Reading,
    encoding,
    pieces_of,
    read,
    room,
    shown_token,
)
from vanilla_transformer.inside.recorder import find_stacks, record


SHOWN = 8  # options of each step
LENS_SHOWN = 3  # of each layer
ROWS_AT_ONCE = 32  # variants of a model that one pass tries
VALUES = (8, 6)  # rows and columns of a recorded matrix that are shown
NAMES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}


def tokens_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[dict]:
    """Each token with its id and its text."""
    special = set(tokenizer.all_special_ids)
    return [{"id": i, "text": shown_token(tokenizer, i), "special": i in special} for i in ids]


def choose(reading: Reading, scores: Tensor) -> None:
    """Fill in what the model answers where it was not given: `scores` (places, options)."""
    if reading.task == "answer":
        first, last = scores
        both = first[:, None] + last
        allowed = torch.ones_like(both, dtype=torch.bool).triu().tril(LONGEST_ANSWER - 1)
        best = int(both.masked_fill(~allowed, -torch.inf).argmax())
        for place, token in zip(reading.places, divmod(best, both.shape[1]), strict=True):
            place.chosen = place.token = token
        return
    for place, best in zip(reading.places, scores.argmax(-1).tolist(), strict=True):
        if reading.task not in ("translate", "generate") or place.chosen < 0:
            place.chosen = best


def probability(reading: Reading, score: float) -> float:
    """Of a log-probability; in a regression, the number as it is."""
    return round(score if reading.regression else float(torch.tensor(score).exp()), 5)


def described_options(reading: Reading, scores: Tensor, shown: int) -> list[dict]:
    """The best options of one place, `scores` (options,), with their probabilities."""
    best, ids = scores.topk(min(shown, len(scores)))
    return [
        {"id": i, "text": reading.option(i), "p": probability(reading, score)}
        for score, i in zip(best.tolist(), ids.tolist(), strict=True)
        if score > -torch.inf
    ]


def described_steps(reading: Reading, scores: Tensor) -> list[dict]:
    """What was answered at each place, how probable it was, and what else could have been: `scores` (places, options).

    In a regression, the number is under the name of a probability.
    """
    steps = []
    for place, row in zip(reading.places, scores, strict=True):
        own = row[place.chosen]
        steps.append(
            {
                "name": place.name,
                "token": place.token,
                "query": place.query,
                "chosen": place.chosen,
                "text": reading.option(place.chosen),
                "p": probability(reading, float(own)),
                "rank": int((row > own).sum()) + 1,
                "options": int((row > -torch.inf).sum()),
                "top": described_options(reading, row, SHOWN),
            }
        )
    return steps


def with_text_so_far(steps: list[dict], reading: Reading, tokenizer: PreTrainedTokenizerBase) -> list[dict]:
    """In the steps of a model that writes, what is written after each; half a character is left out."""
    begin = [] if reading.task == "translate" else reading.source[:1]
    if reading.task in ("translate", "generate"):
        chosen = [step["chosen"] for step in steps]
        for i, step in enumerate(steps, start=1):
            text = str(tokenizer.decode([*begin, *chosen[:i]], skip_special_tokens=True))
            step["so_far"] = text.rstrip("\ufffd")
    return steps


def per_mille(weights: Tensor) -> list:
    """Shares in thousandths, which need few letters."""
    return (weights * 1000).round().to(torch.int16).tolist()


def forward_variants(model: PreTrainedModel, reading: Reading, variants: Sequence[Changes]) -> list[Tensor]:
    """The scores (places, options) of the same reading in variants of the model, several in each pass.

    An encoder that is not changed reads the text once for all.
    """
    decodes = reading.target is not None
    groups: dict[bool, list[int]] = {True: [], False: []}  # by whether the encoder is as it is
    for i, variant in enumerate(variants):
        groups[decodes and not variant.reach("encoder")].append(i)
    found: dict[int, Tensor] = {}
    for is_encoded, numbers in groups.items():
        inputs = with_encoding(model, reading.inputs) if is_encoded and numbers else reading.inputs
        for start in range(0, len(numbers), ROWS_AT_ONCE):
            some = numbers[start : start + ROWS_AT_ONCE]
            rows: dict[str, Any] = {name: value.expand(len(some), *value.shape[1:]) for name, value in inputs.items()}
            if is_encoded:
                rows["encoder_outputs"] = (rows["encoder_outputs"],)
            with changed(model, [variants[i] for i in some]):
                found |= zip(some, reading.scores(model(**rows)), strict=True)
    return [found[i] for i in range(len(variants))]


def with_encoding(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs of a model with what its encoder makes of the text in the place of the text."""
    encoder = find_stacks(model)["encoder"]
    with changed(model):
        output = encoder(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
    rest = {name: value for name, value in inputs.items() if name != "input_ids"}
    return {**rest, "encoder_outputs": output.last_hidden_state}


def plus(changes: Changes, **more: set) -> Changes:
    """Changes, and more of them."""
    return replace(changes, **{name: getattr(changes, name) | added for name, added in more.items()})


@torch.inference_mode()
def lens(model: PreTrainedModel, reading: Reading, changes: Changes = UNCHANGED) -> list[list[dict]]:
    """What the model would answer if its last layers were left out: the logit lens, for any head.

    Returns:
        A list for each number of layers, from none to all; in it, for each place, the best options, and the
        probability of what the whole model answered.
    """
    name, stack = list(find_stacks(model).items())[-1]
    layers = len(stack.layers)
    left_out = [{(name, layer) for layer in range(kept, layers)} for kept in range(layers + 1)]
    variants = [plus(changes, layers_off=off) for off in left_out]
    return [
        [
            {"top": described_options(reading, row, LENS_SHOWN), "p": probability(reading, float(row[place.chosen]))}
            for place, row in zip(reading.places, scores, strict=True)
        ]
        for scores in forward_variants(model, reading, variants)
    ]


@torch.inference_mode()
def head_effects(
    model: PreTrainedModel, reading: Reading, changes: Changes = UNCHANGED
) -> dict[tuple[str, int, int], float]:
    """What each head is worth to the answer, as the loss of log-probability (nats per place) without it.

    Above 0, the head speaks for the answer; below, against it. In a regression it is how far the number moves. The
    answer of a language model is what it wrote.
    """
    heads = [(kind, layer, head) for kind, layer in attentions_of(model) for head in range(model.config.num_heads)]
    chosen = torch.tensor([place.chosen for place in reading.places])[:, None]

    def worth(scores: Tensor) -> Tensor:
        return scores.cpu().gather(1, chosen)[reading.answered, 0]

    whole, *without = forward_variants(model, reading, [changes, *(plus(changes, heads_off={head}) for head in heads)])
    usual = worth(whole)
    losses = [usual - worth(scores) for scores in without]
    values = [float((loss.abs() if reading.regression else loss).mean()) for loss in losses]
    return dict(zip(heads, values, strict=True))


def gradient_times_input(
    model: PreTrainedModel, inputs: dict[str, Tensor], score: Callable[[Any], Tensor], **options
) -> tuple[Any, Tensor]:
    """How much each token raises a score, to first order: the gradient times the input, summed over d_model.

    Args:
        score: what the model returns -> a number of it.
        options: of the forward pass.

    Returns:
        What the model returned, and a number for each token (batch, length).
    """
    with torch.inference_mode(False), torch.enable_grad():
        ids, mask = (inputs[name].clone() for name in INPUTS)
        embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
        output = model(inputs_embeds=embeddings, attention_mask=mask, **options)
        (gradient,) = torch.autograd.grad(score(output), embeddings)
    return output, (gradient * embeddings).sum(-1).detach()


def scored(pieces: list[tuple[str, list[int]]], values: Tensor) -> list[tuple[str, float]]:
    """Pieces of a text with the sums of their tokens' values; the largest counts as 1 or -1."""
    sums = torch.stack([values[places].sum() for _, places in pieces])
    scaled = sums / sums.abs().max().clamp(min=1e-9)
    return [(piece, round(value, 3)) for (piece, _), value in zip(pieces, scaled.tolist(), strict=True)]


def mattered(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, reading: Reading, changes: Changes
) -> list[dict]:
    """Gradient times input of a classifier's highest score, for each piece of its text."""
    with changed(model, changes):
        _, (values,) = gradient_times_input(model, reading.inputs, lambda output: output.logits[0].max())
    pieces = pieces_of(tokenizer, text, **encoding(model))
    return [{"text": piece, "share": share} for piece, share in scored(pieces, values.cpu())]


def head_statistics(
    kind: str, weights: Tensor, queries: Sequence[int], keys: Sequence[int], special: set[int]
) -> dict:
    """What a head (queries, keys) does, in numbers: means over its queries.

    Args:
        queries, keys: token ids of its rows and its columns; in cross-attention the rows are what is being written.

    Returns:
        Shares of its attention, 0 to 1: "same" on tokens equal to the one that looks, itself left out; "special" on
        special tokens; in self-attention "itself", "previous" and "next" on the positions there; in cross-attention
        "onward" on the position after the one most looked at a step before, "next in source order". Then "entropy" in
        bits, and "tokens", the number of tokens over which as much entropy would be even.
    """
    same = torch.tensor(queries)[:, None] == torch.tensor(keys)
    found = {}
    if kind == "cross":
        onward = (weights[:-1].argmax(-1) + 1).clamp(max=len(keys) - 1)
        found["onward"] = weights[1:].gather(1, onward[:, None])
    else:
        same.fill_diagonal_(False)
        found |= {"itself": weights.diagonal(), "previous": weights.diagonal(-1)}
        if kind == "encoder":
            found["next"] = weights.diagonal(1)
    found["same"] = (weights * same).sum(-1)
    found["special"] = weights[:, [i for i, key in enumerate(keys) if key in special]].sum(-1)
    entropy = torch.special.entr(weights).sum(-1) / math.log(2)
    found |= {"entropy": entropy, "tokens": 2**entropy}
    return {name: round(float(values.mean()), 3) if values.numel() else 0.0 for name, values in found.items()}


def described_model(model: PreTrainedModel, reading: Reading) -> dict:
    """What is drawn of a model without its text."""
    config = model.config
    return {
        "class": type(model).__name__,
        "task": reading.task,
        "regression": reading.regression,
        "stacks": {name: len(stack.layers) for name, stack in find_stacks(model).items()},
        "heads": config.num_heads,
        "d_model": config.d_model,
        "d_k": config.d_k,
        "d_v": config.d_v,
        "d_ff": config.d_ff,
        "norm": config.norm_position,
        "positions": config.position_embedding,
        "room": None if room(model) == math.inf else room(model),
        "vocab": config.vocab_size,
        "eos": config.eos_token_id,
        "parameters": model.num_parameters(),
    }


def described_attention(
    model: PreTrainedModel,
    attention: dict[tuple[str, int], Tensor],
    reading: Reading,
    special: set[int],
    changes: Changes,
) -> tuple[list[dict], list[dict]]:
    """The weights of each kind in thousandths [layer][head][query][key], and what each head does.

    With the weights comes how far back and ahead a query sees; None has no end.
    """
    modules = attentions_of(model)
    written = reading.target or reading.source
    texts = {
        "encoder": (reading.source, reading.source),
        "decoder": (written[:-1], written[:-1]) if reading.target else (written, written),
        "cross": (written[1:], reading.source),
    }
    kinds, heads = [], []
    for kind in dict.fromkeys(kind for kind, _ in attention):
        queries, keys = texts[kind]
        layers = [weights[0].float().cpu() for (of, _), weights in attention.items() if of == kind]
        sees = [None if far == math.inf else far for far in reach(modules[kind, 0], changes)]
        weights = [per_mille(layer) for layer in layers]
        kinds.append({"kind": kind, "name": NAMES[kind], "reach": sees, "weights": weights})
        heads += [
            {"kind": kind, "layer": i, "head": j} | head_statistics(kind, weights, queries, keys, special)
            for i, layer in enumerate(layers)
            for j, weights in enumerate(layer)
        ]
    return kinds, heads


@torch.inference_mode()
def explore_data(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    target: str | Sequence[int] | None = None,
    context: str | None = None,
    changes: Changes = UNCHANGED,
    effects: bool = True,
    values: bool = True,
) -> dict[str, Any]:
    """All that `explore` shows, as data for JSON.

    Args:
        text, target, context: see `read`.
        changes: what is switched off meanwhile; the data name it.
        effects: with what each head is worth, the largest effect first, for or against the answer; for this the text
            is read once more for each head.
        values: with the numbers of every step in every layer.

    Raises:
        ValueError: the model cannot answer that, or does not have what is to be changed.
    """
    reading, scores, attention = settled(model, tokenizer, text, target, context, changes)
    kinds, heads = described_attention(model, attention, reading, set(tokenizer.all_special_ids), changes)
    data: dict[str, Any] = {
        "model": described_model(model, reading),
        "text": text,
        "context": context,
        "source": tokens_of(tokenizer, reading.source),
        "target": reading.target and tokens_of(tokenizer, reading.target),
        "written": reading.written,
        "steps": with_text_so_far(described_steps(reading, scores), reading, tokenizer),
        "answer": answer(reading, scores, tokenizer),
        "hypotheses": [
            {"text": words, "score": round(score, 4), "ids": ids} for words, score, ids in reading.hypotheses
        ],
        "attention": kinds,
        "heads": heads,
        "lens": lens(model, reading, changes),
    }
    if changes:
        data["changes"] = as_json(changes)
    if reading.task == "classify":
        data["mattered"] = mattered(model, tokenizer, text, reading, changes)
    if effects:
        data["effects"] = described_effects(head_effects(model, reading, changes))
    if values:
        data["values"] = {
            f"{stack} {layer}": layer_values(model, reading, stack, layer, changes)
            for stack, modules in find_stacks(model).items()
            for layer in range(len(modules.layers))
        }
    return data


@torch.inference_mode()
def settled(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    target: str | Sequence[int] | None = None,
    context: str | None = None,
    changes: Changes = UNCHANGED,
) -> tuple[Reading, Tensor, dict[tuple[str, int], Tensor]]:
    """A text with the model's answer, the scores (places, options), and its attention by kind and layer."""
    with changed(model, changes) as seen:
        use_cache = not changes.need_whole_targets()
        reading = read(model, tokenizer, text, target, context, use_cache=use_cache)
        (scores,) = reading.scores(model(**reading.inputs))
    choose(reading, scores)
    return reading, scores, seen.attention


@torch.inference_mode()
def compare_data(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    changes: Changes,
    target: str | Sequence[int] | None = None,
    context: str | None = None,
    reading: Reading | None = None,
) -> dict[str, Any]:
    """A changed model beside the model as it is.

    Args:
        reading: of the model as it is, where it has read the text already.

    Returns:
        "changed": what the changed model says, as `explore_data` gives it; "same": the steps of what the model as it
        is says, with the probabilities that the changed model gives them; "rows": for each query of which weights are
        set, (kind, layer, head, query, all its weights in thousandths), as it then was.

    Raises:
        ValueError: see `explore_data`.
    """
    reading = reading or settled(model, tokenizer, text, target, context)[0]
    with changed(model, changes) as seen:
        (scores,) = reading.scores(model(**reading.inputs))
    rows = [
        [kind, layer, head, query, per_mille(seen.attention[kind, layer][0, head, query])]
        for kind, layer, head, query in by_query(changes)
        if query < seen.attention[kind, layer].shape[-2]
    ]
    answer = explore_data(model, tokenizer, text, target, context, changes, effects=False, values=False)
    return {"changed": answer, "same": described_steps(reading, scores), "rows": rows}


def described_effects(effects: dict[tuple[str, int, int], float]) -> list[dict]:
    """The heads by effect, largest first, whether it is for the answer or against it."""
    return [
        {"kind": kind, "layer": layer, "head": head, "effect": round(effect, 5)}
        for (kind, layer, head), effect in sorted(effects.items(), key=lambda item: -abs(item[1]))
    ]


def answer(reading: Reading, scores: Tensor, tokenizer: PreTrainedTokenizerBase) -> str:
    """What the model says, in words: `scores` (places, options)."""
    chosen = [place.chosen for place in reading.places]
    if reading.task == "translate":
        return str(tokenizer.decode(chosen, skip_special_tokens=True))
    if reading.task == "generate":
        return str(tokenizer.decode(reading.source, skip_special_tokens=True))
    if reading.task == "fill":
        ids = list(reading.source)
        for place in reading.places:
            ids[place.token or 0] = place.chosen
        return str(tokenizer.decode(ids, skip_special_tokens=True))
    if reading.task == "answer":
        first, last = chosen
        return str(tokenizer.decode(reading.source[first : last + 1], skip_special_tokens=True)).strip()
    if reading.task == "tag":
        return tagged(reading, tokenizer)
    values = [(reading.option(i), probability(reading, score)) for i, score in enumerate(scores[0].tolist())]
    if reading.regression and len(values) == 1:
        return f"{values[0][1]:.3f}"
    if reading.regression:
        return ", ".join(f"{name}: {value:.3f}" for name, value in values)
    if reading.independent:
        return ", ".join(name for name, value in values if value > 0.5) or "none"
    return reading.option(chosen[0])


def tagged(reading: Reading, tokenizer: PreTrainedTokenizerBase) -> str:
    """The spans of a tagger, such as "Kenya: COUNTRY, 7.7 ounces: WEIGHT"; a word has the tag of its first token."""
    spans: list[tuple[str, str]] = []  # text, tag
    before = None
    for place in reading.places:
        text = shown_token(tokenizer, reading.source[place.token or 0])
        begins = text.startswith(" ") or before is None or place.token != before + 1
        before = place.token
        mark, _, tag = reading.option(place.chosen).rpartition("-")
        if spans and (not begins or (mark != "B" and tag == spans[-1][1])):
            spans[-1] = (spans[-1][0] + text, spans[-1][1])
        else:
            spans.append((text, tag))
    named = [f"{text.strip().rstrip('.,;:!?')}: {tag}" for text, tag in spans if tag != "O"]
    return ", ".join(named) or "nothing"


@torch.inference_mode()
def layer_values(
    model: PreTrainedModel, reading: Reading, stack: str, layer: int, changes: Changes = UNCHANGED
) -> list[dict]:
    """Each step of a layer: its equation, its shape, the line of code, and the first of its numbers with the changes.

    Where a step has heads, the numbers are of each of them: [head][row][column]; else [row][column].
    """
    rows, columns = VALUES
    steps = []
    with changed(model, changes):
        recorded = record(model, reading.inputs, layer, None, stack)
    for step in recorded:
        tensor = step.tensor[0]
        if tensor.dim() == 1:
            tensor = tensor[:, None]
        tensor = tensor[..., :rows, :columns]
        steps.append(
            {
                "part": step.part,
                "name": step.name,
                "equation": step.equation,
                "axes": list(step.axes[1:]),
                "shape": list(step.shape[1:]),
                "source": step.source,
                "values": rounded(tensor),
            }
        )
    return steps


def rounded(tensor: Tensor) -> list:
    """Nested lists, with None for minus infinity and what stands for it."""
    if not tensor.is_floating_point():
        return tensor.tolist()
    hidden = tensor < -1e30
    values = (tensor.masked_fill(hidden, 0).double() * 1000).round() / 1000
    return nested_with_none(values.tolist(), hidden.tolist())


def nested_with_none(values: Any, hidden: Any) -> Any:
    """The nested lists `values`, with None where those of `hidden` are true."""
    if isinstance(values, list):
        return [nested_with_none(*pair) for pair in zip(values, hidden, strict=True)]
    return None if hidden else values


# ---------------------------------------------------------------------------------------------------------------------
# The picture
# ---------------------------------------------------------------------------------------------------------------------

# The files in `explorer` are the body of one JavaScript function, in this order: so a saved page can hold its text,
# and nothing of it reaches other pages.
SCRIPTS = (
    *("elements", "state", "player", "map", "flow", "handles", "output", "box", "heads", "lens"),
    *("broken", "beside", "files", "curves", "lesson", "runs", "asking"),
)
COLOURS = ("paper", "ink", "rule", "blue", "orange", "green", "purple", "pink", "grey")


def component_files() -> tuple[str, str]:
    """The script and the style of the picture, which has no other file and needs no other host."""
    folder = files("vanilla_transformer.inside").joinpath("explorer")
    style = folder.joinpath("style.css").read_text(encoding="utf-8")
    parts = [folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    script = "\n".join(["function mountExplorer(place, { style, data = null, host = null }) {", *parts, "}"])
    colours = " ".join(f"--{name}: {css(name)};" for name in COLOURS)
    return script, f":host {{ {colours} }}\n{style}"


def for_script(value: Any) -> str:
    """JSON that may stand in a script of a page."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


@dataclass
class Explorer:
    """The living picture of `data`, as notebooks show it."""

    data: dict[str, Any]

    def _repr_html_(self) -> str:
        script, style = component_files()
        place = f"explorer-{uuid4().hex}"
        return (
            f'<div id="{place}"></div>\n<script>\n(() => {{\n{script}\n'
            f'mountExplorer(document.getElementById("{place}"), '
            f"{{style: {for_script(style)}, data: {for_script(self.data)}}});\n}})();\n</script>"
        )

    def page(self) -> str:
        """A whole page that needs no other file."""
        return (
            '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.data['text'].strip() or 'Explorer')}</title>\n"
            f"<style>html {{ color-scheme: light dark; background: {css('paper')} }} body {{ margin: 0 }}</style>\n"
            f"{self._repr_html_()}\n</html>\n"
        )

    def save(self, file: str | Path) -> None:
        """Write the picture as a page that needs nothing else, neither this library nor a network."""
        Path(file).write_text(self.page(), encoding="utf-8")


def explore(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    target: str | Sequence[int] | None = None,
    context: str | None = None,
    changes: Changes = UNCHANGED,
) -> Explorer:
    """A living picture of a model on one text, for a notebook or a page of its own.

    Args:
        text, target, context: see `read`.
        changes: what is switched off in the model.

    Raises:
        ValueError: see `explore_data`.
    """
    return Explorer(explore_data(model, tokenizer, text, target, context, changes))
