# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017; arXiv 1706.03762).

From top to bottom, this file follows the paper (section numbers in parentheses):

    parts    attention (3.2.1), SelfAttention and CrossAttention (3.2.2, 3.2.3), FeedForward (3.3), AddAndNorm (5.4),
             sinusoids (3.5)
    layers   TransformerLayer: one layer of Figure 1's left half; DecoderLayer: one of its right half
    stacks   encoder and decoder: embedding + position, the masks, N layers
    models   VanillaTransformerModel: encoder and decoder together
    heads    one model class per task
    then     losses, restricted attention (4), input checks, registration with the Auto classes

All three families share these parts. The encoder-only model is the encoder. The decoder-only model is the same stack
of `TransformerLayer` with a causal mask. The encoder-decoder adds a decoder that attends to the encoder's output.

Dimensions: `batch`; sequence `length` (in attention, `query_length` and `key_length`); `heads`; widths d_model, d_k,
d_v and d_ff; `vocab`; number of `labels`. In parts and layers, `x` is a sequence (batch, length, d_model), `memory`
the encoder's output (batch, source_length, d_model), and `mask` determines which keys each query may attend to.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers import masking_utils, modeling_outputs
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation.continuous_batching import PagedAttentionCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, is_tracing
from transformers.utils.generic import TransformersKwargs, can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_vanilla_transformer import (
    STACK_TP_PLAN,
    TransformerConfig,
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerEncoderConfig,
    check_private_api,
)
from .generation_vanilla_transformer import CACHE, LanguageGenerationMixin, TranslationGenerationMixin, takes_cache
from .pipeline_vanilla_transformer import TranslationPipeline  # noqa: F401, so that the file is saved with a model


# Parts --------------------------------------------------------------------------------------------------------------


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
    """Compute scaled dot-product attention (section 3.2.1, Equation 1):

        Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

    Args:
        query: (batch, heads, query_length, d_k); key: (batch, heads, key_length, d_k); value: (..., key_length, d_v).
        attention_mask: (batch, 1, query_length, key_length). A float mask is added to the scores: 0 where a query may
            attend, very negative elsewhere. A boolean mask is True where a query may attend.
        scaling: 1 / sqrt(d_k).

    Returns:
        The weighted values (batch, query_length, heads, d_v) and weights (batch, heads, query_length, key_length).
    """
    scores = query @ key.transpose(-2, -1) * scaling  # (batch, heads, query_length, key_length)
    if attention_mask is not None and attention_mask.dtype == torch.bool:  # 4-D mask passed by the caller
        attention_mask = scores.new_zeros(()).masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    weights = F.dropout(weights, p=dropout, training=module.training)
    output = weights @ value  # (batch, heads, query_length, d_v)
    return output.transpose(1, 2).contiguous(), weights


class MultiHeadAttention(nn.Module):
    """Multi-head attention (section 3.2.2): MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O.

    `config._attn_implementation` selects how to compute Equation 1: "eager", the function above, or a fused kernel
    (sdpa, flash_attention_2, flex_attention). Subclasses decide how to cache keys and values between decoding steps.
    """

    num_key_value_groups = 1  # each query head has its own key and value head
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
        """Split features into heads: (batch, length, heads * width) -> (batch, heads, length, width)."""
        return states.view(*states.shape[:-1], -1, width).transpose(1, 2)

    def keys_and_values(self, source: Tensor, cache: Cache | None = None, **options) -> tuple[Tensor, Tensor]:
        """Project `source` (batch, key_length, d_model) to keys and values (batch, heads, key_length, d_k or d_v)."""
        return self.split_heads(self.k_proj(source), self.d_k), self.split_heads(self.v_proj(source), self.d_v)

    def forward(
        self, x: Tensor, source: Tensor, mask: Tensor | None, past_key_values: Cache | None = None, **kwargs
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from each position of `x` (batch, query_length, d_model) to `source` (batch, key_length, d_model).

        Return a tensor shaped like `x` and the attention weights (batch, heads, query_length, key_length). Fused
        kernels do not return weights; they are None.
        """
        query = self.split_heads(self.q_proj(x), self.d_k)
        # A paged cache adds keyword arguments for the attention function.
        key, value = self.keys_and_values(source, past_key_values, kwargs=kwargs)
        dropout = self.attention_dropout if self.training else 0.0
        window = self.sliding_window
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        heads, weights = attention(
            self, query, key, value, mask, scaling=self.scaling, dropout=dropout, sliding_window=window, **kwargs
        )
        return self.o_proj(heads.reshape(*x.shape[:-1], -1)), weights


class SelfAttention(MultiHeadAttention):
    """Self-attention: bidirectional in the encoder, causal in the decoder, optionally limited to a sliding window."""

    def __init__(self, config: TransformerConfig, layer_idx: int, is_causal: bool):
        super().__init__(config, layer_idx, is_causal)
        # Attention kernels define the window as the positions on one side of the query, including the query itself.
        window = config.sliding_window
        self.sliding_window = window if window is None or is_causal else window // 2 + 1

    def keys_and_values(self, source: Tensor, cache: Cache | None = None, **options) -> tuple[Tensor, Tensor]:
        """Append the keys and values of `source` to the cache, and return all cached keys and values."""
        key, value = super().keys_and_values(source)
        if isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        return (key, value) if cache is None else cache.update(key, value, self.layer_idx, **options)


class CrossAttention(MultiHeadAttention):
    """Attention of the decoder to the encoder's output, whose keys and values are cached during generation."""

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


class FeedForward(nn.Module):
    """Position-wise feed-forward network (section 3.3, Equation 2): FFN(x) = max(0, x W_1 + b_1) W_2 + b_2."""

    def __init__(self, config: TransformerConfig, d_ff: int | None = None):
        super().__init__()
        d_ff = config.d_ff if d_ff is None else d_ff
        self.fc1 = nn.Linear(config.d_model, d_ff)
        self.activation = ACT2FN[config.activation_function]
        self.dropout = nn.Dropout(config.activation_dropout)
        self.fc2 = nn.Linear(d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.dropout(self.activation(self.fc1(x))))


def layer_norm(config: TransformerConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)


class AddAndNorm(nn.Module):
    """The "Add & Norm" box of Figure 1, with the dropout of section 5.4: LayerNorm(x + Dropout(Sublayer(x))).

    `norm_position="pre"`, as in many later models, computes x + Dropout(Sublayer(LayerNorm(x))). Callers pass the
    sub-layer as a function, because accelerate's offloading hooks move modules that are passed as arguments.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.norm_first = config.norm_position == "pre"
        self.norm = layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


def sinusoids(position_ids: Tensor, d_model: int, period: int | None = None) -> Tensor:
    """Return the positional encodings of section 3.5. Positions start at 0 and have no upper limit.

        PE(pos, 2i) = sin(pos / 10000^(2i / d_model))        PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))

    Shapes: (batch or 1, length) -> (batch or 1, length, d_model), in float32. `period` replaces d_model in exponents.
    """
    even = torch.arange(0, d_model, 2, device=position_ids.device, dtype=torch.float32)
    angles = position_ids[..., None] * torch.exp(even * (-math.log(10000.0) / (period or d_model)))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :d_model]


class SinusoidalPositions(nn.Module):
    """Sinusoidal positional encodings, without weights or buffers, and the variants of other published models.

    `sinusoid_layout="half_split"` puts all sines before all cosines. `sinusoid_frequencies="tensor2tensor"` follows
    the code of the paper's authors, where the lowest frequency is exactly 1 / 10000.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.d_model, self.half_split = config.d_model, config.sinusoid_layout == "half_split"
        has_exact_end = config.sinusoid_frequencies == "tensor2tensor"
        self.period = max(2 * ((config.d_model + 1) // 2) - 2, 1) if has_exact_end else config.d_model

    def forward(self, position_ids: Tensor) -> Tensor:
        waves = sinusoids(position_ids, self.d_model, self.period)
        return torch.cat((waves[..., ::2], waves[..., 1::2]), dim=-1) if self.half_split else waves


# Layers -------------------------------------------------------------------------------------------------------------


class TransformerLayer(GradientCheckpointingLayer):
    """One encoder layer (Figure 1, left): self-attention, then feed-forward, each followed by Add & Norm.

    With a causal mask, this is also a layer of the decoder-only model.
    """

    def __init__(self, config: TransformerConfig, layer_idx: int, is_causal: bool):
        super().__init__()
        self.self_attn = SelfAttention(config, layer_idx, is_causal)
        self.self_attn_add_norm = AddAndNorm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_add_norm = AddAndNorm(config)

    def forward(self, x: Tensor, mask: Tensor | None, past_key_values: Cache | None = None, **kwargs) -> Tensor:
        """Apply the layer to `x` (batch, length, d_model) and return a tensor of the same shape."""
        x = self.self_attn_add_norm(x, lambda x: self.self_attn(x, x, mask, past_key_values, **kwargs)[0])
        return self.feed_forward_add_norm(x, lambda x: self.feed_forward(x))


class DecoderLayer(GradientCheckpointingLayer):
    """One decoder layer (Figure 1, right): masked self-attention, cross-attention, feed-forward."""

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
        """Apply the layer to `x` (batch, length, d_model) and `memory`, and return a tensor of the shape of `x`."""
        x = self.self_attn_add_norm(x, lambda x: self.self_attn(x, x, mask, past_key_values, **kwargs)[0])
        x = self.cross_attn_add_norm(x, lambda x: self.cross_attn(x, memory, memory_mask, past_key_values)[0])
        return self.feed_forward_add_norm(x, lambda x: self.feed_forward(x))


# Stacks -------------------------------------------------------------------------------------------------------------


class VanillaTransformerPreTrainedModel(PreTrainedModel):
    """Base class of all models: initialisation, loading, saving, attention backends and parallelism plans."""

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

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Use "windowed_sdpa", whose cost is linear in the length, in place of "sdpa" if there is a sliding window."""
        implementation = super().get_correct_attn_implementation(requested_attention, is_init_check)
        if self.config.sliding_window is None:
            return "sdpa" if implementation == "windowed_sdpa" else implementation
        return "windowed_sdpa" if implementation in ("sdpa", "packed_sdpa") else implementation

    def save_pretrained(self, *args, **kwargs):
        """Record in the config if the shared embedding has been split, as PEFT does, then save the model."""
        if self.config.is_encoder_decoder and self.config.share_encoder_decoder_embeddings:
            shared = self.get_encoder().embed_tokens.weight is self.get_decoder().embed_tokens.weight
            self.config.share_encoder_decoder_embeddings = shared
        super().save_pretrained(*args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module. The paper specifies no initialisation; Xavier is usual for linear weights.

        Embeddings get a standard deviation of d_model^-0.5. Multiplied by sqrt(d_model) (section 3.4), they are about
        as large as the sinusoids added to them. With tied weights, initial logits have about unit variance.
        """
        super()._init_weights(module)  # layer norm weights to 1, all biases to 0
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)

    def mark_tied_weights_as_initialized(self, loading_info) -> None:
        """Initialise a shared embedding missing from a checkpoint; transformers would skip both its names as tied."""
        missing = set(loading_info.missing_keys)
        super().mark_tied_weights_as_initialized(loading_info)
        for tied, source in self.all_tied_weights_keys.items():
            weight = self.get_parameter(source)
            if weight is self.get_parameter(tied) and {tied, source} <= missing:
                loading_info.missing_keys.add(source)
                weight._is_hf_initialized = False

    def _resize_token_embeddings(self, new_num_tokens, pad_to_multiple_of=None, mean_resizing=True) -> nn.Embedding:
        """Like `PreTrainedModel._resize_token_embeddings`, but also resize a separate target embedding."""
        if (target := getattr(self.config, "target_vocab_size", None)) is not None:
            sizes = f"vocab_size={self.config.vocab_size} and target_vocab_size={target}"
            raise ValueError(f"{sizes} are two vocabularies: their embeddings cannot be given one new size.")
        sizes = (new_num_tokens, pad_to_multiple_of, mean_resizing)
        embeddings = super()._resize_token_embeddings(*sizes)
        if self.config.is_encoder_decoder and not self.config.share_encoder_decoder_embeddings:
            decoder = self.get_decoder()
            decoder.embed_tokens = self._get_resized_embeddings(decoder.embed_tokens, *sizes)
        return embeddings


class TransformerStack(VanillaTransformerPreTrainedModel):
    """Base class of encoder and decoder: embedding + position, N layers, and a final norm if pre-norm.

    Subclasses must add the layers and then call `post_init`.
    """

    _tp_plan = STACK_TP_PLAN
    _fsdp_plan = {"embed_tokens": "free_full_weight", "layers.*": "free_full_weight", "norm": "keep_full_weight"}

    def __init__(self, config: TransformerConfig, vocab_size: int | None = None):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(vocab_size or config.vocab_size, config.d_model)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        positions = config.max_position_embeddings + config.position_offset
        is_learned = config.position_embedding == "learned"  # Table 3, row E
        self.embed_positions = nn.Embedding(positions, config.d_model) if is_learned else SinusoidalPositions(config)
        self.embed_norm = layer_norm(config) if config.normalize_embedding else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList()  # filled by the subclasses
        self.norm = layer_norm(config) if config.norm_position == "pre" else nn.Identity()
        self.gradient_checkpointing = False

    def token_embeddings(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Embed ids (batch, length) as (batch, length, d_model), before scale and position, or use `inputs_embeds`."""
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither" if input_ids is None else "both"
            raise ValueError(f"Give exactly one of input_ids and inputs_embeds to {type(self).__name__}; got {given}.")
        if inputs_embeds is None:
            check_ids("input_ids", input_ids, self.embed_tokens.weight.shape[0], "the vocabulary")
            return self.embed_tokens(input_ids)
        check_embeds(inputs_embeds, self.config.d_model, self.dtype)
        return inputs_embeds

    def add_positions(self, inputs_embeds: Tensor, position_ids: Tensor) -> Tensor:
        """Compute Dropout(embedding * sqrt(d_model) + position), see sections 3.4, 3.5 and 5.4."""
        if self.config.position_embedding == "learned":
            limit = self.config.max_position_embeddings
            check_ids("position_ids", position_ids, limit, "position_embedding='learned'")
        if self.config.position_offset:
            position_ids = position_ids + self.config.position_offset
        positions = self.embed_positions(position_ids).to(inputs_embeds.dtype)
        return self.dropout(self.embed_norm(inputs_embeds * self.embed_scale + positions))

    @staticmethod
    def make_position_ids(x: Tensor, attention_mask: Tensor | None, past_length: int | Tensor = 0) -> Tensor:
        """Return position ids (batch or 1, length). Real tokens count from 0, whichever side the padding is on."""
        length = x.shape[1]
        if is_padding(attention_mask):
            return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]
        return (torch.arange(length, device=x.device) + past_length)[None]

    def run_layers(
        self,
        inputs_embeds: Tensor,
        position_ids: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        **kwargs,
    ) -> Tensor:
        """Add positions, then apply N layers and the final norm: (batch, length, d_model) -> the same shape."""
        x = self.add_positions(inputs_embeds, position_ids)
        attended = (mask,) if memory is None else (mask, memory, memory_mask)
        for layer in self.layers:
            x = layer(x, *attended, **kwargs)
        return self.norm(x)


class VanillaTransformerEncoderModel(TransformerStack):
    """The encoder (section 3.1): the encoder-only model, and the left half of the encoder-decoder in Figure 1."""

    config: VanillaTransformerEncoderConfig
    _can_record_outputs = {"hidden_states": TransformerLayer, "attentions": SelfAttention}

    def __init__(self, config: VanillaTransformerEncoderConfig):
        super().__init__(config)
        self.layers.extend(TransformerLayer(config, i, is_causal=False) for i in range(config.num_hidden_layers))
        kinds = getattr(config, "type_vocab_size", 0)
        self.embed_types = nn.Embedding(kinds, config.d_model) if kinds else None
        self.post_init()

    def add_types(self, x: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Add token type embeddings (BERT's segments) to `x`, if the config has token types."""
        if self.embed_types is None:
            return x
        if token_type_ids is None:
            token_type_ids = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        kinds = self.embed_types.weight.shape[0]
        check_ids("token_type_ids", token_type_ids, kinds, "type_vocab_size", x.shape[:2], same_rows=True)
        return x + self.embed_types(token_type_ids)

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
    ) -> modeling_outputs.BaseModelOutput:
        """
        Args:
            input_ids: (batch, length) token ids, or `inputs_embeds` (batch, length, d_model) in their place.
            attention_mask: (batch, length), 1 for real tokens and 0 for padding; or (batch, 1, length, length).
            position_ids: (batch, length); by default real tokens are numbered from 0.
            token_type_ids: (batch, length), each in [0, type_vocab_size); all 0 by default.
        """
        x = self.add_types(self.token_embeddings(input_ids, inputs_embeds), token_type_ids)
        batch, length = x.shape[:2]
        check_mask("attention_mask", attention_mask, (batch, self.config.num_heads, length, length))
        if position_ids is None:
            position_ids = self.make_position_ids(x, attention_mask)
        check_ids("position_ids", position_ids, shape=(batch, length), same_rows=True)
        window = self.config.sliding_window
        in_reach = None if window is None else masking_utils.sliding_window_bidirectional_overlay(window // 2)
        mask = masking_utils.create_bidirectional_mask(
            config=self.config, inputs_embeds=x, attention_mask=attention_mask, and_mask_function=in_reach
        )
        return modeling_outputs.BaseModelOutput(last_hidden_state=self.run_layers(x, position_ids, mask, **kwargs))


class CausalStack(TransformerStack):
    """Base class of both decoders: each position attends only to itself and earlier positions."""

    def positions_and_mask(
        self, x: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, past_key_values: Cache | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the position ids and the causal mask of the embeddings `x` (batch, length, d_model)."""
        if isinstance(past_key_values, PagedAttentionCache):  # continuous batching passes mask and positions
            past_key_values = None
        if not isinstance(past_key_values, Cache | None):
            kind = type(past_key_values).__name__
            raise ValueError(f"past_key_values is a {kind}; it must be a Cache, as DynamicCache(config=...) makes it.")
        batch, length = x.shape[:2]
        if position_ids is not None:
            check_ids("position_ids", position_ids, shape=(batch, length), same_rows=True)
        past_length = 0 if past_key_values is None else past_key_values.get_seq_length()
        if isinstance(past_length, int):
            shape = (batch, self.config.num_heads, length, past_length + length)
            check_mask("attention_mask", attention_mask, shape, cache_has_room=True)
            keys = past_key_values.layers[0].keys if past_length else x
            if keys.dim() == 4 and len(keys) != batch:
                raise ValueError(f"past_key_values holds {len(keys)} sequences, but the input has {batch}.")

        window = self.config.sliding_window
        make_mask = (
            masking_utils.create_causal_mask if window is None else masking_utils.create_sliding_window_causal_mask
        )
        # An empty dynamic cache needs the same mask as no cache. Pass None: transformers detects packed sequences, by
        # position ids that restart at 0, only without a cache.
        is_empty = past_key_values is not None and not past_key_values.is_compileable and past_length == 0
        mask = make_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            position_ids=position_ids,
            **{CACHE: None if is_empty else past_key_values},
        )
        if position_ids is None:
            position_ids = self.make_position_ids(x, attention_mask, past_length)
        return position_ids, mask


class VanillaTransformerDecoderModel(CausalStack):
    """The decoder-only model: the decoder of section 3.1 without cross-attention."""

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
    ) -> modeling_outputs.BaseModelOutputWithPast:
        """
        Args:
            input_ids: (batch, length) token ids, or `inputs_embeds` (batch, length, d_model) in their place.
            attention_mask: (batch, past + length), 1 for real tokens and 0 for padding; or (batch, 1, length, keys).
            position_ids: (batch, length); by default real tokens are numbered from 0. Without a mask, each position 0
                starts a new packed sequence, which does not attend to the previous one.
            past_key_values: keys and values of earlier tokens; called `cache` since transformers 5.24.
        """
        if use_cache and past_key_values is None and not self.training:
            past_key_values = DynamicCache(config=self.config)
        x = self.token_embeddings(input_ids, inputs_embeds)
        position_ids, mask = self.positions_and_mask(x, attention_mask, position_ids, past_key_values)
        hidden_states = self.run_layers(x, position_ids, mask, past_key_values=past_key_values, **kwargs)
        return modeling_outputs.BaseModelOutputWithPast(last_hidden_state=hidden_states, **{CACHE: past_key_values})


class VanillaTransformerDecoderStack(CausalStack):
    """The decoder of the encoder-decoder (section 3.1; the right half of Figure 1), with cross-attention."""

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
    ) -> modeling_outputs.BaseModelOutputWithPastAndCrossAttentions:
        """
        Args:
            encoder_hidden_states: (batch, source_length, d_model), the encoder's output.
            encoder_attention_mask: (batch, source_length), 1 for real source tokens and 0 for padding.
        All other arguments: see `VanillaTransformerDecoderModel.forward`.
        """
        if use_cache and past_key_values is None and not self.training:
            self_attention_cache = DynamicCache(config=self.config.get_text_config(decoder=True))
            past_key_values = EncoderDecoderCache(self_attention_cache, DynamicCache())
        if not isinstance(past_key_values, EncoderDecoderCache | None):
            kind = type(past_key_values).__name__
            raise ValueError(f"past_key_values is a {kind}; here it must be an EncoderDecoderCache.")
        self_cache = None if past_key_values is None else past_key_values.self_attention_cache
        x = self.token_embeddings(input_ids, inputs_embeds)

        # One source may serve a whole batch of targets; another number of them is a mistake.
        given = getattr(encoder_hidden_states, "shape", None)
        if given is None or (not is_tracing(x) and given[0] not in (1, len(x))):
            raise ValueError(f"encoder_hidden_states is {given}; it must be (batch={len(x)}, source_length, d_model).")
        position_ids, mask = self.positions_and_mask(x, attention_mask, position_ids, self_cache)
        shape = (x.shape[0], self.config.num_heads, x.shape[1], given[1])
        check_mask("encoder_attention_mask", encoder_attention_mask, shape)
        encoder_mask = masking_utils.create_bidirectional_mask(
            self.config, x, encoder_attention_mask, encoder_hidden_states=encoder_hidden_states
        )
        memory = (encoder_hidden_states, encoder_mask)
        hidden_states = self.run_layers(x, position_ids, mask, *memory, past_key_values=past_key_values, **kwargs)
        return modeling_outputs.BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden_states, **{CACHE: past_key_values}
        )


# Models -------------------------------------------------------------------------------------------------------------


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """Encoder and decoder together: Figure 1 without the final linear layer and softmax."""

    config: VanillaTransformerConfig

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.encoder = VanillaTransformerEncoderModel(config)
        self.decoder = VanillaTransformerDecoderStack(config)
        if config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = self.encoder.embed_tokens  # FSDP2 would shard two modules separately
            self._tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}
        self.post_init()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Return all tied weights; the stacks may share an embedding even if the output layer is not tied to it."""
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
        encoder_outputs: modeling_outputs.BaseModelOutput | tuple | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> modeling_outputs.Seq2SeqModelOutput:
        """
        Args:
            input_ids: (batch, source_length) token ids of the source, or `inputs_embeds` (batch, source_length,
                d_model), or `encoder_outputs` of an earlier call.
            attention_mask: (batch, source_length), 1 for real source tokens and 0 for padding.
            decoder_input_ids: (batch, length) token ids of the target, shifted right by one so that position t
                predicts token t; or `decoder_inputs_embeds` (batch, length, d_model).
            decoder_attention_mask: (batch, past + length); not needed if the target is padded on the right.
            past_key_values: keys and values of earlier target tokens and of the source; `cache` since 5.24.
        """
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError("Give decoder_input_ids or decoder_inputs_embeds, or labels to a head; got none of them.")
        kwargs["return_dict"] = True  # stacks must return named outputs
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)
        elif not isinstance(encoder_outputs, modeling_outputs.BaseModelOutput):
            encoder_outputs = modeling_outputs.BaseModelOutput(*encoder_outputs)

        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            position_ids=decoder_position_ids,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            inputs_embeds=decoder_inputs_embeds,
            **{CACHE: past_key_values, "use_cache": use_cache},
            **kwargs,
        )
        return modeling_outputs.Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            **{CACHE: getattr(decoder_outputs, CACHE)},
        )


# Heads --------------------------------------------------------------------------------------------------------------


def without_states(outputs: ModelOutput) -> dict[str, Any]:
    """Return all outputs of the base model except `last_hidden_state`, which models with a head do not return."""
    return {name: value for name, value in outputs.items() if name != "last_hidden_state"}


class LMHeadModel(VanillaTransformerPreTrainedModel):
    """Base class of models that predict tokens: the output projection (section 3.4) and the loss."""

    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def add_lm_head(self, embedding: str) -> None:
        """Add the projection d_model -> vocab, tied to the parameter `embedding` if `tie_word_embeddings` is set."""
        vocab_size = getattr(self.config, "target_vocab_size", None) or self.config.vocab_size
        self.lm_head = nn.Linear(self.config.d_model, vocab_size, bias=self.config.output_bias)
        self._tied_weights_keys = {"lm_head.weight": embedding}
        if self.can_generate() and self.generation_config.max_length is None:
            self.generation_config.max_length = self.config.max_position_embeddings

    def logits_and_loss(
        self,
        states: Tensor,
        labels: Tensor | None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return logits (batch, length, vocab) and cross-entropy with labels (batch, length), smoothed in training."""
        label_smoothing = self.config.label_smoothing if self.training else 0.0
        if isinstance(logits_to_keep, int):
            logits_to_keep = slice(-logits_to_keep, None)
        logits = self.lm_head(states[:, logits_to_keep])
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch, label_smoothing)
        return logits, loss


class VanillaTransformerForConditionalGeneration(LMHeadModel, TranslationGenerationMixin):
    """The encoder-decoder with an output layer: the paper's model, for translation and similar tasks."""

    config: VanillaTransformerConfig

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        # With this type, `model.loss_function`, which external code may call, does not shift the labels.
        self.loss_type = "ForMaskedLM"
        self.model = VanillaTransformerModel(config)
        stack = "encoder" if config.share_encoder_decoder_embeddings else "decoder"
        self.add_lm_head(f"model.{stack}.embed_tokens.weight")
        self._enable_gnmt_length_penalty()
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Prepend the start token to labels (batch, length), drop the last label, and replace -100 by padding."""
        vocab_size = self.config.target_vocab_size or self.config.vocab_size
        check_ids("labels", labels, vocab_size, "the vocabulary", ignored=IGNORED_LABEL)
        for name in ("decoder_start_token_id", "pad_token_id"):
            token = getattr(self.config, name)
            if token is None or not 0 <= token < vocab_size:
                cure = f"set it to an id of the vocabulary, 0 to {vocab_size - 1}"
                raise ValueError(f"config.{name} is {token}; to make decoder inputs from labels, {cure}.")
        start = labels.new_full((labels.shape[0], 1), self.config.decoder_start_token_id)
        shifted = torch.cat((start, labels[:, :-1]), dim=1)
        return shifted.masked_fill(shifted == IGNORED_LABEL, self.config.pad_token_id)

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
        encoder_outputs: modeling_outputs.BaseModelOutput | tuple | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> modeling_outputs.Seq2SeqLMOutput:
        """
        Args:
            labels: (batch, length) target tokens. The loss ignores -100 and positions that `decoder_attention_mask`
                masks out. If no decoder inputs are given, they are made from the labels.
            logits_to_keep: compute logits only for the last n positions, or for these indices (count,). 0: all.
        All other arguments: see `VanillaTransformerModel.forward`.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        source = (input_ids, attention_mask, position_ids)
        target = (decoder_input_ids, decoder_attention_mask, decoder_position_ids)
        computed = (encoder_outputs, past_key_values, inputs_embeds, decoder_inputs_embeds)
        outputs = self.model(*source, *target, *computed, use_cache=use_cache, return_dict=True, **kwargs)
        labels = without_padding(labels, decoder_attention_mask)
        logits, loss = self.logits_and_loss(outputs.last_hidden_state, labels, num_items_in_batch, logits_to_keep)
        return modeling_outputs.Seq2SeqLMOutput(loss=loss, logits=logits, **without_states(outputs))


class VanillaTransformerForCausalLM(LMHeadModel, LanguageGenerationMixin):
    """The decoder-only model with an output layer, for language modelling and generation."""

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
    ) -> modeling_outputs.CausalLMOutputWithPast:
        """
        Args:
            labels: (batch, length), usually the input ids; logits at position t are compared with label t + 1. The
                loss ignores -100, padding and the first token after it; set all to -100 so that Trainer skips them.
            shift_labels: (batch, length), labels that are already shifted. It is not a named parameter, because
                Trainer expects a column in the data for each parameter with "label" in its name.
            logits_to_keep: compute logits only for the last n positions, or for these indices (count,). 0: all.
        All other arguments: see `VanillaTransformerDecoderModel.forward`. With labels, no cache is returned.
        """
        shift_labels = kwargs.pop("shift_labels", None)
        if labels is not None and shift_labels is None:
            check_ids("labels", labels)
            labels = without_padding(labels, attention_mask)
            shift_labels = F.pad(labels, (0, 1), value=IGNORED_LABEL)[..., 1:]
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds)
        outputs = self.model(*inputs, use_cache=shift_labels is None and use_cache, return_dict=True, **kwargs)
        shift_labels = without_padding(shift_labels, attention_mask)
        states = outputs.last_hidden_state
        logits, loss = self.logits_and_loss(states, shift_labels, num_items_in_batch, logits_to_keep)
        return modeling_outputs.CausalLMOutputWithPast(loss=loss, logits=logits, **without_states(outputs))


class EncoderHead(VanillaTransformerPreTrainedModel):
    """Base class of encoders with one output layer; subclasses compute logits and loss in `head`."""

    config: VanillaTransformerEncoderConfig
    output_class: type[ModelOutput]

    def __init__(self, config: VanillaTransformerEncoderConfig):
        super().__init__(config)
        self.model = VanillaTransformerEncoderModel(config)

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
    ) -> ModelOutput:
        """Compute the outputs; for `labels` see `head`, for all others `VanillaTransformerEncoderModel.forward`."""
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds, return_dict=True, **kwargs)
        logits, loss = self.head(outputs.last_hidden_state, attention_mask, labels, num_items_in_batch)
        return self.output_class(loss=loss, logits=logits, **without_states(outputs))


class VanillaTransformerForMaskedLM(EncoderHead, LMHeadModel):
    """The encoder with an output layer that predicts masked tokens."""

    output_class = modeling_outputs.MaskedLMOutput

    def __init__(self, config: VanillaTransformerEncoderConfig):
        super().__init__(config)
        self.transform = nn.Identity()
        if config.mlm_head_transform:  # as in BERT
            dense, activation = nn.Linear(config.d_model, config.d_model), ACT2FN[config.activation_function]
            self.transform = nn.Sequential(OrderedDict(dense=dense, activation=activation, norm=layer_norm(config)))
        self.add_lm_head("model.embed_tokens.weight")
        self.post_init()

    def head(self, states: Tensor, attention_mask: Tensor | None, labels: Tensor | None, num_items_in_batch=None):
        """Return logits (batch, length, vocab) and loss. Labels (batch, length): masked tokens, or -100 elsewhere."""
        labels = without_padding(labels, attention_mask)
        return self.logits_and_loss(self.transform(states), labels, num_items_in_batch)


def pool(hidden_states: Tensor, attention_mask: Tensor | None, pooling: str) -> Tensor:
    """Pool the real tokens of each sequence into one vector: (batch, length, d_model) -> (batch, d_model)."""
    if not is_padding(attention_mask):
        attention_mask = hidden_states.new_ones(hidden_states.shape[:2])
    real = attention_mask.to(hidden_states.device).bool()
    if pooling == "first":
        return hidden_states[torch.arange(real.shape[0], device=real.device), real.int().argmax(dim=1)]
    if pooling == "max":
        real = real | ~real.any(dim=1, keepdim=True)  # in a row of only padding, use all positions
        return hidden_states.masked_fill(~real[..., None], torch.finfo(hidden_states.dtype).min).amax(dim=1)
    return (hidden_states * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)


class VanillaTransformerForSequenceClassification(EncoderHead):
    """The encoder with one prediction per sequence: a class, several classes, or real values.

    If `config.problem_type` is None, transformers' rule applies: `num_labels=1` means regression, integer labels mean
    single-label classification, and floating-point labels mean multi-label classification.
    """

    output_class = modeling_outputs.SequenceClassifierOutput

    def __init__(self, config: VanillaTransformerEncoderConfig):
        super().__init__(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.post_init()

    def head(self, states: Tensor, attention_mask: Tensor | None, labels: Tensor | None, num_items_in_batch=None):
        """Return logits (batch, labels) and loss. Labels: class ids (batch,), or 0/1 or floats (batch, labels)."""
        logits = self.classifier(self.dropout(pool(states, attention_mask, self.config.pooling)))
        if labels is None:
            return logits, None
        check_tensor("labels", labels)
        classes = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
        problem = self.config.problem_type or ("regression" if self.config.num_labels == 1 else classes)
        return logits, sequence_loss(logits, labels, problem, num_items_in_batch)


class VanillaTransformerForTokenClassification(EncoderHead):
    """The encoder with a classifier for each token, for tagging."""

    output_class = modeling_outputs.TokenClassifierOutput

    def __init__(self, config: VanillaTransformerEncoderConfig):
        super().__init__(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.post_init()

    def head(self, states: Tensor, attention_mask: Tensor | None, labels: Tensor | None, num_items_in_batch=None):
        """Return logits (batch, length, labels) and loss. Labels (batch, length): class ids, or -100 for no class."""
        logits = self.classifier(self.dropout(states))
        labels = without_padding(labels, attention_mask)
        return logits, None if labels is None else cross_entropy(logits, labels, num_items_in_batch)


class VanillaTransformerForQuestionAnswering(VanillaTransformerPreTrainedModel):
    """The encoder with a start and an end score for each token, for extractive question answering."""

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
    ) -> modeling_outputs.QuestionAnsweringModelOutput:
        """
        Args:
            start_positions, end_positions: (batch,) indices of the answer's first and last token. The loss ignores
                indices outside the sequence: the answer was truncated.
        All other arguments: see `VanillaTransformerEncoderModel.forward`.
        """
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds, return_dict=True, **kwargs)
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            positions = (start_positions, end_positions)
            loss = span_loss((start_logits, end_logits), positions, attention_mask, num_items_in_batch)
        logits = {"start_logits": start_logits, "end_logits": end_logits}
        return modeling_outputs.QuestionAnsweringModelOutput(loss=loss, **logits, **without_states(outputs))


# Losses --------------------------------------------------------------------------------------------------------------
# Each loss is a sum divided by the number of targets. With gradient accumulation or several processes, this is the
# number in the whole step (`num_items_in_batch`), so gradients do not depend on how the step is split into batches.


IGNORED_LABEL = -100  # default `ignore_index` of PyTorch's cross-entropy


def cross_entropy(
    logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """Return the cross-entropy of logits (..., classes) with labels (...): class ids, or -100 for "no target".

    Label smoothing (section 5.4) spreads epsilon evenly over all classes.
    """
    check_labels(labels, logits.shape[:-1], logits.shape[-1])
    total = F.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten().to(logits.device).long(),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    return mean(total, (labels != IGNORED_LABEL).sum() if num_items_in_batch is None else num_items_in_batch)


def mean(total: Tensor, number: Tensor | int) -> Tensor:
    """Divide a sum by the number of targets, at least 1, without synchronising if the number is on a GPU."""
    if not isinstance(number, Tensor):
        return total / max(number, 1)
    number = number.clamp(min=1)
    is_host_scalar = number.dim() == 0 and number.device.type == "cpu"  # may divide a tensor on any device
    return total / (number if is_host_scalar else number.to(total.device))


def is_padding(attention_mask: Any) -> bool:
    """Whether the mask is a padding mask (batch, length) and not a 4-D mask."""
    return isinstance(attention_mask, Tensor) and attention_mask.dim() == 2


def without_padding(labels: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
    """Set labels (batch, length) to -100 where the mask (batch, past + length) is 0.

    Logits of padding are meaningless and differ between attention implementations.
    """
    if labels is None or not is_padding(attention_mask) or labels.dim() != 2:
        return labels
    padding = attention_mask[:, -labels.shape[1] :].to(labels.device) == 0
    return labels.masked_fill(padding, IGNORED_LABEL) if padding.shape == labels.shape else labels


def sequence_loss(
    logits: Tensor, labels: Tensor, problem_type: str, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Return the loss of logits (batch, labels): targets are class ids (batch,) or real values (batch, labels)."""
    if problem_type == "single_label_classification":
        column = labels.shape == (len(logits), 1)
        return cross_entropy(logits, labels[:, 0] if column else labels, num_items_in_batch)
    if labels.squeeze().shape != logits.squeeze().shape:
        raise ValueError(
            f"labels has shape {tuple(labels.shape)}; {problem_type} with num_labels={logits.shape[-1]} needs "
            f"{tuple(logits.shape)}."
        )
    if problem_type == "multi_label_classification" and labels.device.type == "cpu" and not is_tracing(labels):
        wrong = ~((labels >= 0) & (labels <= 1))
        if wrong.any():
            raise ValueError(f"labels holds {labels[wrong][0].item()}; {problem_type} needs numbers from 0 to 1.")
    error = F.mse_loss if problem_type == "regression" else F.binary_cross_entropy_with_logits
    total = error(logits.float(), labels.reshape(logits.shape).to(logits.device).float(), reduction="sum")
    if problem_type == "regression" and num_items_in_batch is not None:
        # Trainer does not count labels equal to -100, but in regression, -100 is an ordinary target. Correct the
        # count, assuming the same proportion of such targets in the other batches of the step.
        counted = (labels != IGNORED_LABEL).sum()
        num_items_in_batch = torch.as_tensor(num_items_in_batch).clamp(min=1) * labels.numel() / counted.clamp(min=1)
    return mean(total, labels.numel() if num_items_in_batch is None else num_items_in_batch)


def span_loss(
    logits: tuple[Tensor, Tensor],
    positions: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """Return the mean of the cross-entropies of start and end logits (batch, length) with positions (batch,)."""
    losses = []
    for name, scores, position in zip(("start_positions", "end_positions"), logits, positions, strict=True):
        check_tensor(name, position)
        position = position.to(scores.device).flatten()
        check_ids(name, position, shape=(len(scores),))
        if is_padding(attention_mask):
            padding = attention_mask.to(scores.device) == 0
            scores = scores.float().masked_fill(padding, torch.finfo(torch.float32).min)
        outside = (position < 0) | (position >= scores.shape[1])
        losses.append(cross_entropy(scores, position.masked_fill(outside, IGNORED_LABEL), num_items_in_batch))
    return (losses[0] + losses[1]) / 2


# Restricted attention (section 4) -----------------------------------------------------------------------------------


def windowed_sdpa_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """Compute Equation 1 with a window of r positions, at a cost of O(r n d) instead of O(n^2 d).

    The queries are split into blocks, and each block attends only to the keys within its windows. Cross-attention
    and decoding steps use PyTorch's fused attention over all keys. Arguments and outputs are those of
    `eager_attention_forward`, except that the mask is (batch, length), True for real tokens, or the mask of "sdpa",
    and `sliding_window` is the number of positions on one side of a query, including the query itself.
    """
    batch, _, length, _ = query.shape
    if attention_mask is not None and attention_mask.dim() == 2:
        padding, attention_mask = attention_mask, attention_mask[:, None, None, :]
    else:
        padding = None if attention_mask is not None else query.new_ones(batch, length, dtype=torch.bool)
    if sliding_window is None or padding is None or length != key.shape[2]:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)

    before = min(sliding_window, length) - 1
    after = 0 if module.is_causal else before
    block = before + 1 + after
    span = before + block + after  # number of keys that the queries of a block can attend to
    blocks = -(-length // block)
    rest = blocks * block - length

    def spans(states: Tensor) -> Tensor:
        """Cut out each block's keys: (batch, heads, length, width) -> (batch * blocks, heads, span, width)."""
        states = F.pad(states, (0, 0, before, rest + after)).unfold(2, span, block)
        return states.permute(0, 2, 1, 4, 3).flatten(0, 1)

    queries = F.pad(query, (0, 0, 0, rest)).unflatten(2, (blocks, block)).transpose(1, 2).flatten(0, 1)
    real = F.pad(padding, (before, rest + after)).unfold(1, span, block)  # (batch, blocks, span)
    distance = torch.arange(span, device=query.device) - torch.arange(block, device=query.device)[:, None]
    in_reach = (distance >= 0) & (distance <= before + after)  # (block, span)
    mask = (real[:, :, None, :] & in_reach).flatten(0, 1)[:, None]
    output = F.scaled_dot_product_attention(
        queries, spans(key), spans(value), attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    output = output.unflatten(0, (batch, blocks)).transpose(2, 3).flatten(1, 2)  # (batch, blocks * block, heads, d_v)
    return output[:, :length].contiguous(), None


def windowed_sdpa_mask(q_length: int, kv_length: int, attention_mask: Tensor | None = None, **kwargs) -> Tensor | None:
    """Return the padding mask (batch, length) if a whole sequence attends to itself, or else the mask of "sdpa".

    `allow_is_causal_skip=False` means that rows contain several packed sequences, which need the mask of "sdpa".
    """
    packed = kwargs.get("local_size") is not None and not kwargs.get("allow_is_causal_skip", True)
    if q_length == kv_length and not packed:
        return attention_mask
    return masking_utils.sdpa_mask(q_length=q_length, kv_length=kv_length, attention_mask=attention_mask, **kwargs)


ALL_ATTENTION_FUNCTIONS.register("windowed_sdpa", windowed_sdpa_attention_forward)
masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register("windowed_sdpa", windowed_sdpa_mask)


# Input checks. They check values only on a CPU: on a GPU, reading them would synchronise. ----------------------------


def check_tensor(name: str, value: Any) -> None:
    """Raise a TypeError unless `value` is a tensor, or a proxy for one while the model is traced."""
    if not hasattr(value, "dim"):
        raise TypeError(f"{name} is of type {type(value).__name__}; it must be a tensor: torch.tensor(...).")


def check_ids(
    name: str,
    ids: Tensor,
    limit: int | None = None,
    owner: str = "",
    shape: tuple[int, ...] | None = None,
    same_rows: bool = False,
    ignored: int | None = None,
) -> None:
    """Raise an error unless `ids` are integers of the given shape, each in [0, limit) or equal to `ignored`.

    Args:
        owner: name of the table with `limit` entries, for the error message.
        shape: any (batch, length) by default. `same_rows` also allows one row (1, length) for the whole batch.
    """
    check_tensor(name, ids)
    if ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} has dtype {ids.dtype}; it must be torch.int64 or torch.int32.")
    if shape is None and ids.dim() != 2:
        raise ValueError(f"{name} has shape {tuple(ids.shape)}; it must be (batch, length).")
    if shape is not None and ids.shape != shape and not (same_rows and ids.shape == (1, *shape[1:])):
        raise ValueError(f"{name} has shape {tuple(ids.shape)}; it must be {tuple(shape)}.")
    if is_tracing(ids):
        return
    if 0 in ids.shape:
        raise ValueError(f"{name} has shape {tuple(ids.shape)}: there is nothing to compute.")
    if limit is None or ids.device.type != "cpu":
        return
    try:
        least, most = (bound.item() for bound in ids.aminmax())  # faster than the comparisons below
    except RuntimeError:  # under `torch.func.vmap`, where values cannot be read
        return
    if least < 0 or most >= limit:
        wrong = ids[(ids < 0) | (ids >= limit)]
        wrong = wrong if ignored is None else wrong[wrong != ignored]
        if wrong.numel():
            value = wrong[0].item()
            raise ValueError(f"{name} holds {value}, but {owner} has {limit}: give ids from 0 to {limit - 1}.")


def check_labels(labels: Tensor, shape: tuple[int, ...], classes: int) -> None:
    """Raise an error unless `labels` are integers of the given shape, each in [0, classes) or -100."""
    check_ids("labels", labels, classes, "the output layer", shape, ignored=IGNORED_LABEL)


def check_embeds(inputs_embeds: Tensor, d_model: int, dtype: torch.dtype) -> None:
    """Raise an error unless `inputs_embeds` (batch, length, d_model) are finite and of type `dtype`."""
    check_tensor("inputs_embeds", inputs_embeds)
    shape, given, on_cpu = tuple(inputs_embeds.shape), inputs_embeds.dtype, inputs_embeds.device.type == "cpu"
    is_cast = torch.is_autocast_enabled("cpu") or not on_cpu  # FSDP casts as well
    if len(shape) != 3 or shape[-1] != d_model or not (given.is_floating_point if is_cast else given == dtype):
        fitting = f"(batch, length, d_model={d_model}) and {dtype}"
        raise ValueError(f"inputs_embeds has shape {shape} and dtype {given}; it must be {fitting}.")
    if is_tracing(inputs_embeds):
        return
    if 0 in shape:
        raise ValueError(f"inputs_embeds has shape {shape}: there is nothing to compute.")
    with suppress(RuntimeError):  # under `torch.func.vmap`, where values cannot be read
        if on_cpu and not inputs_embeds.isfinite().all():
            raise ValueError("inputs_embeds holds nan or inf: give finite numbers.")


def check_mask(name: str, mask: Tensor | None, shape: tuple[int, int, int, int], cache_has_room: bool = False) -> None:
    """Raise an error unless `mask` is (batch, key_length) or fits `shape` (batch, heads, query_length, key_length).

    A 4-D mask may have a batch size or head count of 1. If `cache_has_room`, it may also cover unused cache slots.
    """
    if isinstance(mask, list | tuple | np.ndarray):  # attention backends may have other mask types
        check_tensor(name, mask)
    if not isinstance(mask, Tensor) or is_tracing(mask):
        return
    given, (batch, heads, query_length, key_length) = tuple(mask.shape), shape
    if given == (batch, key_length):
        if mask.device.type == "cpu" and not torch.equal(mask, (mask != 0).to(mask.dtype)):
            wrong = mask[(mask != 0) & (mask != 1)][0].item()
            raise ValueError(f"{name} holds {wrong}; a mask (batch, length) is 1 for real tokens and 0 for padding.")
        return
    fits = len(given) == 4 and given[0] in (1, batch) and given[1] in (1, heads) and given[2] == query_length
    if not fits or not (given[3] == key_length or (cache_has_room and given[3] >= query_length)):
        cure = " Prompt tuning by peft needs use_cache=False." if len(given) == 2 and given[1] < key_length else ""
        raise ValueError(
            f"{name} has shape {given}; it must be (batch, length) = {(batch, key_length)} or (batch, 1 or heads, "
            f"query_length, key_length) = {(batch, 1, query_length, key_length)}.{cure}"
        )
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(f"{name} of shape {given} is {mask.dtype}; a 4-D mask is boolean or added to the scores.")


# Registration -------------------------------------------------------------------------------------------------------


check_private_api(
    PreTrainedModel,
    "_get_resized_embeddings",
    "_resize_token_embeddings",
    "get_correct_attn_implementation",
    "get_expanded_tied_weights_keys",
    "mark_tied_weights_as_initialized",
)

# Let `save_pretrained` copy the code next to the weights, with one entry per Auto class.
MODELS = []
for _config_class in (VanillaTransformerConfig, VanillaTransformerEncoderConfig, VanillaTransformerDecoderConfig):
    for _auto_class, _name in _config_class.auto_classes.items():
        MODELS.append(globals()[_name])
        MODELS[-1].register_for_auto_class(_auto_class)

__all__ = [_model.__name__ for _model in MODELS] + ["VanillaTransformerPreTrainedModel"]
