"""Third-party libraries work with trained and saved models: quantisation, adapters, trainers, attribution.

These tests need the optional dependencies `clients`, which `make test-slow` installs.
"""

import json
from dataclasses import dataclass
from functools import cache

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModel, AutoTokenizer, BitsAndBytesConfig, TorchAoConfig

from fresh_process import run_fresh
from vanilla_transformer.cli import train
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.fast import make_fast
from vanilla_transformer.inside.recorder import find_stacks, record


pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Head:
    task: str
    rows: str  # name of the phrasebook data set's task
    auto_class: str
    peft_task: str | None = None


HEADS = {
    "translator": Head("translation", "translation", "AutoModelForSeq2SeqLM", "SEQ_2_SEQ_LM"),
    "language model": Head("language_modeling", "language_modeling", "AutoModelForCausalLM", "CAUSAL_LM"),
    "masked language model": Head("masked_language_modeling", "language_modeling", "AutoModelForMaskedLM"),
    "classifier": Head("classification", "classification", "AutoModelForSequenceClassification", "SEQ_CLS"),
    "tagger": Head("tagging", "tagging", "AutoModelForTokenClassification", "TOKEN_CLS"),
    "reader": Head("question_answering", "question_answering", "AutoModelForQuestionAnswering", "QUESTION_ANS"),
}
WRITERS = ["translator", "language model"]
TEXTS = ["Good morning!", "Where is the station, please?"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that trains a model with a given head for three steps and returns the saved folder."""

    @cache
    def trained(name):
        head, folder = HEADS[name], tmp_path_factory.mktemp("clients")
        file = folder / "rows.jsonl"
        rows = phrasebook(head.rows, size=1000)["train"].select(range(40))
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        layers = ["--encoder_layers", "2", "--decoder_layers", "2"] if name == "translator" else ["--num_layers", "2"]
        train.main([
            head.task,
            "--output_dir", str(folder / "run"), "--train_file", str(file), "--validation_file", str(file),
            "--d_model", "64", "--d_ff", "128", "--num_heads", "4", "--vocab_size", "400", "--max_steps", "3",
            "--save_strategy", "no", "--use_cpu", "true", "--disable_tqdm", "true", *layers,
        ])  # fmt: skip
        return folder / "run"

    return trained


def load(name, folder, **options):
    return getattr(transformers, HEADS[name].auto_class).from_pretrained(folder, **options).eval()


def batch(name, folder):
    """Return a batch of two tokenised texts, with labels for the head's loss."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.padding_side = "right"
    inputs = dict(tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False))
    match name:
        case "classifier":
            return inputs | {"labels": torch.tensor([0, 1])}
        case "tagger":
            return inputs | {"labels": torch.zeros_like(inputs["input_ids"])}
        case "reader":
            return inputs | {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([2, 3])}
    return inputs | {"labels": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)}


@torch.no_grad()
def scores(name, model, inputs):
    """Return the logits of each sequence, or of each token that is not padding."""
    outputs = model(**inputs)
    logits = outputs.start_logits if name == "reader" else outputs.logits
    return logits if name == "classifier" else logits[inputs["attention_mask"].bool()]


def assert_close_but_quantised(name, quantised, plain, inputs, tolerance=0.2):
    """Assert that quantised logits are close but not equal to the plain model's, and that generation still works."""
    found, expected = scores(name, quantised, inputs).float(), scores(name, plain, inputs)
    assert 0 < (found - expected).norm() < tolerance * expected.norm()
    if name in WRITERS:
        ids = quantised.generate(inputs["input_ids"], max_new_tokens=4, min_new_tokens=4)
        assert ids.shape[1] == 4 + (1 if name == "translator" else inputs["input_ids"].shape[1])


def linears(model):
    """Return the names of the linear layers in the encoder and decoder, without the head."""
    return {key for key, module in model.named_modules() if type(module) is nn.Linear and key.startswith("model.")}


@pytest.mark.parametrize("name", HEADS)
def test_training_with_make_fast_saves_a_plain_model(saved, name):
    model = load(name, saved(name))
    for module in model.modules():
        assert "forward" not in vars(module) and "logits_and_loss" not in vars(module)
        if isinstance(module, (nn.Linear, nn.Embedding, nn.LayerNorm, nn.Dropout)):
            assert type(module).__module__.startswith("torch.nn.modules.")
    config = json.loads((saved(name) / "config.json").read_text())
    described = {"architectures", "auto_map", "custom_pipelines", "dtype", "id2label", "label2id", "problem_type"}
    described |= {"tokenizer_hash"}
    assert config.keys() - described <= type(model.config)().to_dict().keys()
    assert model.config._attn_implementation == "sdpa"
    assert model.train()(**batch(name, saved(name)))[1].shape[0] == len(TEXTS)  # logits: the loss is not chunked
    tokenizer = json.loads((saved(name) / "tokenizer_config.json").read_text())
    assert not tokenizer.get("split_special_tokens")


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", HEADS)
def test_bitsandbytes_quantises_every_projection(saved, name, bits):
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    plain = load(name, saved(name))
    # bitsandbytes would also quantise these output layers, which are too narrow for its CPU kernel.
    heads = None if isinstance(plain.get_output_embeddings(), nn.Linear) else ["classifier", "qa_outputs"]
    config = BitsAndBytesConfig(
        load_in_8bit=bits == 8, load_in_4bit=bits == 4, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=heads
    )
    quantised = load(name, saved(name), quantization_config=config, device_map="cpu")
    modules = dict(quantised.named_modules())
    assert {type(modules[key]) for key in linears(plain)} == {Linear8bitLt if bits == 8 else Linear4bit}
    saving = sum(plain.get_submodule(key).weight.numel() for key in linears(plain)) * (4 - bits / 8)
    assert quantised.get_memory_footprint() == pytest.approx(plain.get_memory_footprint() - saving, rel=0.1)
    tolerance = 0.2 if bits == 8 else 0.5
    assert_close_but_quantised(name, quantised, plain, batch(name, saved(name)), tolerance)


QLORA_ELSEWHERE = """
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
model = AutoModelForCausalLM.from_pretrained(
    arguments[0], trust_remote_code=True, quantization_config=BitsAndBytesConfig(load_in_4bit=True), device_map="cpu"
)
model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear")).train()
ids = torch.arange(4, 20)[None]
model(input_ids=ids, labels=ids).loss.backward()
adapters = [weight for name, weight in model.named_parameters() if weight.requires_grad]
kinds = {type(module.base_layer).__name__ for module in model.modules() if hasattr(module, "base_layer")}
print(json.dumps([len(adapters), sum(weight.grad is not None for weight in adapters), sorted(kinds)]))
"""


def test_qlora_works_without_this_project_installed(saved, tmp_path):
    adapters, with_gradient, kinds = run_fresh(QLORA_ELSEWHERE, tmp_path, str(saved("language model")))
    assert adapters == with_gradient == 2 * 2 * 6  # matrices A and B for six projections in each of two layers
    assert kinds == ["Linear4bit"]


@pytest.mark.parametrize("name", HEADS)
def test_torchao_quantises_every_projection_and_the_saved_model_loads(saved, name, tmp_path):
    from torchao.quantization import Int8Tensor, Int8WeightOnlyConfig

    plain, inputs = load(name, saved(name)), batch(name, saved(name))
    quantised = load(name, saved(name), quantization_config=TorchAoConfig(Int8WeightOnlyConfig(version=2)))
    assert {type(quantised.get_submodule(key).weight.data) for key in linears(plain)} == {Int8Tensor}
    assert_close_but_quantised(name, quantised, plain, inputs)
    quantised.save_pretrained(tmp_path)
    torch.testing.assert_close(scores(name, load(name, tmp_path), inputs), scores(name, quantised, inputs))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", HEADS)
def test_pytorch_dynamic_quantisation_covers_every_projection(saved, name):
    plain = load(name, saved(name))
    quantised = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear})
    assert {type(quantised.get_submodule(key)) for key in linears(plain)} == {torch.ao.nn.quantized.dynamic.Linear}
    assert not any(type(module) is nn.Linear for module in quantised.modules())
    assert_close_but_quantised(name, quantised, plain, batch(name, saved(name)))


ADAPTERS = {
    "all-linear": {"target_modules": "all-linear"},
    "named": {"target_modules": ["q_proj", "v_proj", "fc1"]},
    "lm_head": {"target_modules": ["q_proj", "lm_head"]},
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [5, 6]},
}
SERVED = (
    [(name, adapter) for name in WRITERS for adapter in (*ADAPTERS, "prefix")]
    + [("masked language model", adapter) for adapter in ADAPTERS]
    + [("classifier", "all-linear"), ("classifier", "embeddings"), ("tagger", "named"), ("reader", "named")]
)


def test_prompts_of_peft_generate_without_a_cache(saved):
    from peft import PromptTuningConfig, get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(
        load("language model", saved("language model")), PromptTuningConfig("CAUSAL_LM", num_virtual_tokens=3)
    )
    inputs = {
        name: rows[:, :5]
        for name, rows in batch("language model", saved("language model")).items()
        if name != "labels"
    }
    inputs["attention_mask"][0, :2] = 0
    with pytest.raises(ValueError, match="Prompt tuning by peft needs use_cache=False"):
        model.eval().generate(**inputs, max_new_tokens=2, do_sample=False)
    written = model.generate(**inputs, max_new_tokens=2, do_sample=False, use_cache=False)
    best = model(**inputs).logits[:, -1].argmax(-1)
    assert written[:, 5].tolist() == best.tolist()


@pytest.mark.parametrize("prepare", [lambda model: model, make_fast], ids=["plain", "fast"])
@pytest.mark.parametrize(("name", "adapter"), SERVED)
def test_peft_adapters_train_save_and_load(saved, name, adapter, prepare, tmp_path):
    from peft import LoraConfig, PeftModel, PrefixTuningConfig, get_peft_model

    task = HEADS[name].peft_task
    if adapter == "prefix":
        config = PrefixTuningConfig(task_type=task, num_virtual_tokens=4)
    else:
        config = LoraConfig(task_type=task, r=4, **ADAPTERS[adapter])
    inputs, base = batch(name, saved(name)), prepare(load(name, saved(name)))
    before = scores(name, load(name, saved(name)), inputs)
    model = get_peft_model(base, config).train()
    trained = {key: weight for key, weight in model.named_parameters() if weight.requires_grad}
    first = {key: weight.detach().clone() for key, weight in trained.items()}
    optimizer = torch.optim.AdamW(trained.values(), lr=0.01)
    for _ in range(3):
        model(**inputs).loss.backward()
        assert all(weight.grad is not None for weight in trained.values())
        optimizer.step()
        optimizer.zero_grad()
    assert not [key for key, weight in trained.items() if torch.equal(weight, first[key])]

    model.eval().save_pretrained(tmp_path)
    after = scores(name, model, inputs)
    assert not torch.allclose(after, before, atol=1e-3)
    again = PeftModel.from_pretrained(load(name, saved(name)), tmp_path).eval()
    torch.testing.assert_close(scores(name, again, inputs), after, rtol=1e-4, atol=1e-5)
    steps = {step.name: step.tensor for step in record(again, inputs, stack=[*find_stacks(again)][-1])}
    if "logits" in steps:  # the recorded outputs include the adapter
        real = inputs["attention_mask"].bool()
        torch.testing.assert_close(steps["logits"][real], after, rtol=1e-4, atol=1e-4)
    if name in WRITERS:
        text = {key: inputs[key] for key in ("input_ids", "attention_mask")}
        assert torch.equal(again.generate(**text, max_new_tokens=5), model.generate(**text, max_new_tokens=5))
    if name == "language model":  # generation also uses the adapter
        whole = {key: rows[inputs["attention_mask"].all(dim=1)] for key, rows in text.items()}
        step = model.generate(**whole, max_new_tokens=1, output_logits=True, return_dict_in_generate=True)
        torch.testing.assert_close(step.logits[0], model(**whole).logits[:, -1], rtol=1e-4, atol=1e-5)


def test_trl_trains_a_language_model_on_texts_with_an_end_token(saved, tmp_path):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    folder = saved("language model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trainer = SFTTrainer(
        model=load("language model", folder),
        args=SFTConfig(
            output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, use_cpu=True, bf16=False,
            report_to="none", save_strategy="no",
        ),
        train_dataset=Dataset.from_dict({"text": TEXTS * 2}),
        processing_class=tokenizer,
    )  # fmt: skip
    for row, text in zip(trainer.train_dataset["input_ids"], TEXTS * 2, strict=True):
        assert row == [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    trainer.train()
    trainer.save_model()
    assert load("language model", tmp_path).generate(torch.tensor([[1]]), max_new_tokens=3).shape[1] <= 4


@pytest.mark.parametrize("name", ["masked language model", "classifier"])
def test_sentence_transformers_trains_and_loads_an_encoder(saved, name, tmp_path):
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    folder = saved(name)
    model = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    inputs = {key: value for key, value in batch(name, folder).items() if key != "labels"}
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state
    real = inputs["attention_mask"][..., None]
    torch.testing.assert_close(
        model.encode(TEXTS, convert_to_tensor=True), (states * real).sum(1) / real.sum(1), rtol=1e-4, atol=1e-5
    )
    before = model.encode(TEXTS)
    trainer = SentenceTransformerTrainer(
        model=model,
        args=transformers_arguments(tmp_path / "run"),
        train_dataset=Dataset.from_dict({"anchor": TEXTS, "positive": TEXTS[::-1]}),
        loss=MultipleNegativesRankingLoss(model),
    )
    trainer.train()
    after = model.encode(TEXTS)
    assert abs(after - before).max() > 1e-4
    model.save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    assert abs(again.encode(TEXTS) - after).max() < 1e-5


def transformers_arguments(folder):
    from sentence_transformers import SentenceTransformerTrainingArguments

    return SentenceTransformerTrainingArguments(
        output_dir=str(folder), max_steps=2, learning_rate=1e-2, use_cpu=True, report_to="none", save_strategy="no"
    )


def test_captums_integrated_gradients_sum_to_the_change_in_the_output(saved):
    from captum.attr import IntegratedGradients

    model, inputs = load("classifier", saved("classifier")), batch("classifier", saved("classifier"))
    embeddings = model.get_input_embeddings()(inputs["input_ids"]).detach()

    def first_logit(embeddings, attention_mask):
        return model(inputs_embeds=embeddings, attention_mask=attention_mask).logits[:, 0]

    attributions, delta = IntegratedGradients(first_logit).attribute(
        embeddings, additional_forward_args=inputs["attention_mask"], n_steps=64, return_convergence_delta=True
    )
    baseline = first_logit(torch.zeros_like(embeddings), inputs["attention_mask"])
    change = (first_logit(embeddings, inputs["attention_mask"]) - baseline).detach()
    torch.testing.assert_close(attributions.sum((1, 2)).float(), change, rtol=0, atol=0.02)
    assert delta.abs().max() < 0.02 and attributions[0].abs().sum() > 0
