# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Restricted attention (section 4) at a cost that is linear in the length."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


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
    """Equation 1 in a neighbourhood of r positions (section 4, "restricted"), at a cost of O(r n d), not O(n^2 d).

    The queries are cut into blocks, each of which attends to the keys in its reach and to no others. Where there is no
    such structure, in cross-attention and in a step of decoding, this is PyTorch's fused attention over all keys.

    Args:
        attention_mask: (batch, length), True for real tokens; or a whole mask as `sdpa_mask` makes it; or None.
        sliding_window: number of positions seen on one side, the query's own included.
    All others, and what is returned: see `eager_attention_forward`; no weights.
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
    span = before + block + after  # the keys in reach of some query of a block
    blocks = -(-length // block)
    rest = blocks * block - length

    def spans(states: Tensor) -> Tensor:
        """(batch, heads, length, width) -> (batch * blocks, heads, span, width)"""
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


def windowed_sdpa_mask(
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **kwargs,
) -> Tensor | None:
    """The mask for `windowed_sdpa_attention_forward`: where a whole sequence sees itself, its padding (batch, length).

    A causal mask that may not be skipped (`local_size` tells it) separates packed sequences: that one is made whole.
    """
    packed = local_size is not None and not allow_is_causal_skip
    if q_length == kv_length and not packed:
        return attention_mask
    return sdpa_mask(
        q_length=q_length,
        kv_length=kv_length,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=allow_is_causal_skip,
        **kwargs,
    )


ALL_ATTENTION_FUNCTIONS.register("windowed_sdpa", windowed_sdpa_attention_forward)
ALL_MASK_ATTENTION_FUNCTIONS.register("windowed_sdpa", windowed_sdpa_mask)
