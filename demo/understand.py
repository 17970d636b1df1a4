"""Understand: classes or a number for a text, spans in it, the answer to a question, a word for a blank."""

from collections.abc import Callable

import gradio as gr
import torch
from torch import Tensor
from transformers import TokenClassificationPipeline

from loading import Loaded, check_text, refusal, token_name, warn_of_unknown_letters
from pipeline_vanilla_transformer import QuestionAnsweringPipeline
from reading import answer_with, check_length, cut


def caveat(score: str) -> str:
    """What the two coloured texts mean, which explain a score."""
    return (
        f"**What mattered** is gradient × input: how much {score} would change with each token, to first order; red "
        "raises it, violet lowers it. **Attention** is how much all positions looked at each token, in the mean over "
        "layers and heads. Neither is an explanation: both can point at tokens that the decision does not depend on."
    )


TO_CLASSIFY = ["Wednesday, July 4, 2029", "12 kilómetros o 3 millas", "il y a trois heures", "5 घंटे पहले"]
MEASURE = "Value, in the unit of its training (the phrasebook's: the logarithm to base 10 of seconds)"
TO_REGRESS = ["81 sec", "89 hours and 44 minutes", "7 years"]
TO_TAG = [
    "The parcel from Kenya weighs 7.7 ounces and arrived 98 months ago.",
    "The flight to Peru leaves on Wednesday, January 19, 2028 at 1:56 AM and costs 7.87 Mexican pesos.",
    "Sales rose by 16% and will be counted again in 50 weeks.",
]
BLANK = "___"
TO_FILL = [
    f"The parcel from Kenya {BLANK} 7.7 ounces.",
    f"Sales rose by 16% and will be counted again in 50 {BLANK}.",
    f"The flight to Peru {BLANK} on Wednesday.",
]
TEXT = "The tank holds 3 liters at 54°C. The parcel from Kenya weighs 7.7 ounces and arrived 98 months ago."
TO_ANSWER = [[question, TEXT] for question in ("How warm is the tank?", "Where does the parcel come from?")]


def answered(respond: Callable, *example: str) -> tuple:
    """What a tab shows at first: the answer to its example, where the model has room for that; else nothing."""
    try:
        return respond(*example)
    except gr.Error:
        return ()


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


def is_regression(loaded: Loaded) -> bool:
    return loaded.model.config.problem_type == "regression"


def classify_tab(loaded: Loaded) -> None:
    """A class with its probability, or a number."""
    config = loaded.model.config
    regression = is_regression(loaded)
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
    text = gr.Textbox(examples[0], label="Text")
    offered = gr.Examples(examples, text)
    button = gr.Button("Estimate" if regression else "Classify", variant="primary")
    first, *explained = answered(respond, examples[0]) or (None, None, None)
    answer = (
        gr.Textbox(first, label=MEASURE) if regression else gr.Label(first, label="Probabilities", num_top_classes=5)
    )
    mattered, attended = (
        gr.HighlightedText(pieces, label=label)
        for pieces, label in zip(explained, ("What mattered", "Attention"), strict=True)
    )
    gr.Markdown(caveat("the number" if regression else "the score of the first class"))
    endpoint = "regress" if regression else "classify"
    answer_with(respond, button, [text], offered, [answer, mattered, attended], endpoint)


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
    text = gr.Textbox(TO_TAG[0], label="Text")
    examples = gr.Examples(TO_TAG, text)
    button = gr.Button("Tag", variant="primary")
    spans = gr.HighlightedText(answered(respond, TO_TAG[0]) or None, label="Spans", combine_adjacent=True)
    answer_with(respond, button, [text], examples, [spans], "tag")


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
    question = gr.Textbox(TO_ANSWER[0][0], label="Question")
    context = gr.Textbox(TEXT, label="Text", lines=3)
    examples = gr.Examples(TO_ANSWER, [question, context])
    button = gr.Button("Answer", variant="primary")
    first, where = answered(respond, *TO_ANSWER[0]) or (None, None)
    answer = gr.Textbox(first, label="Answer")
    marked = gr.HighlightedText(where, label="In the text, with its probability")
    answer_with(respond, button, [question, context], examples, [answer, marked], "answer")


def fill_tab(loaded: Loaded) -> None:
    """The most probable tokens for a blank."""
    mask = loaded.tokenizer.mask_token

    @torch.inference_mode()
    def respond(text: str) -> tuple[str, dict[str, float]]:
        text = check_text(text, "with a blank in it")
        warn_of_unknown_letters(loaded, text)
        batch = loaded.tokenizer([text.replace(BLANK, mask)], return_tensors="pt")
        check_length(loaded, batch["input_ids"].shape[1])
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

    gr.Markdown(
        f"Fills a blank, written as `{BLANK}`, with one token, which may be a part of a word: `{loaded.name}`. It "
        "knows what its training had."
    )
    text = gr.Textbox(TO_FILL[0], label="Text")
    examples = gr.Examples(TO_FILL, text)
    button = gr.Button("Fill in", variant="primary")
    first, likely = answered(respond, TO_FILL[0]) or (None, None)
    filled = gr.Textbox(first, label="Filled in")
    probable = gr.Label(likely, label="Most probable tokens", num_top_classes=5)
    answer_with(respond, button, [text], examples, [filled, probable], "fill")
