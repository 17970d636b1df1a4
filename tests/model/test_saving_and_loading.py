"""A saved folder has all the code and no duplicated weights; every Auto class loads it without this project."""

import copy
import importlib
import json
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from family import decoder_only, encoder_decoder, encoder_only, tokens
from fresh_process import run_fresh
from vanilla_transformer import (
    VanillaTransformerEncoderModel,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForQuestionAnswering,
    configuration_vanilla_transformer,
)
from vanilla_transformer.cli.estimate import checkpoint_layers
from vanilla_transformer.configuration_vanilla_transformer import OLDEST, check_private_api
from vanilla_transformer.data.tokenizer import train_tokenizer
from vanilla_transformer.modeling_vanilla_transformer import MODELS


LOAD_ELSEWHERE = """
import torch, transformers
sums = {}
for folder, auto_classes in arguments[0].items():
    for name in auto_classes:
        model = getattr(transformers, name).from_pretrained(folder, trust_remote_code=True).eval()
        model.save_pretrained(f"again/{folder}-{name}")
        model = getattr(transformers, name).from_pretrained(f"again/{folder}-{name}", trust_remote_code=True).eval()
        ids = torch.arange(3, 9)[None]
        extra = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        sums[f"{folder}-{name}"] = model(ids, **extra)[0].double().abs().sum().item()
print(json.dumps(sums))
"""


def test_all_auto_classes_load_without_this_project_installed(tmp_path):
    models = {make.__name__: make() for make in (encoder_decoder, decoder_only, encoder_only)}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
    auto_classes = {name: list(model.config.auto_classes) for name, model in models.items()}
    sums = run_fresh(LOAD_ELSEWHERE, tmp_path, auto_classes, HF_HUB_OFFLINE="1")
    assert list(sums) == [f"{name}-{auto_class}" for name, classes in auto_classes.items() for auto_class in classes]
    ids = torch.arange(3, 9)[None]
    for name, model in models.items():
        extra = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        classes = model.config.auto_classes.items()
        saved_as = next(auto_class for auto_class, cls in classes if cls == type(model).__name__)
        logits = model(ids, **extra).logits.double()
        assert sums[f"{name}-{saved_as}"] == pytest.approx(logits.abs().sum().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "stored"),
    [
        ({}, {"model.encoder.embed_tokens.weight"}),
        ({"target_vocab_size": 50}, {"model.encoder.embed_tokens.weight"}),
        (
            {"share_encoder_decoder_embeddings": False},
            {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"},
        ),
        ({"tie_word_embeddings": False}, {"model.encoder.embed_tokens.weight", "lm_head.weight"}),
        (
            {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False},
            {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"},
        ),
    ],
)
def test_tied_weights_are_stored_once_and_stay_tied(fields, stored, tmp_path):
    model = encoder_decoder(**fields)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as weights:
        assert {key for key in weights.keys() if "embed_tokens" in key or "lm_head" in key} == stored  # noqa: SIM118
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    ids = tokens()
    torch.testing.assert_close(loaded(ids, decoder_input_ids=ids).logits, model(ids, decoder_input_ids=ids).logits)
    shared = loaded.model.encoder.embed_tokens.weight is loaded.model.decoder.embed_tokens.weight
    tied = loaded.lm_head.weight is loaded.model.decoder.embed_tokens.weight
    assert (shared, tied) == (model.config.share_encoder_decoder_embeddings, model.config.tie_word_embeddings)

    resized = loaded.resize_token_embeddings(60)
    assert resized.num_embeddings == 60 == loaded.config.vocab_size
    assert loaded(ids, decoder_input_ids=ids + 9).logits.shape[-1] == 60


def test_two_saved_embeddings_cannot_be_loaded_as_one(tmp_path):
    encoder_decoder(share_encoder_decoder_embeddings=False).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="share_encoder_decoder_embeddings=True: the model was saved with two"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, share_encoder_decoder_embeddings=True)


def test_a_saved_vocabulary_size_can_be_overridden(tmp_path):
    encoder_decoder().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"target_vocab_size": 50}))
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, vocab_size=60, ignore_mismatched_sizes=True)
    assert loaded.lm_head.out_features == 60


def test_models_in_a_subfolder_load_their_own_generation_config(tmp_path, monkeypatch):
    model = encoder_decoder()
    model.generation_config.num_beams = 3
    model.save_pretrained(tmp_path / "models/mine")
    monkeypatch.chdir(tmp_path)
    for source in (".", tmp_path):
        loaded = AutoModelForSeq2SeqLM.from_pretrained(source, subfolder="models/mine")
        assert loaded.generation_config.num_beams == 3


def test_an_encoder_saved_from_a_translator_keeps_its_layers(tmp_path):
    encoder, ids = encoder_decoder(encoder_layers=3, decoder_layers=1).get_encoder(), tokens()
    encoder.save_pretrained(tmp_path)
    again, loading = VanillaTransformerEncoderModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading.values())
    assert torch.equal(again.eval()(ids).last_hidden_state, encoder(ids).last_hidden_state)


def test_a_split_shared_embedding_is_saved_as_two(tmp_path):
    """PEFT splits a shared embedding like this if it is in `modules_to_save`."""
    model, inputs = encoder_decoder(tie_word_embeddings=False), {"input_ids": tokens(), "decoder_input_ids": tokens()}
    decoder = model.get_decoder()
    decoder.embed_tokens = copy.deepcopy(decoder.embed_tokens)
    torch.nn.init.normal_(decoder.embed_tokens.weight)
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert torch.equal(again(**inputs).logits, model(**inputs).logits)


def test_a_sharded_checkpoint_loads(tmp_path):
    model = decoder_only()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ids = tokens()
    torch.testing.assert_close(AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits, model(ids).logits)


@pytest.mark.parametrize("make", [encoder_decoder, decoder_only])
def test_the_generation_config_is_complete(make, tmp_path):
    make().save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    assert (saved["bos_token_id"], saved["eos_token_id"], saved["pad_token_id"], saved["max_length"]) == (
        1,
        2,
        0,
        1024,
    )
    assert saved.get("decoder_start_token_id") == (1 if make is encoder_decoder else None)


@pytest.mark.parametrize("make", [encoder_decoder, decoder_only, encoder_only])
def test_a_saved_config_records_the_project_version_but_loads_without_it(make, tmp_path):
    model = make()
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    saved = json.loads(file.read_text())
    assert saved["vanilla_transformer_version"] == configuration_vanilla_transformer.__version__
    assert AutoConfig.from_pretrained(tmp_path).vanilla_transformer_version == saved["vanilla_transformer_version"]
    del saved["vanilla_transformer_version"]
    file.write_text(json.dumps(saved))
    older = type(model).from_pretrained(tmp_path)
    assert older.config.vanilla_transformer_version is None
    older.save_pretrained(tmp_path / "again")
    assert "vanilla_transformer_version" in json.loads((tmp_path / "again" / "config.json").read_text())


@pytest.mark.parametrize(
    "family", ["vanilla_transformer", "vanilla_transformer_encoder", "vanilla_transformer_decoder"]
)
def test_configs_accept_the_field_names_of_transformers(family):
    names = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "hidden_act": "gelu"}
    ours = {"d_model": 64, "num_heads": 4, "d_ff": 96, "activation_function": "gelu"}
    config = AutoConfig.for_model(family, **names)
    assert config.to_dict() == AutoConfig.for_model(family, **ours).to_dict()
    assert (config.d_k, config.d_v, config.num_key_value_heads, config.hidden_act) == (16, 16, 4, "gelu")


def test_encoder_decoder_configs_accept_marians_field_names():
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 64, "encoder_attention_heads": 4}
    sizes |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 80}
    config = AutoConfig.for_model("vanilla_transformer", **sizes)
    assert (config.num_heads, config.d_k, config.d_ff, config.decoder_d_ff) == (4, 16, 96, 80)
    for name, size in sizes.items():
        assert getattr(config, name) == size
    assert not config.to_dict().keys() & {"decoder_attention_heads", "decoder_ffn_dim"}


LOAD_WHERE_NAMES_ARE_OTHERS = """
from unittest.mock import patch
from transformers import AutoModel, GenerationMixin, PreTrainedModel
def refusal():
    try:
        AutoModel.from_pretrained("model", trust_remote_code=True)
    except RuntimeError as error:
        return str(error)
refusals = {}
for owner in (GenerationMixin, PreTrainedModel):  # in the order in which they are looked for
    name = arguments[0][owner.__name__]
    with patch.object(owner, name):
        delattr(owner, name)
        refusals[f"{owner.__name__}.{name}"] = refusal()
print(json.dumps(refusals))
"""


def test_transformers_versions_without_a_required_private_name_are_rejected(tmp_path):
    """Without this check, our override of a renamed private method would silently never be called."""
    encoder_only(VanillaTransformerEncoderModel).save_pretrained(tmp_path / "model")
    names = {"GenerationMixin": "_update_finished_beams", "PreTrainedModel": "get_correct_attn_implementation"}
    refusals = run_fresh(LOAD_WHERE_NAMES_ARE_OTHERS, tmp_path, names)
    assert len(refusals) == 2
    for name, message in refusals.items():
        assert f"{name}, which transformers" in message and "Known to work: pip install" in message, name


def test_the_check_of_private_names_covers_pytorch():
    check_private_api(torch.Tensor, "_version")
    with pytest.raises(
        RuntimeError, match=r"builds on Tensor\._age, which torch \S+ does not have.*'torch~=2\.\d+\.0'"
    ):
        check_private_api(torch.Tensor, "_age")


def test_auto_classes_are_registered_on_import(tmp_path):
    encoder_only(VanillaTransformerEncoderModel).save_pretrained(tmp_path)
    assert type(AutoModel.from_pretrained(tmp_path)) is VanillaTransformerEncoderModel
    assert type(AutoConfig.from_pretrained(tmp_path)) is VanillaTransformerEncoderModel.config_class


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_outputs_are_close_to_single_precision(dtype):
    model, ids = encoder_decoder(), tokens()
    expected = model(ids, decoder_input_ids=ids).logits
    logits = model.to(dtype)(ids, decoder_input_ids=ids).logits
    assert logits.dtype == dtype
    torch.testing.assert_close(logits.float(), expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("make", [encoder_decoder, decoder_only, encoder_only])
def test_gradient_checkpointing_gives_the_same_gradients(make):
    model, ids = make(dropout=0.0).train(), tokens()
    model(ids, labels=ids).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    checkpoint_layers(model)
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


@pytest.mark.parametrize("model_class", MODELS)
def test_every_name_in_no_split_modules_exists_in_the_model(model_class):
    """FSDP and `device_map` fail if `_no_split_modules` contains a class that the model does not use."""
    model = model_class(model_class.config_class.from_preset("tiny", vocab_size=10))
    assert model._no_split_modules
    assert model._no_split_modules <= {type(module).__name__ for module in model.modules()}


@pytest.mark.parametrize("model_class", MODELS)
def test_return_dict_false_in_the_config_returns_tuples(model_class):
    model = model_class(model_class.config_class.from_preset("tiny", vocab_size=10)).eval()
    ids = torch.tensor([[3, 4, 5]])
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})
    expected = model(**inputs).to_tuple()
    model.config.return_dict = False
    found = model(**inputs)
    assert type(found) is tuple and len(found) == len(expected)
    torch.testing.assert_close(found[0], expected[0])
    if model.can_generate():
        assert model.generate(ids, max_new_tokens=2).shape[0] == 1


TOO_OLD = """
import transformers
transformers.__version__ = "5.3.1"
from transformers import AutoConfig
AutoConfig.from_pretrained(arguments[0], trust_remote_code=True)
"""


def test_error_for_an_old_transformers_names_the_required_version(tmp_path):
    """The package and the code files in a checkpoint require the same minimum version of transformers."""
    packages = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"transformers>={OLDEST},<6" in packages
    decoder_only().save_pretrained(tmp_path)
    with pytest.raises(AssertionError, match=f"needs transformers {OLDEST} or newer; this is 5.3.1: pip install"):
        run_fresh(TOO_OLD, tmp_path, str(tmp_path))


@pytest.mark.parametrize("fields", [{}, {"tie_word_embeddings": False}])
def test_a_missing_shared_embedding_is_reported_and_initialised(fields, tmp_path):
    encoder_decoder(**fields).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.encoder.embed_tokens.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, info = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"} <= info["missing_keys"]
    embedding = loaded.model.encoder.embed_tokens.weight
    assert embedding is loaded.model.decoder.embed_tokens.weight
    assert embedding.std().item() == pytest.approx(32**-0.5, rel=0.1)
    assert loaded(tokens(), labels=tokens()).loss.isfinite()


@pytest.mark.parametrize("make", [encoder_decoder, decoder_only, encoder_only])
def test_a_model_larger_than_memory_runs_with_disk_offload(make, tmp_path):
    model = make()
    model.save_pretrained(tmp_path / "model")
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    loaded = type(model).from_pretrained(
        tmp_path / "model", device_map="auto", max_memory={"cpu": size // 2}, offload_folder=tmp_path / "disk"
    )
    assert "disk" in loaded.hf_device_map.values()
    ids = torch.arange(3, 9)[None]
    extra = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    torch.testing.assert_close(loaded.eval()(ids, **extra).logits, model(ids, **extra).logits)


DERIVED = """
import torch
from .modeling_vanilla_transformer import VanillaTransformerForCausalLM  # the copy next to it

class MyLM(VanillaTransformerForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.extra = torch.nn.Linear(config.d_model, 1)
        self.post_init()
"""
LOAD_DERIVED = """
from transformers import AutoModel, AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(arguments[0], trust_remote_code=True)
bare = AutoModel.from_pretrained(arguments[0], trust_remote_code=True)
print(json.dumps([type(model).__name__, model.extra.weight.tolist(), type(bare).__name__]))
"""


def test_subclasses_are_saved_and_loaded_with_their_own_weights(tmp_path, monkeypatch):
    (tmp_path / "my_model.py").write_text(DERIVED)
    source = tmp_path / "package"
    decoder_only().save_pretrained(source)
    (source / "__init__.py").touch()
    (tmp_path / "my_model.py").rename(source / "my_model.py")
    monkeypatch.syspath_prepend(tmp_path)
    my_class = importlib.import_module("package.my_model").MyLM
    my_class.register_for_auto_class("AutoModelForCausalLM")
    mine = my_class.from_pretrained(source)
    mine.save_pretrained(tmp_path / "mine")
    for _ in range(2):  # the second time, the config has been loaded and saved again
        name, weight, bare = run_fresh(LOAD_DERIVED, tmp_path, str(tmp_path / "mine"))
        assert (name, bare) == ("MyLM", "VanillaTransformerDecoderModel") and weight == mine.extra.weight.tolist()
        my_class.from_pretrained(tmp_path / "mine").save_pretrained(tmp_path / "mine")


MY_PIPELINE = """
from transformers import TextClassificationPipeline

class MyPipeline(TextClassificationPipeline):
    pass
"""


def test_custom_pipelines_of_users_are_saved_with_the_model(tmp_path, monkeypatch):
    (tmp_path / "my_pipeline.py").write_text(MY_PIPELINE)
    monkeypatch.syspath_prepend(tmp_path)
    my_class = importlib.import_module("my_pipeline").MyPipeline
    model = encoder_only(VanillaTransformerForQuestionAnswering)
    pipeline = my_class(model=model, tokenizer=train_tokenizer(["a text"], "encoder", vocab_size=300))
    # transformers registers pipelines in the same form
    pipeline._registered_impl = {"my-task": {"impl": my_class, "pt": (type(model),), "type": "text"}}
    pipeline.save_pretrained(tmp_path / "saved")
    for folder in ("saved", "again"):
        saved = json.loads((tmp_path / folder / "config.json").read_text())["custom_pipelines"]
        assert saved["my-task"]["impl"] == "my_pipeline.MyPipeline"
        assert saved["question-answering"]["impl"] == "pipeline_vanilla_transformer.QuestionAnsweringPipeline"
        type(model).from_pretrained(tmp_path / folder).save_pretrained(tmp_path / "again")
