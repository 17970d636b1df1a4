"""Endpoints that understand text: classify it, tag spans, answer questions, fill a blank.

The page shows the same in the explorer; these endpoints are for programs.
"""

from typing import Any

import gradio as gr
import torch
from torch import Tensor
from transformers import TokenClassificationPipeline

from vanilla_transformer.app.loading import Loaded
from vanilla_transformer.app.reading import (
    check_length,
    check_text,
    encode,
    offer,
    refusal,
    token_name,
    warn_of_unknown_letters,
)
from vanilla_transformer.inside.effects import gradient_times_input, sum_over_pieces
from vanilla_transformer.inside.readings import BLANK, split_text, tokenizer_options
from vanilla_transformer.pipeline_vanilla_transformer import QuestionAnsweringPipeline


def saliency(loaded: Loaded, text: str) -> tuple[Tensor, list[tuple[str, float]], list[tuple[str, float]]]:
    """Return logits (labels,); gradient x input of the highest, and mean attention, for each piece of the text."""
    batch = encode(loaded, text)
    output, (values,) = gradient_times_input(
        loaded.model, batch, lambda output: output.logits[0].max(), output_attentions=True
    )
    pieces = split_text(loaded.tokenizer, text, **tokenizer_options(loaded.model))
    attention = torch.stack(output.attentions).detach().mean(dim=(0, 1, 2, 3))
    return output.logits[0].detach(), sum_over_pieces(pieces, values), sum_over_pieces(pieces, attention)


def offer_classes(loaded: Loaded) -> None:
    """Add the endpoint of a classifier: classes with probabilities, or a number."""
    config = loaded.model.config
    regression = loaded.estimates
    several = config.problem_type == "multi_label_classification"

    def respond(text: str) -> tuple[Any, list[dict], list[dict]]:
        """Return the class or number of a text, and gradient x input and attention for each piece of it."""
        text = check_text(text, "to classify")
        warn_of_unknown_letters(loaded, text)
        logits, mattered, attended = saliency(loaded, text)
        names = [config.id2label[i] for i in range(len(logits))]
        if regression:
            values = [f"{value:.3f}" for value in logits.tolist()]
            named = zip(names, values, strict=True)
            return values[0] if len(values) == 1 else ", ".join(map(": ".join, named)), mattered, attended
        probabilities = logits.sigmoid() if several else logits.softmax(-1)
        return dict(zip(names, probabilities.tolist(), strict=True)), mattered, attended

    pieces = gr.HighlightedText(render=False)
    answer = gr.Textbox(render=False) if regression else gr.Label(num_top_classes=5, render=False)
    offer(respond, "regress" if regression else "classify", answer, pieces, pieces)


def offer_tags(loaded: Loaded) -> None:
    """Add the endpoint of a tagger."""
    tagger = TokenClassificationPipeline(
        model=loaded.model, tokenizer=loaded.tokenizer, aggregation_strategy="first", device="cpu"
    )

    def respond(text: str) -> list[dict]:
        """Return the text, and spans of it with their class."""
        text = check_text(text, "to tag")
        warn_of_unknown_letters(loaded, text)
        encode(loaded, text)  # raises an error for a text that is too long
        entities = [
            {"entity": found["entity_group"], "start": found["start"], "end": found["end"]} for found in tagger(text)
        ]
        return {"text": text, "entities": entities}

    offer(respond, "tag", gr.HighlightedText(combine_adjacent=True, render=False))


def offer_answers(loaded: Loaded) -> None:
    """Add the endpoint of a model for question answering."""
    reader = QuestionAnsweringPipeline(model=loaded.model, tokenizer=loaded.tokenizer, device="cpu")

    def respond(question: str, context: str) -> tuple[str, list[dict]]:
        """Return the answer to a question, and the text with the answer marked."""
        question, context = check_text(question, "to ask"), check_text(context, "to look for the answer in")
        warn_of_unknown_letters(loaded, context)
        # The pipeline splits a long text into windows, but each window contains the whole question.
        check_length(loaded, len(loaded.tokenizer(question, "?")["input_ids"]), "this question")
        found = reader(question=question, context=context)
        span = {"entity": f"answer, {found['score']:.0%}", "start": found["start"], "end": found["end"]}
        return found["answer"], {"text": context, "entities": [span] if found["answer"] else []}

    offer(respond, "answer", gr.Textbox(render=False), gr.HighlightedText(render=False))


def offer_words(loaded: Loaded) -> None:
    """Add the endpoint of a masked language model."""
    mask = loaded.tokenizer.mask_token

    @torch.inference_mode()
    def respond(text: str) -> tuple[str, dict[str, Any]]:
        """Return the text with its blank, ___, filled, and the five most probable tokens for it."""
        text = check_text(text, "with a blank in it")
        warn_of_unknown_letters(loaded, text)
        batch = encode(loaded, text.replace(BLANK, mask))
        (blanks,) = torch.where(batch["input_ids"][0] == loaded.tokenizer.mask_token_id)
        if len(blanks) != 1:
            raise refusal(f"Please put one blank, {BLANK}, into the text; this one has {len(blanks)}.")
        probabilities, best = loaded.model(**batch).logits[0, blanks[0]].softmax(-1).topk(5)
        names = [token_name(loaded, i) for i in best.tolist()]
        filled = batch["input_ids"][0].index_fill(0, blanks, best[0].item())
        return (
            loaded.tokenizer.decode(filled, skip_special_tokens=True),
            dict(zip(names, probabilities.tolist(), strict=True)),
        )

    offer(respond, "fill", gr.Textbox(render=False), gr.Label(num_top_classes=5, render=False))
