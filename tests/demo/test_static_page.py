"""Check that models in the static page run in the browser without a server, with the same results as PyTorch."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from browsing import NEEDS_CHROMIUM, expect, open_switches, visit
from family import encoder_only
from vanilla_transformer import VanillaTransformerForSequenceClassification
from vanilla_transformer.app.app import find_models
from vanilla_transformer.app.static_page import write_static_page
from vanilla_transformer.cli import demo
from vanilla_transformer.data.tokenizer import train_tokenizer
from vanilla_transformer.files import shipped_models
from vanilla_transformer.inside.interventions import interventions_from_json
from vanilla_transformer.inside.markup import component_files
from vanilla_transformer.inside.model_files import model_files
from vanilla_transformer.inside.page import compare_data, explore_data, layer_values
from vanilla_transformer.inside.predictions import predict
from vanilla_transformer.loading import CHECKPOINTS, load_model


pytestmark = NEEDS_CHROMIUM
CONTEXT = "The tank holds 40 liters at 12°C. The letter in French was sent on June 5, 2019."
CHANGES: dict[str, Any] = {"heads_off": [["encoder", 0, 1]]}
WEIGHTS = [["cross", 0, 0, 2, 1, 0.7], ["encoder", 1, 3, 0, 0, 0.0], ["decoder", 1, 1, 3, 0, 0.5]]
# (model, text, target to force, interventions)
CASES: list[tuple[str, str, str | None, dict[str, Any]]] = [
    ("en-es", "I like to travel.", None, {"heads_off": [["cross", 1, 2], ["decoder", 0, 0]], "weights": WEIGHTS}),
    (
        "en-es",
        "The man eats 5 cheeses – Köln!",
        "El hombre come.",
        {"positions_off": ["encoder"], "scaling_off": True},
    ),
    ("en-es", "We should go", None, {"causal_off": True, "layers_off": [["decoder", 1]], "temperature": 2.0}),
    ("language-id", "Das Wetter ist schön. 你好", None, {"residuals_off": [["encoder", 0, "self-attention"]]}),
    ("intents", "Play some jazz by Miles Davis", None, CHANGES),
    ("tagger", "The flight to Spain leaves on May 3, 2031 and costs €45.00.", None, CHANGES | {"temperature": 0.5}),
    ("masked-lm", "I want ___ go ___ home.", None, CHANGES),
    ("language-model", "What time is", None, {"causal_off": True}),
    ("language-model", "Tom said", " that he", {"heads_off": [["decoder", 0, 1]]}),
    ("reader", "When was the letter sent?", None, CHANGES),
]
NAMES = sorted({name for name, *_ in CASES})


LOAD = """() => (globalThis.loadModel = async (name) => {
    if (!globalThis.savedModels?.[name]) {
        const script = document.createElement("script");
        const loaded = new Promise((resolve) => (script.onload = resolve));
        document.head.append(Object.assign(script, { src: `${name}.js` }));
        await loaded;
    }
    return savedModels[name];
})"""


@cache
def loaded(name: str):
    return load_model(CHECKPOINTS / name), AutoTokenizer.from_pretrained(CHECKPOINTS / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("static") / "page"
    write_static_page(find_models(shipped_models()), folder)
    return folder


@pytest.fixture(scope="module")
def page(browser, folder):
    """Return the opened page; requests for anything but its own files are blocked."""
    with visit(browser, (folder / "index.html").as_uri()) as page:
        page.context.route(lambda address: not address.startswith(("file:", "blob:")), lambda route: route.abort())
        page.evaluate(f"() => {{ {component_files()[0]}; Object.assign(globalThis, {{ engine: pageModels() }}); }}")
        page.evaluate(LOAD)
        yield page


def test_static_page_cases_cover_every_checkpoint():
    assert sorted(Path(folder).name for folder in shipped_models()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_token_ids_equal_those_of_pytorch(page, name):
    text, target = next((text, target) for each, text, target, _ in CASES if each == name)
    model, tokenizer = loaded(name)
    context = CONTEXT if name == "reader" else None
    prediction, _, _ = predict(model, tokenizer, text, target, context)
    with torch.inference_mode():
        output = model(**prediction.inputs)
    logits = torch.stack(tuple(output[:2]), -1)[0] if name == "reader" else output.logits[0]
    found = page.evaluate(
        """async ([name, text, context, ids, target]) => {
            const model = engine.readModel(await loadModel(name));
            const writes = ["ForConditionalGeneration", "ForCausalLM"].includes(model.head);
            const { logits } = model.forward(ids, target);
            const read = model.tokenizer.encode(text.replaceAll("___", "<mask>"), context, writes);
            return { read, logits: logits.map((row) => [...row]) };
        }""",
        [name, text, context, prediction.source, prediction.target and prediction.target[:-1]],
    )
    assert found["read"] == prediction.source[: len(found["read"])] and len(found["read"]) > 2
    torch.testing.assert_close(torch.tensor(found["logits"]), logits.reshape(-1, logits.shape[-1]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "word"])
def test_the_page_reads_texts_with_the_same_tokens_as_the_library(page, kind, lowercase):
    texts = ["The museum in Norway had 1204 visitors.", "Straße, ΟΔΟΣ İ: नॉर्वे के संग्रहालय में 我喜欢"] * 3
    tokenizer = train_tokenizer(texts, "encoder", kind, 600, lowercase)
    model = encoder_only(VanillaTransformerForSequenceClassification, vocab_size=len(tokenizer))
    asked = [*texts[:2], "THE  visitors of\u00a0my\tmuseum!?", "ΟΔΟΣ <mask> a_b", "👩🏽‍🚀 x\u200dy", ""]
    found = page.evaluate(
        """([files, texts]) => {
            const { tokenizer } = engine.readModel(files);
            return texts.map((text) => { const ids = tokenizer.encode(text); return [ids, tokenizer.decode(ids)]; });
        }""",
        [model_files(model, tokenizer), asked],
    )
    ids = [tokenizer(text)["input_ids"] for text in asked]
    assert found == [[each, tokenizer.decode(each, skip_special_tokens=True)] for each in ids]


def test_the_page_returns_the_same_data_for_a_classifier_of_words(page):
    tokenizer = train_tokenizer(["Play some jazz!", "Book a table"] * 2, "encoder", "word", 600, lowercase=True)
    model = encoder_only(VanillaTransformerForSequenceClassification, vocab_size=len(tokenizer))
    model.bfloat16().float()  # the page stores rounded weights
    text = "Please play that, then BOOK a table!"
    found = page.evaluate(
        """async ([files, text]) => {
            const host = engine.modelHost();
            host.add(99, files);
            return host.explore({ model: 99, text, target: null, context: null });
        }""",
        [model_files(model, tokenizer), text],
    )
    data = explore_data(model, tokenizer, text, effects=False, values=False)
    check_equal(found, data, "data")
    pieces = ["<s>", "Please", " play", " that", ",", " then", " BOOK", " a", " table", "!", "</s>"]
    assert [piece["text"] for piece in found["mattered"]] == pieces


def check_equal(found: Any, expected: Any, place: str = "") -> None:
    """Compare JSON from the page and from PyTorch, allowing for rounding differences."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for name in expected:
            check_equal(found[name], expected[name], f"{place}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for i, pair in enumerate(zip(found, expected, strict=True)):
            check_equal(*pair, f"{place}[{i}]")
    elif isinstance(expected, float | int) and not isinstance(expected, bool):
        # Weights are in per mille. Attributions in the page are finite differences, which a ReLU can change.
        close = 0.05 if "mattered" in place else 1.01 if ".weights" in place or ".rows" in place else 2e-3
        assert found == pytest.approx(expected, abs=close), place
    else:
        assert found == expected, place


@pytest.mark.parametrize(("name", "text", "target", "changes"), CASES)
def test_page_returns_the_same_data_as_the_server(page, name, text, target, changes):
    model, tokenizer = loaded(name)
    context = CONTEXT if name == "reader" else None
    wish = {"model": [Path(folder).name for folder in shipped_models()].index(name)}
    wish |= {"text": text, "target": target, "context": context}
    interventions = interventions_from_json(changes)
    whole = {name: [] for name in ("heads_off", "layers_off", "residuals_off", "positions_off", "weights")}
    stack = "decoder" if name in ("en-es", "language-model") else "encoder"
    layer = {"stack": stack, "layer": 1}
    found = page.evaluate(
        """async ([name, wish, changes, layer]) => {
            const host = engine.modelHost();
            const files = await loadModel(name);
            host.add(wish.model, files);
            const plain = (rows) => rows.map((row) => Array.from(row, (x) => (x?.length ? Array.from(x) : x)));
            const layerSteps = host.layer({ ...wish, ...layer, steps: files.steps });
            return {
                data: await host.explore(wish),
                compared: await host.changed({ ...wish, changes }),
                effects: await host.effects(wish),
                values: layerSteps.map(({ values, ...step }) => ({
                    ...step,
                    ...(values && { values: plain(values) }),
                })),
            };
        }""",
        [name, wish, whole | changes, layer],
    )
    data = explore_data(model, tokenizer, text, target, context, values=False)
    effects = {(each["kind"], each["layer"], each["head"]): each["effect"] for each in data.pop("effects")}
    found_effects = {(each["kind"], each["layer"], each["head"]): each["effect"] for each in found["effects"]}
    assert found_effects == pytest.approx(effects, abs=2e-3)
    check_equal(found["data"], data, "data")
    compared = json.loads(json.dumps(compare_data(model, tokenizer, text, interventions, target, context)))
    compared["changed"]["changes"] = found["compared"]["changed"]["changes"]  # the page may omit empty lists
    check_equal(found["compared"], compared, "compared")
    prediction, _, _ = predict(model, tokenizer, text, target, context)
    check_equal(found["values"], layer_values(model, prediction, stack, 1), "values")


def test_translation_and_ablation_work_without_a_server(page):
    explorer = page.locator(".explorer")
    expect(explorer.locator(".scene")).to_be_visible()
    page.get_by_label("Text to translate").fill("I really like to travel")
    page.get_by_role("button", name="Translate").last.click()
    expect(explorer.locator(".output")).to_contain_text("viajar")
    open_switches(page)
    page.get_by_label("Positions of the encoder").uncheck()
    expect(explorer).to_contain_text("Changed")
    page.get_by_label("Text to translate").fill(" ")
    page.get_by_role("button", name="Translate").last.click()
    expect(explorer.locator(".message")).to_contain_text("Please type something")
    assert "Train" not in page.get_by_label("Task and model").inner_text()  # it needs a server


def test_command_writes_the_page_and_does_not_overwrite_files(tmp_path, capsys):
    out = tmp_path / "page"
    demo.main([str(CHECKPOINTS / "tagger"), "--static", str(out)])
    assert {path.name for path in out.iterdir()} == {"index.html", "tagger.js"}
    assert f"{out}/index.html" in capsys.readouterr().out
    with pytest.raises(ValueError, match="exists"):
        demo.main([str(CHECKPOINTS / "tagger"), "--static", str(out)])
