"""Check that the explorer's data equal what the model computes, for every task."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from family import decoder_only, encoder_decoder, encoder_only
from fresh_process import run_python
from saved_models import save_repeating, with_tokenizer
from vanilla_transformer import (
    VanillaTransformerEncoderModel,
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer.inside import Interventions, explore, explore_data
from vanilla_transformer.inside.interventions import Weight, interventions_from_json
from vanilla_transformer.inside.page import compare_data
from vanilla_transformer.loading import load_model
from vanilla_transformer.pipeline_vanilla_transformer import QuestionAnsweringPipeline


def encoder_with(head, **fields):
    return lambda **more: encoder_only(head, **(fields | more))


MAKERS = {
    "translate": (encoder_decoder, "seq2seq"),
    "generate": (decoder_only, "causal"),
    "fill": (encoder_only, "encoder"),
    "classify": (encoder_with(VanillaTransformerForSequenceClassification), "encoder"),
    "tag": (encoder_with(VanillaTransformerForTokenClassification), "encoder"),
    "answer": (encoder_with(VanillaTransformerForQuestionAnswering), "encoder"),
}
TASKS = pytest.mark.parametrize("task", MAKERS)
CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
TEXT, CONTEXT = "one ___ three", "uno dos tres"


def made(task: str, **fields):
    make, template = MAKERS[task]
    return with_tokenizer(make, template, **fields)


def explored(task: str, **options):
    model, tokenizer = made(task)
    return model, tokenizer, explore_data(model, tokenizer, TEXT, context=CONTEXT, **options)


def own_ids(data) -> list[int] | None:
    """Return the generated token ids."""
    if data["model"]["task"] == "translate":
        return [step["chosen"] for step in data["steps"]]
    return [token["id"] for token in data["source"]][-data["written"] :] if data["written"] else None


@TASKS
def test_data_of_every_task_have_all_attention_steps_and_heads(task):
    model, _, data = explored(task)
    assert json.loads(json.dumps(data)) == data
    assert data["model"]["task"] == task
    heads = sum(len(layers["weights"]) for layers in data["attention"]) * model.config.num_heads
    assert len(data["heads"]) == len(data["effects"]) == heads
    for kind in data["attention"]:
        for row in torch.tensor(kind["weights"]).flatten(0, -2):
            assert abs(row.sum().item() - 1000) < 15
    for step in data["steps"]:
        assert step["top"][0]["p"] >= step["p"]
        assert sum(option["p"] for option in step["top"]) < 1.001


@torch.no_grad()
def test_translation_equals_beam_search_and_has_token_probabilities():
    model, tokenizer, data = explored("translate", effects=False, values=False)
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    own = model.generate(ids, do_sample=False, max_length=ids.shape[1] + 50)[0].tolist()
    assert [token["id"] for token in data["target"]] == own
    output = model(input_ids=ids, decoder_input_ids=torch.tensor([own[:-1]]))
    probabilities = output.logits[0].softmax(-1)
    for step, token, row in zip(data["steps"], own[1:], probabilities, strict=True):
        assert step["chosen"] == token and step["rank"] == 1
        assert step["p"] == pytest.approx(row[token].item(), abs=1e-5)


def test_translations_end_at_the_first_of_several_end_tokens(tmp_path):
    save_repeating(tmp_path, p_end=0.4)
    model, tokenizer = load_model(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    model.config.eos_token_id = model.generation_config.eos_token_id = [tokenizer.eos_token_id, 3]
    found = [row["ids"] for row in explore_data(model, tokenizer, TEXT, effects=False, values=False)["hypotheses"]]
    assert len({len(ids) for ids in found}) == len(found) > 2
    assert all(ids.index(tokenizer.eos_token_id) == len(ids) - 1 for ids in found)


@pytest.mark.parametrize("task", ["translate", "generate"])
def test_each_token_of_a_forced_output_has_its_rank(task):
    model, tokenizer = made(task)
    data = explore_data(model, tokenizer, "one two", target=" three two", effects=False, values=False)
    ids = tokenizer(text_target=" three two", add_special_tokens=False)["input_ids"]
    shown = [token["id"] for token in data["target"] or data["source"]]
    assert str(ids)[1:-1] in str(shown)
    step = next(step for step in data["steps"] if step["chosen"] == ids[0])
    assert step["rank"] > 1


@TASKS
@torch.no_grad()
def test_logit_lens_gives_the_prediction_after_each_layer(task):
    model, tokenizer, data = explored(task, effects=False, values=False)
    stack = model.base_model.decoder if task == "translate" else model.base_model
    assert len(data["lens"]) == len(stack.layers) + 1
    assert [place["p"] for place in data["lens"][-1]] == pytest.approx([step["p"] for step in data["steps"]], abs=2e-5)
    del stack.layers[1:]
    shorter = explore_data(model, tokenizer, TEXT, own_ids(data), CONTEXT, effects=False, values=False)
    for place, step in zip(data["lens"][1], shorter["steps"], strict=True):
        assert [option["id"] for option in place["top"]] == [option["id"] for option in step["top"][:3]]
        assert place["top"][0]["p"] == pytest.approx(step["top"][0]["p"], abs=2e-5)


def test_head_effect_is_the_log_probability_lost_by_ablating_it():
    model, tokenizer, data = explored("translate", values=False)
    head = data["effects"][0]
    assert abs(head["effect"]) == max(abs(each["effect"]) for each in data["effects"])
    off = Interventions(heads_off={(head["kind"], head["layer"], head["head"])})
    written = [step["chosen"] for step in data["steps"]]
    without = explore_data(model, tokenizer, TEXT, written, interventions=off, effects=False, values=False)

    def mean(steps):
        return torch.tensor([step["p"] for step in steps]).log().mean().item()

    assert head["effect"] == pytest.approx(mean(data["steps"]) - mean(without["steps"]), abs=2e-3)


def test_answer_of_a_language_model_is_the_generated_text():
    model, tokenizer = made("generate")
    data = explore_data(model, tokenizer, "one two", " three two", values=False)
    head = data["effects"][0]
    off = Interventions(heads_off={(head["kind"], head["layer"], head["head"])})
    without = compare_data(model, tokenizer, "one two", off, " three two")["same"]
    own = slice(-1 - data["written"], -1)
    losses = [math.log(step["p"] / other["p"]) for step, other in zip(data["steps"], without, strict=True)]
    assert data["written"] < len(losses) - 2
    assert head["effect"] == pytest.approx(sum(losses[own]) / data["written"], abs=1e-2)
    assert head["effect"] != pytest.approx(sum(losses) / len(losses), abs=1e-2)


def test_output_is_generated_again_under_interventions():
    model, tokenizer, data = explored("translate", effects=False, values=False)
    for changes in (Interventions(causal_off=True), Interventions(layers_off={("decoder", 0), ("encoder", 1)})):
        other = explore_data(model, tokenizer, TEXT, interventions=changes, effects=False, values=False)
        assert other["steps"] != data["steps"]
        assert [step["rank"] for step in other["steps"]] == [1] * len(other["steps"]) or changes.causal_off


@TASKS
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_every_intervention_can_be_explored_in_every_task(task, positions):
    model, tokenizer = made(task, position_embedding=positions, max_position_embeddings=64)
    stack = "decoder" if task == "generate" else "encoder"
    for interventions in (
        Interventions(heads_off={(stack, 0, 1)}),
        Interventions(layers_off={(stack, 0)}),
        Interventions(residuals_off={(stack, 0, "feed-forward")}),
        Interventions(positions_off={stack}),
        Interventions(causal_off=stack == "decoder"),
        Interventions(weights=(Weight(stack, 0, 0, 1, 1, 0.9),)),
    ):
        data = explore_data(
            model, tokenizer, TEXT, context=CONTEXT, interventions=interventions, effects=False, values=False
        )
        assert all(math.isfinite(step["p"]) for step in data["steps"])


def test_step_values_are_those_of_the_changed_model():
    model, tokenizer = made("translate")
    weight = Weight("decoder", 1, 2, 3, 1, 0.75)
    changes = Interventions(
        heads_off={("decoder", 1, 0)},
        residuals_off={("decoder", 1, "self-attention")},
        positions_off={"decoder"},
        causal_off=True,
        weights=(weight,),
    )
    written = [4, 5, 6, 7, 8]
    data = explore_data(model, tokenizer, TEXT, written, interventions=changes, effects=False)
    layer = [step for step in data["values"]["decoder 1"] if step["name"] not in ("logits", "probabilities")]
    steps = {(step["part"], step["name"]): torch.tensor(step["values"]) for step in layer}
    (drawn,) = (kind["weights"][1] for kind in data["attention"] if kind["kind"] == "decoder")
    shown = steps["self-attention", "weights"]
    torch.testing.assert_close(torch.tensor(drawn) / 1000, shown, rtol=0, atol=2e-3)
    assert shown[weight.head, weight.query, weight.key] == weight.weight
    assert steps["self-attention", "mask"].eq(0).all(), "no None: nothing is hidden"
    heads = steps["self-attention", "heads"].abs().amax((1, 2))
    assert heads[0] == 0 and heads[1:].gt(0).all()
    assert steps["self-attention", "residual"].equal(steps["self-attention", "output projection"])
    assert steps["embedding", "positions"].eq(0).all()


def test_each_step_has_a_sentence_an_equation_and_its_line_of_code():
    _, _, data = explored("translate", effects=False)
    steps = [step for layer in data["values"].values() for step in layer]
    code = Path(sys.modules[VanillaTransformerEncoderModel.__module__].__file__).read_text().splitlines()
    for step in steps:
        assert step["sentence"].endswith(".") and step["mathml"].startswith("<math")
        line = int(step["source"].partition(":")[2])
        assert step["code"] == code[line - 1].strip() and step["link"].endswith(f"#L{line}")
        assert ("values" in step) == (step["name"] != "logits")
    queries = next(step for step in steps if step["name"] == "queries")
    assert [len(queries["values"]), len(queries["values"][0][0])] == queries["shape"][::2]


@torch.no_grad()
def test_comparison_has_the_new_prediction_and_rescores_the_original_one():
    model, tokenizer, data = explored("translate", effects=False, values=False)
    off = Interventions(heads_off={("cross", 1, 0)}, positions_off={"encoder"})
    found = compare_data(model, tokenizer, TEXT, off)
    anew = explore_data(model, tokenizer, TEXT, interventions=off, effects=False, values=False)
    assert found["changed"] == anew
    forced = explore_data(model, tokenizer, TEXT, own_ids(data), interventions=off, effects=False, values=False)
    assert [step["chosen"] for step in found["same"]] == [step["chosen"] for step in data["steps"]]
    assert [step["p"] for step in found["same"]] == pytest.approx([step["p"] for step in forced["steps"]], abs=1e-5)


@torch.no_grad()
def test_question_answering_gives_the_same_answer_as_the_pipeline():
    model, tokenizer, data = explored("answer", effects=False, values=False)
    found = QuestionAnsweringPipeline(model=model, tokenizer=tokenizer, device="cpu")(question=TEXT, context=CONTEXT)
    assert data["answer"] == found["answer"]


def test_tagger_returns_spans_and_tags_words_by_their_first_token():
    model = AutoModelForTokenClassification.from_pretrained(CHECKPOINTS / "tagger").eval()
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINTS / "tagger")
    text = "The parcel from Kenya weighs 7.7 ounces and arrived 98 months ago."
    data = explore_data(model, tokenizer, text, effects=False, values=False)
    assert data["answer"].startswith("Kenya: COUNTRY, 7.7 ounces: WEIGHT, 98 months ago: ")


def test_tagger_handles_characters_split_into_several_tokens():
    model, tokenizer = made("tag", id2label={0: "O", 1: "B-FOOD"})
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.0, 1.0]))
    data = explore_data(model, tokenizer, "I ❤️ 🍕, सूर्य!", effects=False, values=False)
    assert data["answer"] == "I: FOOD, ❤️: FOOD, 🍕: FOOD, सूर्य: FOOD"
    assert [token["text"] for token in data["source"] if token["bytes"]][:3] == ["E2", "9D", "A4"]


def test_input_attributions_are_gradient_times_input():
    model, tokenizer, data = explored("classify", effects=False, values=False)
    batch = tokenizer(TEXT, return_tensors="pt")
    embeddings = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    model(inputs_embeds=embeddings, attention_mask=batch["attention_mask"]).logits.max().backward()
    values = (embeddings.grad * embeddings)[0].sum(-1)
    assert "".join(piece["text"] for piece in data["mattered"]) == f"<s>{TEXT}</s>"
    shares = [piece["share"] for piece in data["mattered"]]
    assert shares == pytest.approx((values / values.abs().max()).tolist(), abs=1e-3)


def test_overriding_an_attention_weight_changes_the_input_attributions():
    model, tokenizer, data = explored("classify", effects=False, values=False)
    changes = Interventions(weights=(Weight("encoder", 0, 0, 1, 2, 0.9),))
    other = explore_data(model, tokenizer, TEXT, interventions=changes, effects=False, values=False)
    assert other["mattered"] != data["mattered"]


def test_data_of_a_changed_model_include_its_interventions():
    changes = Interventions(
        heads_off={("cross", 1, 0)},
        layers_off={("encoder", 0)},
        residuals_off={("decoder", 0, "feed-forward")},
        positions_off={"encoder"},
        causal_off=True,
        weights=(Weight("encoder", 1, 0, 1, 2, 0.5),),
    )
    _, _, data = explored("translate", interventions=changes, effects=False, values=False)
    assert interventions_from_json(json.loads(json.dumps(data["changes"]))) == changes
    assert "changes" not in explored("translate", effects=False, values=False)[2]


def test_multi_label_gives_probabilities_and_regression_gives_values():
    for problem_type in ("multi_label_classification", "regression"):
        model, tokenizer = made("classify", problem_type=problem_type, num_labels=3)
        data = explore_data(model, tokenizer, TEXT, effects=False, values=False)
        logits = model(**tokenizer(TEXT, return_tensors="pt")).logits[0]
        expected = logits.sigmoid() if problem_type.startswith("multi") else logits
        found = {option["id"]: option["p"] for option in data["steps"][0]["top"]}
        assert [found[i] for i in range(3)] == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "logits", "answer"),
    [
        ({"problem_type": "multi_label_classification"}, [2, -1, 0.5], "LABEL_0, LABEL_2"),
        ({"problem_type": "multi_label_classification"}, [-2, -1, -0.5], "none"),
        ({"problem_type": "regression"}, [2, -1, 0.5], "LABEL_0: 2.000, LABEL_1: -1.000, LABEL_2: 0.500"),
        ({"problem_type": "regression"}, [-1.25], "-1.250"),
        ({}, [2, -1, 0.5], "LABEL_0"),
    ],
)
def test_answer_lists_all_classes_above_the_threshold_or_all_values(fields, logits, answer):
    model, tokenizer = made("classify", num_labels=len(logits), **fields)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor(logits))
    assert explore_data(model, tokenizer, TEXT, effects=False, values=False)["answer"] == answer


@pytest.mark.parametrize(
    ("fields", "regression"),
    [
        ({"num_labels": 1}, True),
        ({"num_labels": 2}, False),
        ({"num_labels": 2, "problem_type": "regression"}, True),
        ({"num_labels": 1, "problem_type": "multi_label_classification"}, False),
    ],
)
def test_regression_is_detected_by_problem_type_or_a_single_label(fields, regression):
    model, tokenizer = made("classify", **fields)
    found = explore_data(model, tokenizer, TEXT, effects=False, values=False)
    assert found["model"]["regression"] == regression


def test_partial_characters_are_displayed_as_bytes():
    model, tokenizer = made("tag")
    data = explore_data(model, tokenizer, "सूर्य", effects=False, values=False)
    assert [token["text"] for token in data["source"]][1:4] == ["E0", "A4", "B8"]


LONG = (
    "Der Zug nach Köln hat heute leider wieder Verspätung, weil ein Baum auf die Gleise gefallen ist und niemand ihn "
    "wegräumen möchte"
)


def test_sinusoids_do_not_limit_the_input_length():
    folder = CHECKPOINTS / "language-model"
    model, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(LONG)["input_ids"]
    assert len(ids) > model.config.max_position_embeddings
    usual = explore_data(model, tokenizer, LONG, effects=False, values=False)
    forced = explore_data(model, tokenizer, LONG, " gut", effects=False, values=False)
    read = explore_data(model, tokenizer, LONG, [], effects=False)
    for data, written in ((usual, usual["written"]), (forced, len(forced["source"]) - len(ids)), (read, 0)):
        shown = [token["id"] for token in data["source"]]
        assert data["written"] == written and shown[: len(ids)] == ids and len(shown) == len(ids) + written
    assert usual["written"] > 0 and forced["answer"].endswith("gut")
    shape = next(step["shape"] for step in read["values"]["decoder 0"] if step["name"] == "embeddings")
    assert shape[0] == len(ids)


def test_input_longer_than_the_position_embeddings_is_rejected_not_truncated():
    model, tokenizer = made("generate", position_embedding="learned", max_position_embeddings=9)
    full = "x" * 8  # nine tokens: each letter, and <s>
    data = explore_data(model, tokenizer, full, effects=False, values=False)
    assert (data["written"], len(data["source"]), data["model"]["room"]) == (0, 9, 9)
    with pytest.raises(ValueError, match="has learned 9 positions, and this text has"):
        explore_data(model, tokenizer, "one " * 9)
    with pytest.raises(ValueError, match="has learned 9 positions, and this text with its continuation has 10"):
        explore_data(model, tokenizer, full, [5])
    model, tokenizer = made("translate", position_embedding="learned", max_position_embeddings=9)
    with pytest.raises(ValueError, match="has learned 9 positions, and the text to write has 10 tokens"):
        explore_data(model, tokenizer, "one", [5] * 10)
    with pytest.raises(ValueError, match="at least one"):
        explore_data(model, tokenizer, "one", [])


def test_input_or_model_without_a_prediction_is_rejected():
    model, tokenizer = made("fill")
    with pytest.raises(ValueError, match="write ___ where a word is missing"):
        explore_data(model, tokenizer, "one two")
    model, tokenizer = made("answer")
    with pytest.raises(ValueError, match="give the text as `context`"):
        explore_data(model, tokenizer, "one two")
    headless = VanillaTransformerEncoderModel(model.config)
    with pytest.raises(ValueError, match="VanillaTransformerEncoderModel has no head"):
        explore_data(headless, tokenizer, "one two")


def test_notebook_html_is_self_contained(tmp_path):
    model, tokenizer = made("translate")
    shown = explore(model, tokenizer, "one </script><b> two")
    html = shown._repr_html_()
    assert "mountExplorer(" in html and "</script><b>" not in html
    page = tmp_path / "page.html"
    shown.save(page)
    text = page.read_text(encoding="utf-8")
    hosts = [part.split('"')[0] for part in text.split("http")[1:]]
    assert {host for host in hosts if not host.startswith("s://github.com")} == {"://www.w3.org/2000/svg"}, (
        "no requests"
    )
    for text, title in (("one </script><b> two", "one &lt;/script&gt;&lt;b&gt; two"), (" ", "Explorer")):
        assert f"<title>{title}</title>" in explore(model, tokenizer, text).page()


def test_a_small_view_contains_neither_the_model_nor_the_numbers_of_its_steps():
    model, tokenizer = made("translate")
    whole, small = explore(model, tokenizer, "one two"), explore(model, tokenizer, "one two", small=True)
    assert whole.files is not None and small.files is None and "values" not in small.data
    assert small.data["steps"] == whole.data["steps"]


def test_importing_the_model_does_not_import_the_explorer():
    code = "import sys, vanilla_transformer; sys.exit('vanilla_transformer.inside.page' in sys.modules)"
    assert run_python(["-c", code]).returncode == 0
