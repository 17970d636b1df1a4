"""Check that interventions give the same results as changing the weights, the mask or the equations."""

import copy

import pytest
import torch

from family import decoder_only, encoder_decoder, encoder_only, tokens
from vanilla_transformer import VanillaTransformerForSequenceClassification
from vanilla_transformer.inside import Interventions, intervene
from vanilla_transformer.inside.interventions import NO_INTERVENTIONS, Weight, attentions_of, interventions_from_json


MAKERS = {
    "encoder-decoder": encoder_decoder,
    "encoder-only": lambda **fields: encoder_only(VanillaTransformerForSequenceClassification, **fields),
    "decoder-only": decoder_only,
}
FAMILIES = pytest.mark.parametrize("family", MAKERS)


def made(family: str, **fields):
    torch.manual_seed(0)
    return MAKERS[family](**fields)


def inputs_of(model, batch: int = 1):
    torch.manual_seed(1)
    inputs = {"input_ids": tokens(batch, 7)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(batch, 5)
    return inputs


@torch.no_grad()
def logits(model, changes=NO_INTERVENTIONS, inputs=None):
    with intervene(model, changes):
        return model(**(inputs_of(model) if inputs is None else inputs)).logits


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)


@FAMILIES
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_model_is_unchanged_after_interventions(family, implementation):
    model = made(family, attn_implementation=implementation)
    before = model(**inputs_of(model)).logits
    assert_close(logits(model), before)
    kind = "encoder" if family != "decoder-only" else "decoder"
    logits(model, Interventions(heads_off={(kind, 0, 0)}, layers_off={(kind, 1)}, positions_off={kind}))
    assert torch.equal(model(**inputs_of(model)).logits, before)
    assert model.config._attn_implementation == implementation
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@FAMILIES
def test_disabling_a_head_equals_zeroing_its_columns_of_w_o(family):
    model = made(family)
    for (kind, layer), module in attentions_of(model).items():
        without = copy.deepcopy(model)
        with torch.no_grad():
            attentions_of(without)[kind, layer].o_proj.weight[:, 2 * module.d_v : 3 * module.d_v] = 0
        assert_close(logits(model, Interventions(heads_off={(kind, layer, 2)})), without(**inputs_of(model)).logits)


@FAMILIES
def test_disabling_a_layer_equals_removing_it(family):
    model = made(family)
    kind = "decoder" if family != "encoder-only" else "encoder"
    without = copy.deepcopy(model)
    base = without.base_model
    stack = base.decoder if family == "encoder-decoder" else base
    del stack.layers[0]
    assert_close(
        logits(model, Interventions(layers_off={(kind, 0)})), without(**inputs_of(model), use_cache=False).logits
    )


def test_encoder_without_positions_ignores_token_order():
    model = made("encoder-only")
    inputs = inputs_of(model)
    backwards = {"input_ids": inputs["input_ids"].flip(1)}
    off = Interventions(positions_off={"encoder"})
    assert_close(logits(model, off, inputs), logits(model, off, backwards))
    assert not torch.allclose(logits(model, inputs=inputs), logits(model, inputs=backwards), atol=1e-4)


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_disabling_the_causal_mask_equals_an_all_ones_mask(family):
    model = made(family, attn_implementation="eager")
    inputs = inputs_of(model)
    name, ids = list(inputs.items())[-1]
    name = name.replace("input_ids", "attention_mask")
    everything = torch.zeros(1, 1, ids.shape[1], ids.shape[1])
    whole = model(**inputs, **{name: everything}).logits
    assert_close(logits(model, Interventions(causal_off=True)), whole)
    assert not torch.allclose(whole, logits(model), atol=1e-4)


@torch.no_grad()
def test_sliding_window_is_symmetric_without_the_causal_mask():
    model, (kind, off) = made("decoder-only", sliding_window=3), ("decoder", Interventions(causal_off=True))
    with intervene(model, off) as trace:
        model(**inputs_of(model))
    at = torch.arange(7)
    assert torch.equal(trace.attention[kind, 0][0, 0] > 0, (at - at[:, None]).abs() < 3)


@pytest.mark.parametrize("window", [None, 4])
def test_padding_stays_masked_without_the_causal_mask(window):
    model = made("decoder-only", sliding_window=window)
    ids = inputs_of(model)["input_ids"]
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], dim=1)
    mask = (torch.arange(10) >= 3).long()[None]
    off = Interventions(causal_off=True)
    shown = logits(model, off, {"input_ids": padded, "attention_mask": mask})[:, 3:]
    assert_close(shown, logits(model, off, {"input_ids": ids}))


@FAMILIES
def test_removing_the_scaling_equals_scaling_the_query_weights(family):
    model = made(family)
    unscaled = copy.deepcopy(model)
    with torch.no_grad():
        for module in attentions_of(unscaled).values():
            for parameter in module.q_proj.parameters():
                parameter.mul_(module.d_k**0.5)
    assert_close(logits(model, Interventions(scaling_off=True)), unscaled(**inputs_of(model)).logits)


@FAMILIES
def test_temperature_divides_the_logits(family):
    model = made(family)
    assert_close(logits(model, Interventions(temperature=2.0)), logits(model) / 2)
    with pytest.raises(ValueError, match=r"positive number.*cannot be 0"):
        logits(model, Interventions(temperature=0.0))


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("sublayer", ["self-attention", "cross-attention", "feed-forward"])
def test_removing_a_residual_connection_does_not_add_x(norm_position, sublayer):
    model = made("encoder-decoder", norm_position=norm_position)
    without = copy.deepcopy(model)
    name = {"self-attention": "self_attn", "cross-attention": "cross_attn", "feed-forward": "feed_forward"}[sublayer]
    add_norm = getattr(without.base_model.decoder.layers[1], f"{name}_add_norm")

    def forward(x, sublayer):
        return sublayer(add_norm.norm(x)) if norm_position == "pre" else add_norm.norm(sublayer(x))

    add_norm.forward = forward
    off = Interventions(residuals_off={("decoder", 1, sublayer)})
    assert_close(logits(model, off), without(**inputs_of(model)).logits)


@torch.no_grad()
def test_set_weight_is_used_and_other_weights_are_rescaled():
    model = made("encoder-decoder")
    inputs = inputs_of(model)
    with intervene(model) as trace:
        model(**inputs)
    usual = trace.attention["cross", 1][0, 3, 2]
    with intervene(model, Interventions(weights=(Weight("cross", 1, 3, 2, 4, 0.75),))) as trace:
        output = model(**inputs)
    row = trace.attention["cross", 1][0, 3, 2]
    assert row[4] == 0.75
    others = torch.arange(7) != 4
    assert_close(row[others], usual[others] / usual[others].sum() * 0.25)
    untouched = trace.attention["cross", 1][0, 3, 1]
    assert_close(untouched.sum(), torch.tensor(1.0))
    assert not torch.allclose(output.logits, logits(model), atol=1e-5)


def attended(model, weights, **inputs) -> torch.Tensor:
    """Return the attention weights (keys,) of query 3 in head 1 of the first layer, with `weights` set by key."""
    kind, _ = next(iter(attentions_of(model)))
    changes = Interventions(weights=tuple(Weight(kind, 0, 1, 3, key, weight) for key, weight in weights.items()))
    with torch.no_grad(), intervene(model, changes) as trace:
        model(**(inputs_of(model) | inputs))
    return trace.attention[kind, 0][0, 1, 3]


def test_several_weights_of_one_query_can_be_set():
    model = made("encoder-only")
    usual, row = attended(model, {}), attended(model, {0: 0.5, 4: 0.3})
    others = [1, 2, 3, 5, 6]
    assert_close(row[[0, 4]], torch.tensor([0.5, 0.3]))
    assert_close(row[others], usual[others] / usual[others].sum() * 0.2)
    assert_close(attended(model, {0: 0.5, 4: 0.5}), torch.tensor([0.5, 0, 0, 0, 0.5, 0, 0]))


def test_other_weights_share_the_remainder_evenly_if_all_were_zero():
    model = made("decoder-only")
    attention = attentions_of(model)["decoder", 0]
    with torch.no_grad():  # scores so large that one key gets all the weight
        attention.q_proj.weight *= 1e6
    (key,) = attended(model, {}).nonzero().tolist()[0]
    expected = torch.tensor([0.25] * 4 + [0.0] * 3)
    assert_close(attended(model, {key: 0.25}), expected)


def test_masked_keys_keep_weight_zero_and_a_single_key_keeps_weight_one():
    model = made("encoder-only")
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0]])
    row = attended(model, {0: 0.4, 6: 0.5}, attention_mask=mask)
    assert row[0] == pytest.approx(0.4) and row[5:].eq(0).all()
    assert_close(row.sum(), torch.tensor(1.0))
    alone = attended(model, {3: 0.25}, attention_mask=torch.tensor([[0, 0, 0, 1, 0, 0, 0]]))
    assert alone[3] == 1


@torch.no_grad()
def test_head_returns_the_value_of_a_token_with_weight_one():
    model = made("decoder-only")
    attention = attentions_of(model)["decoder", 1]
    entered, left = [], []
    attention.register_forward_pre_hook(lambda _, args: entered.append(args[0]))
    attention.o_proj.register_forward_pre_hook(lambda _, args: left.append(args[0]))
    logits(model, Interventions(weights=(Weight("decoder", 1, 0, 6, 3, 1.0),)))
    value = attention.v_proj(entered[0])[0, 3, : attention.d_v]
    assert_close(left[0][0, 6, : attention.d_v], value)


def test_interventions_that_need_all_positions_raise_with_a_cache():
    """With a cache, each step has a single query with index 0, so other indices would be wrong."""
    model = made("encoder-decoder")
    source, options = tokens(1, 7), {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    for changes in (Interventions(weights=(Weight("cross", 1, 0, 2, 3, 1.0),)), Interventions(causal_off=True)):
        with intervene(model, changes) as trace:
            with pytest.raises(ValueError, match="use_cache=False"):
                model.generate(source, **options)
            model.generate(source, use_cache=False, **options)
        assert changes.causal_off or trace.attention["cross", 1][0, 0, 2, 3] == 1
    of_the_source = Interventions(weights=(Weight("encoder", 0, 0, 2, 3, 1.0),), heads_off={("cross", 0, 1)})
    with intervene(model, of_the_source):
        written = model.generate(source, **options)
        assert torch.equal(written, model.generate(source, use_cache=False, **options))


@FAMILIES
def test_rows_of_a_batch_can_have_different_interventions(family):
    model = made(family)
    kind = "encoder" if family == "encoder-only" else "decoder"
    variants = [
        Interventions(),
        Interventions(heads_off={(kind, 0, 1)}),
        Interventions(layers_off={(kind, 1)}),
        Interventions(positions_off={kind}),
        Interventions(residuals_off={(kind, 0, "feed-forward")}),
        Interventions(weights=(Weight(kind, 0, 0, 2, 1, 0.9),)),
        Interventions(scaling_off=True),
        Interventions(temperature=0.5),
    ]
    if family != "encoder-only":
        variants.append(Interventions(causal_off=True))
    inputs = inputs_of(model)
    together = logits(model, variants, {name: ids.expand(len(variants), -1) for name, ids in inputs.items()})
    for row, changes in zip(together, variants, strict=True):
        assert_close(row, logits(model, changes)[0])
    with pytest.raises(ValueError, match=r"2 rows, and the batch has 3 .*one for each row"):
        logits(model, variants[4:6], {name: ids.expand(3, -1) for name, ids in inputs.items()})


@FAMILIES
def test_interventions_use_the_device_of_the_model(family):
    """The "meta" device stands in for a GPU: both reject CPU tensors."""
    model = made(family, attn_implementation="eager").to("meta")
    kind = "encoder" if family == "encoder-only" else "decoder"
    changes = Interventions(
        heads_off={(kind, 0, 1)},
        layers_off={(kind, 1)},
        positions_off={kind},
        residuals_off={(kind, 0, "feed-forward")},
        weights=(Weight(kind, 0, 0, 2, 1, 0.9),),
        causal_off=kind == "decoder",
        scaling_off=True,
        temperature=2.0,
    )
    inputs = {name: ids.to("meta") for name, ids in inputs_of(model, batch=2).items()}
    assert logits(model, [changes, NO_INTERVENTIONS], inputs).device.type == "meta"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (Interventions(heads_off={("cross", 0, 0)}), "kind='cross' does not exist.*has decoder"),
        (Interventions(heads_off={("decoder", 2, 0)}), "layer=2 does not exist"),
        (Interventions(heads_off={("decoder", 0, 4)}), "head=4 does not exist"),
        (Interventions(layers_off={("encoder", 0)}), "stack='encoder' does not exist"),
        (Interventions(residuals_off={("decoder", 0, "cross-attention")}), "no sub-layer 'cross-attention'"),
        (Interventions(weights=(Weight("decoder", 0, 0, 0, 0, 1.5),)), "between 0 and 1"),
        (Interventions(weights=(Weight("decoder", 0, 0, 1, 2, 0.5),)), "Token 2 is hidden from token 1"),
        (
            Interventions(weights=tuple(Weight("decoder", 0, 1, 3, key, 0.6) for key in (0, 2))),
            "sum to 1.*be 0.6, 0.6",
        ),
    ],
)
def test_interventions_on_missing_parts_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message), intervene(made("decoder-only"), changes):
        pass


def test_interventions_can_be_loaded_from_json():
    changes = interventions_from_json(
        {
            "heads_off": [["cross", 0, 1]],
            "residuals_off": [["decoder", 1, "feed-forward"]],
            "positions_off": ["encoder"],
            "causal_off": True,
            "scaling_off": True,
            "temperature": 2,
            "weights": [["cross", 0, 1, 2, 3, 0.5]],
        }
    )
    assert changes == Interventions(
        heads_off=frozenset({("cross", 0, 1)}),
        residuals_off=frozenset({("decoder", 1, "feed-forward")}),
        positions_off=frozenset({"encoder"}),
        causal_off=True,
        scaling_off=True,
        temperature=2.0,
        weights=(Weight("cross", 0, 1, 2, 3, 0.5),),
    )
    assert not interventions_from_json(None) and interventions_from_json({}) == NO_INTERVENTIONS


@pytest.mark.parametrize(
    "wishes",
    [
        {"heads": []},
        {"heads_off": [["cross", 0]]},
        {"heads_off": [[0, "cross", 1]]},
        {"heads_off": [["cross", None, 1]]},
        {"layers_off": 3},
        {"layers_off": [["encoder", True]]},
        {"heads_off": [["cross", 0.9, 1]]},
        {"heads_off": [["cross", "0", 1]]},
        {"positions_off": "encoder"},
        {"positions_off": [1]},
        {"causal_off": "no"},
        {"scaling_off": 1},
        {"temperature": "hot"},
        {"weights": [[]]},
        {"weights": [["cross", 0, 0, 0, 0, "much"]]},
        [{"causal_off": True}],
        "causal_off",
    ],
)
def test_malformed_json_is_rejected(wishes):
    with pytest.raises(ValueError, match=r"Changes must be|Unknown changes"):
        interventions_from_json(wishes)
