"""Draw figures about positional encodings (section 3.5 of the paper): sinusoids, their shifts, and their absence."""

from functools import cache

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from plots.style import label_words, matrix
from vanilla_transformer import VanillaTransformerEncoderConfig, VanillaTransformerEncoderModel
from vanilla_transformer.modeling_vanilla_transformer import sinusoids


TRAINING_LENGTH = 256  # length of the longest training sentence in tokens
SENTENCE = "orange is my favorite fruit .".split()
ORDER = [4, 0, 3, 1, 5, 2]  # "fruit orange favorite is . my"


def encodings(positions: Tensor, d_model: int) -> Tensor:
    """Return the sinusoidal positional encodings: (length,) -> (length, d_model)"""
    return sinusoids(positions[None], d_model)[0]


def sinusoid_heat_map() -> Figure:
    length, d_model = 100, 128
    figure, ax = plt.subplots(figsize=(8, 3.9))
    image = matrix(ax, encodings(torch.arange(length), d_model).numpy(), limit=1.0, aspect="auto")
    ax.set(xlabel="dimension: sine in the even ones, cosine in the odd ones", ylabel="position")
    ax.set_title(r"$PE(pos, 2i) = \sin(pos / 10000^{2i/d})$,  $PE(pos, 2i+1) = \cos(pos / 10000^{2i/d})$")
    figure.colorbar(image, ax=ax, pad=0.02)
    return figure


def shift_matrix(k: int, d_model: int) -> Tensor:
    """Return the matrix M_k with PE(pos + k) = M_k PE(pos) for all positions: (d_model, d_model).

    The matrix rotates each (sin, cos) pair by the angle of that pair at position k.
    """
    sines, cosines = encodings(torch.tensor([k]), d_model)[0].view(-1, 2).T
    return torch.block_diag(*(torch.tensor([[c, s], [-s, c]]) for s, c in zip(sines, cosines, strict=True)))


def shift_errors(k: int, positions: Tensor, d_model: int) -> Tensor:
    """Return the largest magnitude in PE(pos + k) - M_k PE(pos) for each position: (length,)"""
    shifted = encodings(positions, d_model) @ shift_matrix(k, d_model).T
    return (shifted - encodings(positions + k, d_model)).abs().amax(dim=1)


def position_shift() -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), width_ratios=(1.15, 1.5))
    image = matrix(left, shift_matrix(3, 16).numpy(), limit=1.0)
    figure.colorbar(image, ax=left, pad=0.03, shrink=0.8)
    left.set(xticks=range(0, 16, 5), yticks=range(0, 16, 5))
    left.set_title(r"$M_3$ for $d_{model} = 16$: rotations of pairs")
    positions = torch.logspace(0, 4, 200).long().unique()
    for k in (1, 10, 100, 1000):
        right.plot(positions, shift_errors(k, positions, 512), label=f"k = {k}")
    right.set(xscale="log", yscale="log", xlabel="position pos", ylim=(1e-8, 1))
    right.set_ylabel(r"largest $|PE(pos + k) - M_k\,PE(pos)|$")
    right.set_title(r"The map is exact up to float32 rounding ($d_{model} = 512$)")
    right.legend(ncols=2)
    return figure


def dot_products(start: int, distances: Tensor, d_model: int) -> Tensor:
    """Return PE(start) . PE(start + distance), normalised to 1 at distance 0: (length,)"""
    return encodings(start + distances, d_model) @ encodings(torch.tensor([start]), d_model)[0] / (d_model / 2)


def position_dot_products() -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    near = torch.arange(-60, 61)
    for d_model in (32, 128, 512):
        left.plot(near, dot_products(1000, near, d_model), label=f"$d_{{model}}$ = {d_model}")
    left.set(xlabel="distance k", ylabel=r"$PE(pos) \cdot PE(pos + k) \; / \; (d_{model} / 2)$")
    left.set_title("Near positions have similar encodings")
    far = torch.logspace(0, np.log10(5000), 400).long().unique()
    some = torch.logspace(0, np.log10(5000), 24).long().unique()
    right.plot(far, dot_products(0, far, 512), label="pos = 0", alpha=0.7)
    for start, marker in ((100, "s"), (10_000, "^")):
        right.plot(some, dot_products(start, some, 512), marker, markersize=5, label=f"pos = {start:,}")
    right.axvspan(TRAINING_LENGTH, 5000, color="C5", alpha=0.15, lw=0)
    right.text(TRAINING_LENGTH * 1.1, 0.93, f"beyond sentences\nof {TRAINING_LENGTH} tokens", va="top", fontsize=9)
    right.set(xscale="log", xlabel="distance k", xlim=(1, 5000))
    right.set_title("It depends on the distance only, not on the start")
    for ax in (left, right):
        ax.legend(loc="lower left")
    return figure


@cache
def permutation_outputs(positions: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the permuted outputs for `SENTENCE`, and the outputs for the permuted sentence, of a random encoder.

    Both are (length, d_model).

    Args:
        positions: whether the encoder has position embeddings.
    """
    torch.manual_seed(0)
    config = VanillaTransformerEncoderConfig(
        vocab_size=len(SENTENCE), d_model=24, num_heads=4, d_ff=48, num_layers=2, position_embedding="learned"
    )
    encoder = VanillaTransformerEncoderModel(config).eval()
    encoder.embed_positions.weight.data.mul_(config.d_model**0.5 if positions else 0.0)
    ids = torch.arange(len(SENTENCE))[None]
    with torch.no_grad():
        ordered, permuted = encoder(ids).last_hidden_state, encoder(ids[:, ORDER]).last_hidden_state
    return ordered[0, ORDER].numpy(), permuted[0].numpy()


def permutation_equivariance() -> Figure:
    figure, axes = plt.subplots(2, 3, figsize=(9, 4.6))
    for row, positions in zip(axes, (False, True), strict=True):
        expected, actual = permutation_outputs(positions)
        difference = actual - expected
        limit = float(np.abs(expected).max())
        for ax, values in zip(row, (expected, actual, difference), strict=True):
            matrix(ax, values, limit=limit, aspect="auto")
            label_words(ax, [SENTENCE[i] for i in ORDER] if ax is row[0] else [], [])
        row[0].set_ylabel("with positions" if positions else "without positions")
        row[2].set_xlabel(f"largest difference: {np.abs(difference).max():.2g}")
    for ax, title in zip(
        axes[0], ("$P\\,f(X)$: the output, permuted", "$f(P X)$: of the permuted input", "difference"), strict=True
    ):
        ax.set_title(title)
    return figure
