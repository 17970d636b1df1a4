"""Add the endpoints for language understanding: classification, tagging, question answering, masked words.

The explorer shows the same results; these endpoints are for API clients.
"""

from typing import Any

import gradio as gr
import torch
from transformers import TokenClassificationPipeline

from vanilla_transformer.app.loading import Loaded
from vanilla_transformer.app.reading import check_length, check_text, encode, refusing, warn_of_unknown_letters
from vanilla_transformer.inside.effects import input_attributions, sum_over_pieces
from vanilla_transformer.inside.predictions import predict
from vanilla_transformer.inside.readings import BLANK, split_text, tokenizer_options
from vanilla_transformer.pipeline_vanilla_transformer import QuestionAnsweringPipeline


def check(loaded: Loaded, text: str, purpose: str) -> str:
    """Return the text, with a warning about unknown letters; raise an error if it is empty or too long."""
    text = check_text(text, purpose)
    warn_of_unknown_letters(loaded, text)
    encode(loaded, text.replace(BLANK, loaded.tokenizer.mask_token or BLANK))
    return text


def offer_classes(loaded: Loaded) -> None:
    """Add the endpoint of a classifier."""
    model, tokenizer = loaded.model, loaded.tokenizer

    def respond(text: str) -> tuple[dict[str, float], list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the probability (or value) of each label, and gradient x input and attention for each piece."""
        text = check(loaded, text, "to classify")
        prediction, (scores,), attention = predict(model, tokenizer, text)
        found = {prediction.option(i): prediction.probability(score) for i, score in enumerate(scores.tolist())}
        pieces = split_text(tokenizer, text, **tokenizer_options(model))
        attended = torch.cat([*attention.values()]).mean(dim=(0, 1, 2))
        return found, input_attributions(model, tokenizer, prediction), sum_over_pieces(pieces, attended)

    gr.api(respond, api_name="regress" if loaded.estimates else "classify")


def offer_tags(loaded: Loaded) -> None:
    """Add the endpoint of a tagger."""
    tagger = TokenClassificationPipeline(
        model=loaded.model, tokenizer=loaded.tokenizer, aggregation_strategy="first", device="cpu"
    )

    def respond(text: str) -> list[dict[str, Any]]:
        """Return the tagged spans, each with text, tag, start and end."""
        found = tagger(check(loaded, text, "to tag"))
        return [
            {"text": span["word"].strip(), "tag": span["entity_group"], "start": span["start"], "end": span["end"]}
            for span in found
        ]

    gr.api(respond, api_name="tag")


def offer_answers(loaded: Loaded) -> None:
    """Add the endpoint of a model for question answering."""
    reader = QuestionAnsweringPipeline(model=loaded.model, tokenizer=loaded.tokenizer, device="cpu")

    def respond(question: str, context: str) -> dict[str, Any]:
        """Return the answer, its start and end in the context, and its score."""
        question, context = check_text(question, "to ask"), check_text(context, "to look for the answer in")
        warn_of_unknown_letters(loaded, context)
        # The pipeline splits long contexts into windows, but each window must hold the whole question.
        check_length(loaded, len(loaded.tokenizer(question, "?")["input_ids"]), "this question")
        return reader(question=question, context=context)

    gr.api(respond, api_name="answer")


def offer_words(loaded: Loaded) -> None:
    """Add the endpoint of a masked language model."""

    def respond(text: str) -> tuple[str, list[dict[str, float]]]:
        """Return the text with its blanks (___) filled, and the most probable tokens for each blank."""
        text = check(loaded, text, "with a blank in it")
        with refusing():
            prediction, scores, _ = predict(loaded.model, loaded.tokenizer, text)
        best = [{option["text"]: option["p"] for option in prediction.top_options(row)} for row in scores]
        return prediction.answer(scores), best

    gr.api(respond, api_name="fill")
