"""CTranslate2 in the place of PyTorch: the same translations for every caller, and never from an old conversion."""

import copy
import pickle
import sys
from pathlib import Path

import ctranslate2
import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.nn.utils.prune import l1_unstructured
from transformers import AutoTokenizer, GenerationConfig

from family import decoder_only, encoder_decoder
from saved_models import save_repeating, with_tokenizer, write
from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli.translate import main as translate_command
from vanilla_transformer.conversion import engine
from vanilla_transformer.conversion.engine import use_ctranslate2
from vanilla_transformer.decoding import set_paper_decoding, translate
from vanilla_transformer.inside import Interventions, intervene
from vanilla_transformer.pipeline_vanilla_transformer import TranslationPipeline


TEXTS = ["three miles", "12 kilometers and 3 miles", "may 5", "1 mile or 2"]


@pytest.fixture
def folder(tmp_path) -> Path:
    """A translator with random weights whose translations differ in length."""
    model, tokenizer = with_tokenizer(
        texts=TEXTS * 3, output_bias=True, norm_position="pre", position_embedding="learned",
        max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(7)
    for parameter in model.parameters():
        parameter.data.normal_(mean=float(parameter.dim() == 1), std=0.2)
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weight.data.mul_(10)  # so that no step is like the one before
    model.lm_head.bias.data[tokenizer.eos_token_id] += 2
    set_paper_decoding(model)
    write(tmp_path / "model", model, tokenizer)
    return tmp_path / "model"


def loaded(folder: Path):
    model = VanillaTransformerForConditionalGeneration.from_pretrained(folder).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def asks(model) -> list[int]:
    """How many texts CTranslate2 is asked for, call by call."""
    found, calls = engine.ENGINES[model], []
    run = found.run
    found.run = lambda search: calls.append(len(search.input_ids)) or run(search)
    return calls


def caches(folder: Path) -> list[Path]:
    return sorted(folder.glob("ctranslate2-*"))


OPTIONS = [
    {},
    {"num_beams": 1},
    {"gnmt_length_penalty": False, "length_penalty": 1.0},
    {"num_beams": 2, "length_penalty": 0.0},
    {"max_length": None, "max_new_tokens": 3},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_it_translates_as_pytorch_does(options, folder):
    plain, tokenizer = loaded(folder)
    model = use_ctranslate2(loaded(folder)[0], tokenizer, folder)
    calls = asks(model)
    assert translate(TEXTS, model, tokenizer, **options) == translate(TEXTS, plain, tokenizer, **options)
    assert calls == [len(TEXTS)]


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_each_thread_translates_texts_of_its_own(threads, folder):
    plain, tokenizer = loaded(folder)
    expected = translate(TEXTS, plain, tokenizer)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = use_ctranslate2(loaded(folder)[0], tokenizer, folder)
    finally:
        torch.set_num_threads(before)
    assert engine.ENGINES[model].translator.num_translators == threads
    assert translate(TEXTS, model, tokenizer) == expected
    assert translate(TEXTS[:1], model, tokenizer) == expected[:1]


@pytest.mark.parametrize(("num_beams", "ends"), [(1, [2, 32]), (4, [2])])  # to 32 greedy search comes in two of four
@pytest.mark.parametrize("pad_token_id", [None, 0, 5])
def test_what_stands_behind_a_shorter_translation_is_what_pytorch_puts_there(pad_token_id, num_beams, ends, folder):
    plain, tokenizer = loaded(folder)
    plain.generation_config.pad_token_id = pad_token_id
    plain.save_pretrained(folder)
    plain, tokenizer = loaded(folder)
    model = use_ctranslate2(loaded(folder)[0], tokenizer, folder)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    options = {"num_beams": num_beams, "max_length": 30, "eos_token_id": ends}
    expected, found = (translator.generate(**batch, **options) for translator in (plain, model))
    lengths = torch.isin(expected, torch.tensor(ends)).int().argmax(dim=1)
    assert ((lengths > 0) & (lengths < expected.shape[1] - 1)).any()
    assert torch.equal(found, expected)


def test_all_hypotheses_have_the_tokens_and_the_scores_that_pytorch_gives_them(folder):
    plain, tokenizer = loaded(folder)
    model = use_ctranslate2(loaded(folder)[0], tokenizer, folder)
    calls = asks(model)
    for text in TEXTS:
        batch = tokenizer(text, return_tensors="pt")
        options = {
            "max_length": 20, "num_return_sequences": 4, "return_dict_in_generate": True, "output_scores": True,
            "early_stopping": True,
        }  # fmt: skip
        expected, found = plain.generate(**batch, **options), model.generate(**batch, **options)
        assert torch.equal(found.sequences, expected.sequences)
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, atol=1e-4, rtol=1e-4)
    assert calls == [1] * len(TEXTS)


@pytest.mark.parametrize("p_end", [0.16, 0.3])
def test_hypotheses_are_ranked_by_the_penalty_of_the_paper(p_end, tmp_path):
    folder, _ = save_repeating(tmp_path / "model", p_end)
    plain, tokenizer = loaded(folder)
    model = use_ctranslate2(loaded(folder)[0], tokenizer, folder)
    assert translate(["one"], model, tokenizer) == translate(["one"], plain, tokenizer)


def test_a_pipeline_uses_it(folder):
    plain, tokenizer = loaded(folder)
    model = use_ctranslate2(loaded(folder)[0], tokenizer, folder)
    calls = asks(model)
    expected = TranslationPipeline(model=plain, tokenizer=tokenizer)(TEXTS, batch_size=2)
    assert TranslationPipeline(model=model, tokenizer=tokenizer)(TEXTS, batch_size=2) == expected
    assert calls == [2, 2]


@pytest.mark.parametrize("given", [{"max_new_tokens": 12}, {"max_length": 12, "num_beams": 2, "eos_token_id": 2}])
def test_what_a_given_config_leaves_open_is_the_models_own(given, folder):
    plain, tokenizer = loaded(folder)
    assert given.get("eos_token_id") in (None, tokenizer.eos_token_id)
    model = use_ctranslate2(loaded(folder)[0], tokenizer, folder)
    calls = asks(model)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    expected = plain.generate(**batch, generation_config=GenerationConfig(**given))
    assert torch.equal(model.generate(**batch, generation_config=GenerationConfig(**given)), expected)
    assert calls == [len(TEXTS)]


# As configs of Marian's translators on the Hub have it; with six tokens some translations are made to end.
@pytest.mark.parametrize("length", [6, 20])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_what_imported_translators_ask_for_is_done_as_pytorch_does_it(num_beams, length, folder):
    plain, tokenizer = loaded(folder)
    model = use_ctranslate2(loaded(folder)[0], tokenizer, folder)
    calls = asks(model)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    options = {"max_length": length, "num_beams": num_beams, "early_stopping": True, "return_dict_in_generate": True}
    free = plain.generate(**batch, **options, output_scores=True).sequences
    common = int(free[:, 1:][free[:, 1:] > 2].mode().values)
    options |= {"bad_words_ids": [[common]], "forced_eos_token_id": tokenizer.eos_token_id, "renormalize_logits": True}
    expected = plain.generate(**batch, **options, output_scores=True)
    found = model.generate(**batch, **options, output_scores=True)
    assert (free == common).any() and not (expected.sequences == common).any()
    assert torch.equal(found.sequences, expected.sequences) and calls == [len(TEXTS)]
    if num_beams > 1:
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, atol=1e-4, rtol=1e-4)


def test_its_output_can_be_changed_and_a_trainer_may_ask(folder):
    model, tokenizer = loaded(folder)
    use_ctranslate2(model, tokenizer, folder)
    calls = asks(model)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    output = model.generate(**batch, max_length=20, synced_gpus=False)  # as Seq2SeqTrainer asks
    output[output == model.config.pad_token_id] = -100
    assert calls == [len(TEXTS)]


@pytest.mark.parametrize("options", [{"do_sample": True}, {"no_repeat_ngram_size": 1}, {"min_length": 9}])
def test_it_steps_aside_for_what_it_does_not_do_in_the_same_way_and_says_so_once(options, folder, caplog):
    plain, tokenizer = loaded(folder)
    model = use_ctranslate2(loaded(folder)[0], tokenizer, folder)
    calls = asks(model)
    found = []
    for translator in (plain, model, model):
        torch.manual_seed(0)
        found.append(translate(TEXTS, translator, tokenizer, **options))
    assert found[0] == found[1] == found[2] and calls == []
    (said,) = [text for text in caplog.messages if "CTranslate2" in text]
    assert said == f"CTranslate2 leaves this search to PyTorch, for: {next(iter(options))}"


def test_it_steps_aside_where_words_are_forbidden_but_keep_their_share_of_the_probability(folder):
    plain, tokenizer = loaded(folder)
    model = use_ctranslate2(loaded(folder)[0], tokenizer, folder)
    calls = asks(model)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    common = int(plain.generate(**batch, max_new_tokens=9)[:, 1:].mode().values.mode().values)
    for options, asked in (
        ({"num_beams": 4, "bad_words_ids": [[common]]}, 0),
        ({"num_beams": 1, "bad_words_ids": [[common], [tokenizer.eos_token_id]]}, 1),
    ):
        calls.clear()
        options |= {"max_new_tokens": 9, "early_stopping": False}
        assert torch.equal(model.generate(**batch, **options), plain.generate(**batch, **options))
        assert len(calls) == asked


def test_it_steps_aside_without_an_end_and_for_a_text_without_tokens(folder):
    plain, tokenizer = loaded(folder)
    model = use_ctranslate2(loaded(folder)[0], tokenizer, folder)
    calls = asks(model)
    ids = torch.tensor([[5, 6, 7], [0, 0, 0]])
    given = {"input_ids": ids, "attention_mask": (ids > 0).long(), "max_new_tokens": 5, "num_beams": 2}
    assert torch.equal(model.generate(**given), plain.generate(**given))
    for each in (plain, model):
        each.generation_config.eos_token_id = each.config.eos_token_id = None
    assert torch.equal(model.generate(ids[:1], max_new_tokens=5), plain.generate(ids[:1], max_new_tokens=5))
    assert not calls


def test_a_text_longer_than_the_positions_written_out_is_translated_by_pytorch(tmp_path):
    model, tokenizer = with_tokenizer(max_position_embeddings=8)
    plain = copy.deepcopy(model)
    use_ctranslate2(model, tokenizer, tmp_path)
    calls = asks(model)
    text = "one two three " * 8
    assert translate([text], model, tokenizer) == translate([text], plain, tokenizer)
    assert calls == []


def halved(model) -> dict[str, torch.Tensor]:
    return {name: weight / 2 for name, weight in model.state_dict().items()}


CHANGES = {
    "other parameters": lambda model: model.load_state_dict(halved(model), assign=True),
    "other memory": lambda model: vector_to_parameters(
        parameters_to_vector(model.parameters()) / 2, model.parameters()
    ),
    "a mask": lambda model: l1_unstructured(model.model.decoder.layers[0].feed_forward.fc1, "weight", 0.9),
    "a hook": lambda model: model.model.encoder.register_forward_hook(
        lambda module, inputs, output: output.__class__(last_hidden_state=-output.last_hidden_state)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_is_another_since_is_asked_itself(change, folder):
    model, tokenizer = loaded(folder)
    use_ctranslate2(model, tokenizer, folder)
    calls = asks(model)
    before = translate(TEXTS, model, tokenizer)
    CHANGES[change](model)
    after = translate(TEXTS, model, tokenizer)
    del model.generate
    assert after == translate(TEXTS, model, tokenizer) != before
    assert calls == [len(TEXTS)]


def test_parts_that_are_switched_off_are_off_and_what_is_looked_at_is_no_change(folder):
    plain, tokenizer = loaded(folder)
    model = use_ctranslate2(loaded(folder)[0], tokenizer, folder)
    calls = asks(model)
    model(**tokenizer(TEXTS[0], return_tensors="pt"), labels=torch.tensor([[5, 2]]), output_hidden_states=True)
    for changes in (Interventions(layers_off={("decoder", 0)}), Interventions(heads_off={("cross", 0, 0)})):
        with intervene(model, changes):
            found = translate(TEXTS, model, tokenizer)
        with intervene(plain, changes):
            assert found == translate(TEXTS, plain, tokenizer)
        assert translate(TEXTS, model, tokenizer) != found
    assert calls == [len(TEXTS)] * 2


def test_weights_that_change_afterwards_are_not_passed_over(folder):
    model, tokenizer = loaded(folder)
    use_ctranslate2(model, tokenizer, folder)
    with torch.no_grad():
        model.lm_head.bias[tokenizer.eos_token_id] += 100
    assert translate(TEXTS, model, tokenizer) == [""] * len(TEXTS)
    use_ctranslate2(model, tokenizer, folder)
    calls = asks(model)
    assert translate(TEXTS, model, tokenizer) == [""] * len(TEXTS) and calls


def test_nothing_of_it_is_saved_copied_or_pickled(folder, tmp_path):
    model, tokenizer = loaded(folder)
    use_ctranslate2(model, tokenizer, folder)
    model.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved/config.json").read_text() == (folder / "config.json").read_text()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other not in engine.ENGINES
        assert translate(TEXTS, other, tokenizer) == translate(TEXTS, model, tokenizer)


# --- What is kept


def test_it_converts_once_and_again_for_anything_that_is_new(folder):
    model, tokenizer = loaded(folder)
    use_ctranslate2(model, tokenizer, folder)
    (first,) = caches(folder)
    written = (first / "model.bin").stat().st_mtime_ns
    use_ctranslate2(*loaded(folder), folder)
    assert (first / "model.bin").stat().st_mtime_ns == written

    with torch.no_grad():
        model.model.encoder.layers[0].feed_forward.fc1.weight[0, 0] += 1e-3
    use_ctranslate2(model, tokenizer, folder)
    (second,) = caches(folder)
    model.config.layer_norm_eps = 1e-3
    use_ctranslate2(model, tokenizer, folder)
    (third,) = caches(folder)
    tokenizer.eos_token = "three"
    use_ctranslate2(model, tokenizer, folder)
    (fourth,) = caches(folder)
    assert len({first, second, third, fourth}) == 4

    use_ctranslate2(model, tokenizer, folder, "int8")
    assert len(caches(folder)) == 2


def test_another_converter_makes_another_one(folder, monkeypatch):
    use_ctranslate2(*loaded(folder), folder)
    (first,) = caches(folder)
    monkeypatch.setattr(ctranslate2, "__version__", "99.0")
    use_ctranslate2(*loaded(folder), folder)
    (second,) = caches(folder)
    assert first != second


def other_weights(cache: Path) -> None:
    file = cache / "model.bin"
    file.write_bytes(file.read_bytes()[:-8] + bytes(8))


def cut_off(cache: Path) -> None:
    (cache / "model.bin").write_bytes((cache / "model.bin").read_bytes()[:100])


def without_a_file(cache: Path) -> None:
    (cache / "config.json").unlink()


def without_sums(cache: Path) -> None:
    (cache / engine.SUMS).unlink()


@pytest.mark.parametrize("harm", [other_weights, cut_off, without_a_file, without_sums])
def test_a_damaged_one_is_made_anew(harm, folder):
    model, tokenizer = loaded(folder)
    expected = translate(TEXTS, model, tokenizer)
    use_ctranslate2(model, tokenizer, folder)
    (cache,) = caches(folder)
    whole = {path.name: path.read_bytes() for path in cache.iterdir()}
    harm(cache)
    assert translate(TEXTS, use_ctranslate2(*loaded(folder), folder), tokenizer) == expected
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == whole


@pytest.mark.skipif(not Path("/proc/1").is_dir(), reason="has no folder in which nobody can write")
def test_where_nothing_can_be_written_it_is_kept_elsewhere(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "HF_HOME", str(tmp_path / "home"))
    model, tokenizer = loaded(folder)
    expected = translate(TEXTS, model, tokenizer)
    for source in ("/proc/1", "somebody/something", None):
        assert translate(TEXTS, use_ctranslate2(model, tokenizer, source), tokenizer) == expected
    kept = sorted(path.parent.name for path in (tmp_path / "home").rglob("ctranslate2-*"))
    assert kept == ["ctranslate2", "proc--1", "somebody--something"]
    monkeypatch.setattr(engine, "HF_HOME", "/proc/1")
    with pytest.raises(OSError, match="/proc/1"):
        use_ctranslate2(model, tokenizer, "/proc/1")


# --- The command


def test_the_command_translates_the_same_and_in_int8(folder, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    for name, options in {"plain": [], "fast": ["--engine", "ctranslate2"]}.items():
        files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / name)]
        translate_command(["--model", str(folder), *files, *options])
    assert (tmp_path / "fast").read_text() == (tmp_path / "plain").read_text()
    files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "int8")]
    translate_command(["--model", str(folder), *files, "--engine", "ctranslate2", "--quantization", "int8"])
    assert len((tmp_path / "int8").read_text().splitlines()) == len(TEXTS)
    assert [path.name.rsplit("-", 1)[0] for path in caches(folder)] == ["ctranslate2-float32", "ctranslate2-int8"]


def test_int8_belongs_to_ctranslate2(folder):
    with pytest.raises(ValueError, match="--quantization int8 is for CTranslate2: add --engine ctranslate2"):
        translate_command(["--model", str(folder), "--quantization", "int8"])


def test_where_it_is_not_installed_the_error_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.delitem(sys.modules, engine.__name__)
    with pytest.raises(ImportError, match=r"is not installed: pip install 'ctranslate2>=4\.8'"):
        translate_command(["--model", str(folder), "--engine", "ctranslate2"])


@pytest.mark.parametrize(("fields", "reason"), [({"d_k": 4, "d_v": 16}, "d_k=4"), ({"sliding_window": 4}, "window=4")])
def test_what_it_cannot_hold_is_an_error_at_once(fields, reason, tmp_path):
    with pytest.raises(ValueError, match=reason):
        use_ctranslate2(*with_tokenizer(**fields), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_no_translator_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is for translators, and this is a VanillaTransformerForCausalLM"):
        use_ctranslate2(*with_tokenizer(decoder_only, "causal"), tmp_path)
    with pytest.raises(ValueError, match="is for translators, and this is a VanillaTransformerModel"):
        use_ctranslate2(encoder_decoder().model, None, tmp_path)


@pytest.mark.parametrize(
    ("processor", "use_mkl", "warned"),
    [
        ({"cpu_name": "AMD EPYC", "avx2": True, "avx512_vnni": False}, "0", True),
        ({"cpu_name": "AMD EPYC", "avx2": True, "avx512_vnni": False}, "1", False),
        ({"cpu_name": "AMD EPYC", "avx512_vnni": True}, "0", False),
        ({"cpu_name": "Intel Xeon", "avx2": True}, "0", False),
    ],
)
def test_int8_where_its_products_overflow_is_warned_of(folder, monkeypatch, caplog, processor, use_mkl, warned):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor)
    monkeypatch.setenv("CT2_USE_MKL", use_mkl)
    use_ctranslate2(*loaded(folder), folder, "int8")
    assert ("no instructions for products of int8" in caplog.text) is warned
