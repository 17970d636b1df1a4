"""Test that `make_fast` only changes the speed, is not saved, and does not change customised modules."""

import copy
import json
import pickle

import pytest
import torch
from torch import nn

from family import decoder_only, encoder_decoder, encoder_only, tokens
from vanilla_transformer import VanillaTransformerForMaskedLM, fast
from vanilla_transformer.fast import fast_products, make_fast, make_plain
from vanilla_transformer.modeling_vanilla_transformer import CACHE


MAKERS = [encoder_decoder, decoder_only, encoder_only]


@pytest.fixture(autouse=True)
def onednn(monkeypatch):
    """Simulate a processor on which oneDNN is faster."""
    monkeypatch.setattr(fast, "onednn_is_faster", lambda: True)


def is_fast(model: nn.Module) -> bool:
    """Whether all three speed-ups are active in a training step."""
    ids, mask = tokens(2, 6), torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    seen = []
    handle = model.base_model.register_forward_hook(lambda *_: seen.append(model.config._attn_implementation))
    was_training = model.training
    output = model.train()(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
    model.train(was_training)
    handle.remove()
    forms = [output.logits is None, seen == ["packed_sdpa"], any("forward" in vars(m) for m in linears(model))]
    assert all(forms) or not any(forms)
    return all(forms)


def linears(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


@pytest.mark.parametrize("make", MAKERS)
def test_make_plain_undoes_make_fast(make):
    model = make()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    assert not is_fast(model)
    assert make_fast(model) is model and is_fast(model)
    assert is_fast(make_fast(model))  # a second call has no effect
    assert not is_fast(make_plain(model))
    assert before == {name: set(vars(module)) for name, module in model.named_modules()}
    assert not model._forward_pre_hooks


def test_models_for_inference_use_fast_matrix_multiplication():
    model, ids = decoder_only(), tokens()
    expected = model(ids).logits
    assert fast_products(model) is model and all("forward" in vars(module) for module in linears(model))
    assert model.config._attn_implementation == "sdpa" and model.train()(ids, labels=ids).logits is not None
    torch.testing.assert_close(model.eval()(ids).logits, expected)


@pytest.mark.parametrize("make", MAKERS)
def test_make_fast_keeps_pytorchs_module_classes(make):
    torchs = {
        type(module) for module in make(position_embedding="learned").modules() if list(module.parameters(False))
    }
    assert torchs == {nn.Linear, nn.Embedding, nn.LayerNorm}


@pytest.mark.parametrize("make", MAKERS)
def test_fast_models_are_saved_and_pickled_without_speed_ups_but_copied_with_them(make, tmp_path):
    plain, model = make(), make()
    model.load_state_dict(plain.state_dict())
    make_fast(model)
    plain.save_pretrained(tmp_path / "plain")
    model.save_pretrained(tmp_path / "fast")
    for file in (tmp_path / "plain").iterdir():
        assert (tmp_path / "fast" / file.name).read_bytes() == file.read_bytes()
    assert not is_fast(type(model).from_pretrained(tmp_path / "fast"))

    copied = copy.deepcopy(model)
    assert is_fast(copied)
    for module in linears(copied):
        module.weight.data.zero_()  # the copy must use its own weights
    assert copied.eval()(**inputs(copied)).logits.abs().max() == 0 < model.eval()(**inputs(model)).logits.abs().max()
    unpickled = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(unpickled.eval()(**inputs(model)).logits, plain.eval()(**inputs(model)).logits)
    assert is_fast(make_fast(unpickled))


def inputs(model: nn.Module) -> dict[str, torch.Tensor]:
    ids = torch.arange(3, 9)[None]
    return {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})


def test_a_config_of_version_0_1_loads_without_its_chunk_size(tmp_path):
    model = decoder_only()
    model.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text()) | {"loss_chunk_size": 512}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    loaded = type(model).from_pretrained(tmp_path)
    assert not is_fast(loaded) and not hasattr(loaded.config, "loss_chunk_size")


class Adapter(nn.Module):
    """A low-rank adapter like those added by PEFT."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base_layer = base
        self.addition = nn.Linear(base.in_features, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.addition(x)


@pytest.mark.parametrize("make", MAKERS)
def test_an_adapter_of_the_output_layer_of_a_fast_model_is_trained(make):
    torch.manual_seed(0)
    model, ids = make_fast(make(dropout=0.0)).train(), tokens()
    model.lm_head = Adapter(model.lm_head)
    output = model(ids, labels=ids)
    output.loss.backward()
    assert output.logits is not None and model.lm_head.addition.weight.grad.abs().max() > 0


def test_a_fast_model_calls_the_hooks_of_the_output_layer():
    model, ids, calls = make_fast(decoder_only()).train(), tokens(), []
    handle = model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    assert model(ids, labels=ids).logits is not None and calls
    handle.remove()
    assert model(ids, labels=ids).logits is None


class FourTimes(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 4 * super().forward(x)


def test_make_fast_keeps_the_computation_of_replaced_modules():
    model = encoder_only(VanillaTransformerForMaskedLM)
    model.lm_head = FourTimes(32, 50, bias=False)
    make_fast(model).train()
    assert "forward" not in vars(model.lm_head)
    assert model(tokens(), labels=tokens()).logits is not None


def test_a_fast_model_can_be_dynamically_quantised():
    model, ids = make_fast(decoder_only(tie_word_embeddings=False)), tokens()
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    kinds = [type(module).__module__ for module in quantised.modules() if "quantized" in type(module).__module__]
    assert len(kinds) >= len(linears(model))
    assert quantised(ids).logits.shape == (2, 7, 50)


def test_second_derivatives_of_the_chunked_loss_raise_an_error():
    model, ids = make_fast(decoder_only()).train(), tokens()
    parameters = list(model.parameters())
    with pytest.raises(RuntimeError, match=r"no second derivatives.*make_plain\(model\)"):
        torch.autograd.grad(model(ids, labels=ids).loss, parameters, create_graph=True)
    make_plain(model).set_attn_implementation("eager")
    gradients = torch.autograd.grad(model(ids, labels=ids).loss, parameters, create_graph=True)
    assert all(g.isfinite().all() for g in torch.autograd.grad(sum(g.pow(2).sum() for g in gradients), parameters))


def test_a_fast_translator_accepts_a_cached_prefix():
    """Prefix tuning adds keys and values that belong to no token."""
    model, ids = make_fast(encoder_decoder(dropout=0.0)).train(), tokens()
    prefix = make_plain(copy.deepcopy(model)).eval()(ids, decoder_input_ids=ids[:, :4], use_cache=True)[CACHE]
    model(ids, labels=ids, **{CACHE: prefix}).loss.backward()
    assert model.model.decoder.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


def test_a_negative_chunk_size_raises_an_error():
    with pytest.raises(ValueError, match="loss_chunk_size=-1 must not be negative"):
        make_fast(decoder_only(), loss_chunk_size=-1)
