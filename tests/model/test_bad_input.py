"""Invalid input raises an error that names the invalid value and the valid ones."""

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from family import decoder_only, encoder_decoder, encoder_only, tokens
from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerEncoderConfig,
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
)
from vanilla_transformer.fast import make_fast, make_plain
from vanilla_transformer.modeling_vanilla_transformer import CACHE


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 10, "num_heads": 3}, "d_model=10 is not divisible by num_heads=3"),
        ({"d_ff": -1}, "d_ff=-1 must be greater than 0"),
        ({"num_heads": 0}, "num_heads=0 must be greater than 0"),
        ({"encoder_layers": 0}, "encoder_layers=0 must be greater than 0"),
        ({"dropout": 1.5}, "dropout=1.5 is a probability"),
        ({"label_smoothing": -0.1}, "label_smoothing=-0.1 is a probability"),
        ({"sliding_window": 1}, "sliding_window=1 must be at least 2"),
        ({"activation_function": "rectify"}, "activation_function='rectify' must be one of: .*relu"),
        ({"norm_position": "both"}, "norm_position.*post.*pre.*both"),
        ({"layer_norm_eps": float("inf")}, "layer_norm_eps=inf must be .* finite"),
        ({"decoder_d_ff": -4}, "decoder_d_ff=-4 must be greater than 0"),
        ({"vocab_size": "many"}, "vocab_size.*expected int, got str"),
    ],
)
def test_invalid_configs_are_rejected_on_creation(fields, message):
    with pytest.raises(StrictDataclassError, match=f"(?s){message}"):
        VanillaTransformerConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sliding_window": 1}, "sliding_window=1 must be at least 2"),
        ({"attention_dropout": 3.0}, "attention_dropout=3.0 is a probability"),
        ({"activation_function": "foo"}, "activation_function='foo' must be one of"),
        ({"d_model": 10, "d_k": None}, "d_model=10 is not divisible by num_heads=4"),
    ],
)
def test_invalid_config_overrides_are_rejected_on_loading(fields, message, tmp_path):
    encoder_decoder().save_pretrained(tmp_path)
    with pytest.raises(StrictDataclassError, match=f"(?s){message}"):
        AutoConfig.from_pretrained(tmp_path, **fields)
    smaller = AutoConfig.from_pretrained(tmp_path, d_model=16, d_k=None, d_v=None, dropout=0.25)
    assert (smaller.d_k, smaller.d_v, smaller.dropout) == (4, 4, 0.25)


def test_negative_type_vocab_size_is_rejected():
    with pytest.raises(StrictDataclassError, match="type_vocab_size=-1 must not be negative"):
        VanillaTransformerEncoderConfig(type_vocab_size=-1)


def test_error_for_an_unknown_preset_lists_the_presets():
    with pytest.raises(ValueError, match=r"preset='huge' is not known.*base, big"):
        VanillaTransformerConfig.from_preset("huge")


@pytest.mark.parametrize("make", [encoder_only, decoder_only])
def test_token_ids_outside_the_vocabulary_are_rejected(make):
    with pytest.raises(ValueError, match="input_ids holds 50, but the vocabulary has 50: give ids from 0 to 49"):
        make()(torch.tensor([[3, 50]]))
    with pytest.raises(ValueError, match="input_ids holds -1"):
        make()(torch.tensor([[3, -1]]))


@pytest.mark.parametrize("make", [encoder_only, decoder_only])
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([3, 4]), r"input_ids has shape \(2,\); it must be \(batch, length\)"),
        (torch.tensor([[3.0, 4.0]]), "input_ids has dtype torch.float32; it must be torch.int64"),
        (torch.tensor([[True, False]]), "input_ids has dtype torch.bool; it must be torch.int64"),
        (torch.empty(0, 4, dtype=torch.long), r"input_ids has shape \(0, 4\): there is nothing to compute"),
        (torch.empty(2, 0, dtype=torch.long), r"input_ids has shape \(2, 0\): there is nothing to compute"),
        ([[3, 4]], "input_ids is of type list; it must be a tensor"),
        (np.array([[3, 4]]), "input_ids is of type ndarray; it must be a tensor"),
        ("a text", "input_ids is of type str; it must be a tensor"),
    ],
)
def test_input_ids_of_the_wrong_shape_or_type_are_rejected(make, ids, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()(ids)


@pytest.mark.parametrize("make", [encoder_only, decoder_only])
@pytest.mark.parametrize("shape", [(2, 32), (2, 7, 31), (2, 7, 32, 1), (0, 7, 32)])
def test_input_embeddings_of_the_wrong_shape_are_rejected(make, shape):
    with pytest.raises(ValueError, match=r"inputs_embeds has shape \("):
        make()(inputs_embeds=torch.zeros(shape))


@pytest.mark.parametrize("make", [encoder_only, decoder_only])
@pytest.mark.parametrize("shape", [(7,), (2, 6), (3, 7), (2, 7, 1)])
def test_position_ids_must_have_the_shape_of_the_input(make, shape):
    with pytest.raises(ValueError, match=r"position_ids has shape .*; it must be \(2, 7\)"):
        make()(tokens(2, 7), position_ids=torch.zeros(shape, dtype=torch.long))


def test_masks_that_are_not_tensors_are_rejected():
    with pytest.raises(TypeError, match="attention_mask is of type list; it must be a tensor"):
        encoder_only()(tokens(1, 2), attention_mask=[[1, 1]])


def test_special_tokens_outside_the_vocabulary_are_rejected_only_when_used(tmp_path):
    translator = encoder_decoder(decoder_start_token_id=10**6, pad_token_id=99)
    translator.save_pretrained(tmp_path)
    loaded = type(translator).from_pretrained(tmp_path)  # tasks that do not use the token still work
    assert loaded(tokens(), decoder_input_ids=tokens()).logits.shape == (2, 7, 50)
    with pytest.raises(ValueError, match=r"config.decoder_start_token_id is 1000000; .* 0 to 49"):
        loaded(tokens(), labels=tokens())
    with pytest.raises(ValueError, match="input_ids holds 1000000, but the vocabulary has 50"):
        loaded.generate(tokens(), max_new_tokens=2)


@pytest.mark.parametrize("value", [2, -1, 0.5, float("nan"), float("inf"), -1e9])
@pytest.mark.parametrize("make", [encoder_only, decoder_only])
def test_mask_values_other_than_0_and_1_are_rejected(make, value):
    with pytest.raises(ValueError, match=r"attention_mask holds .*; a mask .* is 1 for real tokens and 0 for padding"):
        make()(tokens(1, 3), attention_mask=torch.tensor([[1, 1, value]]))


def test_unknown_token_types_are_rejected():
    with pytest.raises(ValueError, match="token_type_ids holds 2, but type_vocab_size has 2: give ids from 0 to 1"):
        encoder_only(type_vocab_size=2)(tokens(1, 3), token_type_ids=torch.tensor([[0, 1, 2]]))


def test_sequences_longer_than_the_learned_positions_are_rejected():
    model = decoder_only(position_embedding="learned", max_position_embeddings=5)
    assert model(tokens(1, 5)).logits.shape == (1, 5, 50)
    with pytest.raises(ValueError, match="position_ids holds 5, but position_embedding='learned' has 5"):
        model(tokens(1, 6))


WRONG_MASKS = [(2, 6), (7,), (2, 7, 7), (2, 1, 3, 7), (2, 1, 7, 6), (3, 1, 7, 7), (2, 3, 7, 7), (2, 1, 7, 1)]


@pytest.mark.parametrize("shape", WRONG_MASKS)
@pytest.mark.parametrize("make", [encoder_only, decoder_only])
def test_masks_of_the_wrong_shape_are_rejected(make, shape):
    with pytest.raises(ValueError, match=r"attention_mask has shape \(.*it must be \(batch, length\) = \(2, 7\)"):
        make()(tokens(2, 7), attention_mask=torch.ones(shape))


@pytest.mark.parametrize("shape", [(2, 1, 7, 7), (2, 4, 7, 7), (1, 1, 7, 7)])
@pytest.mark.parametrize("make", [encoder_only, decoder_only])
def test_4d_masks_broadcast_over_heads_and_the_batch(make, shape):
    model, ids = make(), tokens(2, 7)
    looks_back = torch.ones(7, 7, dtype=torch.bool).tril().expand(shape)
    expected = model(ids, attention_mask=looks_back[:1, :1].expand(2, 4, 7, 7)).logits
    torch.testing.assert_close(model(ids, attention_mask=looks_back).logits, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("implementation", ["eager", "sdpa", "packed_sdpa"])
@pytest.mark.parametrize("make", [encoder_only, decoder_only])
def test_boolean_4d_masks_have_the_same_effect_in_every_attention_implementation(make, implementation, dtype):
    model, ids = make().to(dtype), tokens(2, 7)
    model.set_attn_implementation(implementation)
    looks_back = torch.ones(1, 1, 7, 7, dtype=torch.bool).tril()
    added = torch.zeros(1, 1, 7, 7, dtype=dtype).masked_fill(~looks_back, torch.finfo(dtype).min)
    expected = model(ids, attention_mask=added).logits
    torch.testing.assert_close(model(ids, attention_mask=looks_back).logits, expected)
    with pytest.raises(ValueError, match=r"attention_mask of shape .* is torch.int64; a 4-D mask is boolean"):
        model(ids, attention_mask=looks_back.long())


def test_source_masks_of_the_wrong_shape_are_rejected():
    model, encoded = encoder_decoder(), (torch.zeros(2, 5, 32),)
    with pytest.raises(ValueError, match=r"encoder_attention_mask has shape \(2, 4\)"):
        model(encoder_outputs=encoded, attention_mask=torch.ones(2, 4), decoder_input_ids=tokens())


def test_source_states_of_another_batch_size_are_rejected():
    model, target = encoder_decoder(), tokens(2, 3)
    with pytest.raises(ValueError, match=r"encoder_hidden_states is .*\[3, 5, 32\].*; it must be \(batch=2, "):
        model(encoder_outputs=(torch.zeros(3, 5, 32),), decoder_input_ids=target)
    one = torch.randn(1, 5, 32)  # one source for several targets is allowed
    both = model(encoder_outputs=(one.expand(2, -1, -1),), decoder_input_ids=target).logits
    torch.testing.assert_close(model(encoder_outputs=(one,), decoder_input_ids=target).logits, both)


@pytest.mark.parametrize("make", [encoder_only, decoder_only])
def test_exactly_one_of_input_ids_and_inputs_embeds_is_required(make):
    with pytest.raises(ValueError, match=r"exactly one of input_ids and inputs_embeds.*got neither"):
        make()()
    with pytest.raises(ValueError, match="got both"):
        make()(tokens(), inputs_embeds=torch.zeros(2, 7, 32))


def test_encoder_decoders_require_decoder_inputs():
    with pytest.raises(ValueError, match="Give decoder_input_ids or decoder_inputs_embeds, or labels"):
        encoder_decoder()(tokens())


def test_conflicting_config_aliases_are_rejected():
    with pytest.raises(ValueError, match="encoder_attention_heads=4 and decoder_attention_heads=2 must be equal"):
        VanillaTransformerConfig(d_model=32, encoder_attention_heads=4, decoder_attention_heads=2)


def test_grouped_query_attention_is_rejected():
    with pytest.raises(ValueError, match="num_attention_heads=8 and num_key_value_heads=2 must be equal"):
        VanillaTransformerConfig(num_attention_heads=8, num_key_value_heads=2)
    config = VanillaTransformerConfig(num_attention_heads=4, num_key_value_heads=4)
    assert (config.num_heads, config.num_key_value_heads) == (4, 4)


def test_num_layers_is_rejected_for_an_encoder_decoder():
    with pytest.raises(ValueError, match="num_layers=2 is for a single stack: give encoder_layers and decoder_layers"):
        VanillaTransformerConfig(num_layers=2)
    # Configs saved by earlier versions may contain the field; it is ignored.
    saved = VanillaTransformerConfig(encoder_layers=3).to_dict() | {"num_layers": 2}
    assert VanillaTransformerConfig.from_dict(saved).encoder_layers == 3


@pytest.mark.parametrize("shape", [(3, 2), (6,)])
@pytest.mark.parametrize("problem_type", ["regression", "multi_label_classification"])
def test_regression_and_multi_label_targets_need_one_column_per_label(problem_type, shape):
    model = encoder_only(VanillaTransformerForSequenceClassification, num_labels=3, problem_type=problem_type)
    with pytest.raises(ValueError, match=rf"labels has shape .*; {problem_type} with num_labels=3 needs \(2, 3\)"):
        model(tokens(2, 7), labels=torch.rand(shape))


def test_labels_outside_the_class_range_are_rejected():
    model = encoder_only(VanillaTransformerForSequenceClassification, num_labels=3)
    with pytest.raises(ValueError, match="labels holds 3, but the output layer has 3: give ids from 0 to 2"):
        model(tokens(), labels=torch.tensor([0, 3]))
    with pytest.raises(ValueError, match=r"labels has shape \(2, 2\); .* num_labels=3 needs \(2, 3\)"):
        model(tokens(), labels=torch.rand(2, 2))


@pytest.mark.parametrize("shape", [(2,), (2, 6), (7, 2), (2, 7, 1)])
@pytest.mark.parametrize("make", [encoder_decoder, decoder_only, encoder_only])
@pytest.mark.parametrize("form", [make_plain, make_fast])
def test_labels_of_the_wrong_shape_are_rejected(make, shape, form):
    model = form(make()).train()
    extra = {"decoder_input_ids": tokens()} if model.config.is_encoder_decoder else {}
    with pytest.raises(ValueError, match=r"labels has shape .*; it must be \((2, 7|batch, length)\)"):
        model(tokens(), labels=torch.ones(shape, dtype=torch.long), **extra)


@pytest.mark.parametrize("make", [encoder_decoder, decoder_only, encoder_only])
@pytest.mark.parametrize("form", [make_plain, make_fast])
def test_labels_of_the_wrong_type_are_rejected(make, form):
    model = form(make()).train()
    extra = {"decoder_input_ids": tokens()} if model.config.is_encoder_decoder else {}
    with pytest.raises(ValueError, match=r"labels has dtype torch.float32; it must be torch.int64"):
        model(tokens(), labels=tokens().float(), **extra)
    with pytest.raises(TypeError, match="labels is of type list; it must be a tensor"):
        model(tokens(), labels=tokens().tolist(), **extra)


def test_labels_that_do_not_fit_the_problem_type_are_rejected():
    model = encoder_only(VanillaTransformerForSequenceClassification, num_labels=3)
    with pytest.raises(ValueError, match=r"labels holds 2.0; multi_label_classification needs numbers from 0 to 1"):
        model(tokens(), labels=torch.full((2, 3), 2.0))
    model = encoder_only(VanillaTransformerForQuestionAnswering)
    with pytest.raises(ValueError, match=r"end_positions has shape \(3,\); it must be \(2,\)"):
        model(tokens(), start_positions=torch.tensor([1, 2]), end_positions=torch.tensor([1, 2, 3]))


def test_caches_of_the_wrong_class_are_rejected():
    cache = decoder_only()(tokens(), use_cache=True)[CACHE]
    with pytest.raises(ValueError, match="past_key_values is a DynamicCache; here it must be an EncoderDecoderCache"):
        encoder_decoder()(tokens(), decoder_input_ids=tokens(), past_key_values=cache)
    with pytest.raises(ValueError, match=r"past_key_values is a tuple; it must be a Cache"):
        decoder_only()(tokens(), past_key_values=((torch.ones(2, 4, 7, 8),) * 2,))


@pytest.mark.parametrize("make", [encoder_only, decoder_only])
def test_embeddings_of_the_wrong_dtype_are_rejected(make):
    embeddings = torch.zeros(2, 7, 32, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"inputs_embeds has .* dtype torch.float16; it must be .* torch.float32"):
        make()(inputs_embeds=embeddings)
    make().half()(inputs_embeds=embeddings)
    with torch.autocast("cpu", torch.bfloat16):
        make()(inputs_embeds=embeddings.bfloat16())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("make", [encoder_only, decoder_only])
def test_embeddings_with_nan_or_inf_are_rejected(make, value):
    with pytest.raises(ValueError, match="inputs_embeds holds nan or inf"):
        make()(inputs_embeds=torch.full((2, 7, 32), value))
    torch.func.vmap(lambda rows: make().eval()(inputs_embeds=rows).logits, randomness="same")(torch.zeros(3, 1, 7, 32))


@pytest.mark.parametrize("make", [encoder_decoder, decoder_only])
def test_caches_with_another_batch_size_are_rejected(make):
    def inputs(batch: int, length: int) -> dict:
        ids = tokens(batch, length)
        return {"input_ids": ids} | ({"decoder_input_ids": ids} if make is encoder_decoder else {})

    model = make()
    cache = model(**inputs(2, 7), use_cache=True)[CACHE]
    with pytest.raises(ValueError, match="past_key_values holds 2 sequences, but the input has 3"):
        model(**inputs(3, 1), **{CACHE: cache})
    model(**inputs(2, 1), **{CACHE: cache})


@pytest.mark.filterwarnings("error")
@pytest.mark.skipif(CACHE != "cache", reason="older versions of transformers have one name")
@pytest.mark.parametrize("make", [encoder_decoder, decoder_only])
def test_past_key_values_is_deprecated_in_favour_of_cache(make):
    model = make()
    inputs = {"decoder_input_ids": tokens()} if make is encoder_decoder else {}
    cache = model(tokens(), **inputs, use_cache=True).cache
    model(tokens(), **inputs, cache=cache)
    with pytest.raises(FutureWarning, match="`past_key_values` is deprecated: use `cache`"):
        model(tokens(), **inputs, past_key_values=cache)
