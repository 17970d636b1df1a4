"""Exported models give the same outputs in CTranslate2 and ONNX Runtime as in PyTorch."""

import shutil
from functools import partial
from pathlib import Path

import ctranslate2
import numpy as np
import onnxruntime
import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from family import decoder_only, encoder_decoder, encoder_only, right_padded
from fresh_process import run_fresh
from saved_models import with_tokenizer, write
from vanilla_transformer import (
    VanillaTransformerEncoderModel,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer.cli.export import main
from vanilla_transformer.conversion.to_onnx import export_onnx


TEXTS = ["three miles", "12 kilometers and 3 miles", "may 5"]
VARIANTS = {
    "paper": {},
    "pre-norm": {
        "norm_position": "pre",
        "attention_bias": True,
        "activation_function": "gelu",
        "layer_norm_eps": 0.01,
    },
    "learned": {
        "position_embedding": "learned",
        "position_offset": 2,
        "scale_embedding": False,
        "normalize_embedding": True,
    },
    "untied": {
        "tie_word_embeddings": False,
        "output_bias": True,
        "sinusoid_layout": "half_split",
        "position_offset": 1,
    },
}
FAMILIES = {"seq2seq": encoder_decoder, "causal": decoder_only, "encoder": encoder_only}


def random_weights(model):
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data.normal_(mean=float(parameter.dim() == 1), std=0.2)
    return model


def save(folder, family: str, **fields):
    """Save a tiny model with random weights and its tokenizer, and return both."""
    options = {"texts": TEXTS * 3, "vocab_size": 290, "max_position_embeddings": 64}
    model, tokenizer = with_tokenizer(FAMILIES[family], family, **options, **fields)
    write(folder / "ours", random_weights(model), tokenizer)
    return model, tokenizer


def export(folder, *options: str) -> str:
    main(["--source", str(folder / "ours"), "--output", str(folder / "exported"), *options])
    return str(folder / "exported")


def tokens_of(tokenizer, texts: list[str]) -> list[list[str]]:
    return [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts)["input_ids"]]


@pytest.mark.parametrize("variant", [*VARIANTS, "own target embedding"])
@pytest.mark.parametrize("beams", [1, 4])
def test_translators_generate_the_same_beams_in_ctranslate2(variant, beams, tmp_path):
    fields = VARIANTS.get(variant, {"share_encoder_decoder_embeddings": False})
    model, tokenizer = save(tmp_path, "seq2seq", **fields)
    translator = ctranslate2.Translator(export(tmp_path), device="cpu")
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    options = {"num_beams": beams, "length_penalty": 0.6, "max_new_tokens": 12, "do_sample": False}
    expected = model.generate(**batch, **options, early_stopping="never" if beams > 1 else False)
    found = translator.translate_batch(
        tokens_of(tokenizer, TEXTS), beam_size=beams, length_penalty=0.6, max_decoding_length=12, patience=1
    )
    for result, ids in zip(found, expected, strict=True):
        text = tokenizer.decode(tokenizer.convert_tokens_to_ids(result.hypotheses[0]), skip_special_tokens=True)
        assert text == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_beams_of_different_lengths_are_ranked_the_same_in_ctranslate2(alpha, tmp_path):
    """Use a model whose hypotheses have many different lengths, so that the length penalty matters."""
    fields = {"output_bias": True, "position_embedding": "learned", "norm_position": "pre"}
    model, tokenizer = save(tmp_path, "seq2seq", **fields)
    with torch.no_grad():
        model.lm_head.bias[tokenizer.eos_token_id] += 6.6
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.mul_(10)  # large embeddings, so that the steps differ
    model.save_pretrained(tmp_path / "ours")
    translator = ctranslate2.Translator(export(tmp_path), device="cpu")
    texts = [f"{i} miles and {'three ' * (i % 4)}kilometers" for i in range(12)]
    lengths = set()
    for text in texts:
        ids = model.generate(
            **tokenizer([text], return_tensors="pt"),
            num_beams=4, length_penalty=alpha, early_stopping=True, max_new_tokens=20,
        )[0]  # fmt: skip
        (found,) = translator.translate_batch(
            tokens_of(tokenizer, [text]), beam_size=4, length_penalty=alpha, max_decoding_length=20,
            min_decoding_length=0,
        )  # fmt: skip
        given = [i for i in ids.tolist()[1:] if i not in (tokenizer.eos_token_id, tokenizer.pad_token_id)]
        assert tokenizer.convert_tokens_to_ids(found.hypotheses[0]) == given
        lengths.add(len(given))
    assert len(lengths) > 2 or alpha < 1  # the length penalty favours long hypotheses


@pytest.mark.parametrize("variant", VARIANTS)
def test_language_models_generate_the_same_text_in_ctranslate2(variant, tmp_path):
    model, tokenizer = save(tmp_path, "causal", **VARIANTS[variant])
    generator = ctranslate2.Generator(export(tmp_path), device="cpu")
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        expected = model.generate(ids, max_new_tokens=10, do_sample=False)[0].tolist()
        options = {"max_length": 10, "sampling_topk": 1, "include_prompt_in_result": False, "return_end_token": True}
        found = generator.generate_batch(tokens_of(tokenizer, [text]), **options)[0].sequences_ids[0]
        assert found == expected[ids.shape[1] :]
        log_probs = generator.forward_batch([tokenizer.convert_ids_to_tokens(ids[0])], return_log_probs=True)
        with torch.no_grad():
            ours = model(ids).logits.log_softmax(-1)
        torch.testing.assert_close(torch.from_numpy(np.array(log_probs))[0], ours[0], atol=1e-4, rtol=1e-4)


def test_language_models_with_a_single_special_token_load_in_ctranslate2(tmp_path):
    model, tokenizer = save(tmp_path, "causal")
    # like GPT-1's tokenizer, which has only the unknown token as a special token
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, unk_token="e")
    assert bare.eos_token is None and bare.pad_token is None
    bare.save_pretrained(tmp_path / "ours")
    generator = ctranslate2.Generator(export(tmp_path), device="cpu")
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    log_probs = generator.forward_batch([bare.convert_ids_to_tokens(ids[0])], return_log_probs=True)
    with torch.no_grad():
        expected = model(ids).logits.log_softmax(-1)
    torch.testing.assert_close(torch.from_numpy(np.array(log_probs))[0], expected[0], atol=1e-4, rtol=1e-4)


def test_ctranslate2_uses_the_end_token_of_the_config(tmp_path):
    """BERT's tokenizer has a separator token but no end token."""
    model, tokenizer = save(tmp_path, "seq2seq", position_embedding="learned", norm_position="pre")
    with torch.no_grad():
        model.model.decoder.embed_positions.weight.mul_(10)  # large embeddings, so that the steps differ
    batch, options = tokenizer(TEXTS[:1], return_tensors="pt"), {"num_beams": 1, "max_new_tokens": 12}
    first, *others = model.generate(**batch, **options)[0].tolist()[1:]
    end = next(token for token in others if token != first)
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    for special in ({"pad_token": "<pad>"}, {"bos_token": "<s>"}, {}):
        shutil.rmtree(tmp_path / "ours")
        shutil.rmtree(tmp_path / "exported", ignore_errors=True)
        bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **special)
        write(tmp_path / "ours", model, bare)
        translator = ctranslate2.Translator(export(tmp_path), device="cpu")
        expected = model.generate(**batch, **options)[0]
        (found,) = translator.translate_batch(tokens_of(tokenizer, TEXTS[:1]), beam_size=1, max_decoding_length=12)
        assert expected.tolist()[-1] == end and len(expected) < 12
        assert tokenizer.convert_tokens_to_ids(found.hypotheses[0]) == expected.tolist()[1:-1]


@pytest.mark.parametrize("variant", [*VARIANTS, "types"])
def test_encoders_give_the_same_hidden_states_in_ctranslate2(variant, tmp_path):
    fields = VARIANTS.get(variant, {"type_vocab_size": 2, "normalize_embedding": True})
    model, tokenizer = save(tmp_path, "encoder", **fields)
    encoder = ctranslate2.Encoder(export(tmp_path), device="cpu")
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model.base_model(**batch).last_hidden_state
    found = torch.from_numpy(np.array(encoder.forward_batch(tokens_of(tokenizer, TEXTS)).last_hidden_state))
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(found[real], expected[real], atol=1e-4, rtol=1e-4)


def test_int8_export_is_smaller_with_similar_hidden_states(tmp_path):
    model, tokenizer = save(tmp_path, "causal", d_model=128, d_ff=256)
    sizes = {}
    for kind in ("float32", "int8"):
        folder = tmp_path / kind
        main(["--source", str(tmp_path / "ours"), "--output", str(folder), "--quantization", kind])
        sizes[kind] = (folder / "model.bin").stat().st_size
    assert sizes["int8"] < 0.4 * sizes["float32"]
    generator = ctranslate2.Generator(str(tmp_path / "int8"), device="cpu")
    ids = tokenizer(TEXTS[1], return_tensors="pt")["input_ids"]
    log_probs = generator.forward_batch([tokenizer.convert_ids_to_tokens(ids[0])], return_log_probs=True)
    with torch.no_grad():
        ours = model(ids).logits.log_softmax(-1)[0]
    found = torch.from_numpy(np.array(log_probs))[0]
    assert torch.corrcoef(torch.stack((found.flatten(), ours.flatten())))[0, 1] > 0.99


def test_the_exported_folder_is_complete(tmp_path):
    save(tmp_path, "seq2seq")
    folder = export(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("three miles")["input_ids"][-1] == tokenizer.eos_token_id
    names = {path.name for path in (tmp_path / "exported").iterdir()}
    assert {"model.bin", "tokenizer.json", "generation_config.json"} <= names
    with pytest.raises(ValueError, match="exists: choose a new folder"):
        export(tmp_path)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"d_k": 4, "d_v": 16}, "d_k=4, d_v=16"),
        ({"sliding_window": 4}, "sliding_window=4"),
        ({"activation_function": "tanh"}, "activation_function='tanh'"),
    ],
)
def test_unsupported_config_fields_are_rejected_before_files_are_written(fields, reason, tmp_path):
    save(tmp_path, "seq2seq", **fields)
    with pytest.raises(ValueError, match=reason):
        export(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_export_rejects_models_of_other_architectures(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2)).save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match=r"class GPT2LMHeadModel; give .* `vanilla-transformer import`"):
        export(tmp_path)


def run(session: onnxruntime.InferenceSession, **inputs) -> list[torch.Tensor]:
    arrays = {name: np.ascontiguousarray(torch.as_tensor(value).numpy()) for name, value in inputs.items()}
    return [torch.from_numpy(output) for output in session.run(None, arrays)]


def session_of(folder: str, name: str) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(f"{folder}/{name}.onnx", providers=["CPUExecutionProvider"])


def empty_past(session: onnxruntime.InferenceSession, batch: int) -> dict[str, torch.Tensor]:
    inputs = {i.name: i.shape for i in session.get_inputs() if i.name.startswith("past")}
    return {name: torch.zeros(batch, shape[1], 0, shape[3]) for name, shape in inputs.items()}


HEADS = {
    "masked": (VanillaTransformerForMaskedLM, ["logits"]),
    "tagger": (VanillaTransformerForTokenClassification, ["logits"]),
    "reader": (VanillaTransformerForQuestionAnswering, ["start_logits", "end_logits"]),
    "states": (VanillaTransformerEncoderModel, ["last_hidden_state"]),
}


def assert_the_same_in_onnx_at_any_size(model, folder, outputs):
    session = session_of(folder, "model")
    assert [output.name for output in session.get_outputs()] == outputs
    for lengths in ([5, 3], [11, 4, 8], [1]):
        ids, mask = right_padded(lengths)
        inputs = {"input_ids": ids, "attention_mask": mask}
        if model.config.type_vocab_size:
            inputs["token_type_ids"] = (torch.arange(ids.shape[1]) > 2).long().expand(ids.shape)
        with torch.no_grad():
            expected = model(**inputs)
        for name, found in zip(outputs, run(session, **inputs), strict=True):
            real = mask.bool() if found.dim() > 1 and found.shape[1] == ids.shape[1] else slice(None)
            torch.testing.assert_close(found[real], expected[name][real], atol=1e-4, rtol=1e-4)


# Tracing a graph takes seconds. The models marked slow differ from the fast ones only by one linear layer.
@pytest.mark.parametrize(
    "head", ["reader", *(pytest.param(name, marks=pytest.mark.slow) for name in ("masked", "tagger", "states"))]
)
def test_encoders_give_the_same_outputs_in_onnx_at_any_input_size(head, tmp_path):
    model_class, outputs = HEADS[head]
    types = 2 if head == "reader" else 0  # question and context, so token types are an input too
    model = random_weights(encoder_only(model_class, num_layers=1, type_vocab_size=types))
    export_onnx(model, tmp_path / "onnx")
    assert_the_same_in_onnx_at_any_size(model, tmp_path / "onnx", outputs)


READS = """
import json
from transformers import AutoTokenizer
print(json.dumps(AutoTokenizer.from_pretrained(".")("three miles")["input_ids"]))
"""


def test_classifiers_give_the_same_outputs_in_onnx_and_keep_their_class_names(tmp_path):
    make = partial(encoder_only, VanillaTransformerForSequenceClassification, num_layers=1)
    model, tokenizer = with_tokenizer(make, "encoder", id2label={0: "bad", 1: "good"})
    write(tmp_path / "ours", random_weights(model), tokenizer)
    folder = export(tmp_path, "--to", "onnx")
    assert_the_same_in_onnx_at_any_size(model.eval(), folder, ["logits"])
    assert AutoConfig.from_pretrained(folder).id2label == {0: "bad", 1: "good"}
    # The exported folder contains none of our code, so it loads without trust_remote_code.
    assert run_fresh(READS, Path(folder)) == tokenizer("three miles")["input_ids"]


# The fast case combines two variants that differ from the paper. The translators below use the paper's model instead.
@pytest.mark.parametrize(
    "variants",
    [["pre-norm", "learned"], *(pytest.param([name], marks=pytest.mark.slow) for name in VARIANTS)],
    ids=str,
)
def test_language_models_generate_the_same_text_in_onnx_with_a_cache(variants, tmp_path):
    model, tokenizer = save(tmp_path, "causal", **{k: v for name in variants for k, v in VARIANTS[name].items()})
    session = session_of(export(tmp_path, "--to", "onnx"), "model")
    batch = tokenizer(TEXTS, padding=True, padding_side="left", return_tensors="pt")
    expected = model.generate(**batch, max_new_tokens=8, do_sample=False, eos_token_id=None)

    ids, mask, past = batch["input_ids"], batch["attention_mask"], empty_past(session, len(TEXTS))
    given = [ids]
    for _ in range(8):
        logits, *present = run(session, input_ids=ids, attention_mask=mask, **past)
        past = dict(zip(past, present, strict=True))
        ids = logits[:, -1].argmax(-1, keepdim=True)
        mask = torch.cat((mask, torch.ones_like(ids)), dim=1)
        given.append(ids)
    assert torch.equal(torch.cat(given, dim=1), expected)
    with torch.no_grad():
        whole = model(given[0], attention_mask=batch["attention_mask"]).logits
    logits = run(session, **batch, **empty_past(session, len(TEXTS)))[0]
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(logits[real], whole[real], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", ["paper", pytest.param("pre-norm", marks=pytest.mark.slow)])
def test_translators_generate_the_same_text_in_onnx_with_a_cache(variant, tmp_path):
    model, tokenizer = save(tmp_path, "seq2seq", **VARIANTS[variant])
    folder = export(tmp_path, "--to", "onnx")
    encoder, decoder = session_of(folder, "encoder"), session_of(folder, "decoder")
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    expected = model.generate(**batch, max_new_tokens=8, do_sample=False, eos_token_id=None)

    cross = dict(zip([output.name for output in encoder.get_outputs()], run(encoder, **batch), strict=True))
    ids, past = torch.full((len(TEXTS), 1), model.config.decoder_start_token_id), empty_past(decoder, len(TEXTS))
    given = [ids]
    for _ in range(8):
        source = {"encoder_attention_mask": batch["attention_mask"], **cross}
        logits, *present = run(decoder, input_ids=ids, **source, **past)
        past = dict(zip(past, present, strict=True))
        ids = logits[:, -1].argmax(-1, keepdim=True)
        given.append(ids)
    assert torch.equal(torch.cat(given, dim=1), expected)


def test_onnx_export_rejects_a_sliding_window(tmp_path):
    save(tmp_path, "encoder", sliding_window=4)
    with pytest.raises(ValueError, match="sliding_window=4: a graph with free lengths"):
        export(tmp_path, "--to", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


@pytest.mark.parametrize("make", [encoder_decoder, decoder_only])
def test_export_rejects_models_without_an_output_layer(make, tmp_path):
    make().base_model.save_pretrained(tmp_path / "ours")
    with pytest.raises(
        ValueError, match=r"class VanillaTransformer.*Model; give a VanillaTransformerForConditionalGeneration or "
    ):
        export(tmp_path)
