"""Draw figures about attention (sections 3.2.1 and 3.2.3 of the paper): why scores are scaled, and what masks do."""

from functools import cache

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor, nn
from transformers import AutoTokenizer

from plots.style import label_words, matrix, rule_cells, write_numbers
from vanilla_transformer import VanillaTransformerDecoderConfig, VanillaTransformerDecoderModel
from vanilla_transformer.inside.recorder import record
from vanilla_transformer.inside.walks import read
from vanilla_transformer.inside.worked_examples import EXAMPLES
from vanilla_transformer.loading import load_model, shipped_model
from vanilla_transformer.modeling_vanilla_transformer import eager_attention_forward


WIDTHS = [*(2**i for i in range(14)), 10_000]  # values of d_k, the width of a head
KEYS, DRAWS = 50, 128
NO_DROPOUT = nn.Module().eval()


def attention_weights(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    """Return attention weights computed by the model's own code: (batch, heads, query_length, key_length)."""
    return eager_attention_forward(NO_DROPOUT, query, key, key, None, scaling)[1]


def jacobian_norm(weights: Tensor) -> Tensor:
    """Return the Frobenius norm of diag(p) - p p^T, the Jacobian of softmax with output p: (..., keys) -> (...)"""
    jacobian = torch.diag_embed(weights) - weights[..., :, None] * weights[..., None, :]
    return jacobian.norm(dim=(-2, -1))


@cache
def jacobian_norms(scaled: bool) -> np.ndarray:
    """Return the mean norm of the softmax Jacobian for each of `WIDTHS`.

    The components of queries and keys are independent samples from N(0, 1).
    """
    generator = torch.Generator().manual_seed(0)
    norms = []
    for d_k in WIDTHS:
        query, key = (torch.randn(DRAWS, 1, length, d_k, generator=generator) for length in (1, KEYS))
        norms.append(jacobian_norm(attention_weights(query, key, d_k**-0.5 if scaled else 1.0)).mean().item())
    return np.array(norms)


def softmax_jacobian() -> Figure:
    figure, ax = plt.subplots(figsize=(7, 3.8))
    ax.plot(WIDTHS, jacobian_norms(scaled=True), marker="o", label=r"$\mathrm{softmax}(q K^\top / \sqrt{d_k})$")
    ax.plot(WIDTHS, jacobian_norms(scaled=False), marker="s", label=r"$\mathrm{softmax}(q K^\top)$")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set(xlabel=r"width of a head $d_k$", ylabel=r"mean of $\|\mathrm{diag}(p) - p\,p^\top\|_F$")
    ax.set_title(f"Without scaling, the softmax of wide heads has small gradients ({KEYS} keys)")
    ax.legend()
    return figure


@cache
def masked_attention() -> dict[str, np.ndarray]:
    """Return the attention weights of one head before and after causal masking, and the causal mask."""
    example = EXAMPLES["causal-mask"]
    steps = {
        s.name: s.tensor[0] for s in record(example.model(), example.inputs(), head=0) if s.part == "self-attention"
    }
    queries, keys = (steps[name][None, None] for name in ("queries", "keys"))
    before = attention_weights(queries, keys, steps["queries"].shape[-1] ** -0.5)[0, 0]
    return {"before": before.numpy(), "mask": (steps["mask"] == 0).numpy(), "after": steps["weights"].numpy()}


def attention_mask() -> Figure:
    words = EXAMPLES["causal-mask"].words()[0]
    drawn = masked_attention()
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.7))
    titles = {
        "before": "weights without a mask",
        "mask": "the mask: blue is visible",
        "after": "weights under the mask",
    }
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        values = drawn[name].astype(float)
        matrix(ax, values, limit=1.6, signed=False)  # pale colours, so that the numbers stay readable
        if name != "mask":
            write_numbers(ax, values, lambda value: f"{value:.2f}" if value else "0")
        rule_cells(ax, *values.shape)
        label_words(ax, words if ax is axes[0] else [""] * len(words), words)
        ax.set_title(title)
    axes[0].set_ylabel("query")
    figure.supxlabel("key", fontsize=10)
    return figure


@cache
def mask_examples() -> dict[str, list[np.ndarray]]:
    """Return the encoder and decoder masks of a padded batch, True where a query may attend to a key."""
    example = EXAMPLES["padding-mask"]
    torch.manual_seed(0)
    sizes = example.model().config
    fields = {name: getattr(sizes, name) for name in ("vocab_size", "d_model", "num_heads", "d_ff", "num_layers")}
    decoder = VanillaTransformerDecoderModel(VanillaTransformerDecoderConfig(**fields)).eval()
    models = {"encoder: padding": example.model(), "decoder: causal and padding": decoder}
    masks = {}
    for title, model in models.items():
        (mask,) = (step.tensor for step in record(model, example.inputs(), head=0) if step.name == "mask")
        masks[title] = [sentence.eq(0).numpy() for sentence in mask]
    return masks


def masks() -> Figure:
    words = EXAMPLES["padding-mask"].words()
    figure, axes = plt.subplots(2, 3, figsize=(8, 6.2))
    for row, (title, drawn) in zip(axes, mask_examples().items(), strict=True):
        for ax, mask, sentence in zip(row, drawn, words, strict=True):
            matrix(ax, mask.astype(float), limit=1.4, signed=False)
            rule_cells(ax, *mask.shape)
            label_words(ax, sentence, sentence)
        row[0].set_ylabel("query")
        row[1].set_title(f"{title} (blue: visible)")
    figure.supxlabel("key", fontsize=10)
    return figure


@cache
def attention_to_loan() -> tuple[str, list[str], np.ndarray]:
    """Return the encoder head of checkpoints/en-es that attends most from "bank" to "loan", its words and weights."""
    folder = shipped_model("en-es")
    model, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)
    text = "The bank approved the loan because it had sufficient funds."
    inputs, (words,), _ = read(model, tokenizer, text, None, "encoder")
    words = [word.strip("␣") for word in words]
    first = {
        name: next(i for i in range(len(words)) if name.startswith(words[i]) and words[i]) for name in ("bank", "loan")
    }
    found = {}
    for layer in range(len(model.model.encoder.layers)):
        steps = record(model, inputs, layer, stack="encoder")
        (weights,) = next(step.tensor for step in steps if step.name == "weights")
        found |= {f"layer {layer + 1}, head {head + 1}": weights[head].numpy() for head in range(len(weights))}
    best = max(found, key=lambda name: found[name][first["bank"], first["loan"]])
    return best, words, found[best]


def bank_and_loan() -> Figure:
    name, words, weights = attention_to_loan()
    figure, ax = plt.subplots(figsize=(6.4, 5.6))
    matrix(ax, weights, limit=1.0, signed=False)
    rule_cells(ax, *weights.shape)
    label_words(ax, words, words)
    ax.set(xlabel="key", ylabel="query")
    ax.set_title(f"Encoder, {name} of checkpoints/en-es")
    return figure
