"""Pipelines of transformers, and the two that this project adds, load from a saved folder."""

import copy
import json
from argparse import Namespace
from itertools import product

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, pipeline

from fresh_process import run_fresh
from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderModel,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer.data.tokenizer import KINDS, TEMPLATES, train_tokenizer
from vanilla_transformer.decoding import translate
from vanilla_transformer.pipeline_vanilla_transformer import (
    QuestionAnsweringPipeline,
    TranslationPipeline,
    number_end,
)
from vanilla_transformer.tasks.question_answering import QuestionAnsweringArguments, QuestionAnsweringTask


CONTEXT = "María García sold 12 ☕ on May 5 in Zürich. It was raining, and नमस्ते was on every sign of the shop."
QUESTION = "Where did María sell them?"
TEXTS = [CONTEXT, QUESTION, "It was raining in Zürich on May 12."]
SIZES = {"d_model": 32, "num_heads": 4, "d_ff": 64, "max_position_embeddings": 200}


@pytest.fixture(scope="module")
def tokenizers():
    return {template: train_tokenizer(TEXTS * 3, template, vocab_size=330) for template in TEMPLATES}


def seq2seq(tokenizer, **fields):
    torch.manual_seed(1)
    sizes = {"encoder_layers": 1, "decoder_layers": 1} | SIZES | fields
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), **sizes)
    return VanillaTransformerForConditionalGeneration(config).eval()


def causal(tokenizer):
    torch.manual_seed(2)
    config = VanillaTransformerDecoderConfig(vocab_size=len(tokenizer), num_layers=1, **SIZES)
    return VanillaTransformerForCausalLM(config).eval()


def encoder(model_class, tokenizer, **fields):
    torch.manual_seed(3)
    config = VanillaTransformerEncoderConfig(vocab_size=len(tokenizer), num_layers=1, **SIZES | fields)
    return model_class(config).eval()


@pytest.fixture(scope="module")
def translator(tokenizers):
    return TranslationPipeline(model=seq2seq(tokenizers["seq2seq"]), tokenizer=tokenizers["seq2seq"], device="cpu")


@pytest.fixture(scope="module")
def reader(tokenizers):
    model = encoder(VanillaTransformerForQuestionAnswering, tokenizers["encoder"])
    return QuestionAnsweringPipeline(model=model, tokenizer=tokenizers["encoder"], device="cpu")


# --- Saved folders, loaded in a process that cannot import this project


IN_A_FRESH_PROCESS = """
from transformers import AutoTokenizer, pipeline
folder, question, context = arguments
load = lambda task, name: pipeline(task, model=f"{folder}/{name}", trust_remote_code=True, device="cpu")
translate = load("translation", "seq2seq")
translate.save_pretrained(f"{folder}/again")
results = {
    "translation": translate([question, context], num_beams=3, max_length=60, batch_size=2),
    "translation, saved again": load(None, "again")([question, context], num_beams=3, max_length=60, batch_size=2),
    "question-answering": load("question-answering", "reader")(question=question, context=context, top_k=3),
    "text-generation": load("text-generation", "causal")(question, max_new_tokens=9, do_sample=False),
    "text-classification": load("text-classification", "classifier")(question, top_k=None),
    "token-classification": load("token-classification", "tagger")(question),
    "fill-mask": load("fill-mask", "masked")("It was<mask> in Zürich.", top_k=1),
    "feature-extraction": load("feature-extraction", "features")(question),
    "tokenizer": AutoTokenizer.from_pretrained(f"{folder}/seq2seq", trust_remote_code=False)(context)["input_ids"],
    "config": repr(translate.model.config),
}
print(json.dumps(results, default=float))
"""


def test_every_task_has_a_pipeline_without_this_project_installed(tokenizers, translator, reader, tmp_path):
    tokenizer = tokenizers["encoder"]
    labels = {"id2label": {0: "no", 1: "maybe", 2: "yes"}}
    models = {
        "seq2seq": (translator.model, tokenizers["seq2seq"]),
        "causal": (causal(tokenizers["causal"]), tokenizers["causal"]),
        "reader": (reader.model, tokenizer),
        "classifier": (encoder(VanillaTransformerForSequenceClassification, tokenizer, **labels), tokenizer),
        "tagger": (encoder(VanillaTransformerForTokenClassification, tokenizer, **labels), tokenizer),
        "masked": (encoder(VanillaTransformerForMaskedLM, tokenizer), tokenizer),
        "features": (encoder(VanillaTransformerEncoderModel, tokenizer), tokenizer),
    }
    for name, saved in models.items():
        for part in saved:
            part.save_pretrained(tmp_path / name)
    results = run_fresh(IN_A_FRESH_PROCESS, tmp_path, str(tmp_path), QUESTION, CONTEXT, HF_HUB_OFFLINE="1")

    assert results["translation"] == translator([QUESTION, CONTEXT], num_beams=3, max_length=60)
    assert results["translation, saved again"] == results["translation"]
    assert '"impl": "pipeline_vanilla_transformer.TranslationPipeline"' in results["config"]
    assert results["tokenizer"] == tokenizers["seq2seq"](CONTEXT)["input_ids"]
    for found, expected in zip(
        results["question-answering"], reader(question=QUESTION, context=CONTEXT, top_k=3), strict=True
    ):
        assert found == {**expected, "score": pytest.approx(expected["score"], rel=1e-4)}

    prompt = tokenizers["causal"](QUESTION, return_tensors="pt")
    continued = models["causal"][0].generate(**prompt, max_new_tokens=9, max_length=None, do_sample=False)
    text = tokenizers["causal"].decode(continued[0], skip_special_tokens=True)
    assert results["text-generation"] == [{"generated_text": text}]

    batch = tokenizer(QUESTION, return_tensors="pt")
    with torch.inference_mode():
        probabilities = models["classifier"][0](**batch).logits[0].softmax(-1).tolist()
        tags = models["tagger"][0](**batch).logits[0, 1:-1].argmax(-1).tolist()
        features = models["features"][0](**batch).last_hidden_state
        masked = tokenizer("It was<mask> in Zürich.", return_tensors="pt")
        place = masked["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        best = models["masked"][0](**masked).logits[0, place].softmax(-1).max(-1)
    scores = {record["label"]: record["score"] for record in results["text-classification"]}
    assert scores == pytest.approx(dict(zip(labels["id2label"].values(), probabilities, strict=True)), rel=1e-4)
    assert [record["entity"] for record in results["token-classification"]] == [
        labels["id2label"][tag] for tag in tags
    ]
    torch.testing.assert_close(torch.tensor(results["feature-extraction"]), features, rtol=1e-4, atol=1e-5)
    assert results["fill-mask"][0]["token"] == best.indices.item()
    assert results["fill-mask"][0]["score"] == pytest.approx(best.values.item(), rel=1e-4)


NAMED_BY_HAND = """
from transformers import pipeline
folder, text = arguments
options = {"model": folder, "trust_remote_code": True, "device": "cpu"}
tasks = ("summarization", "translation", "translation_en_to_es")
print(json.dumps([pipeline(task, **options)(text) for task in tasks]))
"""


def test_configs_may_register_our_pipelines_for_other_tasks(tokenizers, translator, tmp_path):
    model = seq2seq(tokenizers["seq2seq"])
    ours = {"impl": "pipeline_vanilla_transformer.TranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"]}
    model.config.custom_pipelines = {"summarization": ours, "translation_en_to_es": ours}
    model.save_pretrained(tmp_path / "first")
    type(model).from_pretrained(tmp_path / "first").save_pretrained(tmp_path / "again")
    tokenizers["seq2seq"].save_pretrained(tmp_path / "again")
    results = run_fresh(NAMED_BY_HAND, tmp_path, str(tmp_path / "again"), QUESTION, HF_HUB_OFFLINE="1")
    (expected,) = translator([QUESTION])
    assert results == [[{"summary_text": expected["translation_text"]}], [expected], [expected]]


def test_saved_tokenizers_load_without_this_project_installed(tmp_path):
    kinds = [f"{template}-{kind}" for template, kind in product(TEMPLATES, KINDS)]
    expected = {}
    for name in kinds:
        tokenizer = train_tokenizer(TEXTS, *name.split("-"), vocab_size=330)
        tokenizer.save_pretrained(tmp_path / name)
        ids = tokenizer(CONTEXT, QUESTION)["input_ids"]
        expected[name] = [ids, tokenizer.decode(ids, skip_special_tokens=True), tokenizer.padding_side]
    found = run_fresh(
        """
from transformers import AutoTokenizer
folder, names, context, question = arguments
results = {}
for name in names:
    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/{name}")
    ids = tokenizer(context, question)["input_ids"]
    results[name] = [ids, tokenizer.decode(ids, skip_special_tokens=True), tokenizer.padding_side]
print(json.dumps(results, default=float))
""",
        tmp_path, str(tmp_path), kinds, CONTEXT, QUESTION, HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert found == expected


def test_saved_configs_list_only_the_pipeline_of_their_own_model(reader, tokenizers, tmp_path):
    reader.model.save_pretrained(tmp_path / "reader")
    saved = json.loads((tmp_path / "reader/config.json").read_text())["custom_pipelines"]
    assert saved == {
        "question-answering": {
            "impl": "pipeline_vanilla_transformer.QuestionAnsweringPipeline",
            "pt": ["AutoModelForQuestionAnswering"],
        }
    }
    assert (tmp_path / "reader/pipeline_vanilla_transformer.py").is_file()

    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "reader")
    classifier.save_pretrained(tmp_path / "classifier")
    assert "custom_pipelines" not in json.loads((tmp_path / "classifier/config.json").read_text())


def test_transformers_finds_our_pipelines_after_importing_this_project(translator, tmp_path):
    translator.save_pretrained(tmp_path)
    found = pipeline("translation", model=str(tmp_path), trust_remote_code=True, device="cpu")
    assert type(found.model) is VanillaTransformerForConditionalGeneration
    assert found(QUESTION) == translator(QUESTION)
    found.save_pretrained(tmp_path / "again")  # `pipeline` has put classes into the config, which must still save


# --- Translation


def test_a_string_gives_a_list_and_a_list_of_strings_gives_one_record_each(translator):
    assert [list(record) for record in translator(QUESTION)] == [["translation_text"]]
    assert translator(TEXTS) == [translator(text)[0] for text in TEXTS]
    alternatives = translator(TEXTS, num_beams=4, num_return_sequences=3)
    assert [len(records) for records in alternatives] == [3, 3, 3]
    assert alternatives[0] == translator(TEXTS[0], num_beams=4, num_return_sequences=3)
    assert [records[0] for records in alternatives] == translator(TEXTS, num_beams=4)
    assert list(translator(text for text in TEXTS)) == [translator(text) for text in TEXTS]


def test_batches_give_the_same_translations_as_single_inputs(translator):
    assert translator(TEXTS, num_beams=3, batch_size=2, max_length=60) == translator(TEXTS, num_beams=3, max_length=60)


@pytest.mark.parametrize("text", ["I like </s> to travel.", "<s>I like</s> <pad> to travel."])
def test_special_tokens_in_the_input_are_treated_as_ordinary_text(text, translator):
    assert translator(text, num_beams=2) == [
        {"translation_text": translate([text], translator.model, translator.tokenizer, num_beams=2)[0]}
    ]
    read = translator.preprocess(text)["input_ids"][0]
    assert translator.tokenizer.decode(read[:-1]).strip() == text


@pytest.mark.parametrize(
    "options",
    [{"num_beams": 4, "length_penalty": 0.6}, {"max_new_tokens": 5}, {"num_beams": 2, "no_repeat_ngram_size": 2}],
)
def test_generate_options_can_be_passed_per_call_or_at_construction(options, translator):
    model, tokenizer = translator.model, translator.tokenizer
    batch = tokenizer(CONTEXT, return_tensors="pt")
    limit = {} if "max_new_tokens" in options else {"max_length": batch["input_ids"].shape[1] + 50}
    expected = tokenizer.batch_decode(model.generate(**batch, **limit, **options), skip_special_tokens=True)
    assert translator(CONTEXT, **options) == [{"translation_text": expected[0]}]
    prepared = TranslationPipeline(model=model, tokenizer=tokenizer, device="cpu", **options)
    assert prepared(CONTEXT) == [{"translation_text": expected[0]}]


def test_translations_exceed_their_source_by_at_most_50_tokens(translator):
    endless = {"eos_token_id": -1}
    batch = translator.tokenizer(QUESTION, return_tensors="pt")
    outputs = translator.forward(translator.preprocess(QUESTION), **endless)
    assert outputs["output_ids"].shape == (1, 1, batch["input_ids"].shape[1] + 50)


def test_learned_positions_limit_the_length_of_a_translation(tokenizers):
    tokenizer = tokenizers["seq2seq"]
    positions = len(tokenizer(QUESTION)["input_ids"]) + 3
    model = seq2seq(tokenizer, position_embedding="learned", max_position_embeddings=positions)
    pipe = TranslationPipeline(model=model, tokenizer=tokenizer)
    outputs = pipe.forward(pipe.preprocess(QUESTION), eos_token_id=-1)
    assert outputs["output_ids"].shape == (1, 1, positions)
    assert len(translate([QUESTION], model, tokenizer, eos_token_id=-1)) == 1


@pytest.mark.parametrize("blank", ["", " ", "\t\u3000\u00a0\n", "\u200b\ufeff"])
def test_blank_inputs_stay_blank(blank, translator):
    assert translator(blank) == [{"translation_text": ""}]
    expected = [translator(QUESTION)[0]["translation_text"], ""]
    assert [record["translation_text"] for record in translator([QUESTION, blank], batch_size=2)] == expected


def test_an_empty_list_gives_an_empty_list(translator, reader):
    assert translator([]) == reader([]) == []


def test_long_inputs_are_truncated_on_request(translator, monkeypatch):
    monkeypatch.setattr(translator.tokenizer, "model_max_length", 12)
    ids = translator.preprocess(CONTEXT, truncation=True)["input_ids"]
    assert ids.shape == (1, 12) and ids[0, -1] == translator.tokenizer.eos_token_id
    shortened = translator.tokenizer.decode(ids[0], skip_special_tokens=True)
    assert translator(CONTEXT, truncation=True) == translator(shortened) != translator(CONTEXT)


def test_arguments_of_the_transformers_4_pipeline_are_accepted(translator):
    expected = translator(QUESTION)
    for options in (
        {"clean_up_tokenization_spaces": False},
        {"return_text": True},
        {"src_lang": "en", "tgt_lang": "es"},
    ):
        assert translator(QUESTION, **options) == expected
    (record,) = translator(QUESTION, return_tensors=True)
    text = translator.tokenizer.decode(record["translation_token_ids"], skip_special_tokens=True)
    assert [{"translation_text": text}] == expected


def test_a_stop_sequence_ends_a_translation(translator):
    token = translator.tokenizer("a", add_special_tokens=False)["input_ids"][0]
    options = {"num_beams": 1, "max_new_tokens": 5, "prefix_allowed_tokens_fn": lambda *_: [token]}
    for ended, count in (({}, 5), ({"stop_sequence": "a"}, 1)):
        (record,) = translator(QUESTION, return_tensors=True, **options, **ended)
        assert record["translation_token_ids"].tolist()[1:] == [token] * count


def test_inputs_that_are_not_strings_are_rejected(translator):
    with pytest.raises(TypeError, match="A translation needs a text; got 7"):
        translator([QUESTION, 7])


# --- Question answering


def all_spans(pipe, question, context, window, overlap, longest) -> dict[tuple[int, int], float]:
    """Return (start, end) characters of each answer -> score, by an exhaustive search over hand-made windows."""
    tokenizer, model = pipe.tokenizer, pipe.model
    q = tokenizer(question, add_special_tokens=False)["input_ids"]
    c = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
    room = window - len(q) - 3
    found = {}
    for begin in range(0, max(1, len(c["input_ids"]) - overlap), room - overlap):
        piece = c["input_ids"][begin : begin + room]
        ids = [tokenizer.bos_token_id, *q, tokenizer.eos_token_id, *piece, tokenizer.eos_token_id]
        with torch.inference_mode():
            output = model(torch.tensor([ids]))
        places = [0, *range(len(q) + 2, len(ids) - 1)]
        starts, ends = (logits[0, places].softmax(-1)[1:] for logits in (output.start_logits, output.end_logits))
        for first in range(len(piece)):
            for last in range(first, min(first + longest, len(piece))):
                start, end = c["offset_mapping"][begin + first][0], c["offset_mapping"][begin + last][1]
                start += len(context[start:end]) - len(context[start:end].lstrip())
                found[start, end] = max(found.get((start, end), 0), (starts[first] * ends[last]).item())
    return found


@pytest.mark.parametrize(("window", "overlap", "longest"), [(384, 128, 30), (60, 10, 4), (50, 0, 1), (48, 3, 30)])
def test_answers_equal_those_of_an_exhaustive_search(window, overlap, longest, reader):
    options = {"max_seq_len": window, "doc_stride": overlap, "max_answer_len": longest}
    answers = reader(question=QUESTION, context=CONTEXT, top_k=5, **options)
    truth = all_spans(reader, QUESTION, CONTEXT, window, overlap, longest)
    assert [answer["score"] for answer in answers] == pytest.approx(sorted(truth.values())[:-6:-1], rel=1e-4)
    for answer in answers:
        assert answer["score"] == pytest.approx(truth[answer["start"], answer["end"]], rel=1e-4)
        assert answer["answer"] == CONTEXT[answer["start"] : answer["end"]] != ""
    assert reader(question=QUESTION, context=CONTEXT, **options) == answers[0]


def test_question_answering_accepts_the_arguments_of_the_transformers_4_pipeline(reader):
    expected = reader(question=QUESTION, context=CONTEXT)
    assert reader(QUESTION, CONTEXT) == reader({"question": QUESTION, "context": CONTEXT}) == expected
    assert reader(QUESTION, context=CONTEXT) == expected
    assert reader([QUESTION] * 2, CONTEXT, padding=True, max_question_len=64, align_to_words=True) == [expected] * 2


def test_an_answer_does_not_cut_a_number():
    text = "The museum had 5,228 visitors on 4/13/80."
    assert [number_end(text, text.index(cut) + len(cut)) for cut in ("5,2", "5,228", "had", "4/1", "4/13/8")] == [
        text.index(whole) + len(whole) for whole in ("5,228", "5,228", "had", "4/13", "4/13/80")
    ]
    assert number_end("in 2019", 6) == 7


def test_questions_may_be_strings_lists_records_or_batches(reader):
    options = {"max_seq_len": 60, "doc_stride": 10}
    first, second = (reader(question=QUESTION, context=text, **options) for text in (CONTEXT, TEXTS[2]))
    records = [{"question": QUESTION, "context": text} for text in (CONTEXT, TEXTS[2])]
    assert reader(records[0], **options) == first
    assert reader(records, **options) == [first, second]
    assert reader(question=QUESTION, context=[CONTEXT, TEXTS[2]], **options) == [first, second]
    assert reader(question=[QUESTION] * 2, context=CONTEXT, **options) == [first, first]
    for batched, single in zip(reader(records, batch_size=3, **options), [first, second], strict=True):
        assert batched == {**single, "score": pytest.approx(single["score"], rel=1e-4)}


def test_a_trained_model_finds_late_answers_and_detects_missing_answers(tokenizers):
    tokenizer = tokenizers["encoder"]
    model = encoder(VanillaTransformerForQuestionAnswering, tokenizer, dropout=0.0)
    options = {"max_seq_len": 70, "doc_stride": 15, "handle_impossible_answer": True}
    pipe = QuestionAnsweringPipeline(model=model, tokenizer=tokenizer, device="cpu", **options)
    filler = "It was raining, and raining, and it was raining on every sign. "
    known, unknown = filler * 4 + CONTEXT + filler * 3, filler * 8
    answer = known.index("Zürich")
    rows = [
        {"question": QUESTION, "context": known, "answers": {"text": ["Zürich"], "answer_start": [answer]}},
        {"question": QUESTION, "context": unknown, "answers": {"text": [], "answer_start": []}},
    ]
    config = VanillaTransformerEncoderConfig()
    encoded = QuestionAnsweringTask(Namespace(max_length=70, stride=15)).encode(
        Dataset.from_list(rows), tokenizer, config
    )
    windows = [window["input_ids"][0].tolist() for row in rows for window in pipe.preprocess(row, 70, 15)]
    assert windows == encoded["input_ids"] and len(windows) == 8
    batch = DataCollatorWithPadding(tokenizer)(encoded.to_list())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(60):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()

    found = pipe(question=QUESTION, context=known)
    assert (found["answer"], found["start"]) == ("Zürich", answer)
    assert found["score"] > 0.5
    nothing = pipe(question=QUESTION, context=unknown)
    assert nothing == {"score": pytest.approx(1, abs=0.2), "start": 0, "end": 0, "answer": ""}
    assert pipe(question=QUESTION, context=unknown, handle_impossible_answer=False)["answer"] != ""


def test_left_padding_does_not_change_answers(tokenizers):
    tokenizer = copy.deepcopy(tokenizers["encoder"])
    tokenizer.padding_side = "left"
    model = encoder(VanillaTransformerForQuestionAnswering, tokenizer)
    pipe = QuestionAnsweringPipeline(model=model, tokenizer=tokenizer, device="cpu")
    records = [{"question": QUESTION, "context": text} for text in (CONTEXT, TEXTS[2])]
    options = {"max_seq_len": 60, "doc_stride": 10, "handle_impossible_answer": True, "top_k": 50}
    for batched, single in zip(pipe(records, batch_size=4, **options), pipe(records, **options), strict=True):
        scores = {(answer["start"], answer["end"]): answer["score"] for answer in single}
        assert {(answer["start"], answer["end"]): answer["score"] for answer in batched} == pytest.approx(scores)


def test_answer_positions_are_correct_with_either_padding_side(tokenizers, tmp_path):
    """Tokenizers of language models usually pad on the left."""
    tokenizer = copy.deepcopy(tokenizers["encoder"])
    tokenizer.padding_side = "left"
    model = encoder(VanillaTransformerForQuestionAnswering, tokenizer)
    task = QuestionAnsweringTask(QuestionAnsweringArguments(output_dir=tmp_path, max_length=300))
    texts = ["I like to travel.", "Long ago, in a country far away, there lived a king who liked to travel."]
    answers = [{"text": ["travel"], "answer_start": [text.index("travel")]} for text in texts]
    rows = Dataset.from_dict({"question": [QUESTION] * 2, "context": texts, "answers": answers})
    encoded = task.encode(rows, tokenizer, model.config)
    batch = task.collator(tokenizer, model)(list(encoded))
    for ids, first, last in zip(batch["input_ids"], batch["start_positions"], batch["end_positions"], strict=True):
        assert tokenizer.decode(ids[first : last + 1]).strip() == "travel"


def test_an_answer_scores_the_maximum_over_windows_and_no_answer_the_minimum(reader):
    """The first window gives the answer a high score; the second window gives "no answer" a high score."""
    offsets = torch.tensor([[[0, 0], [0, 5], [6, 12]]])
    sure, unsure = torch.tensor([[0.0, 6.0, 0.0]]), torch.tensor([[9.0, 1.0, 0.0]])
    windows = [
        {"start_logits": logits, "end_logits": logits, "offsets": offsets, "context": "María García",
         "attention_mask": torch.ones(1, 3)}
        for logits in (sure, unsure)
    ]  # fmt: skip
    answers = reader.postprocess(windows, top_k=4, handle_impossible_answer=True)
    scores = {answer["answer"]: answer["score"] for answer in answers}
    sure = sure.softmax(-1)[0]
    assert (scores["María"], scores[""]) == pytest.approx((float(sure[1] ** 2), float(sure[0] ** 2)))


def test_windows_do_not_exceed_model_max_length(tokenizers):
    tokenizer = copy.deepcopy(tokenizers["encoder"])
    tokenizer.model_max_length = 48
    model = encoder(VanillaTransformerForQuestionAnswering, tokenizer)
    pipe = QuestionAnsweringPipeline(model=model, tokenizer=tokenizer, device="cpu")
    lengths = [row["input_ids"].shape[1] for row in pipe.preprocess({"question": QUESTION, "context": CONTEXT * 3})]
    assert len(lengths) > 2 and max(lengths) == 48


def test_windows_do_not_exceed_the_learned_positions(tokenizers):
    fields = {"position_embedding": "learned", "max_position_embeddings": 48}
    model = encoder(VanillaTransformerForQuestionAnswering, tokenizers["encoder"], **fields)
    pipe = QuestionAnsweringPipeline(model=model, tokenizer=tokenizers["encoder"], device="cpu")
    found = pipe(question=QUESTION, context=CONTEXT * 3)
    assert (CONTEXT * 3)[found["start"] : found["end"]] == found["answer"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"question": " ", "context": CONTEXT}, ValueError, "question=' ' must be a text that is not empty"),
        ({"question": QUESTION}, ValueError, "context=None must be a text that is not empty"),
        ({"question": ["a"], "context": ["b", "c"]}, ValueError, "1 questions do not go with 2 contexts"),
        ({"question": QUESTION, "context": CONTEXT, "top_k": 0}, ValueError, "top_k=0 must be an integer, at least 1"),
        ({"question": QUESTION, "context": CONTEXT, "top_k": None}, ValueError, "top_k=None must be an integer"),
        ({"question": QUESTION, "context": CONTEXT, "doc_stride": -1}, ValueError, "doc_stride=-1 must .* at least 0"),
        ({"question": QUESTION, "context": CONTEXT, "topk": 2}, TypeError, "topk=2 is not an option here"),
        ({"question": CONTEXT, "context": "a", "max_seq_len": 20}, ValueError, "41 tokens.* 20.*max_seq_len"),
    ],
)  # fmt: skip
def test_invalid_questions_are_rejected(options, error, message, reader):
    with pytest.raises(error, match=message):
        reader(**options)
