# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""The losses of the heads, and the checks of what a model is given.

Each loss is a sum divided by the number of targets: of this batch, or, under gradient accumulation and several
processes, of the whole step (`num_items_in_batch`), so that the gradient does not depend on how a step is cut up.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers.utils import is_tracing


IGNORED_LABEL = -100  # PyTorch's mark for a position without a target
SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "decoder_start_token_id")  # of a config, put into inputs by others


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
        ValueError: a label is neither a class nor -100, or their shape or type is another.
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
    """A sum over so many targets, or over one if there are none. The number is not looked at: it may be on a GPU."""
    if not isinstance(number, Tensor):
        return total / max(number, 1)
    number = number.clamp(min=1)
    alone = number.dim() == 0 and number.device.type == "cpu"  # which divides as a plain number does
    return total / (number if alone else number.to(total.device))


def is_padding(attention_mask: Any) -> bool:
    """Whether a mask says which tokens are real, (batch, length), and not which of them may see which."""
    return isinstance(attention_mask, Tensor) and attention_mask.dim() == 2


def without_padding(labels: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
    """Labels (batch, length) that leave out, as -100, where the mask (batch, past + length) has padding.

    What a model says there means nothing, and each form of attention says something else.
    """
    if labels is None or not is_padding(attention_mask) or labels.dim() != 2:
        return labels
    padding = attention_mask[:, -labels.shape[1] :].to(labels.device) == 0
    return labels.masked_fill(padding, IGNORED_LABEL) if padding.shape == labels.shape else labels


def sequence_loss(
    logits: Tensor, labels: Tensor, problem_type: str, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Loss of one prediction for each sequence: cross-entropy, or a mean over all outputs of binary or squared error.

    Args:
        logits: (batch, labels); labels: (batch,) ids for single_label_classification, else (batch, labels) numbers.

    Raises:
        ValueError: the labels' shape does not fit the logits, or labels for several classes are not in [0, 1].
    """
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
        # A Trainer leaves out of its count what it takes for no target; among real numbers that is one as any other.
        # How many there are in the other batches of a step is not known here: they are taken to have the same share.
        counted = (labels != IGNORED_LABEL).sum()
        num_items_in_batch = torch.as_tensor(num_items_in_batch).clamp(min=1) * labels.numel() / counted.clamp(min=1)
    return mean(total, labels.numel() if num_items_in_batch is None else num_items_in_batch)


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

    Raises:
        ValueError: positions that are not one integer for each sequence.
    """
    losses = []
    for name, scores, position in zip(("start_positions", "end_positions"), logits, positions, strict=True):
        check_integers(name, position)
        if position.numel() != len(scores):
            raise ValueError(f"{name} has shape {tuple(position.shape)}; it must be (batch,) = ({len(scores)},).")
        if is_padding(attention_mask):
            padding = attention_mask.to(scores.device) == 0
            scores = scores.float().masked_fill(padding, torch.finfo(torch.float32).min)
        position = position.to(scores.device).flatten()
        outside = (position < 0) | (position >= scores.shape[1])
        losses.append(cross_entropy(scores, position.masked_fill(outside, IGNORED_LABEL), num_items_in_batch))
    return (losses[0] + losses[1]) / 2


# ---------------------------------------------------------------------------------------------------------------------
# Checks. Values are looked at on a CPU only: elsewhere that would make the host wait for the device.
# ---------------------------------------------------------------------------------------------------------------------


def check_tensor(name: str, value: Tensor) -> None:
    """Raise a TypeError unless `value` is a tensor, or what stands for one in tracing."""
    if not hasattr(value, "dim"):
        raise TypeError(
            f"{name} is of type {type(value).__name__}; it must be a tensor, as torch.tensor(...) makes it."
        )


def check_integers(name: str, ids: Tensor) -> None:
    """Raise an error unless `ids` are a tensor of integers of 32 or 64 bits."""
    check_tensor(name, ids)
    if ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} has dtype {ids.dtype}; it must be torch.int64 or torch.int32.")


def check_rows(name: str, ids: Tensor) -> None:
    """Raise an error unless `ids` are integers (batch, length)."""
    check_integers(name, ids)
    if ids.dim() != 2:
        raise ValueError(f"{name} has shape {tuple(ids.shape)}; it must be (batch, length).")


def check_input_ids(ids: Tensor, vocab_size: int, config: PreTrainedConfig | None = None) -> None:
    """Raise an error unless `ids` are (batch, length) integers in [0, vocab_size). `config`: see `check_range`."""
    check_rows("input_ids", ids)
    if not is_tracing(ids):
        check_not_empty("input_ids", ids)
        check_range("input_ids", ids, vocab_size, "the vocabulary", config=config)


def check_not_empty(name: str, values: Tensor) -> None:
    """Raise a ValueError if a batch, or the sequences in it, have the length 0."""
    if 0 in values.shape[:2]:
        raise ValueError(f"{name} has shape {tuple(values.shape)}: there is nothing to compute.")


def check_inputs_embeds(embeddings: Tensor, d_model: int) -> None:
    """Raise an error unless `embeddings` are numbers (batch, length, d_model)."""
    check_tensor("inputs_embeds", embeddings)
    if embeddings.dim() != 3 or embeddings.shape[-1] != d_model or not embeddings.is_floating_point():
        raise ValueError(
            f"inputs_embeds has shape {tuple(embeddings.shape)} and dtype {embeddings.dtype}; it must be "
            f"(batch, length, d_model={d_model}), floating-point."
        )
    if not is_tracing(embeddings):
        check_not_empty("inputs_embeds", embeddings)


def check_aligned_ids(name: str, ids: Tensor | None, batch: int, length: int) -> None:
    """Raise an error unless `ids` are None, or integers (batch, length), or (1, length) for all rows alike."""
    if ids is None:
        return
    check_integers(name, ids)
    if ids.shape not in ((batch, length), (1, length)):
        raise ValueError(f"{name} has shape {tuple(ids.shape)}; it must be (batch, length) = {(batch, length)}.")


def check_ids(name: str, ids: Tensor, limit: int, what: str, ignored: int | None = None) -> None:
    """Raise a ValueError unless every id lies in [0, limit) or equals `ignored`."""
    if not is_tracing(ids):
        check_range(name, ids, limit, what, ignored)


def check_range(
    name: str,
    ids: Tensor,
    limit: int,
    what: str,
    ignored: int | None = None,
    config: PreTrainedConfig | None = None,
) -> None:
    """As `check_ids`, of ids that are known to have values: nothing is being traced.

    Where the id is one of the `config`, which the library puts into a user's inputs, the error says so.
    """
    if ids.device.type != "cpu" or not ids.numel():
        return
    try:
        least, most = (bound.item() for bound in ids.aminmax())  # less than the comparisons below, at each step
    except RuntimeError:  # under `torch.func.vmap`, where nothing has a value of its own
        return
    if least >= 0 and most < limit:
        return
    wrong = (ids < 0) | (ids >= limit)
    if ignored is not None:
        wrong &= ids != ignored
    if wrong.any():
        value = ids[wrong][0].item()
        names = " and ".join(name for name in SPECIAL_TOKENS if getattr(config, name, None) == value)
        raise ValueError(
            f"{name} holds {value}, but {what} has {limit}: give ids from 0 to {limit - 1}."
            + (f" The config's {names} is {value}." if names else "")
        )


def check_labels(labels: Tensor, shape: torch.Size, classes: int) -> None:
    """Raise an error unless `labels` are integers of this shape, each of them -100 or in [0, classes)."""
    check_integers("labels", labels)
    if labels.shape != shape:
        raise ValueError(f"labels has shape {tuple(labels.shape)}; it must be {tuple(shape)}.")
    check_ids("labels", labels, classes, "the output layer", ignored=IGNORED_LABEL)


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
    if mask is None:
        return
    if isinstance(mask, list | tuple | str | int | float | np.ndarray):  # forms of attention have masks of other types
        check_tensor(name, mask)
    if not isinstance(mask, Tensor) or is_tracing(mask):
        return
    if mask.shape == (batch, key_length):
        if mask.device.type == "cpu" and not torch.equal(mask, (mask != 0).to(mask.dtype)):
            wrong = mask[(mask != 0) & (mask != 1)][0].item()
            raise ValueError(f"{name} holds {wrong}; a mask (batch, length) is 1 for real tokens and 0 for padding.")
        return
    if mask.dim() == 4:
        rows, mask_heads, queries, keys = mask.shape
        right_keys = keys == key_length or (cache_has_room and keys >= query_length)
        if rows in (1, batch) and mask_heads in (1, heads) and queries == query_length and right_keys:
            if mask.dtype == torch.bool or mask.is_floating_point():
                return
            raise ValueError(
                f"{name} of shape {tuple(mask.shape)} is {mask.dtype}; a whole mask is True where a query may attend, "
                "or what is added to its scores: 0 there, and very negative elsewhere."
            )
    raise ValueError(
        f"{name} has shape {tuple(mask.shape)}; it must be (batch, length) = {(batch, key_length)} or "
        f"(batch, 1 or heads, query_length, key_length) = {(batch, 1, query_length, key_length)}."
    )
