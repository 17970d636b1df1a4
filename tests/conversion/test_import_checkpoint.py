"""Importing models, and exporting our models as Marian and GPT-2 models, preserves their outputs.

The reference models are transformers' own classes with random weights.
"""

import json
import shutil

import ctranslate2
import pytest
import sentencepiece
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    BertTokenizerFast,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForTokenClassification,
    DistilBertModel,
    FSMTConfig,
    FSMTForConditionalGeneration,
    FSMTTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
)

from family import decoder_only, encoder_decoder, encoder_only, right_padded, tokens
from saved_models import with_tokenizer, write
from vanilla_transformer.cli import export, import_checkpoint
from vanilla_transformer.conversion.from_others import convert
from vanilla_transformer.conversion.mapping import CannotRepresent
from vanilla_transformer.conversion.to_others import to_gpt2, to_marian
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.inside.predictions import AnswerSpan
from vanilla_transformer.loading import load_model
from vanilla_transformer.pipeline_vanilla_transformer import QuestionAnsweringPipeline
from vanilla_transformer.tasks.question_answering import QuestionAnsweringArguments, QuestionAnsweringTask


SEQ2SEQ = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 50}
BERT = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64, "num_labels": 3,
}  # fmt: skip
DISTILBERT = {
    "vocab_size": 50,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 64,
}
MARIAN = {
    **SEQ2SEQ, "vocab_size": 50, "pad_token_id": 49, "decoder_start_token_id": 49, "eos_token_id": 2,
    "forced_eos_token_id": 2, "scale_embedding": True,
}  # fmt: skip


def marian(**fields):
    return MarianMTModel(MarianConfig(**MARIAN | fields))


TRANSLATORS = {
    "marian": lambda: marian(activation_function="swish"),
    "marian with two vocabularies": lambda: marian(share_encoder_decoder_embeddings=False, decoder_vocab_size=60),
    "bart": lambda: BartForConditionalGeneration(BartConfig(**SEQ2SEQ, vocab_size=50, forced_eos_token_id=2)),
    "m2m100": lambda: M2M100ForConditionalGeneration(M2M100Config(**SEQ2SEQ, vocab_size=50, scale_embedding=True)),
    "fsmt": lambda: FSMTForConditionalGeneration(
        FSMTConfig(**SEQ2SEQ, src_vocab_size=50, tgt_vocab_size=56, langs=["en", "de"])
    ),
}
LANGUAGE_MODELS = {
    "gpt1": lambda: OpenAIGPTLMHeadModel(OpenAIGPTConfig(**GPT, eos_token_id=2, pad_token_id=0)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT, n_inner=40, eos_token_id=2, bos_token_id=1, pad_token_id=0)),
    "gpt2 untied": lambda: GPT2LMHeadModel(
        GPT2Config(**GPT, tie_word_embeddings=False, eos_token_id=2, bos_token_id=1, pad_token_id=0)
    ),
}
ENCODERS = {
    "bert": lambda: BertModel(BertConfig(**BERT)),
    "bert with another epsilon": lambda: BertModel(BertConfig(**BERT, layer_norm_eps=0.01)),
    "bert masked": lambda: BertForMaskedLM(BertConfig(**BERT)),
    "bert tagger": lambda: BertForTokenClassification(BertConfig(**BERT)),
    "bert reader": lambda: BertForQuestionAnswering(BertConfig(**BERT | {"num_labels": 2})),
    "distilbert": lambda: DistilBertModel(DistilBertConfig(**DISTILBERT)),
    "distilbert masked": lambda: DistilBertForMaskedLM(DistilBertConfig(**DISTILBERT, activation="relu")),
    "distilbert tagger": lambda: DistilBertForTokenClassification(DistilBertConfig(**DISTILBERT)),
}


def random_weights(model):
    """Randomise all weights, biases and norms, so that parameters missing from the mapping change the outputs."""
    torch.manual_seed(0)
    for name, tensor in model.state_dict().items():
        if "embed_positions" not in name:
            tensor.data.normal_(mean=1.0 if "norm" in name.lower() and "weight" in name else 0.0, std=0.15)
    if model.config.model_type == "bart":  # the only translator in these tests with learned positions
        model.model.encoder.embed_positions.weight.data.normal_(std=0.5)
        model.model.decoder.embed_positions.weight.data.normal_(std=0.5)
    return model.eval()


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", TRANSLATORS)
@torch.no_grad()
def test_imported_translators_give_the_same_logits_and_beams(name, tmp_path):
    theirs = random_weights(TRANSLATORS[name]())
    ours = convert(theirs)
    source, mask = right_padded([7, 4, 5])
    source = source.masked_fill(mask == 0, theirs.config.pad_token_id)
    target = tokens(3, 6)
    inputs = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}
    inputs["use_cache"] = False  # FSMT applies the causal mask only without a cache
    close(ours(**inputs).logits, theirs(**inputs).logits)

    for options in ({"num_beams": 1}, {"num_beams": 4, "length_penalty": 0.8}):
        options |= {"max_new_tokens": 12, "do_sample": False}
        given = {"input_ids": source, "attention_mask": mask}
        assert torch.equal(ours.generate(**given, **options), theirs.generate(**given, **options))

    ours.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    close(again(**inputs).logits, theirs(**inputs).logits)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
@torch.no_grad()
def test_imported_language_models_give_the_same_logits_and_beams(name, tmp_path):
    theirs = random_weights(LANGUAGE_MODELS[name]())
    ours = convert(theirs)
    ids, mask = right_padded([8, 5])
    real = mask.bool()
    given, expected = (model(input_ids=ids, attention_mask=mask).logits for model in (ours, theirs))
    close(given[real], expected[real])

    prompts = tokens(3, 5)
    for beams in (1, 4):
        options = {"num_beams": beams, "max_new_tokens": 10, "do_sample": False}
        expected = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), **options)
        assert torch.equal(ours.generate(prompts, attention_mask=torch.ones_like(prompts), **options), expected)

    ours.save_pretrained(tmp_path)
    close(AutoModelForCausalLM.from_pretrained(tmp_path)(prompts).logits, theirs(prompts).logits)


def test_imported_models_have_the_same_training_loss():
    theirs = random_weights(marian(dropout=0.0)).train()
    inputs = {"input_ids": tokens(3, 7), "labels": tokens(3, 6)}
    close(convert(theirs).train()(**inputs).loss, theirs(**inputs).loss)


def test_gpt1_uses_the_tanh_approximation_of_gelu():
    theirs = LANGUAGE_MODELS["gpt1"]()
    hidden = torch.linspace(-3, 3, 50)
    act = theirs.transformer.h[0].mlp.act
    close(convert(theirs).model.layers[0].feed_forward.activation(hidden), act(hidden))


@torch.no_grad()
def test_imported_gpt2_continues_left_padded_prompts():
    theirs = random_weights(LANGUAGE_MODELS["gpt2"]())
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    given = {"input_ids": tokens(2, 5) * mask, "attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    assert torch.equal(convert(theirs).generate(**given), theirs.generate(**given))


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_imported_encoders_give_the_same_outputs(name):
    theirs = random_weights(ENCODERS[name]())
    ours = convert(theirs)
    ids, mask = right_padded([9, 6])
    inputs = {"input_ids": ids, "attention_mask": mask}
    if name.startswith("bert"):
        inputs["token_type_ids"] = (torch.arange(9) > 4).long().expand(2, 9)
    real = mask.bool()
    given, expected = ours(**inputs), theirs(**inputs)
    if name.endswith("reader"):
        close(given.start_logits[real], expected.start_logits[real])
        close(given.end_logits[real], expected.end_logits[real])
    else:
        close(given[0][real], expected[0][real])
    if name == "bert masked":
        del inputs["token_type_ids"]  # all 0, which is the default
        close(ours(**inputs)[0][real], theirs(**inputs)[0][real])


@torch.no_grad()
def test_importing_and_exporting_marian_gives_the_same_model():
    theirs = random_weights(TRANSLATORS["marian"]())
    back = to_marian(convert(theirs))
    weights = theirs.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in back.state_dict().items())
    assert back.config.activation_function == "swish"


@pytest.mark.parametrize("fields", [{}, {"share_encoder_decoder_embeddings": False}, {"attention_bias": True}])
@torch.no_grad()
def test_the_papers_model_exports_as_a_marian_model(fields, tmp_path):
    ours = encoder_decoder(layer_norm_eps=1e-5, max_position_embeddings=64, **fields)
    theirs = to_marian(ours)
    theirs.save_pretrained(tmp_path)
    theirs = MarianMTModel.from_pretrained(tmp_path).eval()
    source, mask = right_padded([7, 4])
    inputs = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": tokens(2, 6)}
    close(theirs(**inputs).logits, ours(**inputs).logits)
    options = {"num_beams": 3, "max_new_tokens": 10}
    given = {"input_ids": source, "attention_mask": mask}
    assert torch.equal(theirs.generate(**given, **options), ours.generate(**given, **options))


@pytest.mark.parametrize(
    "fields",
    [{}, {"position_offset": 3}, {"position_embedding": "learned", "scale_embedding": False, "position_offset": 2}],
)
@torch.no_grad()
def test_a_pre_norm_language_model_exports_as_a_gpt2_model(fields, tmp_path):
    ours = decoder_only(norm_position="pre", max_position_embeddings=64, **fields)
    to_gpt2(ours).save_pretrained(tmp_path)
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    ids = tokens(2, 9)
    close(theirs(ids).logits, ours(ids).logits)
    assert torch.equal(
        theirs.generate(ids, num_beams=3, max_new_tokens=6), ours.generate(ids, num_beams=3, max_new_tokens=6)
    )


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: BertForSequenceClassification(BertConfig(**BERT)), "BertForSequenceClassification"),
        (lambda: MBartForConditionalGeneration(MBartConfig(**SEQ2SEQ, vocab_size=50)), "mbart"),
        (lambda: GPT2LMHeadModel(GPT2Config(**GPT, scale_attn_by_inverse_layer_idx=True)), "inverse_layer_idx"),
        (lambda: marian(decoder_attention_heads=2), "4 heads in the encoder, 2 in the decoder"),
    ],
)
def test_unsupported_models_are_rejected_before_files_are_written(make, reason, tmp_path):
    make().save_pretrained(tmp_path / "theirs")
    with pytest.raises(CannotRepresent, match=reason):
        import_checkpoint.main([str(x) for x in ("--source", tmp_path / "theirs", "--output", tmp_path / "ours")])
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_the_python_api_rejects_unsupported_heads():
    with pytest.raises(CannotRepresent, match="BertForSequenceClassification is not supported"):
        convert(BertForSequenceClassification(BertConfig(**BERT)))


def test_error_for_weights_without_a_counterpart_names_them():
    """The check must not be an assertion, because `python -O` would skip it."""
    theirs = GPT2LMHeadModel(GPT2Config(**GPT))
    theirs.transformer.adapter = torch.nn.Linear(2, 2)
    with pytest.raises(CannotRepresent, match=r"no counterpart of: .*adapter.weight"):
        convert(theirs)
    ours = decoder_only(norm_position="pre")
    ours.model.adapter = torch.nn.Linear(2, 2)
    with pytest.raises(CannotRepresent, match=r"no counterpart of: .*adapter.weight"):
        to_gpt2(ours)


@pytest.mark.parametrize(
    ("make", "convert_back", "reason"),
    [
        (lambda: encoder_decoder(norm_position="pre"), to_marian, "norm_position='pre'"),
        (lambda: encoder_decoder(d_k=4, d_v=4), to_marian, "d_k=4"),
        (lambda: encoder_decoder(layer_norm_eps=0.1), to_marian, "layer_norm_eps=0.1"),
        (decoder_only, to_gpt2, "norm_position='post'"),
        (lambda: decoder_only(norm_position="pre", sliding_window=4), to_gpt2, "sliding_window=4"),
    ],
)
def test_config_fields_that_the_target_format_does_not_support_are_rejected(make, convert_back, reason):
    with pytest.raises(CannotRepresent, match=reason):
        convert_back(make())


@pytest.fixture(scope="module")
def opus_mt(tmp_path_factory):
    """Save a folder with the files of opus-mt models: two SentencePiece models, one vocabulary, a Marian model."""
    folder = tmp_path_factory.mktemp("opus")
    rows = phrasebook("translation", "en", "es", size=1500)["train"]
    vocabulary = {"</s>": 0, "<unk>": 1, ">>spa<<": 2}
    for side in ("source", "target"):
        (folder / f"{side}.txt").write_text("\n".join(rows[side]), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / f"{side}.txt"), model_prefix=str(folder / side), vocab_size=300, minloglevel=2,
            character_coverage=1.0,
        )  # fmt: skip
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        for i in range(3, model.get_piece_size()):
            vocabulary.setdefault(model.id_to_piece(i), len(vocabulary))
    vocabulary["<pad>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = MarianTokenizer(*(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")))
    tokenizer.save_pretrained(folder)
    pad = vocabulary["<pad>"]
    ids = {"vocab_size": pad + 1, "pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0}
    random_weights(marian(**ids, forced_eos_token_id=0)).save_pretrained(folder)
    return folder


def test_opus_mt_folders_are_imported_with_a_fast_tokenizer(opus_mt, tmp_path):
    import_checkpoint.main(["--source", str(opus_mt), "--output", str(tmp_path / "ours")])
    slow, fast = MarianTokenizer.from_pretrained(opus_mt), AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert fast.is_fast
    modes = {(tmp_path / "ours" / name).stat().st_mode for name in ("model.safetensors", "config.json")}
    assert len(modes) == 1  # the tokenizer has the same file permissions as the weights
    rows = phrasebook("translation", "en", "es", size=1500)["test"]
    texts = [*rows["source"][:100], "  two   spaces ", ">>spa<< May 5, 2031", "½ ﬁne Ａ", "</s> 12"]
    for text in texts:
        assert fast(text)["input_ids"] == slow(text)["input_ids"], text
    # `translate` and training treat "</s>" in the input as ordinary text, but a language code stays one token.
    language = ">>spa<< May 5, 2031"
    assert fast(language, split_special_tokens=True)["input_ids"] == slow(language)["input_ids"]
    for text in rows["target"][:100]:
        ids = slow(text_target=text)["input_ids"]
        assert fast.decode(ids, skip_special_tokens=True) == slow.decode(ids, skip_special_tokens=True)

    theirs, ours = (AutoModelForSeq2SeqLM.from_pretrained(folder).eval() for folder in (opus_mt, tmp_path / "ours"))
    batch = fast(rows["source"][:3], padding=True, return_tensors="pt")
    options = {"num_beams": 3, "max_new_tokens": 8}
    assert torch.equal(ours.generate(**batch, **options), theirs.generate(**batch, **options))
    with pytest.raises(ValueError, match="exists: choose a new folder"):
        import_checkpoint.main(["--source", str(opus_mt), "--output", str(tmp_path / "ours")])


@pytest.mark.parametrize(
    "options",
    [{"model_type": "bpe"}, {"byte_fallback": True}, {"add_dummy_prefix": False}, {"remove_extra_whitespaces": False}],
)
def test_marian_tokenizers_are_kept_if_a_fast_one_would_segment_differently(options, opus_mt, tmp_path):
    shutil.copytree(opus_mt, tmp_path / "opus")
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            input=str(opus_mt / f"{side}.txt"), model_prefix=str(tmp_path / side), vocab_size=400, minloglevel=2,
            character_coverage=1.0, **options,
        )  # fmt: skip
        shutil.move(tmp_path / f"{side}.model", tmp_path / "opus" / f"{side}.spm")
    import_checkpoint.main(["--source", str(tmp_path / "opus"), "--output", str(tmp_path / "ours")])
    theirs, ours = MarianTokenizer.from_pretrained(tmp_path / "opus"), AutoTokenizer.from_pretrained(tmp_path / "ours")
    for text in ("three miles  and 1 kilometer", "May 5, 2031", "½ ﬁne Ａ 漢"):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]


def test_tokens_added_to_a_marian_model_are_imported(opus_mt, tmp_path):
    tokenizer = MarianTokenizer.from_pretrained(opus_mt)
    tokenizer.add_tokens(["<entity>", "COVID"])
    theirs = MarianMTModel.from_pretrained(opus_mt)
    theirs.resize_token_embeddings(len(tokenizer))
    write(tmp_path / "opus", theirs, tokenizer)
    import_checkpoint.main(["--source", str(tmp_path / "opus"), "--output", str(tmp_path / "ours")])
    fast = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert len(fast) == len(tokenizer)
    for text in ("<entity> three miles", "three COVID"):
        ids = tokenizer(text)["input_ids"]
        assert fast(text)["input_ids"] == ids and max(ids) >= len(tokenizer) - 2


def test_folders_without_a_tokenizer_or_with_missing_weights_are_rejected(opus_mt, tmp_path):
    def import_from(source):
        import_checkpoint.main(["--source", str(source), "--output", str(tmp_path / "ours")])

    random_weights(LANGUAGE_MODELS["gpt2"]()).save_pretrained(tmp_path / "gpt2")
    MarianMTModel.from_pretrained(opus_mt).save_pretrained(tmp_path / "opus")
    for name in ("gpt2", "opus"):
        with pytest.raises(ValueError, match=f"{name} has no tokenizer next to the model"):
            import_from(tmp_path / name)

    shutil.copytree(opus_mt, tmp_path / "part")
    weights = load_file(tmp_path / "part/model.safetensors")
    del weights["model.decoder.layers.1.fc1.weight"]
    save_file(weights, tmp_path / "part/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CannotRepresent, match=r"part has no weights for: model.decoder.layers.1.fc1.weight"):
        import_from(tmp_path / "part")
    assert not (tmp_path / "ours").exists()


def test_the_two_vocabularies_of_fsmt_stay_separate_in_ctranslate2(tmp_path):
    """The same id stands for different words in source and target, as in WMT19's English-Russian models."""
    vocabularies = {
        "src": "<s> <pad> </s> <unk> t h r e m i l s three</w> miles</w> a</w> b</w>".split(),
        "tgt": "<s> <pad> </s> <unk> drei</w> meilen</w> kilo meter</w> und</w> ein</w> auf</w> zu</w>".split(),
    }
    for side, words in vocabularies.items():
        (tmp_path / f"vocab-{side}.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    merges = ["t h", "th r", "thr e", "thre e</w>", "m i", "mi l", "mil e", "mile s</w>"]
    (tmp_path / "merges.txt").write_text("\n".join(f"{pair} 1" for pair in merges) + "\n")
    files = (str(tmp_path / name) for name in ("vocab-src.json", "vocab-tgt.json", "merges.txt"))
    tokenizer = FSMTTokenizer(["en", "de"], *files)
    sizes = {f"{side}_vocab_size": len(words) for side, words in vocabularies.items()}
    theirs = random_weights(FSMTForConditionalGeneration(FSMTConfig(**SEQ2SEQ, **sizes, langs=["en", "de"])))
    write(tmp_path / "fsmt", theirs, tokenizer)
    import_checkpoint.main(["--source", str(tmp_path / "fsmt"), "--output", str(tmp_path / "ours")])
    export.main(["--source", str(tmp_path / "ours"), "--output", str(tmp_path / "exported")])

    translator = ctranslate2.Translator(str(tmp_path / "exported"), device="cpu")
    texts = ["three miles", "miles a", "b three"]
    sources = [["three</w>", "miles</w>", "</s>"], ["miles</w>", "a</w>", "</s>"], ["b</w>", "three</w>", "</s>"]]
    found = translator.translate_batch(sources, beam_size=1, max_decoding_length=7)  # token 8 is the end token
    for text, result in zip(texts, found, strict=True):
        ids = theirs.generate(**tokenizer(text, return_tensors="pt"), num_beams=1, max_new_tokens=8)[0]
        expected = [vocabularies["tgt"][i] for i in ids.tolist()[1:] if i != theirs.config.eos_token_id]
        assert result.hypotheses[0] == expected and expected


def test_our_model_folders_export_as_marian_folders(tmp_path):
    ours, tokenizer = with_tokenizer(texts=["three miles", "tres millas"] * 3, vocab_size=280, layer_norm_eps=1e-5)
    write(tmp_path / "ours", ours, tokenizer)
    folders = ["--source", str(tmp_path / "ours"), "--output", str(tmp_path / "marian")]
    import_checkpoint.main([*folders, "--to", "marian"])
    theirs = MarianMTModel.from_pretrained(tmp_path / "marian").eval()
    batch = AutoTokenizer.from_pretrained(tmp_path / "marian")(["three miles"], return_tensors="pt")
    assert torch.equal(theirs.generate(**batch, max_new_tokens=9), ours.generate(**batch, max_new_tokens=9))
    with pytest.raises(ValueError, match=r"ForConditionalGeneration; give a VanillaTransformerForCausalLM"):
        import_checkpoint.main(["--source", str(tmp_path / "ours"), "--output", str(tmp_path / "x"), "--to", "gpt2"])


def test_invalid_config_fields_are_rejected():
    for make, reason in (
        (lambda: encoder_decoder(target_vocab_size=60), "target_vocab_size=60 differs from vocab_size=50"),
        (lambda: encoder_decoder(decoder_d_ff=0), "decoder_d_ff=0 must be greater than 0"),
        (lambda: encoder_only(position_offset=-1), "position_offset=-1 must not be negative"),
    ):
        with pytest.raises(Exception, match=reason):
            make()


@torch.no_grad()
def test_imported_bert_uses_token_types_for_question_answering(tmp_path):
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] who where is the cat dog house in tom mary sits ? .".split()
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizerFast.from_pretrained(tmp_path)
    theirs = random_weights(BertForQuestionAnswering(BertConfig(**BERT | {"num_labels": 2, "vocab_size": len(words)})))
    write(tmp_path / "bert", theirs, tokenizer)
    import_checkpoint.main(["--source", str(tmp_path / "bert"), "--output", str(tmp_path / "ours")])
    ours, fast = load_model(tmp_path / "ours"), AutoTokenizer.from_pretrained(tmp_path / "ours")

    question, context = "where is the cat ?", "tom sits in the house . mary is in the dog house . the cat sits ."
    both = tokenizer(question, context, return_tensors="pt")
    assert both["token_type_ids"].any()
    expected = theirs(**both)
    pipe = QuestionAnsweringPipeline(model=ours, tokenizer=fast)
    (window,) = pipe.preprocess({"question": question, "context": context})
    close(pipe.forward(window)["start_logits"], expected.start_logits)
    reading = AnswerSpan(ours, fast, question, context=context)
    close(ours(**reading.inputs).end_logits, expected.end_logits)
    answers = [{"text": ["tom"], "answer_start": [0]}]
    rows = Dataset.from_dict({"question": [question], "context": [context], "answers": answers})
    encoded = QuestionAnsweringTask(QuestionAnsweringArguments(output_dir=str(tmp_path))).encode(
        rows, fast, ours.config
    )
    assert encoded[0]["token_type_ids"] == both["token_type_ids"][0].tolist()
