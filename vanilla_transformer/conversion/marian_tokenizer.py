"""Convert a Marian tokenizer, two SentencePiece models with one vocabulary, to a fast tokenizer in a single file."""

from typing import Any, cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import MarianTokenizer, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import import_protobuf

from vanilla_transformer.data.tokenizer import PreTrainedTokenizerFast


FOREIGN = -1000.0  # score of pieces missing from the source model, so low that they are used only as a last resort


def source_model(slow: MarianTokenizer) -> Any:
    """Parse the SentencePiece model for source text, with its settings."""
    proto = import_protobuf().ModelProto()
    proto.ParseFromString(slow.spm_source.serialized_model_proto())
    return proto


def has_fast_form(slow: MarianTokenizer) -> bool:
    """Whether `fast_marian_tokenizer` can produce the same ids.

    This requires a joint vocabulary of source and target without gaps, and a unigram model with default settings.
    """
    training, spaces = source_model(slow).trainer_spec, source_model(slow).normalizer_spec
    encoder = cast(dict[str, int], slow.encoder)
    return (
        not slow.separate_vocabs
        and training.model_type == training.UNIGRAM
        and not (training.byte_fallback or training.treat_whitespace_as_suffix)
        and spaces.add_dummy_prefix
        and spaces.remove_extra_whitespaces
        and sorted(encoder.values()) == list(range(len(encoder)))
    )


def fast_marian_tokenizer(slow: MarianTokenizer) -> PreTrainedTokenizerBase:
    """Return a fast tokenizer that encodes source text and decodes target ids like Marian's tokenizer.

    Marian encodes target text with a second SentencePiece model. The fast tokenizer encodes both with one model: where
    the source model would return <unk>, it uses pieces of the target model or smaller pieces.

    Args:
        slow: a tokenizer for which `has_fast_form` is true.
    """
    source = slow.spm_source
    scores = {source.id_to_piece(i): source.get_score(i) for i in range(source.get_piece_size())}
    encoder = cast(dict[str, int], slow.encoder)
    by_id = sorted(encoder, key=encoder.__getitem__)
    pieces = [(piece, scores.get(piece, FOREIGN)) for piece in by_id]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=slow.unk_token_id))
    table = source_model(slow).normalizer_spec.precompiled_charsmap
    replacements = [normalizers.Precompiled(table)] if table else []
    spaces = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    tokenizer.normalizer = normalizers.Sequence([*replacements, *spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    end = slow.eos_token
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A $B {end}", special_tokens=[(end, slow.eos_token_id)]
    )
    languages = [piece for piece in by_id if piece.startswith(">>") and piece.endswith("<<")]
    special = [slow.eos_token, slow.unk_token, slow.pad_token]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    # Users put the language code at the start of the input. It must stay one token even if special tokens are split.
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in languages])
    added = sorted((i, str(token)) for i, token in slow.added_tokens_decoder.items() if i >= len(encoder))
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for _, token in added])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=slow.eos_token,
        unk_token=slow.unk_token,
        pad_token=slow.pad_token,
        model_max_length=slow.model_max_length,
        clean_up_tokenization_spaces=False,
    )
