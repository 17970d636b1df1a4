"""Trained tokenizers are lossless, cover all of Unicode, and load with AutoTokenizer alone."""

import json
import math
import unicodedata

import pytest
from transformers import AutoTokenizer

from fresh_process import run_fresh
from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.data.tokenizer import KINDS, TEMPLATES, train_tokenizer


CORPUS = [
    "The museum in Norway had 1204 visitors in May 2031.",
    "Das Museum in Norwegen hatte im Mai 2031 1.204 Besucher.",
    "नॉर्वे के संग्रहालय में मई 2031 में 1,204 आगंतुक आए।",
    "वे संग्रहालय में आए, और हम संग्रहालय में नहीं आए।",
] * 10

# Strings to tokenize; most of their characters do not occur in the training corpus
TEXTS = {
    "hindi": "हिन्दी में एक वाक्य, क्षत्रिय ज़्यादा",
    "arabic": "مَرْحَبًا بِالعَالَم ١٢٣",
    "persian with a zero width non-joiner": "می\u200cخواهم",
    "hebrew between direction marks": "\u200fשלום\u200e (world) \u202bעברית\u202c",
    "chinese": "我喜欢学习变换器模型。",
    "japanese": "トランスフォーマー・モデル",
    "thai": "สวัสดีชาวโลก",
    "korean": "안녕하세요 세계",
    "emoji joined by zero width joiners": "👩🏽‍🚀 👨‍👩‍👧‍👦 🏳️‍🌈 🇳🇴",
    "combining marks": "e\u0301 a\u0323\u0302 Z\u0351\u036b\u0343\u036a\u0302\u036b",
    "composed and compatibility characters": "é ﬁ Å Ⅷ ﷺ",
    "spaces": "  two  in front,   three inside, one behind ",
    "other white space": "\ttab\n\nnew lines\r\n\x0b\x0c\x85\u00a0\u2009\u2028\u3000.",
    "only spaces": "   ",
    "control characters": "nul\x00bell\x07escape\x1b[0m delete\x7f",
    "noncharacters and private use": "\ufeff\ufffd\ufffe\uffff\ue000\U0010fffd\U000e0001",
    "code": 'if (x != "\\n") { y += 0x1F; }  // <0x41> Ġ ▁',
}
LOSSLESS = [kind for kind in KINDS if kind != "word"]
LITERALS = "a <pad> b<s>c</s> <mask> <unk>"


@pytest.fixture(scope="module")
def tokenizers():
    return {
        (template, kind): train_tokenizer(CORPUS, template=template, kind=kind, vocab_size=600)
        for template in TEMPLATES
        for kind in LOSSLESS
    }


def round_trip(tokenizer, text, **options):
    return tokenizer.decode(tokenizer(text, **options)["input_ids"], skip_special_tokens=True)


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_decoding_restores_the_input(tokenizers, template, kind):
    assert {name: round_trip(tokenizers[template, kind], text) for name, text in TEXTS.items()} == TEXTS


@pytest.mark.parametrize("kind", LOSSLESS)
def test_decoding_restores_every_unicode_character(tokenizers, kind):
    text = "".join(chr(point) for point in range(0x110000) if unicodedata.category(chr(point)) != "Cs")[::5]
    assert round_trip(tokenizers["seq2seq", kind], text) == text


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_special_tokens_in_a_corpus_can_be_treated_as_text(tokenizers, template, kind):
    tokenizer = tokenizers[template, kind]
    assert round_trip(tokenizer, LITERALS, split_special_tokens=True) == LITERALS
    ids = tokenizer(LITERALS, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert not set(ids) & {0, 1, 2, tokenizer.mask_token_id}


SPECIAL = """
from transformers import AutoTokenizer
found = {}
for folder in arguments:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ended = tokenizer("May" + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
    plain = tokenizer("May", add_special_tokens=False)["input_ids"]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    user = tokenizer("<|user|>", add_special_tokens=False)["input_ids"]
    found[folder] = [ended == [*plain, tokenizer.eos_token_id], user == [len(tokenizer) - 1]]
print(json.dumps(found))
"""


def test_saved_tokenizers_parse_special_tokens(tokenizers, tmp_path):
    for (template, kind), tokenizer in tokenizers.items():
        tokenizer("a</s>", split_special_tokens=True)  # Encoding training data leaves this setting in the tokenizer.
        tokenizer.save_pretrained(tmp_path / f"{template}-{kind}")
    folders = sorted(path.name for path in tmp_path.iterdir())
    assert run_fresh(SPECIAL, tmp_path, *folders) == {folder: [True, True] for folder in folders}
    for file in tmp_path.glob("*/tokenizer_config.json"):
        assert "split_special_tokens" not in json.loads(file.read_text())


def test_chats_begin_with_bos_and_assistant_turns_end_with_eos(tokenizers):
    tokenizer = tokenizers["causal", "byte_bpe"]
    asked = [{"role": "user", "content": "The museum"}]
    answered = [*asked, {"role": "assistant", "content": "in May"}]
    again = [*answered, {"role": "user", "content": "Norway"}]
    for messages, text, ends in (
        (asked, "The museum", 0),
        (answered, "The museum\nin May", 1),
        (again, "The museum\nin May\nNorway", 1),
    ):
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert (ids.count(tokenizer.bos_token_id), ids.count(tokenizer.eos_token_id)) == (1, ends)
        assert ids[0] == tokenizer.bos_token_id
    # A prompt is tokenized exactly like the beginning of a training chat.
    whole = tokenizer.apply_chat_template(answered)["input_ids"]
    asked_ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
    assert whole[: len(asked_ids)] == asked_ids
    assert whole[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("kind", LOSSLESS)
def test_there_is_no_unknown_token(tokenizers, kind):
    tokenizer = tokenizers["seq2seq", kind]
    assert tokenizer.unk_token is None
    assert "<unk>" not in tokenizer.get_vocab()


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_special_tokens_have_the_ids_that_configs_expect(tokenizers, template, kind):
    tokenizer, config = tokenizers[template, kind], VanillaTransformerConfig()
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        assert getattr(tokenizer, name) == getattr(config, name)
    assert config.decoder_start_token_id == tokenizer.bos_token_id
    assert tokenizer.mask_token_id == (3 if template == "encoder" else None)


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize(
    ("template", "single", "pair"),
    [
        ("seq2seq", "A </s>", "A </s> B </s>"),
        ("causal", "<s> A", "<s> A B"),
        ("encoder", "<s> A </s>", "<s> A </s> B </s>"),
    ],
)
def test_templates_add_special_tokens_to_single_sequences_and_pairs(tokenizers, template, single, pair, kind):
    tokenizer = tokenizers[template, kind]
    texts = {"A": "Museum in", "B": "May 2031"}

    def ids(pattern):
        special = {"<s>": [1], "</s>": [2]}
        plain = {name: tokenizer(text, add_special_tokens=False)["input_ids"] for name, text in texts.items()}
        return [i for part in pattern.split() for i in (special | plain)[part]]

    assert tokenizer(texts["A"])["input_ids"] == ids(single)
    assert tokenizer(*texts.values())["input_ids"] == ids(pair)


def test_batches_have_ids_and_mask_with_the_padding_side_of_the_family(tokenizers):
    for template, padded in (("seq2seq", [1, 0]), ("causal", [0, 1]), ("encoder", [1, 0])):
        batch = tokenizers[template, "character"](["May", "In"], padding=True)
        assert set(batch) == {"input_ids", "attention_mask"}
        assert [batch["attention_mask"][1][0], batch["attention_mask"][1][-1]] == padded


def test_mask_includes_the_preceding_space_except_for_character_tokenizers(tokenizers):
    for kind, masked in (("byte_bpe", "Mai"), ("unigram", "Mai"), ("character", "Mai ")):
        tokenizer = tokenizers["encoder", kind]
        ids = tokenizer("Mai <mask>.", add_special_tokens=False)["input_ids"]
        place = ids.index(tokenizer.mask_token_id)
        assert tokenizer.decode(ids[:place]) == masked
        assert tokenizer.decode(ids[place + 1 :]) == "."


@pytest.mark.parametrize("kind", LOSSLESS)
def test_offsets_locate_an_answer_in_the_context(tokenizers, kind):
    tokenizer = tokenizers["encoder", kind]
    question, context = "Where?", "  Das  Museum in\tनॉर्वे 👩🏽‍🚀, 2031."
    encoded = tokenizer(question, context, return_offsets_mapping=True)
    for answer in ("Museum", "in", "नॉर्वे", "👩🏽‍🚀", "2031", "31", "."):
        start = context.index(answer)
        spans = [
            span
            for span, part in zip(encoded["offset_mapping"], encoded.sequence_ids(), strict=True)
            if part == 1 and span[0] < start + len(answer) and span[1] > start
        ]
        assert context[spans[0][0] : spans[-1][1]] == answer


def test_unigram_separates_endings_where_bpe_keeps_whole_words():
    corpus = ["she plays and he played while they sing and she sings , he walks , they walked , she is playing"] * 20
    corpus += [
        "we are walking and he is singing , he calls , she called , they are calling , a call , a walk , we play"
    ] * 20
    pairs, unigram = (
        train_tokenizer(corpus, kind=kind, vocab_size=310).tokenize("walking calls sings")
        for kind in ("byte_bpe", "unigram")
    )
    assert pairs == ["Ġwalking", "Ġcalls", "Ġsings"]
    assert unigram == [" walk", "ing", " call", "s", " sing", "s"]


def test_unigram_chooses_the_most_probable_segmentation():
    """Compute the expected score by searching all segmentations of a word, using the saved probabilities."""
    tokenizer = train_tokenizer(CORPUS, kind="unigram", vocab_size=600)
    saved = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["vocab"]
    scores = {token: score for token, score in saved if not token.startswith("<")}

    def best(word):
        if not word:
            return 0.0
        heads = (word[:end] for end in range(1, len(word) + 1))
        return max((scores[head] + best(word[len(head) :]) for head in heads if head in scores), default=-math.inf)

    for word in (" Museum", " Besucher", " visitors", " Norwegen", " Mai"):
        tokens = tokenizer.tokenize(word.strip())
        assert math.isclose(sum(scores[token] for token in tokens), best(word), abs_tol=1e-9)


def test_byte_bpe_keeps_words_with_vowel_signs_whole_and_splits_numbers(tokenizers):
    tokenizer = tokenizers["causal", "byte_bpe"]
    assert len(tokenizer(" संग्रहालय", add_special_tokens=False)["input_ids"]) == 1
    assert len(tokenizer(" Museum", add_special_tokens=False)["input_ids"]) == 1
    digits = tokenizer(" 2031", add_special_tokens=False)["input_ids"]
    assert [tokenizer.decode(i) for i in digits] == [" 2", "0", "3", "1"]


@pytest.mark.parametrize(("lowercase", "name"), [(False, "Museum"), (True, "museum")])
def test_seq2seq_tokens_of_a_word_do_not_depend_on_its_position(lowercase, name, tmp_path):
    train_tokenizer(CORPUS, vocab_size=600, lowercase=lowercase).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    first, second, end = tokenizer("Museum Museum")["input_ids"]
    assert first == second
    assert tokenizer.convert_ids_to_tokens(first) == f"Ġ{name}"
    assert tokenizer.decode([first, second, end], skip_special_tokens=True) == f"{name} {name}"
    assert tokenizer(["Museum", "Museum"], is_split_into_words=True).word_ids() == [0, 1, None]
    read = tokenizer("Museum in", text_pair="Museum", return_offsets_mapping=True)
    assert read["offset_mapping"] == [(0, 6), (7, 9), (0, 0), (0, 6), (0, 0)]


@pytest.mark.parametrize("template", ["causal", "encoder"])
def test_language_model_tokenizers_add_no_space_at_the_beginning(tokenizers, template):
    tokenizer = tokenizers[template, "byte_bpe"]
    begin, middle = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("Museum", " Museum"))
    assert tokenizer.decode(middle) == " Museum"
    assert begin != middle


def test_character_tokenizers_encode_unseen_characters_as_bytes(tokenizers):
    tokenizer = tokenizers["causal", "character"]
    assert tokenizer.tokenize("के Mai") == list("के Mai")
    assert tokenizer.tokenize("é") == ["<0xC3>", "<0xA9>"]
    assert len(tokenizer) == 3 + 256 + len(set("".join(CORPUS)))


def test_a_small_vocabulary_keeps_the_most_frequent_characters():
    tokenizer = train_tokenizer(["aaabbbbc"], kind="character", vocab_size=3 + 256 + 2)
    assert tokenizer.tokenize("abc") == ["a", "b", "<0x63>"]
    assert len(tokenizer) == 261


@pytest.mark.parametrize("kind", LOSSLESS)
def test_the_vocabulary_is_never_larger_than_requested(kind):
    smallest = 3 + 256 + (len(set("".join(CORPUS))) if kind == "unigram" else 0)
    for size in (smallest, smallest + 10):
        assert len(train_tokenizer(CORPUS, kind=kind, vocab_size=size)) == size


def test_a_unigram_vocabulary_smaller_than_the_alphabet_is_rejected():
    characters = len(set("".join(CORPUS)))
    with pytest.raises(ValueError, match=f"vocab_size={258 + characters} and kind='unigram': .* kind='byte_bpe'"):
        train_tokenizer(CORPUS, kind="unigram", vocab_size=3 + 256 + characters - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic(kind, tmp_path):
    first, second = (train_tokenizer(iter(CORPUS), kind=kind, vocab_size=600) for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
    code = f"""
from vanilla_transformer.data.tokenizer import train_tokenizer
print(json.dumps(train_tokenizer({CORPUS}, kind="{kind}", vocab_size=600).backend_tokenizer.to_str()))
"""
    assert run_fresh(code, tmp_path, installed=True) == first.backend_tokenizer.to_str()


@pytest.mark.parametrize("kind", KINDS)
def test_lowercase_applies_to_text_but_not_to_special_tokens(kind):
    tokenizer = train_tokenizer(["ΑΒΓ Straße İ"] * 3, template="encoder", kind=kind, lowercase=True)
    assert tokenizer("ΑΒΓ STRAẞE")["input_ids"] == tokenizer("αβγ straße")["input_ids"]
    assert round_trip(tokenizer, "ΑΒΓ") == "αβγ"
    assert tokenizer("<mask>")["input_ids"] == [1, 3, 2]


@pytest.mark.parametrize("kind", LOSSLESS)
def test_auto_tokenizer_loads_trained_tokenizers_without_this_package(tokenizers, kind, tmp_path):
    folder = tmp_path / "tokenizer"
    expected = {}
    for template in TEMPLATES:
        tokenizer = tokenizers[template, kind]
        tokenizer.save_pretrained(folder / template)
        expected[template] = tokenizer("  नॉर्वे 👩🏽‍🚀 </s>\n", "2031")["input_ids"]
    code = f"""
import importlib.util
from transformers import AutoTokenizer
assert importlib.util.find_spec("tokenizer_training") is None
found = {{}}
for template in {list(TEMPLATES)}:
    tokenizer = AutoTokenizer.from_pretrained("tokenizer/" + template)
    found[template] = tokenizer("  नॉर्वे 👩🏽‍🚀 </s>\\n", "2031")["input_ids"]
print(json.dumps(found))
"""
    assert run_fresh(code, tmp_path) == expected


def test_saved_tokenizer_class_exists_in_transformers_4_and_5(tokenizers, tmp_path):
    tokenizers["causal", "byte_bpe"].save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert saved["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert saved["model_input_names"] == [
        "input_ids",
        "attention_mask",
    ]  # without this setting, transformers 4 adds token_type_ids
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.padding_side == "left"
    assert round_trip(loaded, LITERALS, split_special_tokens=True) == LITERALS


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["a"], {"vocab_size": 258}, "vocab_size=258 is too small.* 259"),
        (["a"], {"vocab_size": 259, "template": "encoder"}, "vocab_size=259 is too small.* 260"),
        (["a"], {"template": "decoder"}, "template='decoder' .* seq2seq, causal, encoder"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_error_for_invalid_tokenizer_options_gives_the_reason(texts, options, message, kind):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(iter(texts), kind=kind, **options)


def test_error_for_an_unknown_kind_lists_the_known_kinds():
    with pytest.raises(ValueError, match=r"kind='words' .* byte_bpe, unigram, character, word"):
        train_tokenizer(["a"], kind="words")


def test_a_word_tokenizer_knows_the_words_that_occur_twice(tmp_path):
    texts = ["Play some jazz", "Please play some music", "play a song!"] * 2 + ["Book a table for nine!"]
    train_tokenizer(texts, "encoder", "word", lowercase=True).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.convert_ids_to_tokens(range(10))[:7] == [
        "<pad>",
        "<s>",
        "</s>",
        "<mask>",
        "<unk>",
        "play",
        "some",
    ]
    ids = tokenizer("PLAY a tango!")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", "play", "a", "<unk>", "!", "</s>"]
    assert tokenizer.unk_token == "<unk>" and tokenizer.decode(ids, skip_special_tokens=True) == "play a !"
    assert "table" not in tokenizer.get_vocab()
    for template in TEMPLATES:
        tokenizer = train_tokenizer(texts, template, "word", vocab_size=300)
        text = tokenizer.decode(tokenizer("play  some jazz!")["input_ids"], skip_special_tokens=True)
        assert text == "play some jazz !" and len(tokenizer) < 20
