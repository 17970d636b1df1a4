"""Check that the internals shown by the demo equal what the model computes."""

import re

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from demo_server import served
from family import decoder_only, encoder_decoder, encoder_only
from saved_models import TEXT, save
from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
)
from vanilla_transformer.app.inside import (
    MASKS,
    MOST_WORDS,
    allowed,
    draw_positions,
    draw_schedule,
    likeness,
)
from vanilla_transformer.app.loading import load
from vanilla_transformer.app.walk import MOST_TOKENS, walk_through_model
from vanilla_transformer.decoding import EXTRA_TOKENS
from vanilla_transformer.inside.worked_examples import EXAMPLES
from vanilla_transformer.modeling_vanilla_transformer import sinusoids


POSITIONS = 40  # number of learned position embeddings of the classifier


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("inside")

    def classifier(**fields):
        return encoder_only(
            VanillaTransformerForSequenceClassification,
            position_embedding="learned",
            max_position_embeddings=POSITIONS,
            **fields,
        )

    return {
        "translator": save(folder / "translator", encoder_decoder, "seq2seq"),
        "language model": save(folder / "language-model", decoder_only, "causal"),
        "classifier": save(folder / "classifier", classifier, "encoder"),
    }


@pytest.fixture(scope="module")
def client(folders):
    with served(*folders.values()) as client:
        yield client


# --- Walks


def numbers(page: str, part: str, name: str) -> torch.Tensor:
    """Return the matrix of one step from the HTML of a walk."""
    (step,) = re.findall(
        rf'<span class="name">{name}</span>.*?</section>',
        page.split(f"<h2>{part}</h2>")[1].split("<h2>")[0],
        re.DOTALL,
    )
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in step.split("<tr>")[2:]]
    return torch.tensor([[float(value) for value in row] for row in rows])


@pytest.mark.parametrize(("stack", "layer", "head"), [("encoder", 1, 1), ("decoder", 2, 3)])
def test_walk_through_a_translator_shows_the_models_attention_weights(client, folders, stack, layer, head):
    page = client.predict(0, TEXT, "uno dos", stack, layer, head, api_name="/walk_sentence")
    model = AutoModelForSeq2SeqLM.from_pretrained(folders["translator"], attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folders["translator"])
    labels = tokenizer(text_target="uno dos", return_tensors="pt")["input_ids"]
    output = model(**tokenizer(TEXT, return_tensors="pt"), labels=labels, output_attentions=True)
    attention = {"encoder": output.encoder_attentions, "decoder": output.decoder_attentions}[stack]
    expected = {"self-attention": attention[layer - 1][0, head - 1]}
    if stack == "decoder":
        expected["cross-attention"] = output.cross_attentions[layer - 1][0, head - 1]
    assert f"Layer {layer}, head {head} of translator" in page
    for part, weights in expected.items():
        torch.testing.assert_close(numbers(page, part, "weights"), weights, rtol=0, atol=6e-4)


def test_walk_endpoint_requires_only_a_text(client):
    assert "Layer 1, head 1 of translator" in client.predict(text=TEXT, api_name="/walk_sentence")


@pytest.mark.parametrize(("number", "name", "stack"), [(1, "language model", "decoder"), (2, "classifier", "encoder")])
def test_walk_through_a_single_stack_shows_the_models_attention_weights(client, folders, number, name, stack):
    page = client.predict(number, TEXT, "", stack, 2, 4, api_name="/walk_sentence")
    loaded = load(folders[name])
    output = loaded.model(**loaded.tokenizer(TEXT, return_tensors="pt"), output_attentions=True)
    torch.testing.assert_close(
        numbers(page, "self-attention", "weights"), output.attentions[1][0, 3], rtol=0, atol=6e-4
    )


def test_walk_without_a_target_uses_the_models_translation(folders):
    loaded = load(folders["translator"])
    page = walk_through_model(loaded, "one", "", "decoder", 1, 1)
    inputs = loaded.tokenizer("one", return_tensors="pt")
    translation = loaded.model.generate(**inputs, max_length=inputs["input_ids"].shape[1] + EXTRA_TOKENS)
    assert f"length {translation.shape[1] - 1}" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, " ", "", "encoder", 1, 1), "Please type something"),
        ((0, "one " * MOST_TOKENS * 2, "", "encoder", 1, 1), f"keep to {MOST_TOKENS} tokens"),
        ((0, "one", "uno " * MOST_TOKENS * 2, "decoder", 1, 1), f"keep to {MOST_TOKENS} tokens"),
        ((1, "one", "", "encoder", 1, 1), "language-model has no encoder, only: decoder"),
        ((0, "one", "", "encoder", 1, 9), "There is no head 9: choose from 1 to 4"),
        ((2, "one " * POSITIONS, "", "encoder", 1, 1), f"has learned {POSITIONS} positions"),
    ],
)
def test_invalid_walk_arguments_give_a_clear_error(client, arguments, message):
    with pytest.raises(Exception, match=message):
        client.predict(*arguments, api_name="/walk_sentence")


def test_a_worked_example_shows_the_published_numbers(client):
    page = client.predict("today", api_name="/walk")
    agreements = [float(number) for number in re.findall(r"as published within ([\d.e-]+)", page)]
    assert "sunday" in page and len(agreements) == len(EXAMPLES["today"].printed_of(0))
    assert max(agreements) <= EXAMPLES["today"].tolerance


def test_each_head_of_a_worked_example_can_be_shown(client):
    page = client.predict("today", 2, api_name="/walk")
    # head output, output projection and residual
    assert "head 2 of 2" in page and page.count("as published") == 3
    # the source does not print this head's weights, so they are not shown
    assert '<span class="name">weights</span>' not in page
    first = client.predict("today", 1, api_name="/walk")
    torch.testing.assert_close(
        numbers(first, "self-attention", "weights").sum(dim=1), torch.ones(3), atol=2e-3, rtol=0
    )
    with pytest.raises(Exception, match="There is no head 2: choose from 1 to 1"):
        client.predict("midwinter", 2, api_name="/walk")


# --- Positions


def test_similarity_of_sinusoids_depends_only_on_distance():
    length, d_model = 65, 32
    near, far = (sinusoids(start + torch.arange(length)[None], d_model)[0] for start in (0, 500))
    distances, alike = likeness(near)
    assert distances.tolist() == list(range(-32, 33)) and alike[32] == 1
    torch.testing.assert_close(alike, alike.flip(0))
    torch.testing.assert_close(alike, likeness(far)[1], rtol=0, atol=1e-4)
    assert alike[31] > alike[30] > alike[29]


def line(figure, number: int) -> tuple[str, torch.Tensor]:
    drawn = figure.axes[0].lines[number]
    return drawn.get_label(), torch.tensor(drawn.get_ydata())


def test_learned_positions_before_training_are_random(client):
    _, alike = draw_positions(64, 30)
    label, drawn = line(alike, 1)
    assert label == "learned, before training"
    assert drawn[15] == 1 and drawn[:15].abs().max() < 0.6
    assert [picture["type"] for picture in client.predict(64, 30, api_name="/positions")] == ["matplotlib"] * 2


# --- Masks


@pytest.mark.parametrize("kind", MASKS)
def test_drawn_mask_matches_the_models_nonzero_attention_weights(kind):
    mask = MASKS[kind]
    paddings = 2 if mask.padded else 0
    window = 3
    real = torch.arange(6)[None] < 6 - paddings
    make = decoder_only if mask.past_only else encoder_only
    model = make(vocab_size=20, sliding_window=window if mask.near_only else None)
    model.set_attn_implementation("eager")
    output = model(torch.arange(6)[None] + 3, attention_mask=real.long(), output_attentions=True)
    assert torch.equal(output.attentions[0][0, 0] > 0, allowed(kind, 6 - paddings, paddings, window))


def test_masks_of_three_words_and_one_padding_token():
    def rows(kind: str, window: int = 0) -> list[str]:
        return ["".join("x" if may else "." for may in row) for row in allowed(kind, 3, 1, window).tolist()]

    assert rows("padding") == ["xxx."] * 4
    assert rows("causal") == ["x...", "xx..", "xxx.", "xxxx"]
    assert rows("padding and causal") == ["x...", "xx..", "xxx.", "xxx."]
    assert rows("sliding window", 2) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert rows("sliding window and causal", 2) == ["x...", "xx..", ".xx.", "..xx"]


def test_mask_for_too_many_words_gives_a_clear_error(client):
    with pytest.raises(Exception, match=f"keep to {MOST_WORDS} words"):
        client.predict("word " * (MOST_WORDS + 1), "causal", 0, 1, api_name="/mask")


# --- Training


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (256, 1000)])
def test_the_learning_rate_follows_equation_3(client, d_model, warmup):
    """The paper's rate increases linearly during warm-up, then decays with the inverse square root of the step."""
    drawn = draw_schedule(d_model, warmup).axes[0].lines[0]
    rates = dict(zip(drawn.get_xdata().tolist(), drawn.get_ydata().tolist(), strict=True))
    for step in (1, 501, 4001, 16001):
        expected = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert rates[step] == pytest.approx(expected, rel=1e-12)
    assert max(rates.values()) == pytest.approx((d_model * warmup) ** -0.5, rel=1e-2)
    assert client.predict(d_model, warmup, api_name="/schedule")["type"] == "matplotlib"


@pytest.mark.parametrize("preset", ["base", "big", "C-N2"])
def test_calculated_parameter_count_equals_that_of_the_real_model(client, preset):
    shown = client.predict(preset, 1000, api_name="/count_parameters")
    config = VanillaTransformerConfig.from_preset(preset, vocab_size=1000)
    model = VanillaTransformerForConditionalGeneration(config)
    assert shown == f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"
