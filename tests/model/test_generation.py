"""Caches, batching, compilation and assisted generation must not change the generated text."""

import inspect
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from family import decoder_only, encoder_decoder, right_padded, tokens
from fresh_process import run_fresh
from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.modeling_vanilla_transformer import CACHE


MAKERS = [encoder_decoder, decoder_only]
WAYS = {"greedy": {}, "beam": {"num_beams": 3}}


def generate(model, ids, mask=None, **options):
    torch.manual_seed(0)
    return model.generate(ids, attention_mask=mask, max_length=16, **options).tolist()


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("window", [None, 3])
def test_every_cache_gives_the_same_text_as_no_cache(make, way, window):
    model, ids = make(sliding_window=window), tokens(2, 6)
    expected = generate(model, ids, use_cache=False, **WAYS[way])
    assert generate(model, ids, **WAYS[way]) == expected
    assert generate(model, ids, cache_implementation="static", **WAYS[way]) == expected


@pytest.mark.parametrize("fields", [{}, {"position_embedding": "learned"}])
def test_continuous_batching_gives_the_same_text_for_each_request(fields):
    model = decoder_only(max_position_embeddings=64, **fields)
    prompts = [tokens(1, length)[0].tolist() for length in (3, 8, 5)]
    settings = GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=0)
    alone = [generate(model, torch.tensor([ids]), min_new_tokens=6)[0][len(ids) :][:6] for ids in prompts]
    small = ContinuousBatchingConfig(max_batch_tokens=32, num_blocks=8)  # the default cache would fill the memory
    found = model.generate_batch(inputs=prompts, generation_config=settings, continuous_batching_config=small)
    assert [answer.error for answer in found.values()] == [None] * 3
    assert sorted(answer.generated_tokens for answer in found.values()) == sorted(alone)


@pytest.mark.parametrize("name", sorted({"past_key_values", CACHE}))
@pytest.mark.parametrize("make", MAKERS)
def test_caches_are_accepted_under_both_names_and_returned_under_the_current_one(make, name):
    model, ids = make(), tokens(2, 6)
    source = {"input_ids": tokens(2, 5)} if model.config.is_encoder_decoder else {}
    key = "decoder_input_ids" if source else "input_ids"
    whole = model(**source, **{key: ids}).logits
    begun = model(**source, **{key: ids[:, :4]}, use_cache=True)
    rest = model(**source, **{key: ids[:, 4:], name: begun[CACHE]})
    torch.testing.assert_close(rest.logits, whole[:, 4:])
    assert rest[CACHE] is begun[CACHE]


LISTENING = """
import os, warnings
warnings.simplefilter("always")
os.dup2(os.open("said", os.O_CREAT | os.O_WRONLY), sys.stderr.fileno())
import torch, transformers
ids, auto_classes = arguments
texts = {}
for folder, auto_class in auto_classes.items():
    model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True)
    texts[folder] = model.generate(torch.tensor(ids), num_beams=2, max_length=8).tolist()
sys.stderr.flush()
print(json.dumps([texts, open("said").read()]))
"""


def test_saved_models_generate_without_cache_deprecation_warnings(tmp_path):
    models, ids = {"AutoModelForSeq2SeqLM": encoder_decoder(), "AutoModelForCausalLM": decoder_only()}, tokens(2, 3)
    for auto_class, model in models.items():
        model.save_pretrained(tmp_path / auto_class)
    texts, said = run_fresh(LISTENING, tmp_path, ids.tolist(), {name: name for name in models})
    expected = {name: model.generate(ids, num_beams=2, max_length=8).tolist() for name, model in models.items()}
    assert texts == expected
    assert "past_key_values" not in said and "cache" not in said


@pytest.mark.parametrize("fields", [{}, {"position_embedding": "learned"}])
@pytest.mark.parametrize("way", WAYS)
def test_every_cache_gives_the_same_continuation_of_padded_decoder_prefixes(way, fields):
    model, source = encoder_decoder(**fields), tokens(3, 6)
    begun = torch.tensor([[1, 7, 8, 9], [0, 0, 1, 5], [0, 1, 9, 10]])
    given = {"decoder_input_ids": begun, "decoder_attention_mask": (begun > 0).long(), **WAYS[way]}
    expected = generate(model, source, use_cache=False, **given)
    assert generate(model, source, **given) == expected
    assert generate(model, source, cache_implementation="static", **given) == expected


def test_given_decoder_position_ids_have_the_same_effect_with_every_cache():
    model, source = encoder_decoder(position_embedding="learned"), tokens(2, 6)
    begun = torch.tensor([[1, 7, 8, 9], [0, 1, 9, 10]])
    given = {"decoder_input_ids": begun, "decoder_attention_mask": (begun > 0).long()}
    given["decoder_position_ids"] = torch.tensor([[9, 8, 7, 6], [3, 3, 3, 3]])
    options = {"max_length": 5, "return_dict_in_generate": True, "output_logits": True, "attention_mask": None}
    dynamic = model.generate(source, **given, **options).logits[0]
    torch.testing.assert_close(
        model.generate(source, cache_implementation="static", **given, **options).logits[0], dynamic
    )


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("make", MAKERS)
def test_packed_sequences_do_not_attend_to_each_other(make, window, use_cache):
    model, ids, positions = make(sliding_window=window), tokens(1, 6), torch.tensor([[0, 1, 2, 0, 1, 2]])
    options = {"use_cache": use_cache}
    if model.config.is_encoder_decoder:
        source = tokens(1, 4)
        run = lambda part, **more: model(source, decoder_input_ids=part, **options, **more).logits  # noqa: E731
        packed = run(ids, decoder_position_ids=positions)
    else:
        run = lambda part, **more: model(part, **options, **more).logits  # noqa: E731
        packed = run(ids, position_ids=positions)
    torch.testing.assert_close(packed, torch.cat([run(ids[:, :3]), run(ids[:, 3:])], dim=1))


@pytest.mark.parametrize("make", MAKERS)
def test_prompt_lookup_and_assisted_generation_do_not_change_greedy_text(make):
    model, ids = make(), tokens(1, 6)
    expected = generate(model, ids)
    assert generate(model, ids, prompt_lookup_num_tokens=2) == expected
    assert generate(model, ids, assistant_model=make()) == expected


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("way", WAYS)
def test_padded_batches_generate_the_same_texts_as_single_rows(make, way):
    model = make()
    ids, mask = right_padded([6, 4])
    if not model.config.is_encoder_decoder:
        ids, mask = ids.flip(1), mask.flip(1)
    together = generate(model, ids, mask, max_new_tokens=8, **WAYS[way])
    for row in range(2):
        real = ids[row][mask[row].bool()][None]
        alone = generate(model, real, max_new_tokens=8, **WAYS[way])[0]
        assert together[row][-8:] == alone[-8:]


def test_generate_encodes_the_source_once_and_caches_its_keys_and_values():
    model = encoder_decoder()
    calls = {"encoder": 0, "keys": 0}
    model.model.encoder.register_forward_hook(lambda *_: calls.__setitem__("encoder", calls["encoder"] + 1))
    cross = model.model.decoder.layers[0].cross_attn
    cross.k_proj.register_forward_hook(lambda *_: calls.__setitem__("keys", calls["keys"] + 1))
    generate(model, tokens(2, 6), num_beams=2)
    assert calls == {"encoder": 1, "keys": 1}


@pytest.mark.parametrize(
    "way", [*WAYS.values(), {"prompt_lookup_num_tokens": 2}, {"assistant_model": encoder_decoder()}]
)
def test_a_source_mask_of_ones_is_dropped_before_decoding(way):
    model, ids = encoder_decoder(), tokens(1, 6)
    masks = []
    model.model.decoder.register_forward_pre_hook(
        lambda module, args, options: masks.append(options["encoder_attention_mask"]), with_kwargs=True
    )
    with_ones = generate(model, ids, torch.ones_like(ids), **way)
    assert set(masks) == {None} and len(masks) > 1
    assert with_ones == generate(model, ids, **way)


def test_a_source_mask_is_kept_with_padding_or_a_static_cache():
    model, (ids, mask) = encoder_decoder(), right_padded([6, 4])
    seen = []
    model.model.decoder.register_forward_pre_hook(
        lambda module, args, options: seen.append(options["encoder_attention_mask"]), with_kwargs=True
    )
    generate(model, ids, mask)
    generate(model, ids, torch.ones_like(mask), cache_implementation="static")
    assert seen and all(mask is not None for mask in seen)
    states = model.get_encoder()(ids)
    with pytest.raises(ValueError, match=r"attention_mask has shape \(2, 5\)"):
        model.generate(encoder_outputs=states, attention_mask=torch.ones(2, 5), max_new_tokens=2)


def test_sampling_is_reproducible_with_a_seed():
    model, ids = decoder_only(), tokens(1, 4)
    samples = []
    for seed in (0, 0, 1, 2):
        torch.manual_seed(seed)
        samples.append(model.generate(ids, do_sample=True, max_new_tokens=12, min_new_tokens=12).tolist())
    assert samples[0] == samples[1]
    assert len({str(sample) for sample in samples}) == 3


@pytest.mark.parametrize("make", MAKERS)
def test_max_new_tokens_gives_no_warning_about_max_length(make, capfd):
    output = make().generate(tokens(1, 3), max_new_tokens=2, min_new_tokens=2)
    assert output.shape[1] == (3 if make is encoder_decoder else 5)
    assert "max_length" not in capfd.readouterr().err


SEARCH = """
import torch
from transformers import AutoModelForSeq2SeqLM, GenerationConfig
ids, cases = arguments
found = {}
for name, (folder, options, passed) in cases.items():
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    if passed is not None:
        options["generation_config"] = GenerationConfig(**passed)
    output = model.generate(torch.tensor(ids), output_scores=True, return_dict_in_generate=True, **options)
    found[name] = [output.sequences.tolist(), output.sequences_scores.tolist()]
print(json.dumps(found))
"""
PAPER = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.6, "max_length": 12, "early_stopping": "never"}
GNMT = {"gnmt_length_penalty": True}
# name -> saved model, options of `generate`, generation config passed to `generate`
BY_THE_PAPER = {
    "saved with the model": ("gnmt", PAPER, None),
    "in a config": ("plain", {}, PAPER | GNMT),
    "as an option": ("plain", PAPER | GNMT, None),
}
BY_THE_LIBRARY = {
    "switched off in a config": ("gnmt", {}, PAPER | {"gnmt_length_penalty": False}),
    "not asked for": ("plain", PAPER, None),
}


def test_beam_scores_use_the_papers_length_penalty_on_request(tmp_path):
    """The option selects section 6.1's log P / ((5 + n) / 6)^0.6; the default is transformers' log P / n^0.6."""
    torch.manual_seed(3)
    model = encoder_decoder(vocab_size=8, output_bias=True)
    model.model.encoder.embed_tokens.weight.data *= 0.3  # flatter distributions, so that hypotheses differ in length
    model.lm_head.bias.data[2] = 0.5
    model.save_pretrained(tmp_path / "plain")
    model.generation_config.update(**GNMT)
    model.save_pretrained(tmp_path / "gnmt")
    ids = torch.randint(3, 8, (4, 5))
    found = run_fresh(SEARCH, tmp_path, ids.tolist(), BY_THE_PAPER | BY_THE_LIBRARY)
    for name, (sequences, scores) in found.items():
        lengths = set()
        for sequence, score, source in zip(torch.tensor(sequences), scores, ids.repeat_interleave(4, 0), strict=True):
            ends = (sequence[1:] == 2).nonzero()
            length = int(ends[0]) + 1 if len(ends) else len(sequence) - 1
            target = sequence[None, 1 : length + 1]
            logits = model(source[None], decoder_input_ids=sequence[None, :length]).logits
            log_probability = logits.log_softmax(-1).gather(-1, target[..., None]).sum().item()
            divisor = (5 + length) / 6 if name in BY_THE_PAPER else length
            assert score == pytest.approx(log_probability / divisor**0.6, rel=1e-4), name
            lengths.add(length)
        assert len(lengths) > 1


@pytest.mark.parametrize("target_vocab_size", [None, 30, 70])
@pytest.mark.parametrize("way", WAYS)
def test_transition_scores_equal_the_log_probabilities_of_the_model(way, target_vocab_size):
    model = encoder_decoder(share_encoder_decoder_embeddings=False, target_vocab_size=target_vocab_size)
    source, options = tokens(2, 6), {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, **WAYS[way]}
    output = model.generate(source, output_scores=True, return_dict_in_generate=True, eos_token_id=-1, **options)
    beams = getattr(output, "beam_indices", None)
    scores = model.compute_transition_scores(output.sequences, output.scores, beams, normalize_logits=beams is None)
    logits = model(source, decoder_input_ids=output.sequences[:, :-1]).logits
    expected = logits.log_softmax(-1).gather(2, output.sequences[:, 1:, None])[..., 0]
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


def test_concurrent_beam_searches_keep_their_own_length_penalty():
    model, ids = encoder_decoder(), tokens(2, 6)

    def score(penalty: bool) -> list[float]:
        options = {"num_beams": 3, "max_length": 12, "gnmt_length_penalty": penalty, "length_penalty": 1.0}
        return model.generate(
            ids, return_dict_in_generate=True, output_scores=True, **options
        ).sequences_scores.tolist()

    alone = {penalty: score(penalty) for penalty in (True, False)}
    assert alone[True] != alone[False]
    wishes = [True, False] * 4
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(score, wishes)) == [alone[penalty] for penalty in wishes]


@pytest.mark.parametrize("make", MAKERS)
def test_models_compile_without_graph_breaks(make):
    model, ids = make(), tokens()
    if model.config.is_encoder_decoder and torch.__version__ < "2.13":
        pytest.skip("before PyTorch 2.13, a graph breaks where a new cache copies the decoder's part of the config")
    extra = {"decoder_input_ids": tokens(2, 3)} if model.config.is_encoder_decoder else {}
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(ids, **extra).logits, model(ids, **extra).logits)


@pytest.mark.parametrize("make", MAKERS)
def test_torch_export_gives_the_same_logits_for_any_batch_size(make):
    model = make()
    inputs = {"input_ids": tokens(3, 7)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(3, 4)
    free = {name: {0: torch.export.Dim.DYNAMIC} for name in inputs} | {"use_cache": None}
    program = torch.export.export(model, (), inputs | {"use_cache": False}, dynamic_shapes=free, strict=False)
    for batch in (3, 5):
        inputs = {name: tokens(batch, ids.shape[1]) for name, ids in inputs.items()}
        expected = model(**inputs, use_cache=False).logits
        torch.testing.assert_close(program.module()(**inputs, use_cache=False).logits, expected)


def test_the_signature_of_forward_names_the_cache():
    written = inspect.signature(inspect.unwrap(VanillaTransformerForConditionalGeneration.forward))
    found = inspect.signature(VanillaTransformerForConditionalGeneration.forward)
    assert [name for name in found.parameters if name not in written.parameters] == ["cache"] * (CACHE == "cache")
    assert found.return_annotation == written.return_annotation
