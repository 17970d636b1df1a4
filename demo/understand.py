"""Understand: classes or a number for a text, marked spans in it, the answer to a question; and what mattered."""

import gradio as gr
import torch
from torch import Tensor
from transformers import TokenClassificationPipeline

from loading import LONGEST_INPUT, Loaded, check_text, warn_of_unknown_letters
from pipeline_vanilla_transformer import QuestionAnsweringPipeline
from reading import check_length, cut


CAVEAT = (
    "**What mattered** is gradient × input: how much the score of the first class would change with each token, to "
    "first order; red speaks for it, violet against it. **Attention** is how much all positions looked at each token, "
    "in the mean over layers and heads. Neither is an explanation: both can point at tokens that the decision does "
    "not depend on."
)
TO_CLASSIFY = ["Wednesday, July 4, 2029", "12 kilómetros o 3 millas", "il y a trois heures", "5 घंटे पहले"]
TO_REGRESS = ["81 sec", "89 hours and 44 minutes", "7 years"]
TO_TAG = [
    "The parcel from Kenya weighs 7.7 ounces and arrived 98 months ago.",
    "The flight to Peru leaves on Wednesday, January 19, 2028 at 1:56 AM and costs 7.87 Mexican pesos.",
    "Sales rose by 16% and will be counted again in 50 weeks.",
]
TEXT = "The tank holds 3 liters at 54°C. The parcel from Kenya weighs 7.7 ounces and arrived 98 months ago."
TO_ANSWER = [[question, TEXT] for question in ("How warm is the tank?", "Where does the parcel come from?")]


def scored(pieces: list[tuple[str, list[int]]], values: Tensor) -> list[tuple[str, float]]:
    """Pieces with the sums of their tokens' values, scaled to at most 1, for a highlighted text."""
    sums = torch.stack([values[places].sum() for _, places in pieces])
    scaled = sums / sums.abs().max().clamp(min=1e-9)
    return [(piece, round(value, 3)) for (piece, _), value in zip(pieces, scaled.tolist(), strict=True)]


def saliency(loaded: Loaded, text: str) -> tuple[Tensor, list[tuple[str, float]], list[tuple[str, float]]]:
    """The logits (labels,), gradient x input of the highest, and the mean attention, by piece of the text."""
    batch = loaded.tokenizer([text], return_tensors="pt")
    check_length(loaded, batch["input_ids"].shape[1])
    embeddings = loaded.model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    output = loaded.model(inputs_embeds=embeddings, attention_mask=batch["attention_mask"], output_attentions=True)
    (gradient,) = torch.autograd.grad(output.logits[0].max(), embeddings)
    pieces = cut(loaded, text)
    attention = torch.stack(output.attentions).detach().mean(dim=(0, 1, 2, 3))
    return (
        output.logits[0].detach(),
        scored(pieces, (gradient * embeddings)[0].sum(-1).detach()),
        scored(pieces, attention),
    )


def classify_tab(loaded: Loaded) -> None:
    """A class with its probability, or a number."""
    config = loaded.model.config
    regression = config.problem_type == "regression"
    several = config.problem_type == "multi_label_classification"

    def respond(text: str) -> tuple[str | dict[str, float], list[tuple[str, float]], list[tuple[str, float]]]:
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

    kind = "a number" if regression else "any number of classes" if several else "one of its classes"
    examples = TO_REGRESS if regression else TO_CLASSIFY
    gr.Markdown(f"Gives a text {kind}: `{loaded.name}`. It knows what its training had.")
    text = gr.Textbox(label="Text", placeholder=examples[0], max_length=LONGEST_INPUT)
    button = gr.Button("Regress" if regression else "Classify", variant="primary")
    answer = gr.Textbox(label="Value") if regression else gr.Label(label="Probabilities", num_top_classes=5)
    mattered = gr.HighlightedText(label="What mattered")
    attended = gr.HighlightedText(label="Attention")
    gr.Markdown(CAVEAT)
    outputs = [answer, mattered, attended]
    gr.Examples(examples, text, outputs, respond, run_on_click=True)
    gr.on([button.click, text.submit], respond, text, outputs, api_name="regress" if regression else "classify")


def tag_tab(loaded: Loaded) -> None:
    """Spans of the text, coloured by their class."""
    tagger = TokenClassificationPipeline(
        model=loaded.model, tokenizer=loaded.tokenizer, aggregation_strategy="first", device="cpu"
    )

    def respond(text: str) -> dict:
        text = check_text(text, "to tag")
        warn_of_unknown_letters(loaded, text)
        check_length(loaded, len(loaded.tokenizer(text)["input_ids"]))
        entities = [
            {"entity": found["entity_group"], "start": found["start"], "end": found["end"]} for found in tagger(text)
        ]
        return {"text": text, "entities": entities}

    gr.Markdown(f"Marks spans of a text, each with its class: `{loaded.name}`. It knows what its training had.")
    text = gr.Textbox(label="Text", placeholder=TO_TAG[0], max_length=LONGEST_INPUT)
    button = gr.Button("Tag", variant="primary")
    spans = gr.HighlightedText(label="Spans", combine_adjacent=True)
    gr.Examples(TO_TAG, text, spans, respond, run_on_click=True)
    gr.on([button.click, text.submit], respond, text, spans, api_name="tag")


def answer_tab(loaded: Loaded) -> None:
    """The answer to a question, marked in its text."""
    reader = QuestionAnsweringPipeline(model=loaded.model, tokenizer=loaded.tokenizer, device="cpu")

    def respond(question: str, context: str) -> tuple[str, dict]:
        question, context = check_text(question, "to ask"), check_text(context, "to look for the answer in")
        warn_of_unknown_letters(loaded, context)
        # The reader goes through a long text in windows, but each begins with the question.
        check_length(loaded, len(loaded.tokenizer(question, "?")["input_ids"]), "this question")
        found = reader(question=question, context=context)
        span = {"entity": f"answer, {found['score']:.0%}", "start": found["start"], "end": found["end"]}
        return found["answer"], {"text": context, "entities": [span] if found["answer"] else []}

    gr.Markdown(f"Finds the answer to a question in a text, where it is some words of it: `{loaded.name}`.")
    question = gr.Textbox(label="Question", placeholder=TO_ANSWER[0][0], max_length=LONGEST_INPUT)
    context = gr.Textbox(label="Text", placeholder=TEXT, lines=3, max_length=LONGEST_INPUT)
    button = gr.Button("Answer", variant="primary")
    answer = gr.Textbox(label="Answer", buttons=["copy"])
    marked = gr.HighlightedText(label="In the text, with its probability")
    gr.Examples(TO_ANSWER, [question, context], [answer, marked], respond, run_on_click=True)
    gr.on([button.click, question.submit], respond, [question, context], [answer, marked], api_name="answer")
