"""Check that the demo's API returns the models' predictions, and clear errors for invalid inputs."""

import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from demo_server import served
from family import decoder_only, encoder_decoder, encoder_only
from fresh_process import ROOT
from saved_models import TEXT, save
from vanilla_transformer import (
    VanillaTransformerForMaskedLM,
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer.app.loading import LONGEST_INPUT, DemoModel
from vanilla_transformer.app.reading import MOST_TOKENS
from vanilla_transformer.decoding import translate
from vanilla_transformer.inside.effects import gradient_times_input


NO_TARGETS = (5, [-100], [True, 1], [10**30], ["a"], {"a": 1})
NO_CHANGES = ({"positions_off": "encoder"}, {"heads_off": [["cross", 0.9, 1]]}, {"causal_off": "no"})
README = (ROOT / "demo/README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("demo")
    heads = {
        "classifier": (VanillaTransformerForSequenceClassification, {"id2label": {0: "en", 1: "es", 2: "fr"}}),
        "regressor": (VanillaTransformerForSequenceClassification, {"num_labels": 1}),
        "tagger": (VanillaTransformerForTokenClassification, {"id2label": {0: "O", 1: "B-number", 2: "I-number"}}),
        "reader": (VanillaTransformerForQuestionAnswering, {}),
        "masked": (VanillaTransformerForMaskedLM, {}),
    }
    saved = {
        name: save(folder / name, lambda head=head, **fields: encoder_only(head, **fields), "encoder", **fields)
        for name, (head, fields) in heads.items()
    }
    saved["translator"] = save(folder / "translator", encoder_decoder, "seq2seq")
    saved["language model"] = save(folder / "lm", decoder_only, "causal")
    return saved


@pytest.fixture(scope="module")
def client(folders):
    with served(*folders.values()) as client:
        yield client


def test_translation_equals_model_generate(client, folders):
    found = client.predict("one two", api_name="/translate")
    model = AutoModelForSeq2SeqLM.from_pretrained(folders["translator"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(folders["translator"])
    assert found["translation"] == translate(["one two"], model, tokenizer)[0] == found["hypotheses"][0]["text"]


def test_twenty_concurrent_users_get_correct_predictions(client, folders):
    texts = [f"one {'two ' * (i % 5)}three" for i in range(20)]
    with ThreadPoolExecutor(20) as users:
        found = list(users.map(lambda text: client.predict(text, api_name="/translate")["translation"], texts))
    model = AutoModelForSeq2SeqLM.from_pretrained(folders["translator"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(folders["translator"])
    assert found == [translate([text], model, tokenizer)[0] for text in texts]


def test_class_probabilities_equal_those_of_the_pipeline(client, folders):
    found = client.predict(TEXT, api_name="/classify")
    expected = pipeline("text-classification", folders["classifier"], trust_remote_code=True)(TEXT, top_k=None)
    assert found["labels"] == pytest.approx({entry["label"]: entry["score"] for entry in expected}, abs=1e-4)
    for shown in (found["attribution"], found["attention"]):
        assert "".join(piece["text"] for piece in shown) == f"<s>{TEXT}</s>"
        assert max(abs(piece["share"]) for piece in shown) == 1


def test_attributions_sum_to_the_change_of_the_score(folders):
    """Scaling all embeddings towards 0 changes the score, to first order, by the sum of the attributions."""
    loaded = DemoModel(folders["classifier"])
    loaded.model.double()
    batch = loaded.tokenizer([TEXT], return_tensors="pt")
    values = gradient_times_input(loaded.model, batch, lambda output: output.logits[0].max())
    with torch.no_grad():
        embeddings = loaded.model.get_input_embeddings()(batch["input_ids"])
        full, less = (
            loaded.model(inputs_embeds=embeddings * scale, attention_mask=batch["attention_mask"]).logits[0]
            for scale in (1, 1 - 1e-5)
        )
    change = (full.max() - less[full.argmax()]).item() / 1e-5
    assert change == pytest.approx(values.sum().item(), rel=1e-2)


def test_tagged_spans_equal_those_of_the_pipeline(client, folders):
    shown = client.predict(TEXT, api_name="/tag")["spans"]
    tagger = pipeline("token-classification", folders["tagger"], trust_remote_code=True, aggregation_strategy="first")
    assert [(span["tag"], span["start"], span["end"]) for span in shown] == [
        (span["entity_group"], span["start"], span["end"]) for span in tagger(TEXT)
    ]
    assert all(span["text"] == TEXT[span["start"] : span["end"]].strip() for span in shown)


def test_answer_is_a_span_of_the_context(client):
    found = client.predict("two", TEXT, api_name="/answer")
    assert found["answer"] and found["answer"] == TEXT[found["start"] : found["end"]]


def test_filled_blank_equals_that_of_the_pipeline(client, folders):
    found = client.predict("one ___ three", api_name="/fill")
    (best,) = found["blanks"]
    expected = pipeline("fill-mask", folders["masked"], trust_remote_code=True)("one <mask> three")
    assert [*best.values()][: len(expected)] == pytest.approx([entry["score"] for entry in expected], abs=1e-5)
    assert found["text"] == expected[0]["sequence"]
    assert len(client.predict("one ___ ___", api_name="/fill")["blanks"]) == 2
    with pytest.raises(Exception, match="write ___ where a word is missing"):
        client.predict("one two", api_name="/fill")


def test_generated_text_is_streamed_and_equals_model_generate(client, folders):
    model = AutoModelForCausalLM.from_pretrained(folders["language model"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(folders["language model"])
    job = client.submit("one", 20, 0, 0, 1, 0, api_name="/generate")
    final = job.result(timeout=60)["text"]
    ids = model.generate(**tokenizer(["one"], return_tensors="pt"), max_new_tokens=20, do_sample=False)
    assert final == "one" + tokenizer.decode(ids[0, tokenizer(["one"], return_tensors="pt")["input_ids"].shape[1] :],
                                             skip_special_tokens=True)  # fmt: skip
    outputs = [output["text"] for output in job.outputs()]
    assert len(outputs) > 2 and all(later.startswith(first) for first, later in pairwise(outputs))
    sampled = [client.predict("one", 20, 1.0, 0, 1, seed, api_name="/generate")["text"] for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]


def test_next_tokens_are_the_most_probable_ones(client, folders):
    found = [each["probability"] for each in client.predict("one two", api_name="/next_tokens")["tokens"]]
    assert len(found) == 10 and found == sorted(found, reverse=True)
    model = AutoModelForCausalLM.from_pretrained(folders["language model"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(folders["language model"])
    with torch.no_grad():
        best = model(**tokenizer(["one two"], return_tensors="pt")).logits[0, -1].softmax(-1).max().item()
    assert max(found) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  ", "Please type something"),
        ("a" * (LONGEST_INPUT + 1), f"keep to {LONGEST_INPUT} characters"),
        ("中" * LONGEST_INPUT, rf"keep to {MOST_TOKENS} tokens; this text has 90\d"),
    ],
)
def test_invalid_input_gets_a_clear_message(client, text, message):
    endpoints = (
        *(((text,), "/translate"), ((text,), "/classify"), ((text,), "/tag")),
        *(((0, text), "/explore"), ((0, text), "/explore_effects"), ((text,), "/generate")),
    )
    for arguments, name in endpoints:
        with pytest.raises(Exception, match=message):
            client.predict(*arguments, api_name=name)


@pytest.mark.parametrize(
    ("arguments", "endpoint", "message"),
    [
        ((7,), "/next_tokens", "A text is needed to continue, not 7"),
        *((("one", number), "/next_tokens", "There is no model .* for this endpoint, only: 6") for number in (0, "6")),
        ((0, ["one"], None, None), "/explore", r"A text is needed to explore, not \['one'\]"),
        *(
            ((model, "one"), "/explore", "There is no model .*, only: 0, 1, 2, 3, 4, 5, 6")
            for model in (1.0, True, None, "0", [0])
        ),
        *(((5, "one", target), "/explore", "A target is a text, or a list") for target in NO_TARGETS),
        ((5, "one", []), "/explore", "give at least one"),
        ((5, "one", "中" * LONGEST_INPUT), "/explore", r"keep to \d+ tokens; the text to write has 90\d"),
        *(
            ((5, "one", None, None, "decoder", layer), "/explore_layer", "does not exist")
            for layer in ("0", 0.5, True)
        ),
        ((5, "one", None, None, ["decoder"], 0), "/explore_layer", "does not exist"),
        *(((5, "one", changes), "/explore_changed", "Changes must be lists") for changes in NO_CHANGES),
    ],
)
def test_arguments_of_the_wrong_type_give_a_clear_error(client, arguments, endpoint, message):
    with pytest.raises(Exception, match=message):
        client.predict(*arguments, api_name=endpoint)


def test_special_tokens_in_the_input_are_tokenised_as_in_training(client, folders):
    """Models that generate text read "</s>" as ordinary text; others read it as a special token, as pipelines do."""
    text = "one </s> two"
    for number, name in enumerate(folders):
        if name in ("reader", "masked"):
            continue
        tokenizer = AutoTokenizer.from_pretrained(folders[name])
        ids = tokenizer(text, split_special_tokens=name in ("translator", "language model"))["input_ids"]
        found = client.predict(number, text, api_name="/explore")
        assert [token["id"] for token in found["source"]][: len(ids)] == ids, name
        top = found["steps"][len(ids) - 1 if name == "language model" else 0]["top"][0]["p"]
        if name == "translator":
            assert client.predict(text, api_name="/translate")["translation"] == found["answer"]
        elif name == "language model":
            following = client.predict(text, api_name="/next_tokens")["tokens"]
            assert following[0]["probability"] == pytest.approx(top, abs=2e-5)
        elif name == "classifier":
            labels = client.predict(text, api_name="/classify")["labels"]
            assert max(labels.values()) == pytest.approx(top, abs=2e-5)


def test_regression_returns_the_predicted_value(client, folders):
    found = client.predict(TEXT, api_name="/regress")
    loaded = DemoModel(folders["regressor"])
    with torch.no_grad():
        (expected,) = loaded.model(**loaded.tokenizer(TEXT, return_tensors="pt")).logits[0].tolist()
    assert found["labels"] == {"LABEL_0": pytest.approx(expected, abs=1e-5)} and len(found["attribution"]) > 2


def test_readme_lists_every_endpoint_with_its_arguments(client):
    rows = re.findall(r"^\| `(/\w+)` \|(.*?)\|", README, re.MULTILINE)
    documented = {name: re.findall(r"`(\w+)`", arguments) for name, arguments in rows}
    endpoints = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert documented == {
        name: [argument["parameter_name"] for argument in endpoint["parameters"]]
        for name, endpoint in endpoints.items()
    }


def test_every_return_of_an_endpoint_has_a_name(client):
    endpoints = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    for name, endpoint in endpoints.items():
        (returned,) = endpoint["returns"]
        assert len(returned["type"]["properties"]) >= 1 and endpoint["description"], name


def test_models_are_listed_with_their_tasks(client, folders):
    found = client.predict(api_name="/models")["models"]
    assert [each["name"] for each in found] == [Path(folder).name for folder in folders.values()]
    assert [each["task"] for each in found] == [
        "classify",
        "classify",
        "tag",
        "answer",
        "fill",
        "translate",
        "generate",
    ]


def test_readme_example_runs(client, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(code.replace("http://127.0.0.1:7860", client.src), {})
    assert capsys.readouterr().out.splitlines()[-1].startswith("The parcel from")
