# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017; arXiv 1706.03762).

Read from top to bottom, it follows the paper:

    parts    attention (3.2.1), SelfAttention and CrossAttention (3.2.2, 3.2.3), FeedForward (3.3), AddAndNorm (5.4),
             sinusoids (3.5)
    layers   TransformerLayer: one layer of Figure 1's left half; DecoderLayer: one of its right half
    stacks   encoder and decoder: embedding + position, the masks, N layers
    models   VanillaTransformerModel: encoder and decoder joined
    heads    one class for each task

The three families share all of it: the encoder-only model is the encoder; the decoder-only model is the same stack of
`TransformerLayer` under a causal mask; the encoder-decoder joins an encoder to a decoder whose layers attend to it.
The losses lie in the file losses_vanilla_transformer.py, forms of attention that are faster than Equation 1 as it
stands in attention_vanilla_transformer.py.

Shapes: `batch`; `length` of the sequence (`query_length` and `key_length` where two meet); `heads`; widths d_model,
d_k, d_v and d_ff; `vocab`; `labels`. In parts and layers, `x` is a sequence (batch, length, d_model), `memory` the
encoder's output (batch, source_length, d_model), and a `mask` says who may look at whom.
"""

import copy
import inspect
import math
import os
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.configuration_utils import PreTrainedConfig
from transformers.generation import GenerationConfig, GenerationMixin
from transformers.generation.continuous_batching import PagedAttentionCache
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
    sliding_window_bidirectional_overlay,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPast,
    BaseModelOutputWithPastAndCrossAttentions,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import is_tracing, logging
from transformers.utils.generic import TransformersKwargs, can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention_vanilla_transformer import windowed_sdpa_attention_forward  # noqa: F401  (registers it)
from .configuration_vanilla_transformer import (
    STACK_TP_PLAN,
    TransformerConfig,
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerEncoderConfig,
    require_private_names,
)
from .losses_vanilla_transformer import (
    IGNORED_LABEL,
    check_aligned_ids,
    check_ids,
    check_input_ids,
    check_inputs_embeds,
    check_mask,
    check_rows,
    check_tensor,
    cross_entropy,
    is_padding,
    sequence_loss,
    span_loss,
    without_padding,
)
from .pipeline_vanilla_transformer import QuestionAnsweringPipeline, TranslationPipeline


logger = logging.get_logger(__name__)


# ---------------------------------------------------------------------------------------------------------------------
# Parts
# ---------------------------------------------------------------------------------------------------------------------


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention, section 3.2.1, Equation 1:

        Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

    Args:
        query: (batch, heads, query_length, d_k); key: (batch, heads, key_length, d_k); value: (..., key_length, d_v).
        attention_mask: (batch, 1, query_length, key_length); 0 where a query may attend, very negative where not; or
            True and False.
        scaling: 1 / sqrt(d_k).

    Returns:
        The weighted values (batch, query_length, heads, d_v), the weights (batch, heads, query_length, key_length).
    """
    scores = query @ key.transpose(-2, -1) * scaling  # (batch, heads, query_length, key_length)
    if attention_mask is not None and attention_mask.dtype == torch.bool:  # a caller's whole mask
        attention_mask = scores.new_zeros(()).masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    weights = F.dropout(weights, p=dropout, training=module.training)
    output = weights @ value  # (batch, heads, query_length, d_v)
    return output.transpose(1, 2).contiguous(), weights


class MultiHeadAttention(nn.Module):
    """Multi-head attention, section 3.2.2: MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O.

    How Equation 1 is computed is the choice of `config._attn_implementation`: eager as written above, or a fused
    kernel (sdpa, flash_attention_2, flex_attention). Subclasses say where keys and values are kept between two steps.
    """

    num_key_value_groups = 1  # every query head has a key head of its own
    sliding_window: int | None = None

    def __init__(self, config: TransformerConfig, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.d_k, self.d_v = config.d_k, config.d_v
        self.scaling = self.d_k**-0.5
        self.attention_dropout = config.attention_dropout
        heads, d_model, bias = config.num_heads, config.d_model, config.attention_bias
        self.q_proj = nn.Linear(d_model, heads * self.d_k, bias=bias)
        self.k_proj = nn.Linear(d_model, heads * self.d_k, bias=bias)
        self.v_proj = nn.Linear(d_model, heads * self.d_v, bias=bias)
        self.o_proj = nn.Linear(heads * self.d_v, d_model, bias=bias)

    @staticmethod
    def split_heads(states: Tensor, width: int) -> Tensor:
        """(batch, length, heads * width) -> (batch, heads, length, width)"""
        return states.view(*states.shape[:-1], -1, width).transpose(1, 2)

    def keys_and_values(self, source: Tensor, cache: Cache | None = None, **options) -> tuple[Tensor, Tensor]:
        """(batch, key_length, d_model) -> (batch, heads, key_length, d_k), (batch, heads, key_length, d_v)"""
        return self.split_heads(self.k_proj(source), self.d_k), self.split_heads(self.v_proj(source), self.d_v)

    def forward(
        self, x: Tensor, source: Tensor, mask: Tensor | None, past_key_values: Cache | None = None, **kwargs
    ) -> tuple[Tensor, Tensor | None]:
        """Let each position of `x` (batch, query_length, d_model) attend to `source` (batch, key_length, d_model).

        Returns:
            The same shape as `x`, and the weights (batch, heads, query_length, key_length); None from a fused kernel.
        """
        query = self.split_heads(self.q_proj(x), self.d_k)
        # A paged cache adds to the arguments of Equation 1.
        key, value = self.keys_and_values(source, past_key_values, kwargs=kwargs)
        dropout = self.attention_dropout if self.training else 0.0
        window = self.sliding_window
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        heads, weights = attention(
            self, query, key, value, mask, scaling=self.scaling, dropout=dropout, sliding_window=window, **kwargs
        )
        return self.o_proj(heads.reshape(*x.shape[:-1], -1)), weights


class SelfAttention(MultiHeadAttention):
    """A sequence looks at itself: in the encoder at all of it, in the decoder at nothing behind the query."""

    def __init__(self, config: TransformerConfig, layer_idx: int, is_causal: bool):
        super().__init__(config, layer_idx, is_causal)
        # Flash kernels take the window as a number of tokens counted from the query, itself included.
        window = config.sliding_window
        self.sliding_window = window if window is None or is_causal else window // 2 + 1

    def keys_and_values(self, source: Tensor, cache: Cache | None = None, **options) -> tuple[Tensor, Tensor]:
        """Those of the positions before `source` come first, from the cache."""
        key, value = super().keys_and_values(source)
        if isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        return (key, value) if cache is None else cache.update(key, value, self.layer_idx, **options)


class CrossAttention(MultiHeadAttention):
    """The decoder looks at the encoder's output, whose keys and values are computed once for a generation."""

    def keys_and_values(
        self, source: Tensor, cache: EncoderDecoderCache | None = None, **options
    ) -> tuple[Tensor, Tensor]:
        if cache is None:
            return super().keys_and_values(source)
        if not cache.is_updated.get(self.layer_idx):
            cache.is_updated[self.layer_idx] = True
            return cache.cross_attention_cache.update(*super().keys_and_values(source), self.layer_idx)
        kept = cache.cross_attention_cache.layers[self.layer_idx]
        return kept.keys, kept.values


def drop(x: Tensor, dropout: nn.Dropout) -> Tensor:
    """Dropout(x) in training. Else it is not even called, which would be felt where tokens come one by one."""
    return dropout(x) if dropout.training else x


class FeedForward(nn.Module):
    """Position-wise feed-forward network, section 3.3, Equation 2: FFN(x) = max(0, x W_1 + b_1) W_2 + b_2."""

    def __init__(self, config: TransformerConfig, d_ff: int | None = None):
        super().__init__()
        d_ff = config.d_ff if d_ff is None else d_ff
        self.fc1 = nn.Linear(config.d_model, d_ff)
        self.activation = ACT2FN[config.activation_function]
        self.dropout = nn.Dropout(config.activation_dropout)
        self.fc2 = nn.Linear(d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(drop(self.activation(self.fc1(x)), self.dropout))


def layer_norm(config: TransformerConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)


class AddAndNorm(nn.Module):
    """The "Add & Norm" box of Figure 1, with the dropout of section 5.4: LayerNorm(x + Dropout(Sublayer(x))).

    With `norm_position="pre"`, as in many later models: x + Dropout(Sublayer(LayerNorm(x))). The sub-layer is
    given as a function, not as a module: where a model is offloaded, modules among the arguments would be moved.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.norm_first = config.norm_position == "pre"
        self.norm = layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + drop(sublayer(self.norm(x)), self.dropout)
        return self.norm(x + drop(sublayer(x), self.dropout))


def sinusoids(position_ids: Tensor, d_model: int) -> Tensor:
    """Positional encoding, section 3.5; positions count from 0 and have no limit.

        PE(pos, 2i) = sin(pos / 10000^(2i / d_model))        PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))

    (batch or 1, length) -> (batch or 1, length, d_model), in float32
    """
    even = torch.arange(0, d_model, 2, device=position_ids.device, dtype=torch.float32)
    angles = position_ids[..., None] * torch.exp(even * (-math.log(10000.0) / d_model))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :d_model]


class SinusoidalPositions(nn.Module):
    """Positions as sinusoids, computed where they are used: nothing to save, to refill or to grow."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.d_model = config.d_model

    def forward(self, position_ids: Tensor) -> Tensor:
        return sinusoids(position_ids, self.d_model)


# ---------------------------------------------------------------------------------------------------------------------
# Layers
# ---------------------------------------------------------------------------------------------------------------------


class TransformerLayer(GradientCheckpointingLayer):
    """One layer of the encoder (Figure 1, left): self-attention, then feed-forward, each with its Add & Norm.

    Under a causal mask it is the layer of the decoder-only model.
    """

    def __init__(self, config: TransformerConfig, layer_idx: int, is_causal: bool):
        super().__init__()
        self.self_attn = SelfAttention(config, layer_idx, is_causal)
        self.self_attn_add_norm = AddAndNorm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_add_norm = AddAndNorm(config)

    def forward(self, x: Tensor, mask: Tensor | None, past_key_values: Cache | None = None, **kwargs) -> Tensor:
        """(batch, length, d_model) -> (batch, length, d_model)"""
        x = self.self_attn_add_norm(x, lambda x: self.self_attn(x, x, mask, past_key_values, **kwargs)[0])
        return self.feed_forward_add_norm(x, lambda x: self.feed_forward(x))


class DecoderLayer(GradientCheckpointingLayer):
    """One layer of the decoder (Figure 1, right): masked self-attention, attention to the encoder, feed-forward."""

    def __init__(self, config: TransformerConfig, layer_idx: int):
        super().__init__()
        self.self_attn = SelfAttention(config, layer_idx, is_causal=True)
        self.self_attn_add_norm = AddAndNorm(config)
        self.cross_attn = CrossAttention(config, layer_idx)
        self.cross_attn_add_norm = AddAndNorm(config)
        self.feed_forward = FeedForward(config, config.decoder_d_ff)
        self.feed_forward_add_norm = AddAndNorm(config)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor,
        memory_mask: Tensor | None,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs,
    ) -> Tensor:
        """(batch, length, d_model) -> (batch, length, d_model); `memory`: (batch, source_length, d_model)"""
        x = self.self_attn_add_norm(x, lambda x: self.self_attn(x, x, mask, past_key_values, **kwargs)[0])
        x = self.cross_attn_add_norm(x, lambda x: self.cross_attn(x, memory, memory_mask, past_key_values)[0])
        return self.feed_forward_add_norm(x, lambda x: self.feed_forward(x))


# ---------------------------------------------------------------------------------------------------------------------
# Stacks
# ---------------------------------------------------------------------------------------------------------------------


class ForwardSignature(inspect.Signature):
    """The signature of a `forward`, for which `generate` asks at every step: that of a bound method is made once."""

    bound: inspect.Signature | None = None

    def replace(self, **changes) -> inspect.Signature:
        if changes != {"parameters": tuple(self.parameters.values())[1:]}:  # without `self`
            return super().replace(**changes)
        self.bound = self.bound or super().replace(**changes)
        return self.bound


# The library's name for `past_key_values`, by which `generate` hands them over: since its version 5.24 it is `cache`.
HANDED_OVER = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE = "cache" if "cache" in HANDED_OVER else "past_key_values"


def takes_cache(forward: Callable) -> Callable:
    """Decorator of a `forward` that has `past_key_values`: they may be given by the library's name as well.

    Of two, an empty one gives way: PEFT gives a prefix by the old name beside the new cache of a generation.
    """
    if CACHE == "past_key_values":
        return forward

    @wraps(forward)
    def call(self, *args, cache: Cache | None = None, **kwargs):
        if cache is not None and (kwargs.get("past_key_values") is None or cache.get_seq_length()):
            kwargs["past_key_values"] = cache
        return forward(self, *args, **kwargs)

    signature = inspect.signature(forward)
    *named, rest = signature.parameters.values()
    named.append(inspect.Parameter("cache", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Cache | None))
    call.__signature__ = ForwardSignature([*named, rest], return_annotation=signature.return_annotation)
    return call


class VanillaTransformerPreTrainedModel(PreTrainedModel):
    """What the library needs to know of every model below: initialisation, loading, backends, parallel plans."""

    config: TransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TransformerLayer"]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):
            cls.forward.__signature__ = ForwardSignature.from_callable(cls.forward)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """With a window, "sdpa" (the default) becomes the form of it whose cost is linear in the length, and back."""
        implementation = super().get_correct_attn_implementation(requested_attention, is_init_check)
        if self.config.sliding_window is None:
            return "sdpa" if implementation == "windowed_sdpa" else implementation
        return "windowed_sdpa" if implementation in ("sdpa", "packed_sdpa") else implementation

    def save_pretrained(self, *args, **kwargs):
        """As the library's. What others have made two embeddings of one, as PEFT does, is saved as two."""
        if self.config.is_encoder_decoder and self.config.share_encoder_decoder_embeddings:
            shared = self.get_encoder().embed_tokens.weight is self.get_decoder().embed_tokens.weight
            self.config.share_encoder_decoder_embeddings = shared
        super().save_pretrained(*args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module. The paper is silent; linear weights are Xavier's, the usual choice.

        Embeddings have a standard deviation of d_model^-0.5: after the factor sqrt(d_model) of section 3.4 they have
        about the size of the sinusoids added to them, and tied logits start at about unit scale.
        """
        super()._init_weights(module)  # layer norms to one and zero, biases to zero
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)

    def mark_tied_weights_as_initialized(self, loading_info) -> None:
        """One module under two names, which no file has, is missing: the library takes the second name for a tie.

        If a file has both, it may be of two modules.
        """
        missing = set(loading_info.missing_keys)
        super().mark_tied_weights_as_initialized(loading_info)
        for tied, source in self.all_tied_weights_keys.items():
            weight = self.get_parameter(source)
            if weight is not self.get_parameter(tied):
                continue
            if {tied, source} <= missing:
                loading_info.missing_keys.add(source)
                weight._is_hf_initialized = False
            elif not {tied, source} & missing:
                logger.warning(
                    f"{source} and {tied} are both saved, and only the second is kept: if they differ, set "
                    "share_encoder_decoder_embeddings=False in the config, which has True."
                )

    def _resize_token_embeddings(self, new_num_tokens, pad_to_multiple_of=None, mean_resizing=True) -> nn.Embedding:
        """A target embedding of its own changes its size with the source's.

        Raises:
            ValueError: source and target have vocabularies of their own.
        """
        if getattr(self.config, "target_vocab_size", None) is not None:
            raise ValueError(
                f"vocab_size={self.config.vocab_size} and target_vocab_size={self.config.target_vocab_size} are two "
                "vocabularies: their embeddings cannot be given one new size."
            )
        embeddings = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.config.is_encoder_decoder and not self.config.share_encoder_decoder_embeddings:
            decoder = self.get_decoder()
            decoder.embed_tokens = self._get_resized_embeddings(
                decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
            )
        return embeddings


class ForeignSinusoids(SinusoidalPositions):
    """Sinusoids as some published models have them, in another order or at slightly other frequencies.

    `sinusoid_layout="half_split"` has all sines before all cosines; the lowest frequency of
    `sinusoid_frequencies="tensor2tensor"`, the code of the paper's authors, is exactly 1 / 10000.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.half_split = config.sinusoid_layout == "half_split"
        self.exact_end = config.sinusoid_frequencies == "tensor2tensor"

    def forward(self, position_ids: Tensor) -> Tensor:
        even = torch.arange(0, self.d_model, 2, device=position_ids.device, dtype=torch.float32)
        period = max(2 * len(even) - 2, 1) if self.exact_end else self.d_model
        angles = position_ids[..., None] * torch.exp(even * (-math.log(10000.0) / period))
        waves = (angles.sin(), angles.cos())
        return (torch.cat(waves, -1) if self.half_split else torch.stack(waves, -1).flatten(-2))[..., : self.d_model]


def make_positions(config: TransformerConfig) -> nn.Module:
    """What makes embeddings of positions (batch or 1, length): sinusoids, or the learned table of Table 3, row E."""
    if config.position_embedding == "learned":
        return nn.Embedding(config.max_position_embeddings + config.position_offset, config.d_model)
    of_the_paper = config.sinusoid_layout == "interleaved" and config.sinusoid_frequencies == "paper"
    return SinusoidalPositions(config) if of_the_paper else ForeignSinusoids(config)


class TransformerStack(VanillaTransformerPreTrainedModel):
    """What an encoder and a decoder have in common: embedding + position below, N layers, a final norm if pre-norm.

    A subclass makes the layers, and calls `post_init` when it has made all that it is made of.
    """

    _tp_plan = STACK_TP_PLAN
    _fsdp_plan = {"embed_tokens": "free_full_weight", "layers.*": "free_full_weight", "norm": "keep_full_weight"}

    def __init__(self, config: TransformerConfig, vocab_size: int | None = None):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(vocab_size or config.vocab_size, config.d_model)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_positions = make_positions(config)
        self.embed_norm = layer_norm(config) if config.normalize_embedding else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList()  # filled by the subclasses
        self.norm = layer_norm(config) if config.norm_position == "pre" else nn.Identity()
        self.gradient_checkpointing = False

    def token_embeddings(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """(batch, length) ids -> (batch, length, d_model), before scale and position; or the given `inputs_embeds`."""
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither" if input_ids is None else "both"
            raise ValueError(f"Give exactly one of input_ids and inputs_embeds to {type(self).__name__}; got {given}.")
        if inputs_embeds is None:
            check_input_ids(input_ids, self.embed_tokens.weight.shape[0], self.config)
            return self.embed_tokens(input_ids)
        check_inputs_embeds(inputs_embeds, self.config.d_model)
        return inputs_embeds

    def add_positions(self, inputs_embeds: Tensor, position_ids: Tensor) -> Tensor:
        """Dropout(embedding * sqrt(d_model) + position): sections 3.4, 3.5 and 5.4.

        Raises:
            ValueError: a position is past the end of learned ones.
        """
        if self.config.position_embedding == "learned":
            limit = self.config.max_position_embeddings
            check_ids("position_ids", position_ids, limit, "position_embedding='learned'")
        if self.config.position_offset:
            position_ids = position_ids + self.config.position_offset
        positions = self.embed_positions(position_ids).to(inputs_embeds.dtype)
        return drop(self.embed_norm(inputs_embeds * self.embed_scale + positions), self.dropout)

    @staticmethod
    def make_position_ids(
        inputs_embeds: Tensor, attention_mask: Tensor | None, past_length: int | Tensor = 0
    ) -> Tensor:
        """Number the real tokens 0, 1, 2, ..., wherever padding stands. (batch or 1, length)"""
        length = inputs_embeds.shape[1]
        if not is_padding(attention_mask):
            if isinstance(past_length, int):
                return torch.arange(past_length, past_length + length, device=inputs_embeds.device)[None]
            return (torch.arange(length, device=inputs_embeds.device) + past_length)[None]
        return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]

    def run_layers(
        self,
        inputs_embeds: Tensor,
        position_ids: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        **kwargs,
    ) -> Tensor:
        """Positions, the N layers and the final norm: (batch, length, d_model) -> (batch, length, d_model)."""
        x = self.add_positions(inputs_embeds, position_ids)
        attended = (mask,) if memory is None else (mask, memory, memory_mask)
        for layer in self.layers:
            x = layer(x, *attended, **kwargs)
        return self.norm(x)


class VanillaTransformerEncoderModel(TransformerStack):
    """The encoder of section 3.1: on its own a model, in the encoder-decoder its left half."""

    config: VanillaTransformerEncoderConfig
    _can_record_outputs = {"hidden_states": TransformerLayer, "attentions": SelfAttention}

    def __init__(self, config: VanillaTransformerEncoderConfig):
        super().__init__(config)
        self.layers.extend(TransformerLayer(config, i, is_causal=False) for i in range(config.num_hidden_layers))
        kinds = getattr(config, "type_vocab_size", 0)
        self.embed_types = nn.Embedding(kinds, config.d_model) if kinds else None
        self.post_init()

    def add_types(self, inputs_embeds: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """The embeddings of tokens and of their kinds, where the config has several (BERT's segments)."""
        if self.embed_types is None:
            return inputs_embeds
        if token_type_ids is None:
            token_type_ids = torch.zeros(inputs_embeds.shape[:2], dtype=torch.long, device=inputs_embeds.device)
        check_aligned_ids("token_type_ids", token_type_ids, *inputs_embeds.shape[:2])
        check_ids("token_type_ids", token_type_ids, self.embed_types.weight.shape[0], "type_vocab_size")
        return inputs_embeds + self.embed_types(token_type_ids)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """
        Args:
            input_ids: (batch, length) token ids, or `inputs_embeds` (batch, length, d_model) in their place.
            attention_mask: (batch, length), 1 for real tokens and 0 for padding; or (batch, 1, length, length).
            position_ids: (batch, length); by default real tokens are numbered from 0.
            token_type_ids: (batch, length), for `type_vocab_size` kinds of tokens; by default all are of kind 0.

        Returns:
            `last_hidden_state` (batch, length, d_model), and what was asked for with `output_hidden_states` and
            `output_attentions`.
        """
        inputs_embeds = self.add_types(self.token_embeddings(input_ids, inputs_embeds), token_type_ids)
        batch, length = inputs_embeds.shape[:2]
        check_aligned_ids("position_ids", position_ids, batch, length)
        check_mask("attention_mask", attention_mask, batch, self.config.num_heads, length, length)
        if position_ids is None:
            position_ids = self.make_position_ids(inputs_embeds, attention_mask)

        window = self.config.sliding_window
        mask = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            and_mask_function=None if window is None else sliding_window_bidirectional_overlay(window // 2),
        )
        hidden_states = self.run_layers(inputs_embeds, position_ids, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=hidden_states)


class CausalStack(TransformerStack):
    """The two decoders, with an encoder to look at and without: each position sees itself and those before it."""

    def sees_all(self, inputs_embeds: Tensor, attention_mask: Tensor | None, past_key_values: Cache | None) -> bool:
        """Whether it is plain without a mask: one position more, behind no padding, sees all that a cache holds.

        It is so at every step of a translation, of which the making of a mask would take about a hundredth.
        """
        one_more = inputs_embeds.shape[1] == 1 and attention_mask is None and self.config.sliding_window is None
        has_room = past_key_values is not None and past_key_values.is_compileable  # of a fixed size, partly empty
        return one_more and not has_room and not is_tracing(inputs_embeds)

    def embed_and_mask(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        past_key_values: Cache | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What any decoder's layers need: embeddings (batch, length, d_model), their positions, the causal mask.

        Raises:
            ValueError: past keys and values that are not a cache, as those of earlier versions of the library.
        """
        if isinstance(past_key_values, PagedAttentionCache):  # whose masks and positions are given
            past_key_values = None
        if not isinstance(past_key_values, Cache | None):
            kind = type(past_key_values).__name__
            raise ValueError(f"past_key_values is a {kind}; it must be a Cache, as DynamicCache(config=...) makes it.")
        inputs_embeds = self.token_embeddings(input_ids, inputs_embeds)
        batch, length = inputs_embeds.shape[:2]
        check_aligned_ids("position_ids", position_ids, batch, length)
        past_length = 0 if past_key_values is None else past_key_values.get_seq_length()
        if isinstance(past_length, int):
            lengths = (length, past_length + length)
            check_mask("attention_mask", attention_mask, batch, self.config.num_heads, *lengths, cache_has_room=True)

        make_mask = create_causal_mask if self.config.sliding_window is None else create_sliding_window_causal_mask
        mask = None
        if not self.sees_all(inputs_embeds, attention_mask, past_key_values):
            # An empty cache that grows needs the mask of none, and only without one the library looks at positions.
            grows = past_key_values is not None and not past_key_values.is_compileable
            mask = make_mask(
                config=self.config,
                inputs_embeds=inputs_embeds,
                attention_mask=attention_mask,
                position_ids=position_ids,  # where they restart, several sequences are packed into one row
                **{CACHE: None if grows and past_length == 0 else past_key_values},
            )
        if position_ids is None:
            position_ids = self.make_position_ids(inputs_embeds, attention_mask, past_length)
        return inputs_embeds, position_ids, mask


class VanillaTransformerDecoderModel(CausalStack):
    """The decoder of section 3.1 without attention to an encoder."""

    config: VanillaTransformerDecoderConfig
    _can_record_outputs = {"hidden_states": TransformerLayer, "attentions": SelfAttention}

    def __init__(self, config: VanillaTransformerDecoderConfig):
        super().__init__(config)
        self.layers.extend(TransformerLayer(config, i, is_causal=True) for i in range(config.num_hidden_layers))
        self.post_init()

    @takes_cache
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPast:
        """
        Args:
            input_ids: (batch, length) token ids, or `inputs_embeds` (batch, length, d_model) in their place.
            attention_mask: (batch, past + length), 1 for real tokens and 0 for padding; or (batch, 1, length, keys).
            position_ids: (batch, length); by default real tokens are numbered from 0. Where they begin anew, and no
                mask is given, a row holds several sequences, each of which sees itself alone.
            past_key_values: keys and values of the tokens before these; or as `cache`, the library's name since 5.24.

        Returns:
            `last_hidden_state` (batch, length, d_model), the cache by the library's name, and what was asked for.
        """
        if use_cache and past_key_values is None and not self.training:
            past_key_values = DynamicCache(config=self.config)
        inputs_embeds, position_ids, mask = self.embed_and_mask(
            input_ids, attention_mask, position_ids, inputs_embeds, past_key_values
        )
        hidden_states = self.run_layers(inputs_embeds, position_ids, mask, past_key_values=past_key_values, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=hidden_states, **{CACHE: past_key_values})


class VanillaTransformerCrossDecoder(CausalStack):
    """The decoder of section 3.1 whole: the right half of Figure 1, which attends to the encoder's output."""

    config: VanillaTransformerConfig
    _no_split_modules = ["DecoderLayer"]
    _tp_plan = STACK_TP_PLAN | {
        name.replace("self_attn", "cross_attn"): style for name, style in STACK_TP_PLAN.items() if "self_attn" in name
    }
    _can_record_outputs = {
        "hidden_states": DecoderLayer,
        "attentions": SelfAttention,
        "cross_attentions": CrossAttention,
    }

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config, config.target_vocab_size)
        self.layers.extend(DecoderLayer(config, i) for i in range(config.decoder_layers))
        self.post_init()

    @takes_cache
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """
        Args:
            encoder_hidden_states: (batch, source_length, d_model)
            encoder_attention_mask: (batch, source_length), 1 for real tokens of the source and 0 for its padding.
        All others: see `VanillaTransformerDecoderModel.forward`.
        """
        if encoder_hidden_states is None:
            raise ValueError("The decoder of an encoder-decoder attends to encoder_hidden_states; got None.")
        if use_cache and past_key_values is None and not self.training:
            self_attention_cache = DynamicCache(config=self.config.get_text_config(decoder=True))
            past_key_values = EncoderDecoderCache(self_attention_cache, DynamicCache())
        if past_key_values is not None and not isinstance(past_key_values, EncoderDecoderCache):
            raise ValueError(
                f"past_key_values is a {type(past_key_values).__name__}; here it must be an EncoderDecoderCache."
            )
        inputs_embeds, position_ids, mask = self.embed_and_mask(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds,
            None if past_key_values is None else past_key_values.self_attention_cache,
        )
        (batch, length), source_length = inputs_embeds.shape[:2], encoder_hidden_states.shape[1]
        check_mask(
            "encoder_attention_mask", encoder_attention_mask, batch, self.config.num_heads, length, source_length
        )
        encoder_mask = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=inputs_embeds,
            attention_mask=encoder_attention_mask,
            encoder_hidden_states=encoder_hidden_states,
        )
        hidden_states = self.run_layers(
            inputs_embeds,
            position_ids,
            mask,
            encoder_hidden_states,
            encoder_mask,
            past_key_values=past_key_values,
            **kwargs,
        )
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states, **{CACHE: past_key_values})


# ---------------------------------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------------------------------


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """Encoder and decoder joined: Figure 1 below its last linear layer."""

    config: VanillaTransformerConfig

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.encoder = VanillaTransformerEncoderModel(config)
        self.decoder = VanillaTransformerCrossDecoder(config)
        if config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = self.encoder.embed_tokens  # one module, which sharding (FSDP) relies on
            self._tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}
        self.post_init()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Sharing one embedding between the stacks is a choice of its own, with or without a tied output."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys or {})

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = value

    @takes_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """
        Args:
            input_ids: (batch, source_length) token ids of the source, or `inputs_embeds` (batch, source_length,
                d_model), or `encoder_outputs` of an earlier call.
            attention_mask: (batch, source_length), 1 for real tokens of the source and 0 for its padding.
            decoder_input_ids: (batch, length) token ids of the target, shifted right by one so that position t
                predicts token t; or `decoder_inputs_embeds` (batch, length, d_model).
            decoder_attention_mask: (batch, past + length); not needed where the target is padded on the right.
            past_key_values: keys and values of the target tokens before these, and of the source; or as `cache`.

        Returns:
            `last_hidden_state` (batch, length, d_model) of the decoder, the encoder's, and what was asked for.
        """
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError("Give decoder_input_ids or decoder_inputs_embeds, or labels to a head; got none of them.")
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                inputs_embeds=inputs_embeds,
                **kwargs,
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)

        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            position_ids=decoder_position_ids,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            **{CACHE: getattr(decoder_outputs, CACHE)},
        )


# ---------------------------------------------------------------------------------------------------------------------
# Heads
# ---------------------------------------------------------------------------------------------------------------------


class VocabularyModel(VanillaTransformerPreTrainedModel):
    """What the models that predict tokens share: the output projection (section 3.4) and its loss."""

    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def add_lm_head(self, embedding: str) -> None:
        """Make the projection d_model -> vocab, tied to the parameter of that name if the config says so."""
        vocab_size = getattr(self.config, "target_vocab_size", None) or self.config.vocab_size
        self.lm_head = nn.Linear(self.config.d_model, vocab_size, bias=self.config.output_bias)
        self._tied_weights_keys = {"lm_head.weight": embedding}
        if self.can_generate() and self.generation_config.max_length is None:
            self.generation_config.max_length = self.config.max_position_embeddings

    def _prepare_generated_length(
        self, *, generation_config: GenerationConfig, has_default_max_length: bool, **kwargs
    ):
        """The model's own max_length is no wish of the user's: no warning where it stands beside max_new_tokens."""
        is_ours = generation_config.max_length == self.generation_config.max_length
        return super()._prepare_generated_length(
            generation_config=generation_config,
            has_default_max_length=has_default_max_length or (generation_config.max_new_tokens and is_ours),
            **kwargs,
        )

    def logits_and_loss(
        self,
        states: Tensor,
        labels: Tensor | None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Logits (batch, length, vocab) of (batch, length, d_model) and their cross-entropy with (batch, length).

        Labels are smoothed while training.
        """
        label_smoothing = self.config.label_smoothing if self.training else 0.0
        if isinstance(logits_to_keep, int):
            logits_to_keep = slice(-logits_to_keep, None)
        logits = self.lm_head(states[:, logits_to_keep])
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch, label_smoothing)
        return logits, loss


GNMT_LENGTH_PENALTY: ContextVar[bool] = ContextVar("gnmt_length_penalty", default=False)  # in the search under way


class VanillaTransformerForConditionalGeneration(VocabularyModel, GenerationMixin):
    """The encoder-decoder with its output layer: the model of the paper, for translation and the like."""

    config: VanillaTransformerConfig

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        # For who calls `model.loss_function`, as our own loss does not: it must not shift labels once more.
        self.loss_type = "ForMaskedLM"
        self.model = VanillaTransformerModel(config)
        stack = "encoder" if config.share_encoder_decoder_embeddings else "decoder"
        self.add_lm_head(f"model.{stack}.embed_tokens.weight")
        self.offer_gnmt_length_penalty()
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift (batch, length) labels right by one behind the start token, with padding in the place of -100."""
        check_rows("labels", labels)
        vocab_size = self.config.target_vocab_size or self.config.vocab_size
        check_ids("labels", labels, vocab_size, "the vocabulary", ignored=IGNORED_LABEL)
        for name in ("decoder_start_token_id", "pad_token_id"):
            token = getattr(self.config, name)
            if token is None or not 0 <= token < vocab_size:
                raise ValueError(
                    f"config.{name} is {token}; to make decoder inputs from labels, set it to one of the vocabulary's "
                    f"ids, 0 to {vocab_size - 1}."
                )
        start = labels.new_full((labels.shape[0], 1), self.config.decoder_start_token_id)
        shifted = torch.cat((start, labels[:, :-1]), dim=1)
        return shifted.masked_fill(shifted == IGNORED_LABEL, self.config.pad_token_id)

    def prepare_inputs_for_generation(self, *args, decoder_attention_mask: Tensor | None = None, **kwargs) -> dict:
        """Number the real tokens also where, for a static cache, the library makes a whole mask of one of padding."""
        inputs = super().prepare_inputs_for_generation(*args, decoder_attention_mask=decoder_attention_mask, **kwargs)
        mask = inputs.get("decoder_attention_mask", decoder_attention_mask)
        unnumbered = decoder_attention_mask is not None and kwargs.get("decoder_position_ids") is None
        if unnumbered and decoder_attention_mask.dim() < mask.dim():
            positions = (decoder_attention_mask.long().cumsum(-1) - 1).clamp(min=0)
            inputs["decoder_position_ids"] = positions[:, -mask.shape[2] :]
        return inputs

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs) -> None:
        """A window limits self-attention only: the keys of the source are kept whole. A mask of ones is left out."""
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        cache, mask = model_kwargs.get(CACHE), model_kwargs.get("attention_mask")
        source = model_kwargs["encoder_outputs"][0].shape[:2]
        # The library leaves it out where there is no encoder. Else each step would look at it again; where that is
        # compiled, batches with padding and without would need a step each.
        whole = mask is not None and mask.shape == source and bool(mask.all())
        if whole and not getattr(cache, "is_compileable", False):
            model_kwargs["attention_mask"] = None
        if isinstance(cache, EncoderDecoderCache) and any(cache.cross_attention_cache.is_sliding):
            config = copy.deepcopy(self.config.get_text_config(decoder=True))
            config.sliding_window = None
            cross_cache_class = type(cache.cross_attention_cache)
            cache.cross_attention_cache = cross_cache_class(
                config=config, **({} if cross_cache_class is DynamicCache else {"max_cache_len": source[1]})
            )

    # The length penalty of section 6.1 is that of Wu et al. (2016, arXiv 1609.08144), Equation 14: n tokens score
    # log P / ((5 + n) / 6)^alpha, where the library divides by n^alpha. `GenerationConfig(gnmt_length_penalty=True)`
    # asks for it, as the model's own or passed to `generate`. In the library's terms, 5 more tokens are a prompt
    # shorter by 5, and the 6 is a factor 6^alpha of every log P.
    def offer_gnmt_length_penalty(self) -> None:
        """Make the option one that the model's generation config knows: it can be updated, passed and saved."""
        if not hasattr(self.generation_config, "gnmt_length_penalty"):
            self.generation_config.gnmt_length_penalty = False
        self.generation_config._from_model_config = False  # else it would be loaded without what is not the library's

    def adjust_generation_fn(
        self, generation_config, from_auto_class, from_pipeline, pretrained_model_name_or_path, *args, **kwargs
    ) -> None:
        """Read the generation config beside the weights. In a subfolder of ".", the library would look beside it."""
        source = pretrained_model_name_or_path
        source = os.path.abspath(source) if source is not None and os.path.isdir(source) else source
        super().adjust_generation_fn(generation_config, from_auto_class, from_pipeline, source, *args, **kwargs)
        self.offer_gnmt_length_penalty()

    def _beam_search(self, *args, generation_config: GenerationConfig, **kwargs):
        token = GNMT_LENGTH_PENALTY.set(bool(getattr(generation_config, "gnmt_length_penalty", False)))
        try:
            return super()._beam_search(*args, generation_config=generation_config, **kwargs)
        finally:
            GNMT_LENGTH_PENALTY.reset(token)

    def _update_finished_beams(
        self, *, topk_log_probs: Tensor, decoder_prompt_len: int, length_penalty: float, **kwargs
    ):
        if GNMT_LENGTH_PENALTY.get():
            topk_log_probs, decoder_prompt_len = topk_log_probs * 6**length_penalty, decoder_prompt_len - 5
        return super()._update_finished_beams(
            topk_log_probs=topk_log_probs,
            decoder_prompt_len=decoder_prompt_len,
            length_penalty=length_penalty,
            **kwargs,
        )

    def _check_early_stop_heuristic(
        self, *, running_beam_scores: Tensor, decoder_prompt_len: int, length_penalty: float, **kwargs
    ):
        if GNMT_LENGTH_PENALTY.get():
            running_beam_scores, decoder_prompt_len = running_beam_scores * 6**length_penalty, decoder_prompt_len - 5
        return super()._check_early_stop_heuristic(
            running_beam_scores=running_beam_scores,
            decoder_prompt_len=decoder_prompt_len,
            length_penalty=length_penalty,
            **kwargs,
        )

    def compute_transition_scores(self, *args, **kwargs) -> Tensor:
        """As the library's, which takes `config.vocab_size` for that of the scores: the target may have its own."""
        model = copy.copy(self)
        model.config = copy.copy(self.config)
        model.config.vocab_size = self.config.target_vocab_size or self.config.vocab_size
        return GenerationMixin.compute_transition_scores(model, *args, **kwargs)

    @takes_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """
        Args:
            labels: (batch, length) target tokens, -100 where none. Without decoder inputs, these are made from them.
                Where `decoder_attention_mask` is 0, they are left out.
            logits_to_keep: compute the logits of this many last positions only; 0 is all. Or their indices (count,).
        All others: see `VanillaTransformerModel.forward`.

        Returns:
            `logits` (batch, length, vocab), `loss` where labels were given, and what the model returns.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            decoder_position_ids=decoder_position_ids,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        labels = without_padding(labels, decoder_attention_mask)
        logits, loss = self.logits_and_loss(outputs.last_hidden_state, labels, num_items_in_batch, logits_to_keep)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
            **{CACHE: getattr(outputs, CACHE)},
        )


class VanillaTransformerForCausalLM(VocabularyModel, GenerationMixin):
    """The decoder-only model with its output layer: language modelling and generation."""

    config: VanillaTransformerDecoderConfig

    def __init__(self, config: VanillaTransformerDecoderConfig):
        super().__init__(config)
        self.model = VanillaTransformerDecoderModel(config)
        self.add_lm_head("model.embed_tokens.weight")
        self.post_init()

    @takes_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """
        Args:
            labels: (batch, length), the input tokens themselves, -100 where none; position t is compared with t + 1.
                Padding, and what it would predict, the first token behind it, are left out; a Trainer, which counts
                targets itself, needs -100 there.
            shift_labels: (batch, length), already shifted, in the place of `labels`. Only a keyword argument, since a
                Trainer takes each named parameter with "label" in it for a column that all data have.
            logits_to_keep: compute the logits of this many last positions only; 0 is all. Or their indices (count,).
        All others: see `VanillaTransformerDecoderModel.forward`.

        Returns:
            `logits` (batch, length, vocab), and what the model returns; where labels were given, `loss` and no
            `past_key_values`.
        """
        shift_labels = kwargs.pop("shift_labels", None)
        if labels is not None and shift_labels is None:
            check_rows("labels", labels)
            labels = without_padding(labels, attention_mask)
            shift_labels = F.pad(labels, (0, 1), value=IGNORED_LABEL)[..., 1:]
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache if shift_labels is None else False,
            **kwargs,
        )
        shift_labels = without_padding(shift_labels, attention_mask)
        logits, loss = self.logits_and_loss(
            outputs.last_hidden_state, shift_labels, num_items_in_batch, logits_to_keep
        )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{CACHE: getattr(outputs, CACHE)},
        )


class MaskedLMTransform(nn.Module):
    """What BERT has before its output layer: LayerNorm(activation(x W + b)). (batch, length, d_model) -> the same"""

    def __init__(self, config: VanillaTransformerEncoderConfig):
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.activation = ACT2FN[config.activation_function]
        self.norm = layer_norm(config)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden_states)))


class VanillaTransformerForMaskedLM(VocabularyModel):
    """The encoder with an output layer that names the tokens behind its masks."""

    config: VanillaTransformerEncoderConfig

    def __init__(self, config: VanillaTransformerEncoderConfig):
        super().__init__(config)
        self.model = VanillaTransformerEncoderModel(config)
        self.transform = MaskedLMTransform(config) if config.mlm_head_transform else nn.Identity()
        self.add_lm_head("model.embed_tokens.weight")
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """
        Args:
            labels: (batch, length), the token where one is to be predicted, -100 elsewhere. Padding has none.
        All others: see `VanillaTransformerEncoderModel.forward`.

        Returns:
            `logits` (batch, length, vocab) and `loss` where labels were given.
        """
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)
        labels = without_padding(labels, attention_mask)
        logits, loss = self.logits_and_loss(self.transform(outputs.last_hidden_state), labels, num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def pool(hidden_states: Tensor, attention_mask: Tensor | None, pooling: str) -> Tensor:
    """One vector for each sequence, from its real tokens: (batch, length, d_model) -> (batch, d_model)."""
    if not is_padding(attention_mask):
        attention_mask = hidden_states.new_ones(hidden_states.shape[:2])
    real = attention_mask.to(hidden_states.device).bool()
    if pooling == "first":
        return hidden_states[torch.arange(len(real), device=real.device), real.int().argmax(dim=1)]
    if pooling == "max":
        real = real | ~real.any(dim=1, keepdim=True)  # a row of padding alone has no largest token
        return hidden_states.masked_fill(~real[..., None], torch.finfo(hidden_states.dtype).min).amax(dim=1)
    return (hidden_states * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)


class VanillaTransformerForSequenceClassification(VanillaTransformerPreTrainedModel):
    """The encoder with one prediction for each sequence: a class, several classes, or numbers.

    `config.problem_type` says which; without it, one label is regression, integer labels are single-label and
    real-valued ones multi-label classification, as everywhere in the library.
    """

    config: VanillaTransformerEncoderConfig

    def __init__(self, config: VanillaTransformerEncoderConfig):
        super().__init__(config)
        self.model = VanillaTransformerEncoderModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.post_init()

    def problem_type(self, labels: Tensor) -> str:
        check_tensor("labels", labels)
        if self.config.problem_type is not None:
            return self.config.problem_type
        if self.config.num_labels == 1:
            return "regression"
        return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """
        Args:
            labels: (batch,) class ids, or (batch, labels) numbers: 0 or 1 for multi-label, any for regression.
        All others: see `VanillaTransformerEncoderModel.forward`.

        Returns:
            `logits` (batch, labels), raw, and `loss` where labels were given.
        """
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)
        pooled = pool(outputs.last_hidden_state, attention_mask, self.config.pooling)
        logits = self.classifier(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = sequence_loss(logits, labels, self.problem_type(labels), num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class VanillaTransformerForTokenClassification(VanillaTransformerPreTrainedModel):
    """The encoder with one class for each token: tagging."""

    config: VanillaTransformerEncoderConfig

    def __init__(self, config: VanillaTransformerEncoderConfig):
        super().__init__(config)
        self.model = VanillaTransformerEncoderModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """
        Args:
            labels: (batch, length) class ids, -100 for tokens that have none, as padding has none.
        All others: see `VanillaTransformerEncoderModel.forward`.

        Returns:
            `logits` (batch, length, labels), raw, and `loss` where labels were given.
        """
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        labels = without_padding(labels, attention_mask)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class VanillaTransformerForQuestionAnswering(VanillaTransformerPreTrainedModel):
    """The encoder with a start and an end score for each token: extractive question answering."""

    config: VanillaTransformerEncoderConfig

    def __init__(self, config: VanillaTransformerEncoderConfig):
        super().__init__(config)
        self.model = VanillaTransformerEncoderModel(config)
        self.qa_outputs = nn.Linear(config.d_model, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """
        Args:
            start_positions, end_positions: (batch,) index of the answer's first and last token; an index outside the
                sequence (an answer that was cut off) is left out of the loss.
        All others: see `VanillaTransformerEncoderModel.forward`.

        Returns:
            `start_logits` and `end_logits`, each (batch, length), raw, and `loss` where positions were given.
        """
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            positions = (start_positions, end_positions)
            loss = span_loss((start_logits, end_logits), positions, attention_mask, num_items_in_batch)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


# What is overridden, set or called above of the library's private interfaces. Were one renamed, the library would not
# call ours any more, or not with what we look for, and say nothing. Not among them: `_fsdp_plan`, which older releases
# do not know and do not miss.
require_private_names(
    PreTrainedModel,
    "_can_compile_fullgraph",
    "_can_record_outputs",
    "_get_resized_embeddings",
    "_init_weights",
    "_no_split_modules",
    "_resize_token_embeddings",
    "_skip_keys_device_placement",
    "_supports_attention_backend",
    "_supports_flash_attn",
    "_supports_flex_attn",
    "_supports_sdpa",
    "_tied_weights_keys",
    "_tp_plan",
    "get_correct_attn_implementation",
    "get_expanded_tied_weights_keys",
    "mark_tied_weights_as_initialized",
)
require_private_names(
    GenerationMixin,
    "_beam_search",
    "_check_early_stop_heuristic",
    "_prepare_cache_for_generation",
    "_prepare_generated_length",
    "_update_finished_beams",
    "adjust_generation_fn",
)
require_private_names(GenerationMixin.prepare_inputs_for_generation, CACHE)
require_private_names(GenerationConfig(), "_from_model_config")
require_private_names(PreTrainedConfig, "_attn_implementation")

MODELS = (
    VanillaTransformerModel,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerEncoderModel,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerDecoderModel,
    VanillaTransformerForCausalLM,
)

# `save_pretrained` copies this file and its configuration beside the weights, under the name of each Auto class.
for _model in MODELS:
    for _auto_class, _name in _model.config_class.auto_classes.items():
        if _name == _model.__name__:
            _model.register_for_auto_class(_auto_class)

# A saved folder holds each file that is imported here, so `transformers.pipeline` finds these beside the weights.
PIPELINES = (QuestionAnsweringPipeline, TranslationPipeline)

__all__ = [_model.__name__ for _model in MODELS] + ["VanillaTransformerPreTrainedModel"]
