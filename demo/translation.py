"""Translate: the beam search's hypotheses, what each token attended to, and what each step could have written."""

from functools import lru_cache
from typing import NamedTuple

import gradio as gr
import torch
from torch import Tensor

from drawing import heat_map
from loading import Loaded, check_text, refusal, token_name, warn_of_unknown_letters
from reading import check_length, most_tokens
from vanilla_transformer.decoding import EXTRA_TOKENS


BEAMS = 4
ALTERNATIVES = 3  # shown, of the beams
MOST_TOKENS = 200  # of a translation
LONGEST_TRANSLATION = 2000  # characters
UNSURE = -1  # score: the quickstart's model is above -0.5 on its kind of phrases, and mostly below -1 on French ones
MOST_LIKELY = 5
DRAWN = 40  # tokens on each axis of a picture, at most
REMEMBERED = 64  # texts whose hypotheses are kept
# Kind of attention -> what the rows and the columns of its picture are.
AXES = {
    "cross": ("being written", "read in the text"),
    "encoder self": ("looking", "looked at"),
    "decoder self": ("being written", "already written"),
}
EXAMPLES = ["I like to travel.", "Where is the station?", "Wednesday, July 4, 2029", "12 kilometers or 3 miles"]


class Hypothesis(NamedTuple):
    """A translation as the beam search wrote it: `ids` are its tokens without the one that begins every one.

    The same text could be cut into other tokens; what is shown of a hypothesis is shown of these.
    """

    text: str
    score: float  # its log-probability after the length penalty
    ids: list[int]


class Forward(NamedTuple):
    """What a model computes when it reads a text and writes a given translation."""

    source: list[int]  # the tokens of the text
    target: list[int]  # and of the translation, of which the last ends it
    attentions: dict[str, Tensor]  # kind -> (layers, heads, queries, keys)
    probabilities: Tensor  # of each token of the vocabulary at each step: (target, vocabulary)


def draw(rows: list[str], columns: list[str], weights: Tensor, names: tuple[str, str]) -> str:
    """Heat map of one attention matrix (rows, columns), as HTML."""
    y, x = (
        f"{name}: the first {DRAWN} of {len(tokens)} tokens" if len(tokens) > DRAWN else name
        for name, tokens in zip(names, (rows, columns), strict=True)
    )
    rows, columns = rows[:DRAWN], columns[:DRAWN]
    return heat_map(rows, columns, weights[: len(rows), : len(columns)], (y, x))


class Translator:
    """What the tab and the API ask of a loaded model."""

    def __init__(self, loaded: Loaded):
        self.loaded = loaded
        self.hypotheses = lru_cache(REMEMBERED)(self.search)  # of a text; they depend on nothing else

    @torch.inference_mode()
    def search(self, text: str) -> list[Hypothesis]:
        """The best hypotheses of a beam search whose texts differ, best first."""
        batch = self.loaded.tokenizer([text], return_tensors="pt")
        length = batch["input_ids"].shape[1]
        check_length(self.loaded, length)
        output = self.loaded.model.generate(
            **batch,
            num_beams=BEAMS,
            num_return_sequences=BEAMS,
            do_sample=False,
            max_length=min(length + EXTRA_TOKENS, MOST_TOKENS, most_tokens(self.loaded)),
            return_dict_in_generate=True,
            output_scores=True,
        )
        found: dict[str, Hypothesis] = {}
        end = self.loaded.model.config.eos_token_id
        for row, score in zip(output.sequences.tolist(), output.sequences_scores.tolist(), strict=True):
            ids = row[1 : row.index(end, 1) + 1] if end in row[1:] else row[1:]
            hypothesis = Hypothesis(self.loaded.tokenizer.decode(ids, skip_special_tokens=True), score, ids)
            found.setdefault(hypothesis.text, hypothesis)
        return list(found.values())[:ALTERNATIVES]

    def target_ids(self, source: str, target: str) -> list[int]:
        """The tokens of a translation: of the model's own those that it wrote, of any other as it is tokenized.

        Of a translation that is too long, the first.
        """
        own = {hypothesis.text: hypothesis.ids for hypothesis in self.hypotheses(source)}
        if target in own:
            return own[target]
        ids = self.loaded.tokenizer(text_target=target[:LONGEST_TRANSLATION])["input_ids"]
        return ids[: min(MOST_TOKENS, most_tokens(self.loaded))]

    @torch.inference_mode()
    def forward(self, source: str, target: str) -> Forward:
        """One pass, in which every step of the decoder reads what the translation has before it.

        Raises:
            gr.Error: the text is empty or too long.
        """
        source = check_text(source, "to translate")
        batch = self.loaded.tokenizer([source], return_tensors="pt")
        check_length(self.loaded, batch["input_ids"].shape[1])
        labels = self.target_ids(source, target)
        output = self.loaded.model(**batch, labels=torch.tensor([labels]), output_attentions=True)
        attentions = {
            "cross": torch.cat(output.cross_attentions),
            "encoder self": torch.cat(output.encoder_attentions),
            "decoder self": torch.cat(output.decoder_attentions),
        }
        return Forward(batch["input_ids"][0].tolist(), labels, attentions, output.logits[0].softmax(-1))

    def name(self, i: int) -> str:
        """A token beside a picture: what it reads, or where it reads nothing by itself, its name."""
        text = self.loaded.tokenizer.decode([i])
        return self.loaded.tokenizer.convert_ids_to_tokens(i) if "\ufffd" in text else text.strip() or "␣"

    def attend(self, text: str, translation: str, kind: str, layer: str, head: str) -> str:
        """One attention of one layer, in one head or in the mean over the heads."""
        seen = self.forward(text, translation)
        layers = seen.attentions[kind]
        if int(layer) > len(layers):
            raise refusal(f"There are only {len(layers)} layers with {kind}-attention.")
        weights = layers[int(layer) - 1]
        read, written = ([self.name(i) for i in ids] for ids in (seen.source, seen.target))
        tokens = {
            "cross": (written, read),
            "encoder self": (read, read),
            "decoder self": (written, ["(start)", *written[:-1]]),
        }[kind]
        return draw(*tokens, weights.mean(dim=0) if head == "mean" else weights[int(head) - 1], AXES[kind])

    def step_to(self, text: str, translation: str, step: int) -> tuple[list[tuple], dict[str, float]]:
        """What is written before a step, counted from 1, and at it; the most likely tokens with probabilities."""
        seen = self.forward(text, translation)
        if not isinstance(step, int) or not 1 <= step <= len(seen.target):
            raise refusal(f"This translation has the steps 1 to {len(seen.target)}.")
        before, following = (
            self.loaded.tokenizer.decode(ids) for ids in (seen.target[: step - 1], seen.target[step - 1 : step])
        )
        probabilities, ids = seen.probabilities[step - 1].topk(MOST_LIKELY)
        names = [token_name(self.loaded, i) for i in ids.tolist()]
        return [(before, None), (following, "next")], dict(zip(names, probabilities.tolist(), strict=True))

    def first_step(self, text: str, translation: str) -> tuple[dict, list[tuple], dict[str, float]]:
        """The slider of the steps, set to the first, and what belongs to it."""
        last = len(self.target_ids(check_text(text, "to translate"), translation))
        return gr.update(maximum=last, value=1), *self.step_to(text, translation, 1)

    def most_likely(self, text: str, translation: str, step: int) -> dict[str, float]:
        return self.step_to(text, translation, step)[1]

    def translate(self, text: str, layer: str, head: str, kind: str) -> tuple[str, list[list], str]:
        """The best translation, the table of the hypotheses, and an attention of the best."""
        text = check_text(text, "to translate")
        unknown = warn_of_unknown_letters(self.loaded, text)
        hypotheses = self.hypotheses(text)
        best = hypotheses[0]
        if best.score < UNSURE and not unknown:
            gr.Warning("The model is not sure of this. Is the text in its language, and of a kind that it knows?")
        rows = [[hypothesis.text, round(hypothesis.score, 3)] for hypothesis in hypotheses]
        return best.text, rows, self.attend(text, best.text, kind, layer, head)


def translate_tab(loaded: Loaded) -> None:
    """The components and events of the tab. It starts with an example translated, so nothing in it is empty."""
    translator = Translator(loaded)
    config = loaded.model.config
    layers = [str(i + 1) for i in range(max(config.encoder_layers, config.decoder_layers))]
    heads = ["mean", *(str(i + 1) for i in range(config.num_heads))]

    offered = list(loaded.examples or EXAMPLES)
    example = offered[0]
    best, rows, drawn = translator.translate(example, str(config.decoder_layers), "mean", "cross")
    begun, first = translator.step_to(example, best, 1)

    gr.Markdown(f"A translator, `{loaded.name}`. It knows what its training had.")
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(example, label="Text")
            examples = gr.Examples(offered, text)
            button = gr.Button("Translate", variant="primary")
            source = gr.Textbox(example, label="Translated", visible=False)  # stays while the next text is typed
            translation = gr.Textbox(
                best,
                label="Translation",
                info="Write your own and press Enter to see what the model makes of it.",
                interactive=True,
            )
            gr.Markdown(
                "**Beam search** keeps the four most probable beginnings and goes on from each. The score is the "
                "logarithm of the probability, divided by a penalty for length: the nearer to 0, the better. "
                "Click a hypothesis to look into it."
            )
            alternatives = gr.Dataframe(
                rows,
                headers=["hypothesis", "score"],
                column_widths=["72%", "28%"],
                show_label=False,
                interactive=False,
                wrap=True,
                buttons=[],
            )
        with gr.Column():
            gr.Markdown(
                "### What it looked at\nEach row shows where one token looked: the bluer, the more. **Cross**: from "
                "the translation into the text. **Encoder self**: from the text into itself. **Decoder self**: from "
                "the translation back to what is already written; it cannot see what comes."
            )
            kind = gr.Radio(list(AXES), value="cross", label="Attention")
            with gr.Row():
                layer = gr.Dropdown(layers, value=str(config.decoder_layers), label="Layer", min_width=100)
                head = gr.Dropdown(heads, value="mean", label="Head", min_width=100)
            picture = gr.HTML(drawn, apply_default_css=False)
    gr.Markdown(
        "### Step by step\nThe decoder writes one token at a time. At each step it gives every token of its "
        f"vocabulary a probability; these are the {MOST_LIKELY} most likely."
    )
    with gr.Row():
        with gr.Column():
            step = gr.Slider(
                1, max(2, len(translator.target_ids(example, best))), value=1, step=1, precision=0, label="Step"
            )
            written = gr.HighlightedText(
                begun, label="Written, and what comes next", show_legend=False, color_map={"next": "blue"}
            )
        probable = gr.Label(first, label="Most likely next tokens", num_top_classes=MOST_LIKELY)

    pair, looks, steps = [source, translation], [kind, layer, head], [step, written, probable]
    keep = {"fn": lambda text: text, "inputs": text, "outputs": source, "api_visibility": "private"}
    show = {"inputs": [source, layer, head, kind], "outputs": [translation, alternatives, picture]}
    asked = gr.on([button.click, text.submit], **keep).success(translator.translate, **show, api_name="translate")
    chosen = examples.load_input_event.success(**keep).success(
        translator.translate, **show, api_name="translate_example", api_visibility="private"
    )
    for translated in (asked, chosen):
        translated.success(translator.first_step, pair, steps, api_visibility="private")
    picked = alternatives.select(pick, None, translation, api_visibility="private")
    for looked_into in (picked.success, translation.submit):
        drawn_anew = looked_into(translator.attend, [*pair, *looks], picture, api_visibility="private")
        drawn_anew.success(translator.first_step, pair, steps, api_visibility="private")
    gr.on([look.change for look in looks], translator.attend, [*pair, *looks], picture, api_name="attention")
    step.change(
        translator.step_to, [*pair, step], [written, probable], api_visibility="private", show_progress="hidden"
    )
    gr.api(translator.most_likely, api_name="decoding_step")


def pick(event: gr.SelectData) -> str:
    """The hypothesis in the row that was clicked."""
    return event.row_value[0]
