"""Train a tokenizer that AutoTokenizer loads without this project, and that loses nothing: any text decodes to itself.

All kinds fall back to bytes, so no character is ever unknown. As in every tokenizer of the library, the characters
"</s>" in a text are the special token: a chat template writes it so, and a user <mask>. Where a corpus is tokenized,
whose "</s>" is a text like any other, the call says so: `tokenizer(texts, split_special_tokens=True)`.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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


CACHE_VERSION = 1  # raise it when the same texts and options give another tokenizer
PAD, BOS, EOS, MASK = "<pad>", "<s>", "</s>", "<mask>"  # ids 0 to 3; the first three are the defaults of the configs

# What completes one sequence ($A) and a pair of them ($A, $B), for each family of models.
TEMPLATES = {
    "seq2seq": (f"$A {EOS}", f"$A {EOS} $B {EOS}"),  # source and target alike; the decoder starts with <s> by itself
    "causal": (f"{BOS} $A", f"{BOS} $A $B"),  # open at its end, so that a prompt can be continued
    "encoder": (f"{BOS} $A {EOS}", f"{BOS} $A {EOS} $B {EOS}"),  # <s>: what pooling="first" reads, "no answer" in QA
}
BYTES = 256
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(BYTES)]  # of bytes by themselves, by the name that decoders know

# No token crosses these borders: a word with its vowel signs and the space before it, one digit, other marks, white
# space. Digit by digit, numbers that training never saw can be read and written.
PIECES = Regex(r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+")
# A language model knows no roles: it goes on from what was said last. Each turn is a line; what the assistant said is
# complete, so that a model trained further on chats learns where to end. What it is asked begins what it is taught:
# there is no other "generation prompt".
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


class PreTrainedTokenizerFast(TokenizersBackend):
    """The library's class by the name that transformers 4 knows too: a saved folder names its class."""


def byte_bpe(texts: Iterable[str], vocab_size: int, special_tokens: list[AddedToken]) -> Tokenizer:
    """Byte pair encoding (section 5.1) of UTF-8: first all bytes, then pairs that occur at least twice."""
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
    """The unigram language model (Kudo 2018, arXiv 1804.10959): each word as its likeliest tokens.

    These are stems and endings more often than those of byte pair encoding, which keeps each frequent form whole. A
    character that no token has is the bytes of its UTF-8. The library's tokenizers for JavaScript (0.2) have no bytes
    for this model, and read padding there.
    """
    names = [str(token) for token in special_tokens]
    room = vocab_size - len(names) - BYTES
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(PIECES, "isolated")
    try:
        # With 16 characters, as the trainer has it, words that are longer leave tokens that begin in their middle.
        trainer = trainers.UnigramTrainer(vocab_size=max(room, 1), max_piece_length=32, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
    except Exception as error:  # the library has no class for it
        if "contain all chars" not in str(error):
            raise
        raise ValueError(
            f"vocab_size={vocab_size} is too small for kind='unigram' on these texts: beside {len(names)} special "
            f"tokens and {BYTES} bytes it has no room for each of their characters. Raise it, or take kind='byte_bpe'."
        ) from error
    trained = json.loads(tokenizer.to_str())["model"]["vocab"]
    scores = {token: round(score, 4) for token, score in trained}  # logarithms of probabilities
    # What the trainer leaves to chance: last digits, the order of equals, and by how many steps of 0.0001 a character
    # that it had dropped, and takes back in the end, is above the least score.
    least = min(scores.values())
    characters = [token for token in scores if len(token) == 1]
    scores |= dict.fromkeys((char for char in characters if scores[char] < least + 1e-4 * len(characters)), least)
    learned = sorted(scores, key=lambda token: (-scores[token], token))[:room]
    vocabulary = [*((name, 0.0) for name in names), *((token, least) for token in BYTE_TOKENS)]
    vocabulary += [(token, scores[token]) for token in learned]
    # The bytes stand for all that is unknown; that the model has an id for it is a formality.
    tokenizer.model = models.Unigram(vocabulary, unk_id=0, byte_fallback=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(special_tokens)
    return tokenizer


def character(texts: Iterable[str], vocab_size: int, special_tokens: list[AddedToken]) -> Tokenizer:
    """One token for each of the most frequent characters; any other character is the bytes of its UTF-8."""
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


def checked(texts: Iterable[str]) -> Iterator[str]:
    """The texts, unless one is not a string (TypeError) or all of them are empty (ValueError)."""
    characters = 0
    for row, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise TypeError(f"Text {row} of the corpus is {text!r}: a tokenizer is trained on strings.")
        characters += len(text)
        yield text
    if not characters:
        raise ValueError("The corpus is empty: a tokenizer is trained on at least one text with characters.")


def train_tokenizer(
    texts: Iterable[str],
    template: str = "seq2seq",
    kind: str = "byte_bpe",
    vocab_size: int = 8000,
    lowercase: bool = False,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on `texts`; the same texts always give the same tokenizer.

    Args:
        template: the family of models that will read its output, a key of `TEMPLATES`. "encoder" has `<mask>`,
            "causal" pads on the left, and to "seq2seq" a first word has a space before it as any other (not for
            characters).
        kind: "byte_bpe" (byte-level byte pair encoding), "unigram" (Kudo 2018) or "character".
        vocab_size: the largest number of tokens; a small corpus gives fewer.
        lowercase: lower-case every text. Decoding then gives the lower-cased text.

    Raises:
        ValueError: unknown template or kind; a vocabulary too small for the special tokens and the bytes, and with
            "unigram" for all characters of the texts; no text.
        TypeError: one of `texts` is not a string.
    """
    for option, value, known in (("template", template, TEMPLATES), ("kind", kind, KINDS)):
        if value not in known:
            raise ValueError(f"{option}={value!r} is not known: choose one of {', '.join(known)}.")
    of_words = kind != "character"  # tokens have the space before a word as a part
    # <mask> stands for a word with the space before it.
    special_tokens = [
        AddedToken(token, lstrip=token == MASK and of_words, normalized=False, special=True)
        for token in dict.fromkeys(special_names(template).values())
    ]
    smallest = len(special_tokens) + BYTES
    if vocab_size < smallest:
        raise ValueError(
            f"vocab_size={vocab_size} is too small: the special tokens and the {BYTES} bytes alone are {smallest}."
        )

    # A translator's texts are whole ones: their first word is the token that it is everywhere else, with a space in
    # front that decoding takes away. Prompts are continued, and masks have their own places: there texts begin as
    # they are written.
    begins = of_words and template == "seq2seq"
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    steps += [normalizers.Prepend(" ")] if begins else []
    normalizer = normalizers.Sequence(steps)
    tokenizer = KINDS[kind](map(normalizer.normalize_str, checked(texts)), vocab_size, special_tokens)
    if steps:
        tokenizer.normalizer = normalizer
    if begins:
        tokenizer.decoder = decoders.Sequence([tokenizer.decoder, decoders.Strip(" ", left=1, right=0)])
    single, pair = TEMPLATES[template]
    ids = [(str(token), tokenizer.token_to_id(str(token))) for token in special_tokens]
    completed = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    # Offsets leave out the space that begins a token, so that those of an answer are the answer.
    trimmed = [processors.ByteLevel(add_prefix_space=begins, trim_offsets=True)] if of_words else []
    tokenizer.post_processor = processors.Sequence([*trimmed, completed])
    return in_library(tokenizer, template)


def cached_tokenizer(folder: Path, texts: Callable[[], Iterable[str]], *options: Any) -> PreTrainedTokenizerFast:
    """Return the tokenizer that `train_tokenizer(texts(), *options)` trains, or trained before on the same texts.

    Args:
        folder: where trained tokenizers are kept.
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
    return in_library(Tokenizer.from_file(str(file)), template=options[0])


def special_names(template: str) -> dict[str, str]:
    """What the library calls the special tokens."""
    names = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS}
    return names | ({"mask_token": MASK, "cls_token": BOS, "sep_token": EOS} if template == "encoder" else {})


def in_library(tokenizer: Tokenizer, template: str) -> PreTrainedTokenizerFast:
    """A tokenizer that was trained for a template, as the library has it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **special_names(template),
        padding_side="left" if template == "causal" else "right",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE if template == "causal" else None,
    )


def lowercases(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether all text that the tokenizer gives is in lower case."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and normalizer.normalize_str("A").strip() == "a"
