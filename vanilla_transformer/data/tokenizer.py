"""Train tokenizers that AutoTokenizer can load without this package.

All kinds but "word" fall back to bytes, so every string decodes to itself and there are no unknown tokens. As in all
transformers tokenizers, "</s>" or "<mask>" in the input is parsed as a special token, which chat templates and
fill-mask prompts rely on. To treat these strings as ordinary text, call `tokenizer(texts, split_special_tokens=True)`.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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


CACHE_VERSION = 1  # increment when the same texts and options produce a different tokenizer
PAD, BOS, EOS, MASK = "<pad>", "<s>", "</s>", "<mask>"  # ids 0 to 3; the configs default to the first three
UNKNOWN = "<unk>"  # only for kind="word"

# Special tokens around a single sequence ($A) and a pair ($A, $B), for each model family.
TEMPLATES = {
    "seq2seq": (f"$A {EOS}", f"$A {EOS} $B {EOS}"),  # source and target; the decoder input gets <s> from the model
    "causal": (f"{BOS} $A", f"{BOS} $A $B"),  # no </s>, so that a prompt can be continued
    "encoder": (
        f"{BOS} $A {EOS}",
        f"{BOS} $A {EOS} $B {EOS}",
    ),  # <s> is used by pooling="first" and as the "no answer" position in question answering
}
BYTES = 256
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(BYTES)]  # names required by the ByteFallback decoder

# Pre-tokenization: no token crosses a piece boundary. A piece is a word with its combining marks and preceding space,
# a single digit, a run of other characters, or white space. Splitting numbers into digits lets a model read and write
# unseen numbers.
PIECES = Regex(r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+")
WORDS = Regex(r"[\p{L}\p{M}\p{N}_]+|[^\s\p{L}\p{M}\p{N}_]+")  # words and runs of punctuation, without white space
# The template has no role markers and no generation prompt: the model simply continues the last message. Each turn is
# a line. Assistant turns end with </s>, so that fine-tuning on chats teaches the model to stop.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


class PreTrainedTokenizerFast(TokenizersBackend):
    """Alias of `TokenizersBackend` with its transformers 4 name, so that both versions can load saved tokenizers."""


def byte_bpe(texts: Iterable[str], vocab_size: int, special_tokens: list[AddedToken]) -> Tokenizer:
    """Train byte-level BPE (section 5.1 of the paper). Pairs are merged only if they occur at least twice."""
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
    """Train a unigram model (Kudo 2018, arXiv 1804.10959), which splits each word into its most probable tokens.

    Unigram tends to separate stems from endings, whereas BPE keeps frequent word forms whole. Characters outside the
    vocabulary are encoded as UTF-8 bytes. The JavaScript package tokenizers (0.2) does not support this byte fallback
    and encodes such characters as padding.
    """
    names = [str(token) for token in special_tokens]
    room = vocab_size - len(names) - BYTES
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(PIECES, "isolated")
    try:
        # With the default limit of 16 characters, longer words would yield tokens that start in mid-word.
        trainer = trainers.UnigramTrainer(vocab_size=max(room, 1), max_piece_length=32, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(
            f"vocab_size={vocab_size} and kind='unigram': {error}. Raise it above the number of different characters "
            f"plus {BYTES + len(names)}, or use kind='byte_bpe'."
        ) from error
    trained = json.loads(tokenizer.to_str())["model"]["vocab"]
    scores = {token: round(score, 4) for token, score in trained}  # log-probabilities
    # The trainer is not deterministic: the last digits, the order of equal scores, and the scores of characters added
    # back after pruning vary between runs. Rounding, clamping and sorting make the vocabulary reproducible.
    least = min(scores.values())
    characters = [token for token in scores if len(token) == 1]
    scores |= dict.fromkeys((char for char in characters if scores[char] < least + 1e-4 * len(characters)), least)
    learned = sorted(scores, key=lambda token: (-scores[token], token))[:room]
    vocabulary = [*((name, 0.0) for name in names), *((token, least) for token in BYTE_TOKENS)]
    vocabulary += [(token, scores[token]) for token in learned]
    # Byte fallback requires `unk_id`, although no token is ever unknown.
    tokenizer.model = models.Unigram(vocabulary, unk_id=0, byte_fallback=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(special_tokens)
    return tokenizer


def by_frequency(counts: Mapping[str, int], at_least: int = 1) -> list[str]:
    """Return the keys with a count of at least `at_least`, the most frequent first."""
    return sorted((key for key in counts if counts[key] >= at_least), key=lambda key: (-counts[key], key))


def character(texts: Iterable[str], vocab_size: int, special_tokens: list[AddedToken]) -> Tokenizer:
    """Build a vocabulary of the most frequent characters; all other characters are encoded as UTF-8 bytes."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    tokens = [*map(str, special_tokens), *BYTE_TOKENS, *by_frequency(counts)]
    vocabulary = {token: i for i, token in enumerate(tokens[:vocab_size])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(special_tokens)
    return tokenizer


def word(texts: Iterable[str], vocab_size: int, special_tokens: list[AddedToken]) -> Tokenizer:
    """Build a vocabulary of words and punctuation marks that occur at least twice; all others become `<unk>`.

    With few training texts, a classifier learns more about whole words than about parts of words, and it learns to
    ignore unknown ones. White space is lost. The model is WordPiece without parts of words, which JavaScript's
    tokenizers support, unlike WordLevel.
    """
    split = pre_tokenizers.Split(WORDS, "removed", invert=True)
    counts = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text))
    tokens = [*map(str, special_tokens), UNKNOWN, *by_frequency(counts, at_least=2)]
    vocabulary = {token: i for i, token in enumerate(tokens[:vocab_size])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens([*special_tokens, AddedToken(UNKNOWN, normalized=False, special=True)])
    return tokenizer


KINDS = {"byte_bpe": byte_bpe, "unigram": unigram, "character": character, "word": word}


def train_tokenizer(
    texts: Iterable[str],
    template: str = "seq2seq",
    kind: str = "byte_bpe",
    vocab_size: int = 8000,
    lowercase: bool = False,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on `texts`. Training is deterministic.

    Args:
        texts: training corpus.
        template: model family, a key of `TEMPLATES`. "encoder" adds `<mask>`, "causal" pads on the left, and "seq2seq"
            prepends a space to the first word (with "byte_bpe" and "unigram"). To encode lists of words with another
            template, call `read_words_with_spaces`.
        kind: "byte_bpe" (byte-level byte pair encoding), "unigram" (Kudo 2018), "character" or "word".
        vocab_size: maximum vocabulary size; a small corpus may yield fewer tokens.
        lowercase: lower-case all input. Decoding then returns lower-cased text.

    Raises:
        ValueError: the template or kind is unknown; or the vocabulary is too small for the special tokens and the
            bytes or, for "unigram", for all characters of the corpus.
    """
    for option, value, known in (("template", template, TEMPLATES), ("kind", kind, KINDS)):
        if value not in known:
            raise ValueError(f"{option}={value!r} is not known: choose one of {', '.join(known)}.")
    of_words = kind != "character"  # word tokens, and therefore <mask>, include the preceding space
    special_tokens = [
        AddedToken(token, lstrip=token == MASK and of_words, normalized=False, special=True)
        for token in dict.fromkeys(special_names(template).values())
    ]
    smallest = len(special_tokens) + BYTES
    if vocab_size < smallest:
        raise ValueError(
            f"vocab_size={vocab_size} is too small: the special tokens and the {BYTES} bytes alone are {smallest}."
        )

    # A space before the first word of a sentence gives the word the same token as elsewhere; decoding removes it. The
    # input of the other families may begin in the middle of a sentence, so it gets no space.
    begins = template == "seq2seq" and kind in ("byte_bpe", "unigram")
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
    # Exclude the space at the start of a token from its offsets, so that answer spans have no leading space.
    trimmed = [processors.ByteLevel(add_prefix_space=begins, trim_offsets=True)] if of_words else []
    tokenizer.post_processor = processors.Sequence([*trimmed, completed])
    return wrap_tokenizer(tokenizer, template)


def cached_tokenizer(folder: Path, texts: Callable[[], Iterable[str]], *options: Any) -> PreTrainedTokenizerFast:
    """Like `train_tokenizer(texts(), *options)`, but reuse a cached tokenizer for the same texts and options.

    Args:
        folder: cache folder for trained tokenizers.
        texts: function that returns the training corpus; it is called once or twice.
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
    """Make a tokenizer encode each word of a list (`is_split_into_words=True`) with a preceding space.

    Otherwise, byte-level tokenizers encode ["in", "Norway"] like "inNorway". The setting is saved with the tokenizer.
    Tokenizers that already encode the list like "in Norway" are left unchanged.
    """
    if tokenizer(["a", "a"], is_split_into_words=True)["input_ids"] == tokenizer("a a")["input_ids"]:
        return
    backend = tokenizer.backend_tokenizer
    state = json.loads(backend.to_str())
    steps = [state["normalizer"]] if state["normalizer"] else []
    state["normalizer"] = {"type": "Sequence", "normalizers": [*steps, {"type": "Prepend", "prepend": " "}]}
    for step in state["post_processor"].get("processors", [state["post_processor"]]):
        if "add_prefix_space" in step:
            step["add_prefix_space"] = True  # exclude the added space from the offsets
    changed = Tokenizer.from_str(json.dumps(state))
    backend.normalizer, backend.post_processor = changed.normalizer, changed.post_processor


def special_names(template: str) -> dict[str, str]:
    """Return the special tokens by their names in transformers, such as "pad_token"."""
    names = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS}
    return names | ({"mask_token": MASK, "cls_token": BOS, "sep_token": EOS} if template == "encoder" else {})


def wrap_tokenizer(tokenizer: Tokenizer, template: str) -> PreTrainedTokenizerFast:
    """Wrap a trained tokenizer in the tokenizer class of transformers."""
    has_unknown = tokenizer.token_to_id(UNKNOWN) is not None
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **special_names(template),
        **({"unk_token": UNKNOWN} if has_unknown else {}),
        padding_side="left" if template == "causal" else "right",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE if template == "causal" else None,
    )


def lowercases(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer lower-cases its input."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and normalizer.normalize_str("A").strip() == "a"
