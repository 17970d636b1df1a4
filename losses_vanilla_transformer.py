# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""The losses of the heads, and the checks of what a model is given.

Each loss is a sum divided by the number of targets: of this batch, or, under gradient accumulation and several
processes, of the whole step (`num_items_in_batch`), so that the gradient does not depend on how a step is cut up.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.utils import is_tracing


IGNORED_LABEL = -100  # PyTorch's mark for a position without a target


# ---------------------------------------------------------------------------------------------------------------------
# Losses
# ---------------------------------------------------------------------------------------------------------------------


def cross_entropy(
    logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy over the last dimension. Label smoothing (section 5.4) spreads epsilon over all classes alike.

    Args:
        logits: (..., classes); labels: (...) class ids, or -100 for "no target here".

    Raises:
        ValueError: a label is neither a class nor -100.
    """
    check_ids("labels", labels, logits.shape[-1], "the output layer", ignored=IGNORED_LABEL)
    total = F.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten().to(logits.device),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    if num_items_in_batch is None:
        num_items_in_batch = (labels != IGNORED_LABEL).sum().clamp(min=1)
    return total / torch.as_tensor(num_items_in_batch, device=total.device)


def sequence_loss(
    logits: Tensor, labels: Tensor, problem_type: str, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Loss of one prediction for each sequence: cross-entropy, or a mean over all outputs of binary or squared error.

    Args:
        logits: (batch, labels); labels: (batch,) ids for single_label_classification, else (batch, labels) numbers.

    Raises:
        ValueError: the labels' shape does not fit the logits.
    """
    if problem_type == "single_label_classification":
        return cross_entropy(logits, labels, num_items_in_batch)
    if labels.numel() != logits.numel():
        raise ValueError(
            f"labels has shape {tuple(labels.shape)}; {problem_type} with num_labels={logits.shape[-1]} needs "
            f"{tuple(logits.shape)}."
        )
    error = F.mse_loss if problem_type == "regression" else F.binary_cross_entropy_with_logits
    total = error(logits.float(), labels.reshape(logits.shape).to(logits.device).float(), reduction="sum")
    return total / torch.as_tensor(num_items_in_batch or labels.numel(), device=total.device)


def span_loss(
    logits: tuple[Tensor, Tensor],
    positions: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """Loss of the start and the end of an answer: the mean of their cross-entropies over the real tokens.

    Args:
        logits: of start and end, each (batch, length); positions: of start and end, each (batch,); one outside the
            sequence is no target.
        attention_mask: (batch, length); what is 0 there takes no part, so that padding changes nothing.
    """
    losses = []
    for scores, position in zip(logits, positions, strict=True):
        if attention_mask is not None and attention_mask.dim() == 2:
            padding = attention_mask.to(scores.device) == 0
            scores = scores.float().masked_fill(padding, torch.finfo(torch.float32).min)
        position = position.to(scores.device).flatten()
        outside = (position < 0) | (position >= scores.shape[1])
        losses.append(cross_entropy(scores, position.masked_fill(outside, IGNORED_LABEL), num_items_in_batch))
    return (losses[0] + losses[1]) / 2


# ---------------------------------------------------------------------------------------------------------------------
# Checks. Values are looked at on a CPU only: elsewhere that would make the host wait for the device.
# ---------------------------------------------------------------------------------------------------------------------


def check_input_ids(ids: Tensor, vocab_size: int) -> None:
    """Raise a ValueError unless `ids` are (batch, length) integers in [0, vocab_size)."""
    if ids.dim() != 2:
        raise ValueError(f"input_ids has shape {tuple(ids.shape)}; it must be (batch, length).")
    if ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"input_ids has dtype {ids.dtype}; it must be torch.int64 or torch.int32.")
    check_ids("input_ids", ids, vocab_size, "the vocabulary")


def check_ids(name: str, ids: Tensor, limit: int, what: str, ignored: int | None = None) -> None:
    """Raise a ValueError unless every id lies in [0, limit) or equals `ignored`."""
    if ids.device.type != "cpu" or is_tracing(ids):
        return
    wrong = (ids < 0) | (ids >= limit)
    if ignored is not None:
        wrong &= ids != ignored
    if wrong.any():
        raise ValueError(
            f"{name} holds {ids[wrong][0].item()}, but {what} has {limit}: give ids from 0 to {limit - 1}."
        )


def check_mask(
    name: str,
    mask: Tensor | None,
    batch: int,
    heads: int,
    query_length: int,
    key_length: int,
    cache_has_room: bool = False,
) -> None:
    """Raise a ValueError unless `mask` has (batch, key_length) or (batch, 1 or heads, query_length, key_length).

    The first holds 0 and 1 alone.
    A whole mask may be for one row that stands for all, and for more keys than there are yet if a cache has room.
    """
    if not isinstance(mask, Tensor) or is_tracing(mask):
        return
    if mask.shape == (batch, key_length):
        if mask.device.type == "cpu" and not ((mask == 0) | (mask == 1)).all():
            wrong = mask[(mask != 0) & (mask != 1)][0].item()
            raise ValueError(f"{name} holds {wrong}; a mask (batch, length) is 1 for real tokens and 0 for padding.")
        return
    if mask.dim() == 4:
        rows, mask_heads, queries, keys = mask.shape
        right_keys = keys == key_length or (cache_has_room and keys >= query_length)
        if rows in (1, batch) and mask_heads in (1, heads) and queries == query_length and right_keys:
            return
    raise ValueError(
        f"{name} has shape {tuple(mask.shape)}; it must be (batch, length) = {(batch, key_length)} or "
        f"(batch, 1 or heads, query_length, key_length) = {(batch, 1, query_length, key_length)}."
    )
