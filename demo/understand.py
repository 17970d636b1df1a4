"""Understand: classes or a number for a text, marked spans in it, the answer to a question; and what mattered."""

import gradio as gr
import torch
from transformers import TokenClassificationPipeline

from loading import LONGEST_INPUT, Loaded, check_text


CAVEAT = (
    "**What mattered** is gradient × input: how much the score would change with each token, to first order. "
    "**Attention** is how much all positions looked at each token, in the mean over layers and heads. Neither is an "
    "explanation: both can point at tokens that the decision does not depend on."
)
EXAMPLES = ["Wednesday, July 4, 2029", "12 kilómetros o 3 millas", "il y a trois heures"]


def pieces(loaded: Loaded, ids: torch.Tensor) -> list[str]:
    """The text of each token, so that joined they are the text."""
    return [loaded.tokenizer.decode([i]) for i in ids.tolist()]


def scored(tokens: list[str], values: torch.Tensor) -> list[tuple[str, float]]:
    """Tokens with values scaled to at most 1, for a highlighted text."""
    largest = values.abs().max().clamp(min=1e-9)
    return [(token, round(value, 3)) for token, value in zip(tokens, (values / largest).tolist(), strict=True)]


def saliency(loaded: Loaded, text: str) -> tuple[torch.Tensor, list[tuple[str, float]], list[tuple[str, float]]]:
    """The logits (labels,), gradient x input of the highest, and the mean attention, by token."""
    batch = loaded.tokenizer([text], return_tensors="pt")
    embeddings = loaded.model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    output = loaded.model(inputs_embeds=embeddings, attention_mask=batch["attention_mask"], output_attentions=True)
    (gradient,) = torch.autograd.grad(output.logits[0].max(), embeddings)
    tokens = pieces(loaded, batch["input_ids"][0])
    attention = torch.stack(output.attentions).detach().mean(dim=(0, 1, 2, 3))
    return (
        output.logits[0].detach(),
        scored(tokens, (gradient * embeddings)[0].sum(-1).detach()),
        scored(tokens, attention),
    )


def classify_tab(loaded: Loaded) -> None:
    """A class with its probability, or a number."""
    config = loaded.model.config
    regression = config.problem_type == "regression"
    several = config.problem_type == "multi_label_classification"

    def respond(text: str):
        logits, mattered, attended = saliency(loaded, check_text(text, "to classify"))
        if regression:
            return ", ".join(f"{value:.3f}" for value in logits.tolist()), mattered, attended
        probabilities = logits.sigmoid() if several else logits.softmax(-1)
        named = {config.id2label[i]: value for i, value in enumerate(probabilities.tolist())}
        return named, mattered, attended

    gr.Markdown(f"Gives a text {'a number' if regression else 'a class'}: `{loaded.name}`.")
    text = gr.Textbox(label="Text", placeholder=EXAMPLES[0], max_length=LONGEST_INPUT)
    button = gr.Button("Regress" if regression else "Classify", variant="primary")
    answer = gr.Textbox(label="Value") if regression else gr.Label(label="Probabilities", num_top_classes=5)
    mattered = gr.HighlightedText(label="What mattered", show_legend=False)
    attended = gr.HighlightedText(label="Attention", show_legend=False)
    gr.Markdown(CAVEAT)
    name = "regress" if regression else "classify"
    gr.on([button.click, text.submit], respond, text, [answer, mattered, attended], api_name=name)
    gr.Examples(EXAMPLES, text)


def tag_tab(loaded: Loaded) -> None:
    """Spans of the text, coloured by their class."""
    tagger = TokenClassificationPipeline(
        model=loaded.model, tokenizer=loaded.tokenizer, aggregation_strategy="first", device="cpu"
    )

    def respond(text: str) -> dict:
        text = check_text(text, "to tag")
        entities = [
            {"entity": found["entity_group"], "start": found["start"], "end": found["end"]} for found in tagger(text)
        ]
        return {"text": text, "entities": entities}

    gr.Markdown(f"Marks spans of a text: `{loaded.name}`.")
    text = gr.Textbox(label="Text", max_length=LONGEST_INPUT)
    button = gr.Button("Tag", variant="primary")
    spans = gr.HighlightedText(label="Spans", combine_adjacent=True)
    gr.on([button.click, text.submit], respond, text, spans, api_name="tag")


def answer_tab(loaded: Loaded) -> None:
    """The answer to a question, marked in its text."""

    @torch.inference_mode()
    def respond(question: str, context: str) -> tuple[str, dict]:
        question, context = check_text(question, "to ask"), check_text(context, "to look for the answer in")
        encoded = loaded.tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0]
        inside = torch.tensor([part == 1 for part in encoded.sequence_ids(0)])
        output = loaded.model(**encoded)
        starts, ends = (
            logits[0].masked_fill(~inside, -torch.inf) for logits in (output.start_logits, output.end_logits)
        )
        length = len(inside)
        spans = (starts[:, None] + ends[None]).masked_fill(
            ~torch.ones(length, length, dtype=torch.bool).triu(), -torch.inf
        )
        first, last = divmod(int(spans.argmax()), length)
        start, end = int(offsets[first, 0]), int(offsets[last, 1])
        marked = {"text": context, "entities": [{"entity": "answer", "start": start, "end": end}]}
        return context[start:end].strip(), marked

    gr.Markdown(f"Finds the answer to a question in a text: `{loaded.name}`.")
    question = gr.Textbox(label="Question", max_length=LONGEST_INPUT)
    context = gr.Textbox(label="Text", lines=4, max_length=LONGEST_INPUT)
    button = gr.Button("Answer", variant="primary")
    answer = gr.Textbox(label="Answer", buttons=["copy"])
    marked = gr.HighlightedText(label="In the text")
    gr.on([button.click, question.submit], respond, [question, context], [answer, marked], api_name="answer")
