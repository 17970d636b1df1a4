"""Train a tokenizer on the user's own text, and save it so that AutoTokenizer loads it with no code of this project."""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast


PAD, BOS, EOS, MASK = "<pad>", "<s>", "</s>", "<mask>"
SPECIAL_TOKENS = [PAD, BOS, EOS, MASK]  # with the ids 0, 1, 2, 3: the configs' defaults
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())

# What is put around a text, by the kind of model that reads it. A language model's prompt must not end in </s>.
TEMPLATES = {
    "seq2seq": ("$A </s>", "$A </s> $B </s>"),
    "encoder": ("<s> $A </s>", "<s> $A </s> $B </s>"),
    "causal": ("$A", "$A $B"),
}
# How text is cut before merges are learnt. Digits stay single: a number is copied or rewritten digit by digit.
# "character" cuts between all characters, so that nothing is merged but the bytes of one character.
CUTS = {
    "byte_bpe": [pre_tokenizers.Digits(individual_digits=True)],
    "character": [pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")],
}


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int = 8000,
    kind: str = "byte_bpe",
    template: str = "seq2seq",
    lowercase: bool = False,
) -> PreTrainedTokenizerFast:
    """Learn byte-pair encoding over bytes (section 5.1 has a joint BPE vocabulary): no character is ever unknown.

    Args:
        texts: the training text of all languages together.
        vocab_size: number of tokens, special ones and the 256 bytes included; fewer where the text has no more pairs.
        kind: "byte_bpe", or "character" for one token per character seen in training.
        template: "seq2seq" ends each text with </s>; "encoder" also begins the sequence with <s>; "causal" adds nothing
            and pads on the left.
        lowercase: lower-case all text first; what is decoded is then lower-case too.

    Raises:
        ValueError: unknown kind or template, no text, or a vocabulary too small for the bytes.
    """
    for name, value, known in (("kind", kind, CUTS), ("template", template, TEMPLATES)):
        if value not in known:
            raise ValueError(f"{name}={value!r} must be one of: {', '.join(known)}.")
    smallest = len(SPECIAL_TOKENS) + len(BYTES)
    if vocab_size < smallest:
        raise ValueError(f"vocab_size={vocab_size} has no room for {smallest} bytes and special tokens.")

    backend = Tokenizer(models.BPE())
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*CUTS[kind], pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "byte_bpe")]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL_TOKENS, initial_alphabet=BYTES, show_progress=False
    )
    seen = 0

    def counted() -> Iterable[str]:
        nonlocal seen
        for text in texts:
            seen += bool(text)
            yield text

    backend.train_from_iterator(counted(), trainer)
    if not seen:
        raise ValueError("There is no text to train a tokenizer on: every text is empty.")

    single, pair = TEMPLATES[template]
    backend.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(token, backend.token_to_id(token)) for token in (BOS, EOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        mask_token=MASK,
        padding_side="left" if template == "causal" else "right",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
