# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Two forms of Equation 1 that leave out what nobody looks at: positions out of a window's reach, and padding.

Both are names for the library's attention interface, beside "eager" (the equation as it stands), "sdpa" and others:

    windowed_sdpa   chosen by itself where `config.sliding_window` is set and "sdpa" asked for
    packed_sdpa     `model.set_attn_implementation("packed_sdpa")`: see `Packing` and `packed`

The results are those of "eager" (tests/model/test_parity.py, tests/model/test_packing.py).
"""

from collections.abc import Callable
from functools import wraps
from heapq import heappush, heapreplace
from inspect import signature

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import is_tracing


try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None
else:
    if not {"scale", "window_size"} <= signature(varlen_attn).parameters.keys():
        varlen_attn = None  # PyTorch 2.10


# ---------------------------------------------------------------------------------------------------------------------
# A window
# ---------------------------------------------------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------------------------------------------------
# No padding
# ---------------------------------------------------------------------------------------------------------------------


# Where padding is says how large tensors are, which the host has to know. It would wait for a GPU to tell, until all
# is done that was asked of it; so who sends a batch there from the host keeps what was sent.


def send(values: Tensor, device: torch.device) -> Tensor:
    """Send values from the host to a device, without waiting for it, such that `on_host` gives them back at once."""
    if values.device.type == device.type:
        return values
    if device.type == "cuda":
        values = values.pin_memory()
    sent = values.to(device, non_blocking=device.type != "mps")  # which might copy what has changed since
    if not sent.is_inference():  # such tensors do not tell whether they were changed
        sent.kept_on_host = values, sent._version
    return sent


def on_host(values: Tensor) -> Tensor:
    """The same values in the host's memory; it waits for the device only if they were not sent from there."""
    kept, version = getattr(values, "kept_on_host", (None, None))
    return kept if kept is not None and version == values._version else values.cpu()


def round_up(number: int) -> int:
    """The next number with at most five binary digits and zeros behind them, which is at most 6 % larger.

    On a CPU oneDNN compiles each product for the shapes that it meets, which takes several times as long as a product.
    Batches filled with tokens hardly ever have the same shape; so rounded, they have few.
    """
    step = 1 << max(number.bit_length() - 5, 0)
    return -(-number // step) * step


SHORTEST_ROUNDED = 256  # tokens; of shorter rows neither the products nor their compilation weigh much


class Packing:
    """Where the real tokens of a padded batch are, so that all of them can stand behind one another in one row.

    Everything in a layer but Equation 1 looks at one position at a time and may as well work on such a row, in which
    no padding is. Only for Equation 1 the sequences are laid beside one another again: see `Layout`.
    """

    def __init__(self, real: Tensor, device: torch.device):
        """`real`: (batch, length), on the host, true for real tokens, wherever padding stands."""
        self.batch, self.length = real.shape
        self.lengths = real.sum(dim=1)
        self.longest = max(int(self.lengths.max()), 1)
        ends = F.pad(self.lengths.cumsum(0), (1, 0))
        self.tokens = int(ends[-1])
        self.sequence = torch.arange(self.batch).repeat_interleave(self.lengths)  # (tokens,) that each belongs to
        self.position = torch.arange(self.tokens) - ends[self.sequence]  # (tokens,) of each in its sequence
        # At the end of a long row a CPU has copies of its first token, at which nobody looks.
        few_shapes = device.type == "cpu" and self.tokens >= SHORTEST_ROUNDED
        self.spare = round_up(self.tokens) - self.tokens if few_shapes else 0
        self.padded_index = send(real.flatten().nonzero()[:, 0], device)  # (tokens,) of each real token in the batch
        self.ends = send(ends.int(), device)  # (batch + 1,) where sequences of the row end

        # FlashAttention, as PyTorch has it, takes such rows as they are: on GPUs since Ampere.
        on_gpu = varlen_attn is not None and device.type == "cuda"
        self.has_kernel = on_gpu and torch.cuda.get_device_capability(device) >= (8, 0)

    def take(self, rows: Tensor, index: Tensor) -> Tensor:
        """Those of `rows` (any number, width) that `index` (tokens,) names, and what is spare."""
        return rows.index_select(0, F.pad(index, (0, self.spare)) if self.spare else index)

    def put(self, row: Tensor, index: Tensor, count: int) -> Tensor:
        """`count` rows of zeros, but for the tokens of `row` (tokens + spare, width) where `index` says."""
        return row.new_zeros(count, row.shape[-1]).index_copy_(0, index, row[: self.tokens])

    def pack(self, states: Tensor) -> Tensor:
        """(batch, length, width) -> (1, tokens + spare, width)"""
        return self.take(states.flatten(0, 1), self.padded_index)[None]

    def unpack(self, states: Tensor) -> Tensor:
        """(1, tokens + spare, width) -> (batch, length, width), zeros in the place of padding"""
        rows = self.put(states[0], self.padded_index, self.batch * self.length)
        return rows.view(self.batch, self.length, -1)


LONGEST_PLAIN = 512  # keys


def plain_is_faster(query: Tensor, keys: int) -> bool:
    """PyTorch's fused kernel for a CPU is slow backwards in bfloat16: up to some length plain products are faster."""
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
    """`F.scaled_dot_product_attention` as it is written in the paper; a mask is true where one may look, or added."""
    scores = query * scale @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = scores.new_zeros(attn_mask.shape).masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
        scores += attn_mask
    return F.dropout(scores.softmax(dim=-1), dropout_p) @ value


def suit_the_kernel(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> bool:
    """Whether FlashAttention takes such heads: in 16 bits, all of one width, without dropout."""
    return (
        query.dtype == key.dtype == value.dtype
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] == value.shape[-1]
        and query.shape[-1] % 8 == 0
        and not dropout
    )


SHARED_WIDTH = 32  # positions


def fill_rows(sizes: list[int], width: int) -> list[int]:
    """Where sequences of such sizes begin that share rows of `width` positions, counted from the first row's left.

    The longest come first, each to where most is free. No size may exceed `width`.
    """
    rows: list[tuple[int, int]] = []  # a heap: the taken positions of each, and its number
    starts = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        if not rows or rows[0][0] + sizes[index] > width:
            heappush(rows, (0, len(rows)))
        taken, row = rows[0]
        starts[index] = row * width + taken
        heapreplace(rows, (taken + sizes[index], row))
    return starts


class Layout:
    """Packed sequences beside one another, each from the left of a row of its own, for Equation 1.

    Where the equation is computed as it is written, rows are 32 positions wide, or a longer multiple of 16, and shared
    by as many sequences as have room: few keys would leave most of a vector unit idle, and few widths make few shapes.
    """

    def __init__(self, queries: Packing, keys: Packing, is_causal: bool, like: Tensor):
        """`like` has the device and, but for autocast, the type of what will be laid out."""
        kind = like.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            like = like.new_empty(0, dtype=torch.get_autocast_dtype(kind))
        self.queries, self.keys = queries, keys
        self.widths, self.rows = (queries.longest, keys.longest), queries.batch
        self.shared = shared = plain_is_faster(like, max(self.widths))
        starts = [torch.arange(self.rows) * width for width in self.widths]
        if shared:
            width = max(-(-max(self.widths) // 16) * 16, SHARED_WIDTH)
            # A sequence without a token has nothing to look at: its zeros, in a row of its own.
            sizes = queries.lengths.maximum(keys.lengths).masked_fill(keys.lengths == 0, width)
            shared_starts = torch.tensor(fill_rows(sizes.tolist(), width))
            self.widths, starts = (width, width), [shared_starts, shared_starts]
            self.rows = round_up(int(shared_starts.max()) // width + 1)
        places, owners = [], []
        for packing, start, width in zip((queries, keys), starts, self.widths, strict=True):
            place = start[packing.sequence] + packing.position
            owner = torch.full((self.rows * width,), -1).index_copy(0, place, packing.sequence)
            places.append(send(place, like.device))
            owners.append(owner.view(self.rows, width))
        self.query_places, self.key_places = places
        self.mask = None
        if shared:
            seen = owners[0][:, :, None] == owners[1][:, None, :]
            if is_causal:
                seen = seen.tril()
            self.mask = like.new_zeros(seen.shape).masked_fill(~seen, torch.finfo(like.dtype).min)[:, None]
        elif not is_causal:  # laid from the left, padding is never in the past
            seen = (owners[1] >= 0) | (keys.lengths == 0)[:, None]
            self.mask = send(seen, like.device)[:, None, None, :]

    def unpack_heads(self, heads: Tensor, packing: Packing, places: Tensor, width: int) -> Tensor:
        """(1, heads, tokens + spare, width) -> (rows, heads, positions, width)"""
        _, count, _, size = heads.shape
        rows = packing.put(heads[0].transpose(0, 1).flatten(1), places, self.rows * width)
        return rows.view(self.rows, width, count, size).transpose(1, 2)

    def unpack(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Heads of two packed rows as heads of a batch."""
        query = self.unpack_heads(query, self.queries, self.query_places, self.widths[0])
        key, value = (self.unpack_heads(heads, self.keys, self.key_places, self.widths[1]) for heads in (key, value))
        return query, key, value

    def pack(self, output: Tensor) -> Tensor:
        """(rows, heads, positions, width) -> (1, tokens + spare, heads, width)"""
        return self.queries.take(output.transpose(1, 2).flatten(0, 1), self.query_places)[None]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, dropout: float, scale: float
    ) -> Tensor:
        """Equation 1 for heads of packed rows (1, heads, tokens + spare, width) -> (1, tokens + spare, heads, width)

        It is a method so that "packed_sdpa" of another version, registered by code that came with a checkpoint, works.
        """
        queries, keys = self.queries, self.keys
        if queries.has_kernel and suit_the_kernel(query, key, value, dropout):
            rows = (states[0].transpose(0, 1) for states in (query, key, value))  # (tokens, heads, width)
            window = (-1, 0 if is_causal else -1)  # positions seen before and after; -1: all
            lengths = (queries.ends, keys.ends, queries.longest, keys.longest)
            return varlen_attn(*rows, *lengths, scale=scale, window_size=window)[None]
        attention = plain_attention if self.shared else F.scaled_dot_product_attention
        output = attention(
            *self.unpack(query, key, value),
            attn_mask=self.mask,
            dropout_p=dropout,
            is_causal=self.mask is None,
            scale=scale,
        )
        return self.pack(output)


def packed(run_layers: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorator of a stack's `run_layers(x, position_ids, mask, memory, memory_mask, **kwargs)`, which works on rows
    without padding under "packed_sdpa". Of all the model this is the one place that knows.

    To the arguments come `padding` and `memory_padding`, the masks of `x` and `memory` as users give them. Where they
    leave nothing out or are whole masks, where keys are cached or layers' outputs shown, and under a compiler, nothing
    is packed.
    """

    def real_tokens(mask: Tensor | None) -> Tensor | None:
        """Where they are, if rows are to be packed. On a GPU also full ones are: `packed_sdpa_mask` looked at none."""
        if not isinstance(mask, Tensor) or mask.dim() != 2 or is_tracing(mask):
            return None
        real = on_host(mask).bool()
        leaves_something_out = mask.device.type != "cpu" or not real.all()
        return real if real.any() and leaves_something_out else None

    @wraps(run_layers)
    def run(
        self,
        x: Tensor,
        position_ids: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        padding: Tensor | None = None,
        memory_padding: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs,
    ) -> Tensor:
        may_pack = (
            past_key_values is None
            and self.config._attn_implementation == "packed_sdpa"
            and not kwargs.get("output_hidden_states", self.config.output_hidden_states)
            and (memory_padding is None or memory_padding.dim() == 2)
        )
        real = real_tokens(padding) if may_pack else None
        if real is None:
            attended = (mask, memory, memory_mask)
            return run_layers(self, x, position_ids, *attended, past_key_values=past_key_values, **kwargs)
        packing = Packing(real, x.device)
        if memory is not None:
            whole = memory_padding is None
            real = torch.ones(memory.shape[:2], dtype=torch.bool) if whole else on_host(memory_padding).bool()
            source = Packing(real, memory.device)
            memory, memory_mask = source.pack(memory), Layout(packing, source, False, x)
        layout = Layout(packing, packing, self.layers[0].self_attn.is_causal, x)
        x, positions = packing.pack(x), packing.pack(position_ids.expand(x.shape[:2])[..., None])[..., 0]
        return packing.unpack(run_layers(self, x, positions, layout, memory, memory_mask, **kwargs))

    return run


def packed_sdpa_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | Layout | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[Tensor, None]:
    """Equation 1 for each sequence of a row by itself.

    Args:
        query: (1, heads, tokens, d_k); key: (1, heads, source tokens, d_k); value: (1, heads, source tokens, d_v).
        attention_mask: where the queries and the keys are. With a mask or None all is as for "sdpa".

    Returns:
        The weighted values (1, tokens, heads, d_v), and no weights.
    """
    # Not `isinstance(..., Layout)`: code that came with a checkpoint has a class of its own by that name.
    if attention_mask is not None and not isinstance(attention_mask, Tensor):
        return attention_mask.attend(query, key, value, module.is_causal, dropout, scaling), None
    if not plain_is_faster(query, key.shape[2]):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    is_causal = module.is_causal and attention_mask is None and query.shape[2] > 1
    return plain_attention(query, key, value, attention_mask, dropout, is_causal, scaling).transpose(1, 2), None


def packed_sdpa_mask(attention_mask: Tensor | None = None, **kwargs) -> Tensor | None:
    """The mask of "sdpa". On a GPU nobody looks whether it leaves anything out: the host would wait."""
    if attention_mask is not None and attention_mask.device.type != "cpu":
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(attention_mask=attention_mask, **kwargs)


ALL_ATTENTION_FUNCTIONS.register("packed_sdpa", packed_sdpa_attention_forward)
ALL_MASK_ATTENTION_FUNCTIONS.register("packed_sdpa", packed_sdpa_mask)
