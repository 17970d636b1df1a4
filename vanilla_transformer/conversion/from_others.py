"""Convert published models to Vanilla Transformer models with the same logits and the same generated text."""

import copy

import torch
from transformers import (
    AutoTokenizer,
    MarianTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import vanilla_transformer
from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerEncoderConfig,
)
from vanilla_transformer.conversion.mapping import (
    MAPPINGS,
    Mapping,
    from_theirs,
    require,
)
from vanilla_transformer.conversion.marian_tokenizer import fast_marian_tokenizer, has_fast_form


# AutoModel loads every family, but only BERT and DistilBERT can be imported without a head: try the encoder first
CONFIGS = (VanillaTransformerEncoderConfig, VanillaTransformerDecoderConfig, VanillaTransformerConfig)


def mapping_for(config: PreTrainedConfig, architecture: str | None = None) -> tuple[Mapping, str]:
    """Return the mapping for a config, and the name of the model class to import.

    Raises:
        CannotRepresent: the architecture or its head is not supported.
    """
    require(
        config.model_type in MAPPINGS,
        f"model_type={config.model_type!r} is not supported; choose a model of: {', '.join(MAPPINGS)}.",
    )
    mapping = MAPPINGS[config.model_type]
    architecture = architecture or (config.architectures or [next(iter(mapping.heads))])[0]
    require(
        architecture in mapping.heads,
        f"{architecture} is not supported; choose one of: {', '.join(mapping.heads)}.",
    )
    return mapping, architecture


def convert(theirs: PreTrainedModel) -> PreTrainedModel:
    """Convert a published model to a Vanilla Transformer model with the same weights, in evaluation mode.

    Raises:
        CannotRepresent: the model uses a feature that the Vanilla Transformer does not support.
    """
    config = theirs.config
    mapping, architecture = mapping_for(config, type(theirs).__name__)
    auto_class = mapping.heads[architecture]
    weights = from_theirs(theirs.state_dict(), mapping, with_head=auto_class != "AutoModel")
    fields = mapping.fields(config)
    if "lm_head.weight" in weights:
        embeddings = [name for name in weights if name.endswith("embed_tokens.weight")]
        fields["tie_word_embeddings"] = torch.equal(weights["lm_head.weight"], weights[embeddings[-1]])
        if len(embeddings) == 2:
            source, target = (weights[name] for name in embeddings)
            fields["share_encoder_decoder_embeddings"] = torch.equal(source, target)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "id2label", "label2id"):
        fields[name] = getattr(config, name, None)
    fields["label_smoothing"] = 0.0  # the loss of the original model has no label smoothing
    config_class = next(config for config in CONFIGS if auto_class in config.auto_classes)
    model_class = getattr(vanilla_transformer, config_class.auto_classes[auto_class])
    ours = model_class(config_class(**fields))
    missing, unexpected = ours.load_state_dict(weights, strict=False)
    require(not missing and not unexpected, f"There is no counterpart of: {', '.join([*missing, *unexpected])}.")
    if ours.can_generate():
        ours.generation_config = copy.deepcopy(theirs.generation_config)
        if hasattr(ours, "_enable_gnmt_length_penalty"):
            ours._enable_gnmt_length_penalty()
    return ours.eval()


def convert_tokenizer(source: str, revision: str | None, model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """Load a tokenizer that does not need our code; convert Marian's to a fast tokenizer if possible.

    Raises:
        ValueError: the source has no tokenizer files, in which case AutoTokenizer may return an empty tokenizer.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
    except TypeError:  # MarianTokenizer raises a TypeError if its files are missing
        tokenizer = None
    if tokenizer is None or set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ValueError(f"{source} has no tokenizer next to the model: put its files there.")
    if isinstance(tokenizer, MarianTokenizer) and has_fast_form(tokenizer):
        return fast_marian_tokenizer(tokenizer)
    return tokenizer
