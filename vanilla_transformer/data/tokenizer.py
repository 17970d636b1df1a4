"""Train a lossless tokenizer that AutoTokenizer loads without this project: any text decodes to itself.

All kinds fall back to bytes, so no character is ever unknown. As in every transformers tokenizer, "</s>" in a text is
the special token: chat templates write </s> this way, and users <mask>. To tokenize a corpus in which "</s>" is
ordinary text, call `tokenizer(texts, split_special_tokens=True)`.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerBase, TokenizersBackend

from vanilla_transformer.files import temporary_sibling


CACHE_VERSION = 1  # increase it when the same texts and options give a different tokenizer
PAD, BOS, EOS, MASK = "<pad>", "<s>", "</s>", "<mask>"  # ids 0 to 3; the first three are the defaults of the configs

# Special tokens around one sequence ($A) and around a pair ($A, $B), for each family of models.
TEMPLATES = {
    "seq2seq": (f"$A {EOS}", f"$A {EOS} $B {EOS}"),  # source and target; the model puts <s> before the target
    "causal": (f"{BOS} $A", f"{BOS} $A $B"),  # no </s>, so that a prompt can be continued
    "encoder": (
        f"{BOS} $A {EOS}",
        f"{BOS} $A {EOS} $B {EOS}",
    ),  # <s>: read by pooling="first"; "no answer" in QA
}
BYTES = 256
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(BYTES)]  # token names that ByteFallback decodes

# No token spans two pieces. A piece is a word with its vowel signs and the space before it, one digit, other
# characters, or white space. Splitting numbers into digits lets a model read and write unseen numbers.
PIECES = Regex(r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+")
# A language model knows no roles, but continues the last message. Each turn is a line. Assistant turns end with </s>,
# so that fine-tuning on chats teaches the model to stop. There is no generation prompt.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


class PreTrainedTokenizerFast(TokenizersBackend):
    """`TokenizersBackend` under its name in transformers 4, because a saved folder contains the class name."""


def byte_bpe(texts: Iterable[str], vocab_size: int, special_tokens: list[AddedToken]) -> Tokenizer:
    """Train byte pair encoding (section 5.1) on UTF-8 bytes; merges occur at least twice."""
    tokenizer = Tokenizer(models.BPE())
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(PIECES, "isolated"), to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def unigram(texts: Iterable[str], vocab_size: int, special_tokens: list[AddedToken]) -> Tokenizer:
    """Train a unigram language model (Kudo 2018, arXiv 1804.10959), which splits a word into its most probable tokens.

    It prefers stems and endings, where byte pair encoding keeps each frequent form whole. A character outside the
    vocabulary becomes its UTF-8 bytes. tokenizers for JavaScript (0.2) lacks this byte fallback and reads such
    characters
    as padding.
    """
    names = [str(token) for token in special_tokens]
    room = vocab_size - len(names) - BYTES
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(PIECES, "isolated")
    try:
        # The trainer's default of 16 characters would create tokens that begin in the middle of longer words.
        trainer = trainers.UnigramTrainer(vocab_size=max(room, 1), max_piece_length=32, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
    except Exception as error:  # tokenizers raises no specific class
        raise ValueError(
            f"vocab_size={vocab_size} and kind='unigram': {error}. Raise it above the number of different characters "
            f"plus {BYTES + len(names)}, or use kind='byte_bpe'."
        ) from error
    trained = json.loads(tokenizer.to_str())["model"]["vocab"]
    scores = {token: round(score, 4) for token, score in trained}  # log-probabilities
    # The trainer is not deterministic in the last digits, in the order of equal scores, and in the scores of restored
    # characters. Rounding, a lower limit and sorting make the vocabulary reproducible.
    least = min(scores.values())
    characters = [token for token in scores if len(token) == 1]
    scores |= dict.fromkeys((char for char in characters if scores[char] < least + 1e-4 * len(characters)), least)
    learned = sorted(scores, key=lambda token: (-scores[token], token))[:room]
    vocabulary = [*((name, 0.0) for name in names), *((token, least) for token in BYTE_TOKENS)]
    vocabulary += [(token, scores[token]) for token in learned]
    # Bytes encode unknown characters, so `unk_id` is never used, but byte fallback requires it.
    tokenizer.model = models.Unigram(vocabulary, unk_id=0, byte_fallback=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(special_tokens)
    return tokenizer


def character(texts: Iterable[str], vocab_size: int, special_tokens: list[AddedToken]) -> Tokenizer:
    """Use one token for each of the most frequent characters; other characters become their UTF-8 bytes."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    by_frequency = sorted(counts, key=lambda char: (-counts[char], char))
    tokens = [*map(str, special_tokens), *BYTE_TOKENS, *by_frequency]
    vocabulary = {token: i for i, token in enumerate(tokens[:vocab_size])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(special_tokens)
    return tokenizer


KINDS = {"byte_bpe": byte_bpe, "unigram": unigram, "character": character}


def train_tokenizer(
    texts: Iterable[str],
    template: str = "seq2seq",
    kind: str = "byte_bpe",
    vocab_size: int = 8000,
    lowercase: bool = False,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on `texts`; the same texts always give the same tokenizer.

    Args:
        template: family of the model that will read the tokens, a key of `TEMPLATES`. "encoder" has `<mask>`, "causal"
            pads on the left, and "seq2seq" puts a space before the first word (not with kind="character"). To encode
            lists of words with another template, call `read_words_with_spaces`.
        kind: "byte_bpe" (byte-level byte pair encoding), "unigram" (Kudo 2018) or "character".
        vocab_size: the largest number of tokens; a small corpus gives fewer.
        lowercase: lower-case every text. Decoding then gives the lower-cased text.

    Raises:
        ValueError: unknown template or kind; a vocabulary too small for the special tokens and the bytes, and with
            "unigram" for all characters of the texts.
    """
    for option, value, known in (("template", template, TEMPLATES), ("kind", kind, KINDS)):
        if value not in known:
            raise ValueError(f"{option}={value!r} is not known: choose one of {', '.join(known)}.")
    of_words = kind != "character"  # tokens include the space before a word, and so does <mask>
    special_tokens = [
        AddedToken(token, lstrip=token == MASK and of_words, normalized=False, special=True)
        for token in dict.fromkeys(special_names(template).values())
    ]
    smallest = len(special_tokens) + BYTES
    if vocab_size < smallest:
        raise ValueError(
            f"vocab_size={vocab_size} is too small: the special tokens and the {BYTES} bytes alone are {smallest}."
        )

    # A space before the first word of a sentence gives the word the same token as elsewhere; decoding removes the
    # space. Prompts and masked texts may begin inside a sentence, so they get no space.
    begins = of_words and template == "seq2seq"
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    steps += [normalizers.Prepend(" ")] if begins else []
    normalizer = normalizers.Sequence(steps)
    tokenizer = KINDS[kind](map(normalizer.normalize_str, texts), vocab_size, special_tokens)
    if steps:
        tokenizer.normalizer = normalizer
    if begins:
        tokenizer.decoder = decoders.Sequence([tokenizer.decoder, decoders.Strip(" ", left=1, right=0)])
    single, pair = TEMPLATES[template]
    ids = [(str(token), tokenizer.token_to_id(str(token))) for token in special_tokens]
    completed = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    # Offsets exclude the space at the start of a token, so that an answer's offsets span exactly the answer.
    trimmed = [processors.ByteLevel(add_prefix_space=begins, trim_offsets=True)] if of_words else []
    tokenizer.post_processor = processors.Sequence([*trimmed, completed])
    return wrap_tokenizer(tokenizer, template)


def cached_tokenizer(folder: Path, texts: Callable[[], Iterable[str]], *options: Any) -> PreTrainedTokenizerFast:
    """Return the tokenizer that `train_tokenizer(texts(), *options)` trains, or a cached one for the same texts.

    Args:
        folder: cache of trained tokenizers.
        options: template, kind, vocab_size and lowercase.
    """
    digest = hashlib.sha256(repr((CACHE_VERSION, tokenizers.__version__, options)).encode())
    for text in texts():
        digest.update(repr(text).encode())
    file = folder / f"{digest.hexdigest()}.json"
    if not file.exists():
        trained = train_tokenizer(texts(), *options)
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_sibling(file) as part:
            trained.backend_tokenizer.save(str(part / file.name))
            os.replace(part / file.name, file)
    return wrap_tokenizer(Tokenizer.from_file(str(file)), template=options[0])


def read_words_with_spaces(tokenizer: PreTrainedTokenizerBase) -> None:
    """Make a tokenizer encode each word of a list with a space before it, as inside a text.

    A tokenizer of bytes otherwise reads ["in", "Norway"] (`is_split_into_words=True`) as "inNorway". Saved tokenizers
    keep this. Tokenizers that read such a list like "in Norway" already do not change.
    """
    if tokenizer(["a", "a"], is_split_into_words=True)["input_ids"] == tokenizer("a a")["input_ids"]:
        return
    backend = tokenizer.backend_tokenizer
    state = json.loads(backend.to_str())
    steps = [state["normalizer"]] if state["normalizer"] else []
    state["normalizer"] = {"type": "Sequence", "normalizers": [*steps, {"type": "Prepend", "prepend": " "}]}
    for step in state["post_processor"].get("processors", [state["post_processor"]]):
        if "add_prefix_space" in step:
            step["add_prefix_space"] = True  # offsets count characters of the word alone
    changed = Tokenizer.from_str(json.dumps(state))
    backend.normalizer, backend.post_processor = changed.normalizer, changed.post_processor


def special_names(template: str) -> dict[str, str]:
    """Return the special tokens by the names of transformers."""
    names = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS}
    return names | ({"mask_token": MASK, "cls_token": BOS, "sep_token": EOS} if template == "encoder" else {})


def wrap_tokenizer(tokenizer: Tokenizer, template: str) -> PreTrainedTokenizerFast:
    """Wrap a trained tokenizer in the class of transformers."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **special_names(template),
        padding_side="left" if template == "causal" else "right",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE if template == "causal" else None,
    )


def lowercases(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer lower-cases its input."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and normalizer.normalize_str("A").strip() == "a"
