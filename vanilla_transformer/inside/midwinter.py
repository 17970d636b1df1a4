"""Reconstruct a published encoder layer, "in the bleak midwinter", from the seeds of its random matrices.

The source prints the first and last three columns of its matrices, 294 values in all (midwinter.json; null where a
printed value is cut off). Keras generated the matrices from seeds that the source does not state. A search through the
10^9 seeds that Keras could have chosen found those that give the printed values of X, W_Q, W_K and V.

W_1 and W_2 are our own, because only their joint result is printed: random matrices, the second changed as little as
possible so that they reproduce every printed value.
"""

import json
import math
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor


SEEDS = {"X": 66320651, "W_Q": 294588398, "W_K": 97651494, "W_V": 549760707}
LENGTH, WIDTH, INNER = 4, 300, 1200  # number of words, d_model and d_ff
EDGES = [0, 1, 2, 297, 298, 299]  # indices of the printed columns
HIDDEN = slice(3, 297)  # columns that are not printed
DEVIATION = 0.05  # standard deviation of Keras' initialiser
EPSILON = 1e-6  # epsilon of the layer norm


def printed() -> dict[str, Tensor]:
    """Return the printed part of each matrix: (rows, 6); (6, 6) for W_Q and W_K; (4, 4) for scores and weights."""
    text = files("vanilla_transformer.inside").joinpath("midwinter.json").read_text(encoding="utf-8")
    numbers = {name: np.array(rows, dtype=float) for name, rows in json.loads(text).items()}  # null becomes NaN
    return {name: torch.from_numpy(rows) for name, rows in numbers.items()}


def philox(counter: Sequence[np.ndarray], key: Sequence[int]) -> list[np.ndarray]:
    """Return four 32-bit random numbers for each counter, by Philox4x32-10 (Salmon et al., 2011).

    Args:
        counter: four arrays of 32-bit integers.
        key: two 32-bit integers.
    """
    multipliers, steps, mask = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), np.uint64(0xFFFFFFFF)
    one, two, three, four = (np.asarray(part, dtype=np.uint64) for part in counter)
    for turn in range(10):
        first, second = (np.uint64((word + turn * step) % 2**32) for word, step in zip(key, steps, strict=True))
        left, right = np.uint64(multipliers[0]) * one, np.uint64(multipliers[1]) * three
        high_left, high_right = left >> np.uint64(32), right >> np.uint64(32)
        one, two, three, four = high_right ^ two ^ first, right & mask, high_left ^ four ^ second, left & mask
    return [one, two, three, four]


def keras_normal(seed: int, *shape: int) -> Tensor:
    """Return the matrix that Keras' `RandomNormal(seed=seed)` generates in TensorFlow 2.14: mean 0, deviation 0.05."""
    size = math.prod(shape)
    key = [int(part[0]) for part in philox([np.array([seed]), *[np.zeros(1)] * 3], (0x3EC8F720, 0x02461E29))]
    blocks = np.arange(math.ceil(size / 4))
    bits = philox([blocks, np.zeros_like(blocks), *(np.full_like(blocks, part) for part in key[2:])], key[:2])
    uniform = [(part & np.uint64(2**23 - 1)).astype(float) / 2**23 for part in bits]
    pairs = []
    for radius, turn in (uniform[:2], uniform[2:]):  # the Box-Muller transform gives two normal samples
        length = np.sqrt(-2 * np.log(np.maximum(radius, 1e-7)))
        pairs += [np.sin(2 * np.pi * turn) * length, np.cos(2 * np.pi * turn) * length]
    return DEVIATION * torch.from_numpy(np.stack(pairs, axis=1).ravel()[:size].reshape(shape))


def complete(rows: Tensor, printed_rows: Tensor, printed_norms: Tensor) -> Tensor:
    """Return rows (4, 300) close to `rows`, whose outer columns and whose layer norm are as printed.

    The printed columns before and after layer norm reveal the mean and deviation of each complete row. The inner
    columns are shifted and scaled until the row has them.
    """
    result = torch.cat((printed_rows[:, :3], rows[:, HIDDEN], printed_rows[:, 3:]), dim=-1)
    inner = WIDTH - len(EDGES)
    for row, known, norm in zip(result, printed_rows, printed_norms, strict=True):
        slope, offset = np.polyfit(known, norm, 1)  # norm = (known - mean) / deviation
        mean, variance = -offset / slope, slope**-2 - EPSILON
        hidden = (WIDTH * mean - known.sum()) / inner
        squares = (WIDTH * (variance + mean**2) - known.square().sum()) / inner
        values = row[HIDDEN]
        row[HIDDEN] = hidden + (values - values.mean()) / values.std(correction=0) * (squares - hidden**2).sqrt()
    return result


def matrices() -> dict[str, Tensor]:
    """Return X (4, 300), W_Q, W_K and W_V (300, 300), W_1 (300, 1200) and W_2 (1200, 300), in float64."""
    edges = printed()
    x = keras_normal(SEEDS["X"], LENGTH, WIDTH)
    w_q, w_k, w_v = (keras_normal(SEEDS[name], WIDTH, WIDTH) for name in ("W_Q", "W_K", "W_V"))
    weights = ((x @ w_q) @ (x @ w_k).T / math.sqrt(WIDTH)).softmax(-1)
    middle = torch.nn.functional.layer_norm(x + weights @ (x @ w_v), (WIDTH,), eps=EPSILON)

    w_1, w_2 = keras_normal(1, WIDTH, INNER), keras_normal(2, INNER, WIDTH)
    inner = (middle @ w_1).relu()
    total = complete(middle + inner @ w_2, edges["FFN"] + edges["O"], edges["encoder_output"])
    missing = total - middle - inner @ w_2
    w_2 += torch.linalg.pinv(inner) @ missing  # the smallest change that gives the rows above
    return {"X": x, "W_Q": w_q, "W_K": w_k, "W_V": w_v, "W_1": w_1, "W_2": w_2}
