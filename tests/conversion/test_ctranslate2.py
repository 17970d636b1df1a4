"""CTranslate2 gives the same translations as PyTorch."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from family import decoder_only, encoder_decoder
from saved_models import save_repeating, with_tokenizer, write
from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli.translate import main as translate_command
from vanilla_transformer.conversion.ctranslate2 import CTranslate2Translator
from vanilla_transformer.decoding import set_paper_decoding, translate
from vanilla_transformer.inside.readings import until_end


TEXTS = ["three miles", "12 kilometers and 3 miles", "may 5", "1 mile or 2"]


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a translator with random weights whose translations differ in length."""
    model, tokenizer = with_tokenizer(
        texts=TEXTS * 3, output_bias=True, norm_position="pre", position_embedding="learned",
        max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(7)
    for parameter in model.parameters():
        parameter.data.normal_(mean=float(parameter.dim() == 1), std=0.2)
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weight.data.mul_(10)  # large position embeddings, so that the decoding steps differ
    model.lm_head.bias.data[tokenizer.eos_token_id] += 2
    set_paper_decoding(model)
    write(tmp_path / "model", model, tokenizer)
    return tmp_path / "model"


def loaded(folder: Path):
    model = VanillaTransformerForConditionalGeneration.from_pretrained(folder).eval()
    return model, AutoTokenizer.from_pretrained(folder)


OPTIONS = [{}, {"num_beams": 1}, {"num_beams": 2, "length_penalty": 0.0}, {"length_penalty": 1.0}, {"extra_tokens": 1}]


@pytest.mark.parametrize("options", OPTIONS)
def test_translations_are_the_same_as_in_pytorch(options, folder):
    model, tokenizer = loaded(folder)
    translator = CTranslate2Translator(model, tokenizer)
    assert translator.translate(TEXTS, **options) == translate(TEXTS, model, tokenizer, **options)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_translations_do_not_depend_on_the_thread_count(threads, folder):
    model, tokenizer = loaded(folder)
    expected = translate(TEXTS, model, tokenizer)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        translator = CTranslate2Translator(model, tokenizer)
    finally:
        torch.set_num_threads(before)
    assert translator.translator.num_translators == threads
    assert translator.translate(TEXTS) == expected
    assert translator.translate(TEXTS[:1]) == expected[:1]


def hypotheses_of(model, tokenizer, text: str, max_length: int) -> list[tuple[list[int], float]]:
    """Return all hypotheses of PyTorch's beam search, with their scores."""
    options = {"num_return_sequences": 4, "return_dict_in_generate": True, "output_scores": True}
    batch = tokenizer(text, return_tensors="pt")
    output = model.generate(**batch, **options, max_length=max_length, early_stopping=True)
    rows = [until_end(row[1:], tokenizer.eos_token_id) for row in output.sequences.tolist()]
    return list(zip(rows, output.sequences_scores.tolist(), strict=True))


def test_hypotheses_have_the_same_tokens_and_scores_as_in_pytorch(folder):
    model, tokenizer = loaded(folder)
    translator = CTranslate2Translator(model, tokenizer)
    for text in TEXTS:
        expected = hypotheses_of(model, tokenizer, text, 20)
        (found,) = translator.search([tokenizer(text)["input_ids"]], 20)
        assert [ids for ids, _ in found] == [ids for ids, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], rel=1e-4, abs=1e-4)


# Generation settings of imported translators. A maximum length of six tokens truncates some translations.
SETTINGS = {
    "Marian": {"bad_words_ids": True, "forced_eos_token_id": 2, "renormalize_logits": True},
    "a first token": {"forced_bos_token_id": 7},
    "a first token of number 0": {"forced_bos_token_id": 0},
    "the library's length penalty": {"gnmt_length_penalty": False, "length_penalty": 1.0},
    "neutral values": {"min_length": 0, "no_repeat_ngram_size": 0, "repetition_penalty": 1.0, "top_k": 50},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("length", [6, 20])
def test_generation_config_settings_have_the_same_effect_as_in_pytorch(length, settings, folder):
    model, tokenizer = loaded(folder)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    free = model.generate(**batch, max_length=length)
    if "bad_words_ids" in settings:
        settings = settings | {"bad_words_ids": [[int(free[:, 1:][free[:, 1:] > 2].mode().values)]]}
    if "forced_bos_token_id" in settings:
        model.lm_head.bias.data[tokenizer.eos_token_id] -= 1  # make hypotheses longer
    model.generation_config.update(**settings)
    translator = CTranslate2Translator(model, tokenizer)
    for text in TEXTS:
        (ids, score), *_ = hypotheses_of(model, tokenizer, text, length)
        (((found_ids, found_score), *_),) = translator.search([tokenizer(text)["input_ids"]], length)
        assert found_ids == ids and found_score == pytest.approx(score, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("p_end", [0.16, 0.3])
def test_hypotheses_are_ranked_with_the_papers_length_penalty(p_end, tmp_path):
    folder, _ = save_repeating(tmp_path / "model", p_end)
    model, tokenizer = loaded(folder)
    assert CTranslate2Translator(model, tokenizer).translate(["one"]) == translate(["one"], model, tokenizer)


@pytest.mark.parametrize(
    "settings",
    [{"do_sample": True}, {"no_repeat_ngram_size": 1}, {"min_length": 9}, {"bad_words_ids": [[5]]},
     {"eos_token_id": None}, {"forced_eos_token_id": 5}, {"decoder_start_token_id": 5}],
)  # fmt: skip
def test_generation_settings_that_ctranslate2_does_not_support_are_rejected(settings, folder):
    model, tokenizer = loaded(folder)
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    (name, value), *_ = settings.items()
    with pytest.raises(ValueError, match=rf"{name}={re.escape(repr(value))}.*: use PyTorch"):
        CTranslate2Translator(model, tokenizer)


def test_long_inputs_are_truncated_and_blank_inputs_stay_blank(folder):
    model, tokenizer = loaded(folder)
    tokenizer.model_max_length = 9
    translator = CTranslate2Translator(model, tokenizer)
    for text in ("three miles " * 20, " \u3000", "may 5"):
        assert translator.translate([text]) == translate([text], model, tokenizer, truncation=True)
    assert translator.translate([" \u3000"]) == [""]


# --- The command `translate`


def test_translate_with_ctranslate2_gives_the_same_output_and_supports_int8(folder, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    for name, options in {"plain": [], "fast": ["--engine", "ctranslate2"]}.items():
        files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / name)]
        translate_command(["--model", str(folder), *files, *options])
    assert (tmp_path / "fast").read_text() == (tmp_path / "plain").read_text()
    files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "int8")]
    translate_command(["--model", str(folder), *files, "--engine", "ctranslate2", "--quantization", "int8"])
    assert len((tmp_path / "int8").read_text().splitlines()) == len(TEXTS)


def test_translate_keeps_a_forced_first_token_with_id_0(folder, capsys):
    """Imported BART models force token 0 as the first token; 0 must not be treated as False."""
    model, tokenizer = loaded(folder)
    model.lm_head.bias.data[tokenizer.eos_token_id] -= 1
    model.generation_config.forced_bos_token_id = 0
    model.save_pretrained(folder)
    printed = []
    for options in ([], ["--engine", "ctranslate2"]):
        translate_command(["--model", str(folder), *options, *TEXTS])
        printed.append(capsys.readouterr().out)
    model.generation_config.forced_bos_token_id = None
    model.save_pretrained(folder)
    translate_command(["--model", str(folder), *TEXTS])
    assert printed[0] == printed[1] != capsys.readouterr().out


def test_int8_without_ctranslate2_is_rejected(folder):
    with pytest.raises(ValueError, match="--quantization int8 is for CTranslate2: add --engine ctranslate2"):
        translate_command(["--model", str(folder), "--quantization", "int8"])


@pytest.mark.parametrize(("fields", "reason"), [({"d_k": 4, "d_v": 16}, "d_k=4"), ({"sliding_window": 4}, "window=4")])
def test_config_fields_that_ctranslate2_does_not_support_are_rejected(fields, reason):
    with pytest.raises(ValueError, match=reason):
        CTranslate2Translator(*with_tokenizer(**fields))


def test_models_other_than_translators_are_rejected():
    with pytest.raises(ValueError, match="is for translators, and this is a VanillaTransformerForCausalLM"):
        CTranslate2Translator(*with_tokenizer(decoder_only, "causal"))
    with pytest.raises(ValueError, match="is for translators, and this is a VanillaTransformerModel"):
        CTranslate2Translator(encoder_decoder().model, None)


@pytest.mark.parametrize(
    ("processor", "use_mkl", "warned"),
    [
        ({"cpu_name": "AMD EPYC", "avx2": True, "avx512_vnni": False}, "0", True),
        ({"cpu_name": "AMD EPYC", "avx2": True, "avx512_vnni": False}, "1", False),
        ({"cpu_name": "AMD EPYC", "avx512_vnni": True}, "0", False),
        ({"cpu_name": "Intel Xeon", "avx2": True}, "0", False),
    ],
)
def test_int8_warns_on_processors_where_products_overflow(folder, monkeypatch, caplog, processor, use_mkl, warned):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor)
    monkeypatch.setenv("CT2_USE_MKL", use_mkl)
    CTranslate2Translator(*loaded(folder), "int8")
    assert ("no int8 instructions" in caplog.text) is warned
