"""Generation gives the same text by every way that must not change it."""

import pytest
import torch

from family import decoder_only, encoder_decoder, right_padded, tokens


MAKERS = [encoder_decoder, decoder_only]
WAYS = {"greedy": {}, "beam": {"num_beams": 3}}


def generate(model, ids, mask=None, **options):
    torch.manual_seed(0)
    return model.generate(ids, attention_mask=mask, max_length=16, **options).tolist()


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("window", [None, 3])
def test_every_cache_gives_the_same_text_as_none(make, way, window):
    model, ids = make(sliding_window=window), tokens(2, 6)
    expected = generate(model, ids, use_cache=False, **WAYS[way])
    assert generate(model, ids, **WAYS[way]) == expected
    assert generate(model, ids, cache_implementation="static", **WAYS[way]) == expected


@pytest.mark.parametrize("make", MAKERS)
def test_prompt_lookup_and_assistance_do_not_change_greedy_text(make):
    model, ids = make(), tokens(1, 6)
    expected = generate(model, ids)
    assert generate(model, ids, prompt_lookup_num_tokens=2) == expected
    assert generate(model, ids, assistant_model=make()) == expected


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("way", WAYS)
def test_a_padded_batch_gives_what_each_gives_alone(make, way):
    model = make()
    ids, mask = right_padded([6, 4])
    if not model.config.is_encoder_decoder:
        ids, mask = ids.flip(1), mask.flip(1)
    together = generate(model, ids, mask, max_new_tokens=8, **WAYS[way])
    for row in range(2):
        real = ids[row][mask[row].bool()][None]
        alone = generate(model, real, max_new_tokens=8, **WAYS[way])[0]
        assert together[row][-8:] == alone[-8:]


def test_the_source_is_encoded_and_projected_once():
    model = encoder_decoder()
    calls = {"encoder": 0, "keys": 0}
    model.model.encoder.register_forward_hook(lambda *_: calls.__setitem__("encoder", calls["encoder"] + 1))
    cross = model.model.decoder.layers[0].cross_attn
    cross.k_proj.register_forward_hook(lambda *_: calls.__setitem__("keys", calls["keys"] + 1))
    generate(model, tokens(2, 6), num_beams=2)
    assert calls == {"encoder": 1, "keys": 1}


def test_sampling_follows_its_seed():
    model, ids = decoder_only(), tokens(1, 4)
    assert generate(model, ids, do_sample=True) == generate(model, ids, do_sample=True)


def test_the_gnmt_penalty_ranks_hypotheses_as_its_formula_does():
    """Section 6.1 divides log-probability by ((5 + n) / 6)^alpha."""
    torch.manual_seed(3)
    model = encoder_decoder(vocab_size=8)
    model.model.encoder.embed_tokens.weight.data *= 0.3  # flat distributions: hypotheses end early and late
    ids = torch.randint(3, 8, (4, 5))
    options = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.6, "max_length": 12}
    options |= {"early_stopping": "never", "return_dict_in_generate": True, "output_scores": True}
    model.generation_config.gnmt_length_penalty = True
    output = model.generate(ids, **options)
    for sequence, score, source in zip(
        output.sequences, output.sequences_scores, ids.repeat_interleave(4, 0), strict=True
    ):
        ends = (sequence[1:] == 2).nonzero()
        length = int(ends[0]) + 1 if len(ends) else len(sequence) - 1
        target = sequence[None, 1 : length + 1]
        logits = model(source[None], decoder_input_ids=sequence[None, :length]).logits
        log_probability = logits.log_softmax(-1).gather(-1, target[..., None]).sum().item()
        # The library's score lacks the constant factor 6^alpha.
        assert score.item() * 6**0.6 == pytest.approx(log_probability / ((5 + length) / 6) ** 0.6, rel=1e-4)


@pytest.mark.parametrize("make", MAKERS)
def test_compiles_without_graph_breaks(make):
    model, ids = make(), tokens()
    if model.config.is_encoder_decoder and torch.__version__ < "2.13":
        pytest.skip("before PyTorch 2.13, a graph breaks where a new cache copies the decoder's part of the config")
    extra = {"decoder_input_ids": tokens(2, 3)} if model.config.is_encoder_decoder else {}
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(ids, **extra).logits, model(ids, **extra).logits)


@pytest.mark.parametrize("make", MAKERS)
def test_exports(make):
    model, ids = make(), tokens()
    inputs = {"input_ids": ids, "use_cache": False}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(2, 3)
    program = torch.export.export(model, (), inputs, strict=False)
    torch.testing.assert_close(program.module()(**inputs).logits, model(**inputs).logits)
