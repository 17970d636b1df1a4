"""Answer requests to the endpoints of the tasks. Text generation is in continue_text.py."""

from typing import Any

import torch
from transformers import TokenClassificationPipeline

from vanilla_transformer.app.loading import DemoModel
from vanilla_transformer.app.reading import check_length, check_text, encode, refusing
from vanilla_transformer.decoding import token_text
from vanilla_transformer.inside.effects import input_attributions, sum_over_pieces
from vanilla_transformer.inside.predictions import predict
from vanilla_transformer.inside.readings import BLANK, encode_text, split_text, tokenizer_options
from vanilla_transformer.pipeline_vanilla_transformer import QuestionAnsweringPipeline


SHOWN = 10  # number of most probable tokens to return


def check(loaded: DemoModel, text: str, purpose: str) -> str:
    """Return the text without surrounding spaces; raise an error if it is empty or too long."""
    text = check_text(text, purpose)
    encode(loaded, text.replace(BLANK, loaded.tokenizer.mask_token or BLANK))
    return text


def translate(loaded: DemoModel, text: str) -> dict[str, Any]:
    """Return the hypotheses of the beam search, best first."""
    text = check(loaded, text, "to translate")
    prediction, _, _ = predict(loaded.model, loaded.tokenizer, text)
    hypotheses = [{"text": words, "score": round(score, 4)} for words, score, _ in prediction.hypotheses]
    return {"translation": hypotheses[0]["text"], "hypotheses": hypotheses}


def classify(loaded: DemoModel, text: str) -> dict[str, Any]:
    """Return the probability (or value) of each label, and gradient x input and attention for each piece."""
    model, tokenizer = loaded.model, loaded.tokenizer
    text = check(loaded, text, "to classify")
    prediction, (scores,), attention = predict(model, tokenizer, text)
    found = {prediction.option(i): prediction.probability(score) for i, score in enumerate(scores.tolist())}
    attended = torch.cat([*attention.values()]).mean(dim=(0, 1, 2))
    return {
        "labels": found,
        "attribution": input_attributions(model, tokenizer, prediction),
        "attention": sum_over_pieces(split_text(tokenizer, text, **tokenizer_options(model)), attended),
    }


def tag(loaded: DemoModel, text: str) -> dict[str, Any]:
    """Return the tagged spans, each with text, tag, start and end."""
    text = check(loaded, text, "to tag")
    tagger = TokenClassificationPipeline(
        model=loaded.model, tokenizer=loaded.tokenizer, aggregation_strategy="first", device="cpu"
    )
    spans = [
        {"text": span["word"].strip(), "tag": span["entity_group"], "start": span["start"], "end": span["end"]}
        for span in tagger(text)
    ]
    return {"spans": spans}


def answer(loaded: DemoModel, question: str, context: str) -> dict[str, Any]:
    """Return the answer, its start and end in the context, and its score."""
    question, context = check_text(question, "to ask"), check_text(context, "to look for the answer in")
    # The pipeline splits long contexts into windows, but each window must hold the whole question.
    check_length(loaded, len(loaded.tokenizer(question, "?")["input_ids"]), "this question")
    reader = QuestionAnsweringPipeline(model=loaded.model, tokenizer=loaded.tokenizer, device="cpu")
    return reader(question=question, context=context)


def fill(loaded: DemoModel, text: str) -> dict[str, Any]:
    """Return the text with its blanks (___) filled, and the most probable tokens for each blank."""
    text = check(loaded, text, "with a blank in it")
    with refusing():
        prediction, scores, _ = predict(loaded.model, loaded.tokenizer, text)
    best = [{option["text"]: option["p"] for option in prediction.top_options(row)} for row in scores]
    return {"text": prediction.answer(scores), "blanks": best}


@torch.inference_mode()
def next_tokens(loaded: DemoModel, text: str) -> dict[str, Any]:
    """Return the most probable tokens after a text, with their probabilities."""
    text = check_text(text, "to continue", keep_space=True)
    with refusing():
        ids = encode_text(loaded.model, loaded.tokenizer, text)["input_ids"]
    probabilities, best = loaded.model(ids).logits[0, -1].softmax(-1).topk(SHOWN)
    tokens = [
        {"token": token_text(loaded.tokenizer, i), "id": i, "probability": round(p, 6)}
        for i, p in zip(best.tolist(), probabilities.tolist(), strict=True)
    ]
    return {"tokens": tokens}
