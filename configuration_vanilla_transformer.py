# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Configurations of the Transformer of "Attention Is All You Need" (Vaswani et al., 2017; arXiv 1706.03762).

    TransformerConfig                    fields shared by all families; defaults are the paper's base model
    VanillaTransformerConfig             encoder-decoder
    VanillaTransformerEncoderConfig      encoder-only
    VanillaTransformerDecoderConfig      decoder-only
    PRESETS                              the rows of the paper's Table 3, plus a tiny model

`VanillaTransformerConfig()` is the base model. `VanillaTransformerConfig.from_preset("big")` is the paper's big model.
"""

import math
from dataclasses import fields
from importlib.metadata import version
from typing import Any, ClassVar, Literal, Self

import transformers
from huggingface_hub.dataclasses import strict
from packaging.version import Version
from transformers import configuration_utils
from transformers.activations import ACT2FN


__version__ = "0.2.0"  # project version: pyproject.toml reads it from here, and saved configs record it

OLDEST = "5.20.2"  # oldest supported release of transformers
KNOWN_TO_WORK = {"transformers": "5.24", "torch": "2.13"}

if Version(transformers.__version__).release < Version(OLDEST).release:
    raise ImportError(
        f"The Vanilla Transformer needs transformers {OLDEST} or newer; this is {transformers.__version__}: "
        f"pip install --upgrade 'transformers>={OLDEST}'"
    )


def check_private_api(owner: Any, *names: str) -> None:
    """Raise a RuntimeError unless `owner`, an object of transformers or PyTorch, has all these attributes.

    Without this check, a release that renames a private method would silently ignore our override of it.
    """
    for name in names:
        if not hasattr(owner, name):
            library, owner_name = owner.__module__.split(".")[0], getattr(owner, "__name__", type(owner).__name__)
            raise RuntimeError(
                f"The Vanilla Transformer builds on {owner_name}.{name}, which {library} {version(library)} does not "
                f"have. Known to work: pip install '{library}~={KNOWN_TO_WORK[library]}.0'"
            )


# Table 3 of the paper. Each row lists only what differs from the base model, whose values are the defaults below.
# `num_layers` sets the depth of each stack: in an encoder-decoder, both encoder and decoder.
PRESETS: dict[str, dict[str, Any]] = {
    "base": {},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
    # (A) number of heads, at a constant amount of computation
    "A-h1": {"num_heads": 1, "d_k": 512, "d_v": 512},
    "A-h4": {"num_heads": 4, "d_k": 128, "d_v": 128},
    "A-h16": {"num_heads": 16, "d_k": 32, "d_v": 32},
    "A-h32": {"num_heads": 32, "d_k": 16, "d_v": 16},
    # (B) width of the keys
    "B-dk16": {"d_k": 16, "d_v": 64},
    "B-dk32": {"d_k": 32, "d_v": 64},
    # (C) model size
    "C-N2": {"num_layers": 2},
    "C-N4": {"num_layers": 4},
    "C-N8": {"num_layers": 8},
    "C-d256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "C-d1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "C-ff1024": {"d_ff": 1024},
    "C-ff4096": {"d_ff": 4096},
    # (D) regularisation
    "D-drop0.0": {"dropout": 0.0},
    "D-drop0.2": {"dropout": 0.2},
    "D-ls0.0": {"label_smoothing": 0.0},
    "D-ls0.2": {"label_smoothing": 0.2},
    # (E) learned position embeddings instead of sinusoids
    "E-learned": {"position_embedding": "learned"},
    # not in the paper: a common size for small data sets such as Multi30k
    "tiny": {"num_layers": 4, "d_model": 128, "d_ff": 256, "num_heads": 4, "dropout": 0.3},
}


OUR_MODULES = ("configuration_vanilla_transformer.", "modeling_vanilla_transformer.", "pipeline_vanilla_transformer.")


def is_ours(reference: Any) -> bool:
    """Whether a reference such as "user/repo--modeling_vanilla_transformer.Name" points to code in our files."""
    return str(reference).split("--")[-1].startswith(OUR_MODULES)


@strict
class TransformerConfig(configuration_utils.PreTrainedConfig):
    """Configuration fields shared by all three families. The defaults are the base model of the paper's Table 3.

    Args:
        vocab_size: number of tokens; section 5.1 has about 37,000 for English-German.
        d_model: width of the embeddings and of every sub-layer's output (section 3.1).
        num_heads: number of attention heads h (section 3.2.2).
        d_k: width of one head's queries and keys. None means d_model // num_heads.
        d_v: width of one head's values. None means d_model // num_heads.
        d_ff: inner width of the feed-forward network (section 3.3).
        dropout: dropout on every sub-layer's output and on embedding + position (section 5.4).
        attention_dropout: dropout on attention weights; the paper has none.
        activation_dropout: dropout inside the feed-forward network; the paper has none.
        activation_function: name of a function in `transformers.activations.ACT2FN`; the paper's is "relu".
        layer_norm_eps: added to the variance in layer normalisation.
        norm_position: "post" normalises after the residual sum, as in the paper; "pre" before the sub-layer, and
            again after each stack.
        position_embedding: "sinusoidal" (section 3.5; no length limit) or "learned" (Table 3, row E).
        sinusoid_layout: "interleaved" sines and cosines (section 3.5), or "half_split", all sines before all cosines.
        sinusoid_frequencies: "paper", or "tensor2tensor", whose lowest frequency is exactly 1 / 10000.
        position_offset: number of the first position; the paper's is 0.
        normalize_embedding: layer normalisation of embedding + position; the paper has none.
        max_position_embeddings: number of learned positions, and the longest output of `generate` by default.
        scale_embedding: multiply embeddings by sqrt(d_model) (section 3.4).
        attention_bias: biases in the four attention projections; the paper has none.
        output_bias: a bias in the output projection; the paper has none.
        tie_word_embeddings: output projection and embedding are one matrix (section 3.4).
        label_smoothing: epsilon of section 5.4, spread evenly over the vocabulary. It applies to models that predict
            tokens, in training only; their evaluation loss is the plain cross-entropy.
        sliding_window: size r of the neighbourhood that self-attention sees (section 4, "restricted"). In a decoder,
            a position sees itself and the r - 1 before it; in an encoder, r // 2 positions on either side. None: all
            positions. With a window, continuous batching (`generate_batch`) needs `attn_implementation="eager"`.
        pad_token_id, bos_token_id, eos_token_id: ids of the special tokens. An id outside the vocabulary raises an
            error when it is used.
        use_cache: whether decoders return their keys and values for the next step.

    Raises:
        StrictDataclassError: a field has the wrong type or an invalid value.
    """

    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_key_value_heads": "num_heads",  # every head has its own keys and values
        "intermediate_size": "d_ff",
        "head_dim": "d_k",
        "hidden_act": "activation_function",
    }
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "cache"]
    auto_classes: ClassVar[dict[str, str]] = {}  # Auto class -> our class of this family
    # Task that has no pipeline in transformers 5 -> (our pipeline, Auto class of the model)
    pipeline_classes: ClassVar[dict[str, tuple[str, str]]] = {}
    layer_count_fields: ClassVar[tuple[str, ...]] = ("num_layers",)

    vocab_size: int = 37000
    d_model: int = 512
    num_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    d_ff: int = 2048
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    activation_function: str = "relu"
    layer_norm_eps: float | int = 1e-6
    norm_position: Literal["post", "pre"] = "post"
    position_embedding: Literal["sinusoidal", "learned"] = "sinusoidal"
    sinusoid_layout: Literal["interleaved", "half_split"] = "interleaved"
    sinusoid_frequencies: Literal["paper", "tensor2tensor"] = "paper"
    position_offset: int = 0
    normalize_embedding: bool = False
    max_position_embeddings: int = 1024
    scale_embedding: bool = True
    attention_bias: bool = False
    output_bias: bool = False
    tie_word_embeddings: bool = True
    label_smoothing: float | int = 0.1
    sliding_window: int | None = None
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    use_cache: bool = True

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> Self:
        """Return the configuration of a preset; fields in `overrides` take precedence.

        Raises:
            ValueError: `name` is not a preset.
        """
        if name not in PRESETS:
            raise ValueError(f"preset={name!r} is not known. Choose one of: {', '.join(PRESETS)}.")
        fields = PRESETS[name] | overrides
        if "num_layers" in fields:
            depth = fields.pop("num_layers")
            fields = dict.fromkeys(cls.layer_count_fields, depth) | fields
        return cls(**fields)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """Like `PreTrainedConfig.from_dict`, but validates `kwargs` and derives other fields from them."""
        ours = {f.name for f in fields(cls)} - {f.name for f in fields(configuration_utils.PreTrainedConfig)}
        given = {name: kwargs.pop(name) for name in ours & kwargs.keys()}
        return super().from_dict(config_dict | given, **kwargs)

    def __post_init__(self, **kwargs):
        self._resolve_aliases(kwargs)
        if self.num_heads > 0 and self.d_model % self.num_heads == 0:
            self.d_k = self.d_model // self.num_heads if self.d_k is None else self.d_k
            self.d_v = self.d_model // self.num_heads if self.d_v is None else self.d_v
        # Project version that saved this config; None for a new config
        self.vanilla_transformer_version = kwargs.pop("vanilla_transformer_version", None)
        kwargs.pop("loss_chunk_size", None)  # obsolete field of version 0.1
        super().__post_init__(**kwargs)

    def _resolve_aliases(self, given: dict[str, Any]) -> None:
        """Resolve `attribute_map` aliases before other fields are derived from them; raise an error on conflicts."""
        fields: dict[str, tuple[str, Any]] = {}
        for name in [name for name in self.attribute_map if name in given]:
            field, value = self.attribute_map[name], given.pop(name)
            first, first_value = fields.setdefault(field, (name, value))
            if value != first_value:
                raise ValueError(f"{first}={first_value} and {name}={value} must be equal: here both are {field}.")
            setattr(self, field, value)

    def to_dict(self) -> dict[str, Any]:
        """Like `PreTrainedConfig.to_dict`, with references to the code that is saved with a checkpoint."""
        fields = super().to_dict() | {"vanilla_transformer_version": __version__} | self._code_references()
        return {name: value for name, value in fields.items() if name != "custom_pipelines" or value}

    def _code_references(self) -> dict[str, dict[str, Any]]:
        """Return `auto_map` and `custom_pipelines`, through which the Auto classes and `pipeline` find our code.

        They contain every Auto class of the family, and the entries that users have added for their own classes.
        """
        auto_map = {"AutoConfig": f"configuration_vanilla_transformer.{type(self).__name__}"}
        auto_map |= {auto: f"modeling_vanilla_transformer.{name}" for auto, name in self.auto_classes.items()}
        auto_map |= {auto: name for auto, name in getattr(self, "auto_map", {}).items() if not is_ours(name)}
        pipelines = {
            task: {"impl": f"pipeline_vanilla_transformer.{pipeline}", "pt": [auto]}
            for task, (pipeline, auto) in self.pipeline_classes.items()
            if self.auto_classes[auto] in (self.architectures or ())
        }
        for task, info in getattr(self, "custom_pipelines", {}).items():
            if not is_ours(info["impl"]):
                pipelines[task] = info
            elif task not in self.pipeline_classes:  # a user has registered one of our pipelines for another task
                pipelines[task] = info | {"impl": info["impl"].split("--")[-1]}
        return {"auto_map": auto_map, "custom_pipelines": pipelines}

    def validate_architecture(self):
        """Raise a ValueError for fields with which a model cannot be built or trained. `@strict` calls this method."""
        if (self.d_k is None or self.d_v is None) and self.num_heads > 0:
            raise ValueError(
                f"d_model={self.d_model} is not divisible by num_heads={self.num_heads}. Choose a multiple, or give "
                "the width of a head with both d_k and d_v."
            )
        sizes = ("vocab_size", "d_model", "num_heads", "d_k", "d_v", "d_ff", "max_position_embeddings")
        for name in (*sizes, "layer_norm_eps", *self.layer_count_fields):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} must be greater than 0, and finite.")
        for name in ("dropout", "attention_dropout", "activation_dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is a probability: it must be between 0 and 1.")
        for name in ("position_offset", "type_vocab_size"):
            if getattr(self, name, 0) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative.")
        if self.sliding_window is not None and self.sliding_window < 2:
            raise ValueError(f"sliding_window={self.sliding_window} must be at least 2, or None for full attention.")
        if self.activation_function not in ACT2FN:
            raise ValueError(f"activation_function={self.activation_function!r} must be one of: {', '.join(ACT2FN)}.")


# Tensor parallelism: how to shard the layers of a stack over devices. Heads and hidden units are split by column.
STACK_TP_PLAN = {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.feed_forward.fc1": "colwise",
    "layers.*.feed_forward.fc2": "rowwise",
}


@strict
class VanillaTransformerConfig(TransformerConfig):
    """Configuration of the encoder-decoder, the model of the paper's Figure 1.

    Args:
        encoder_layers: number of layers N of the encoder.
        decoder_layers: number of layers N of the decoder.
        decoder_start_token_id: first token of every decoder input.
        share_encoder_decoder_embeddings: source and target use one embedding matrix (section 3.4), which needs a
            joint vocabulary.
        target_vocab_size: number of target tokens, if they are another vocabulary than the source's. None: vocab_size.
        decoder_d_ff: inner width of the decoder's feed-forward networks. None: d_ff.
    All other fields: see `TransformerConfig`.
    """

    model_type = "vanilla_transformer"
    attribute_map: ClassVar[dict[str, str]] = {
        **TransformerConfig.attribute_map,
        "num_hidden_layers": "encoder_layers",
        "encoder_attention_heads": "num_heads",
        "decoder_attention_heads": "num_heads",
        "encoder_ffn_dim": "d_ff",
        "decoder_ffn_dim": "decoder_d_ff",
    }
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoModel": "VanillaTransformerModel",
        "AutoModelForSeq2SeqLM": "VanillaTransformerForConditionalGeneration",
    }
    pipeline_classes: ClassVar[dict[str, tuple[str, str]]] = {
        "translation": ("TranslationPipeline", "AutoModelForSeq2SeqLM")
    }
    layer_count_fields: ClassVar[tuple[str, ...]] = ("encoder_layers", "decoder_layers")
    base_model_fsdp_plan: ClassVar[dict[Any, str]] = {}  # each stack has its own depth

    encoder_layers: int = 6
    decoder_layers: int = 6
    decoder_start_token_id: int | None = 1
    share_encoder_decoder_embeddings: bool = True
    target_vocab_size: int | None = None
    decoder_d_ff: int | None = None
    is_encoder_decoder: bool = True

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """Like `TransformerConfig.from_dict`, but raise an error instead of merging two saved embeddings into one."""
        shared = "share_encoder_decoder_embeddings"
        if kwargs.get(shared) and not config_dict.get(shared, True):
            raise ValueError(
                f"{shared}=True: the model was saved with two embeddings. Leave the option out to load both."
            )
        if config_dict.get(shared, True) and config_dict.get("target_vocab_size") == config_dict.get("vocab_size"):
            config_dict = config_dict | {"target_vocab_size": None}  # a new vocab_size in kwargs applies to both
        return super().from_dict(config_dict, **kwargs)

    def __post_init__(self, **kwargs):
        if "num_layers" in kwargs and "model_type" not in kwargs:  # saved configs may contain it
            raise ValueError(
                f"num_layers={kwargs['num_layers']} is for a single stack: give encoder_layers and decoder_layers."
            )
        super().__post_init__(**kwargs)
        self.decoder_d_ff = self.d_ff if self.decoder_d_ff is None else self.decoder_d_ff
        if self.share_encoder_decoder_embeddings and self.target_vocab_size == self.vocab_size:
            self.target_vocab_size = None  # one vocabulary, so that `resize_token_embeddings` may change its size

    def validate_vocabularies(self):
        """Raise a ValueError for invalid sizes of the decoder. `@strict` calls this method."""
        for name in ("target_vocab_size", "decoder_d_ff"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be greater than 0, or None for the encoder's.")
        if self.target_vocab_size not in (None, self.vocab_size) and self.share_encoder_decoder_embeddings:
            raise ValueError(
                f"target_vocab_size={self.target_vocab_size} differs from vocab_size={self.vocab_size}: one "
                "embedding cannot serve both. Set share_encoder_decoder_embeddings=False."
            )


@strict
class VanillaTransformerEncoderConfig(TransformerConfig):
    """Configuration of the encoder-only model: classification, regression, tagging, question answering, masked LM.

    Args:
        num_layers: number of layers N.
        pooling: how a classifier makes one vector of a sentence: the "mean" of its real tokens, its "first" token, or
            the "max" of each feature over its real tokens.
        type_vocab_size: number of token types, each with its own embedding (BERT's segments); the paper has none.
        mlm_head_transform: a layer with activation and layer normalisation before the output of masked LM, as in BERT.
    All other fields: see `TransformerConfig`.
    """

    model_type = "vanilla_transformer_encoder"
    attribute_map: ClassVar[dict[str, str]] = {
        **TransformerConfig.attribute_map,
        "num_hidden_layers": "num_layers",
        "encoder_layers": "num_layers",  # in the config of an encoder saved from an encoder-decoder
    }
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoModel": "VanillaTransformerEncoderModel",
        "AutoModelForMaskedLM": "VanillaTransformerForMaskedLM",
        "AutoModelForSequenceClassification": "VanillaTransformerForSequenceClassification",
        "AutoModelForTokenClassification": "VanillaTransformerForTokenClassification",
        "AutoModelForQuestionAnswering": "VanillaTransformerForQuestionAnswering",
    }
    pipeline_classes: ClassVar[dict[str, tuple[str, str]]] = {
        "question-answering": ("QuestionAnsweringPipeline", "AutoModelForQuestionAnswering")
    }
    base_model_tp_plan: ClassVar[dict[str, str]] = STACK_TP_PLAN
    handle_impossible_answer = False  # True if some training questions have no answer

    num_layers: int = 6
    pooling: Literal["mean", "first", "max"] = "mean"
    type_vocab_size: int = 0
    mlm_head_transform: bool = False


@strict
class VanillaTransformerDecoderConfig(TransformerConfig):
    """Configuration of the decoder-only model, without cross-attention: language modelling and generation.

    Args:
        num_layers: number of layers N.
    All other fields: see `TransformerConfig`.
    """

    model_type = "vanilla_transformer_decoder"
    attribute_map: ClassVar[dict[str, str]] = {**TransformerConfig.attribute_map, "num_hidden_layers": "num_layers"}
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoModel": "VanillaTransformerDecoderModel",
        "AutoModelForCausalLM": "VanillaTransformerForCausalLM",
    }
    base_model_tp_plan: ClassVar[dict[str, str]] = STACK_TP_PLAN

    num_layers: int = 6


for _config_class in (VanillaTransformerConfig, VanillaTransformerEncoderConfig, VanillaTransformerDecoderConfig):
    _config_class.register_for_auto_class()

__all__ = [
    "PRESETS",
    "VanillaTransformerConfig",
    "VanillaTransformerDecoderConfig",
    "VanillaTransformerEncoderConfig",
]
