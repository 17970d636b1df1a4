# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Skip padding: the layers process one packed row that contains all real tokens of a batch.

Everything in a layer except attention (Equation 1) is position-wise and can process the packed row directly. For
attention, a `Layout` separates the sequences again. `make_fast` binds `run_layers` to each stack and selects
"packed_sdpa"; without the binding, "packed_sdpa" computes the same as "sdpa".
"""

from collections.abc import Callable
from heapq import heappush, heapreplace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import is_tracing

from vanilla_transformer.fast.transfer import to_device, to_host
from vanilla_transformer.modeling_vanilla_transformer import IGNORED_LABEL, check_ids


def round_up(number: int) -> int:
    """Round up to a number with at most five significant bits, which is at most 6 % larger.

    On a CPU, oneDNN compiles a kernel for each new shape, which takes several times as long as the product itself.
    Batches with a token budget rarely repeat a shape; rounding leaves few distinct shapes.
    """
    step = 1 << max(number.bit_length() - 5, 0)
    return -(-number // step) * step


SHORTEST_ROUNDED = 256  # tokens; shorter rows are not rounded, because their kernels are fast to compile


class Packing:
    """The real tokens of a padded batch, concatenated into one row.

    The mask determines tensor sizes, so it must be on the host: see `to_host`.
    """

    def __init__(self, real: Tensor, device: torch.device):
        """Pack by a mask `real` (batch, length) on the host: True for real tokens, with padding on either side."""
        self.batch, self.length = real.shape
        self.lengths = real.sum(dim=1)
        self.longest = max(int(self.lengths.max()), 1)
        ends = F.pad(self.lengths.cumsum(0), (1, 0))
        self.tokens = int(ends[-1])
        self.sequence = torch.arange(self.batch).repeat_interleave(self.lengths)  # (tokens,) sequence index
        self.position = torch.arange(self.tokens) - ends[self.sequence]  # (tokens,) position in sequence
        # On a CPU, pad long rows with copies of the first token, to which no token attends.
        few_shapes = device.type == "cpu" and self.tokens >= SHORTEST_ROUNDED
        self.padding = round_up(self.tokens) - self.tokens if few_shapes else 0
        # (tokens,) indices of the real tokens in the flattened batch
        self.indices = to_device(real.flatten().nonzero()[:, 0], device)
        self.ends = to_device(ends.int(), device)  # (batch + 1,) cumulative lengths

        # PyTorch's FlashAttention for variable lengths needs an Ampere GPU or newer.
        self.has_kernel = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)

    def gather(self, rows: Tensor, indices: Tensor) -> Tensor:
        """Gather `rows[indices]`, padded to the rounded length: (row count, width) -> (tokens + padding, width)."""
        return rows.index_select(0, F.pad(indices, (0, self.padding)) if self.padding else indices)

    def scatter(self, row: Tensor, indices: Tensor, count: int) -> Tensor:
        """Scatter the tokens of `row` (tokens + padding, width) to `indices` of a zero tensor (count, width)."""
        return row.new_zeros(count, row.shape[-1]).index_copy_(0, indices, row[: self.tokens])

    def pack(self, states: Tensor) -> Tensor:
        """Pack states of a padded batch: (batch, length, width) -> (1, tokens + padding, width)."""
        return self.gather(states.flatten(0, 1), self.indices)[None]

    def unpack(self, states: Tensor) -> Tensor:
        """Undo `pack`: (1, tokens + padding, width) -> (batch, length, width), with zeros at padding."""
        rows = self.scatter(states[0], self.indices, self.batch * self.length)
        return rows.view(self.batch, self.length, -1)


LONGEST_PLAIN = 512  # maximum number of keys for which plain matrix products are faster


def plain_is_faster(query: Tensor, keys: int) -> bool:
    """Whether plain matrix products train faster than PyTorch's fused kernel, as they do in bfloat16 on a CPU."""
    on_cpu_in_bfloat16 = query.device.type == "cpu" and query.dtype == torch.bfloat16
    return on_cpu_in_bfloat16 and torch.is_grad_enabled() and keys <= LONGEST_PLAIN


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> Tensor:
    """Compute `F.scaled_dot_product_attention` with matrix products. The mask is boolean or added to the scores."""
    scores = query * scale @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = scores.new_zeros(attn_mask.shape).masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
        scores += attn_mask
    return F.dropout(scores.softmax(dim=-1), dropout_p) @ value


def kernel_supports(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> bool:
    """Whether FlashAttention supports these heads: 16-bit, all of the same width, without dropout."""
    return (
        query.dtype == key.dtype == value.dtype
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] == value.shape[-1]
        and query.shape[-1] % 8 == 0
        and not dropout
    )


SHARED_WIDTH = 32  # minimum number of positions in a row that several sequences share


def worst_fit_decreasing(sizes: list[int], width: int) -> list[int]:
    """Pack sequences of the given sizes into rows of `width` positions; return their start in the flattened rows.

    Sequences are placed from longest to shortest, each into the emptiest row. No size may exceed `width`.
    """
    rows: list[tuple[int, int]] = []  # heap of (used positions, row index)
    starts = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        if not rows or rows[0][0] + sizes[index] > width:
            heappush(rows, (0, len(rows)))
        taken, row = rows[0]
        starts[index] = row * width + taken
        heapreplace(rows, (taken + sizes[index], row))
    return starts


class Layout:
    """Arranges packed sequences in the rows of a batch, for attention. By default, each sequence has its own row.

    If plain matrix products are faster, several sequences share a row. Such rows have 32 positions, or the multiple of
    16 that fits the longest sequence: shorter rows leave vector units idle, and each new width compiles a kernel.
    """

    def __init__(self, queries: Packing, keys: Packing, is_causal: bool, like: Tensor):
        """Lay out queries and keys; `like` has the device and, without autocast, the dtype of the heads."""
        kind = like.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            like = like.new_empty(0, dtype=torch.get_autocast_dtype(kind))
        self.queries, self.keys = queries, keys
        self.widths, self.rows = (queries.longest, keys.longest), queries.batch
        self.shared = shared = plain_is_faster(like, max(self.widths))
        starts = [torch.arange(self.rows) * width for width in self.widths]
        if shared:
            width = max(-(-max(self.widths) // 16) * 16, SHARED_WIDTH)
            # A sequence without keys gets a row of its own, where its queries attend to zeros.
            sizes = queries.lengths.maximum(keys.lengths).masked_fill(keys.lengths == 0, width)
            shared_starts = torch.tensor(worst_fit_decreasing(sizes.tolist(), width))
            self.widths, starts = (width, width), [shared_starts, shared_starts]
            self.rows = round_up(int(shared_starts.max()) // width + 1)
        indices, owners = [], []
        for packing, start, width in zip((queries, keys), starts, self.widths, strict=True):
            index = start[packing.sequence] + packing.position
            owner = torch.full((self.rows * width,), -1).index_copy(0, index, packing.sequence)
            indices.append(to_device(index, like.device))
            owners.append(owner.view(self.rows, width))
        self.query_indices, self.key_indices = indices
        self.mask = None
        if shared:
            seen = owners[0][:, :, None] == owners[1][:, None, :]
            if is_causal:
                seen = seen.tril()
            self.mask = like.new_zeros(seen.shape).masked_fill(~seen, torch.finfo(like.dtype).min)[:, None]
        elif not is_causal:  # a causal mask also hides the padding, which is on the right
            seen = (owners[1] >= 0) | (keys.lengths == 0)[:, None]
            self.mask = to_device(seen, like.device)[:, None, None, :]

    def unpack_heads(self, heads: Tensor, packing: Packing, indices: Tensor, width: int) -> Tensor:
        """Arrange packed heads in rows: (1, heads, tokens + padding, width) -> (rows, heads, positions, width)."""
        _, count, _, size = heads.shape
        rows = packing.scatter(heads[0].transpose(0, 1).flatten(1), indices, self.rows * width)
        return rows.view(self.rows, width, count, size).transpose(1, 2)

    def unpack(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Arrange packed queries, keys and values in rows, see `unpack_heads`."""
        query = self.unpack_heads(query, self.queries, self.query_indices, self.widths[0])
        key, value = (self.unpack_heads(heads, self.keys, self.key_indices, self.widths[1]) for heads in (key, value))
        return query, key, value

    def pack(self, output: Tensor) -> Tensor:
        """Pack the attention output: (rows, heads, positions, width) -> (1, tokens + padding, heads, width)."""
        return self.queries.gather(output.transpose(1, 2).flatten(0, 1), self.query_indices)[None]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, dropout: float, scale: float
    ) -> Tensor:
        """Compute attention (Equation 1) for packed heads.

        Shapes: (1, heads, tokens + padding, width) -> (1, tokens + padding, heads, width).
        """
        queries, keys = self.queries, self.keys
        if queries.has_kernel and kernel_supports(query, key, value, dropout):
            arguments: list[Any] = [
                states[0].transpose(0, 1) for states in (query, key, value)
            ]  # (tokens, heads, width)
            arguments += [queries.ends, keys.ends, queries.longest, keys.longest]
            window = (-1, 0 if is_causal else -1)  # visible positions before and after a query; -1: all
            return cast(Tensor, varlen_attn(*arguments, scale=scale, window_size=window))[None]
        attention = plain_attention if self.shared else F.scaled_dot_product_attention
        output = attention(
            *self.unpack(query, key, value),
            attn_mask=self.mask,
            dropout_p=dropout,
            is_causal=self.mask is None,
            scale=scale,
        )
        return self.pack(output)


# ---------------------------------------------------------------------------------------------------------------------
# The attention implementation "packed_sdpa"
# ---------------------------------------------------------------------------------------------------------------------


def packed_sdpa_mask(
    q_length: int,
    kv_length: int,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | None = None,
    **kwargs,
) -> Tensor | None:
    """Return the padding mask (batch, key_length), as FlashAttention's mask function does, or the mask of "sdpa".

    The mask of "sdpa" is for batches without padding, and for masks with more than padding and causality.
    """
    if attention_mask is not None:
        on_host = attention_mask.device.type == "cpu" and not is_tracing(attention_mask)
        has_padding = not (on_host and attention_mask.all())  # reading the values on a GPU would synchronise
        is_plain = mask_function is bidirectional_mask_function or (
            mask_function is causal_mask_function and q_length == kv_length
        )
        if has_padding and is_plain and attention_mask.shape[1] == kv_length:
            return attention_mask
        if not on_host:
            kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(
        q_length=q_length, kv_length=kv_length, mask_function=mask_function, attention_mask=attention_mask, **kwargs
    )


def packed_sdpa_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[Tensor, None]:
    """Compute attention (Equation 1) for each sequence of a packed row, or for a padded batch as "sdpa" does.

    Args:
        query: (1, heads, tokens, d_k); key: (1, heads, source tokens, d_k); value: (1, heads, source tokens, d_v).
        attention_mask: the `Layout` of a packed row; or a mask or None for a padded batch.

    Returns:
        The weighted values (1, tokens, heads, d_v), and None instead of the weights.
    """
    if isinstance(attention_mask, Layout):
        return attention_mask.attend(query, key, value, module.is_causal, dropout, scaling), None
    if attention_mask is not None and attention_mask.dim() == 2:
        attention_mask = attention_mask[:, None, None, :].expand(-1, -1, query.shape[2], -1)
        attention_mask = attention_mask.tril() if module.is_causal else attention_mask
    if not plain_is_faster(query, key.shape[2]):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    is_causal = module.is_causal and attention_mask is None and query.shape[2] > 1
    return plain_attention(query, key, value, attention_mask, dropout, is_causal, scaling).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register("packed_sdpa", packed_sdpa_attention_forward)
ALL_MASK_ATTENTION_FUNCTIONS.register("packed_sdpa", packed_sdpa_mask)


# ---------------------------------------------------------------------------------------------------------------------
# Functions that `make_fast` binds to a model
# ---------------------------------------------------------------------------------------------------------------------


def real_tokens(mask: Tensor | None) -> Tensor | None:
    """Copy a padding mask to the host; return None for other masks, and if the batch is all padding."""
    if not isinstance(mask, Tensor) or mask.dim() != 2 or is_tracing(mask):
        return None
    real = to_host(mask)
    return real if real.any() else None


def run_layers(
    self: Any,  # the TransformerStack to which this method is bound
    x: Tensor,
    position_ids: Tensor,
    mask: Tensor | None,
    memory: Tensor | None = None,
    memory_mask: Tensor | None = None,
    *,
    past_key_values: Cache | None = None,
    **kwargs: Any,
) -> Tensor:
    """Run the layers of a stack on a packed row; replaces the stack's own `run_layers`.

    Batches stay padded with a cache, with a 4-D mask, while compiling, or if `output_hidden_states` is set.
    """
    plain_layers = type(self).run_layers
    can_pack = (
        self.config._attn_implementation == "packed_sdpa"
        and past_key_values is None
        and not kwargs.get("output_hidden_states", self.config.output_hidden_states)
        and (memory_mask is None or memory_mask.dim() == 2)
    )
    real = real_tokens(mask) if can_pack else None
    if real is None:
        attended = (mask, memory, memory_mask)
        return plain_layers(self, x, position_ids, *attended, past_key_values=past_key_values, **kwargs)
    packing, memory_layout = Packing(real, x.device), None
    if memory is not None:
        real = torch.ones(memory.shape[:2], dtype=torch.bool) if memory_mask is None else to_host(memory_mask)
        source = Packing(real, memory.device)
        memory, memory_layout = source.pack(memory), Layout(packing, source, False, x)
    layout = Layout(packing, packing, self.layers[0].self_attn.is_causal, x)
    x, positions = packing.pack(x), packing.pack(position_ids.expand(x.shape[:2])[..., None])[..., 0]
    return packing.unpack(plain_layers(self, x, positions, layout, memory, memory_layout, **kwargs))


def mask_from_labels(
    model: PreTrainedModel, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Derive the decoder's padding mask from the labels if there is none, so that target padding is packed away."""
    labels = options.get("labels")
    others = ("decoder_attention_mask", "past_key_values", "cache")
    given = args[4:] or any(options.get(name) is not None for name in others)
    if labels is None or given or model.config._attn_implementation != "packed_sdpa" or is_tracing(labels):
        return args, options
    check_ids("labels", labels)
    inputs = [*args[3:4], options.get("decoder_input_ids"), options.get("decoder_inputs_embeds")]
    if any(given is not None and given.shape[:2] != labels.shape for given in inputs):
        return args, options  # the loss will raise the shape error
    real = (to_host(labels) != IGNORED_LABEL).flip(-1).cumsum(-1).flip(-1) > 0
    return args, options | {"decoder_attention_mask": to_device(real, labels.device)}
