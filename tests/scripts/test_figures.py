"""Test that figures agree with the code and are readable on light and dark pages."""

import inspect
import math
import re

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb
from PIL import Image

import figures
from fresh_process import ROOT
from plots.attention import WIDTHS, jacobian_norm, jacobian_norms, mask_examples, masked_attention
from plots.complexity import LAYERS, QUICK, WINDOW, growth, measure
from plots.drawings import gradients_by_layer
from plots.embeddings import embedding_points
from plots.positions import dot_products, permutation_outputs, shift_errors, shift_matrix
from plots.style import THEMES, theme_parameters
from plots.training import loss_by_confidence, smoothed_targets
from vanilla_transformer.modeling_vanilla_transformer import DecoderLayer, TransformerLayer


MODEL_FILE = ROOT / "modeling_vanilla_transformer.py"
PICTURES = ROOT / "docs" / "figures"
SUFFIXES = [f"{theme}.{kind}" for theme in THEMES for kind in ("png", "svg")]


def test_selected_figures_are_drawn_for_light_and_dark_pages(tmp_path, capsys):
    figures.main(["masks", "complexity", "--quick", "--output", str(tmp_path)])
    names = {f"{name}{suffix}" for name in ("masks", "complexity") for suffix in SUFFIXES}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert set(capsys.readouterr().out.split()) == {str(tmp_path / name) for name in names}
    for theme, (paper, *_) in THEMES.items():
        corner = Image.open(tmp_path / f"masks{theme}.png").convert("RGB").getpixel((0, 0))
        assert corner == tuple(round(255 * channel) for channel in to_rgb(paper))


@pytest.mark.parametrize("name", [name for name in figures.FIGURES if name not in ("masks", "complexity")])
def test_every_panel_has_content_and_no_text_is_cut_off(name):
    with plt.rc_context(theme_parameters("")):
        figure = figures.FIGURES[name]()
        assert all(ax.has_data() for ax in figure.axes)
        figure.canvas.draw()
        drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) >= 0
        plt.close(figure)


def test_the_docs_folder_contains_exactly_the_known_figures():
    expected = {f"{name}{suffix}" for name in figures.FIGURES for suffix in SUFFIXES}
    assert {path.name for path in PICTURES.iterdir()} == expected


def test_the_lessons_show_every_figure_on_light_and_dark_pages():
    pages = "".join(path.read_text(encoding="utf-8") for path in (PICTURES.parent / "lessons").glob("*.md"))
    for name in figures.FIGURES:
        assert all(f'"../figures/{name}{theme}.png"' in pages for theme in THEMES), name


def linked_lines(name: str, theme: str) -> set[str]:
    """Return the source lines of the model file that the boxes of a committed diagram link to."""
    svg = (PICTURES / f"{name}{theme}.svg").read_text(encoding="utf-8")
    found = re.findall(r'xlink:href="([^"#]+)#L(\d+)"', svg)
    assert {(PICTURES / path).resolve() for path, _ in found} == {MODEL_FILE}
    source = MODEL_FILE.read_text(encoding="utf-8").splitlines()
    return {source[int(number) - 1].strip().partition("  #")[0] for _, number in found}


SHARED_LINES = {
    "return self.norm(x + self.dropout(sublayer(x)))",
    "return self.dropout(self.embed_norm(inputs_embeds * self.embed_scale + positions))",
    "def sinusoids(position_ids: Tensor, d_model: int, period: int | None = None) -> Tensor:",
    "x = self.self_attn_add_norm(x, lambda x: self.self_attn(x, x, mask, past_key_values, **kwargs)[0])",
    "x = self.cross_attn_add_norm(x, lambda x: self.cross_attn(x, memory, memory_mask, past_key_values)[0])",
    "return self.feed_forward_add_norm(x, lambda x: self.feed_forward(x))",
    "self.lm_head = nn.Linear(self.config.d_model, vocab_size, bias=self.config.output_bias)",
    "def logits_and_loss(",
}
LINKED_LINES = {
    "encoder-decoder": SHARED_LINES,
    "families": SHARED_LINES
    | {
        "class VanillaTransformerModel(VanillaTransformerPreTrainedModel):",
        "class VanillaTransformerEncoderModel(TransformerStack):",
        "class VanillaTransformerDecoderModel(CausalStack):",
        "class VanillaTransformerForSequenceClassification(EncoderHead):",
    },
    "attention": {
        "scores = query @ key.transpose(-2, -1) * scaling",
        "scores = scores + attention_mask",
        "weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)",
        "output = weights @ value",
        "query = self.split_heads(self.q_proj(x), self.d_k)",
        "return self.split_heads(self.k_proj(source), self.d_k), self.split_heads(self.v_proj(source), self.d_v)",
        "heads, weights = attention(",
        "return self.o_proj(heads.reshape(*x.shape[:-1], -1)), weights",
    },
}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", LINKED_LINES)
def test_each_box_of_a_diagram_links_to_its_line_in_the_model_file(name, theme):
    """If this test fails, the model file has changed: redraw the diagram with scripts/figures.py NAME."""
    assert linked_lines(name, theme) == LINKED_LINES[name]


def test_each_half_of_the_diagram_links_to_the_layer_that_it_shows():
    """Encoder and decoder layers contain identical lines, so check the class that contains the linked line."""
    encoder, decoder = (
        range(first, first + len(lines))
        for lines, first in map(inspect.getsourcelines, (TransformerLayer, DecoderLayer))
    )
    svg = (PICTURES / "encoder-decoder.svg").read_text(encoding="utf-8")
    numbers = {int(number) for number in re.findall(r"#L(\d+)", svg)}
    assert len(numbers & set(encoder)) == 2 and len(numbers & set(decoder)) == 3


def test_the_error_for_an_unknown_figure_lists_the_known_figures(capsys):
    with pytest.raises(SystemExit):
        figures.main(["mask"])
    assert "there is no figure 'mask'; choose from encoder-decoder, " in capsys.readouterr().err


def luminance(color: str) -> float:
    """Return the relative luminance as defined in the Web Content Accessibility Guidelines (WCAG)."""
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return float(np.dot(channels, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("theme", THEMES)
def test_colours_have_enough_contrast(theme):
    """WCAG requires a contrast ratio of 4.5:1 for text and 3:1 for graphics."""

    def contrast(color: str) -> float:
        dark, light = sorted((luminance(color), luminance(paper)))
        return (light + 0.05) / (dark + 0.05)

    paper = THEMES[theme].paper
    assert contrast(THEMES[theme].ink) > 4.5
    assert min(map(contrast, THEMES[theme].curves)) > 3


def test_the_jacobian_norm_matches_autograd():
    scores = torch.randn(6, dtype=torch.double)
    derivative = torch.autograd.functional.jacobian(lambda x: x.softmax(-1), scores)
    torch.testing.assert_close(jacobian_norm(scores.softmax(-1)), derivative.norm())


def test_the_softmax_gradient_vanishes_only_without_scaling():
    scaled, unscaled = jacobian_norms(scaled=True), jacobian_norms(scaled=False)
    assert scaled.min() > 0.9 * scaled.max()
    assert unscaled[WIDTHS.index(1024)] < 0.5 * scaled[-1]
    assert unscaled[-1] < 0.15 * scaled[-1]


def test_without_scaling_the_gradient_rises_before_it_falls():
    unscaled = jacobian_norms(scaled=False)
    assert unscaled.max() > 1.3 * unscaled[0]
    assert 4 <= WIDTHS[unscaled.argmax()] <= 32
    assert unscaled[-1] < 0.1 * unscaled.max()


def test_at_width_1_the_scaled_and_the_unscaled_softmax_are_the_same():
    assert WIDTHS[0] == 1 and jacobian_norms(scaled=True)[0] == jacobian_norms(scaled=False)[0]
    torch.manual_seed(0)
    query, key = torch.randn(2, 100_000)
    assert (query * key).std().item() == pytest.approx(1, rel=0.02)


def test_post_norm_sends_larger_gradients_to_the_last_layers_than_pre_norm():
    post, pre = gradients_by_layer("post"), gradients_by_layer("pre")
    assert post[-1] > 2 * pre[-1]
    assert pre[-1] < 0.5 * pre[0] and post[-1] > 0.5 * post[0]


def test_masking_renormalises_the_remaining_weights():
    drawn = masked_attention()
    visible = drawn["before"] * np.tril(np.ones((6, 6)))
    np.testing.assert_allclose(drawn["after"], visible / visible.sum(axis=1, keepdims=True), atol=1e-6)
    assert np.array_equal(drawn["mask"], np.tril(np.ones((6, 6), dtype=bool)))


def test_the_decoder_mask_is_causal_and_hides_padding():
    encoder, decoder = mask_examples().values()
    for length, padding, causal in zip((5, 4, 3), encoder, decoder, strict=True):
        real = np.broadcast_to(np.arange(5) < length, (5, 5))
        assert np.array_equal(padding, real)
        assert np.array_equal(causal, np.tril(real))


def test_shifting_positions_is_a_rotation_up_to_rounding():
    rotation = shift_matrix(7, 32)
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(32))
    assert shift_errors(7, torch.arange(100), 32).max() < 1e-5
    assert shift_errors(7, torch.arange(10_000), 32).max() < 2e-3


def test_the_dot_product_of_two_encodings_depends_only_on_their_distance():
    distances = torch.tensor([0, 1, 5, 300, 2000])
    expected = [np.mean([math.cos(k / 10000 ** (2 * i / 64)) for i in range(32)]) for k in distances.tolist()]
    for start in (0, 17, 3000):
        torch.testing.assert_close(dot_products(start, distances, 64).tolist(), expected, atol=1e-3, rtol=0)


def test_without_positions_an_encoder_is_equivariant():
    """Permuting the input permutes the output (equivariance) instead of leaving it unchanged (invariance)."""
    permuted_output, output_of_permuted = permutation_outputs(positions=False)
    np.testing.assert_allclose(permuted_output, output_of_permuted, atol=1e-5)
    assert np.abs(np.diff(permuted_output, axis=0)).max() > 0.5
    permuted_output, output_of_permuted = permutation_outputs(positions=True)
    assert np.abs(permuted_output - output_of_permuted).max() > 0.5


def test_related_words_are_close_in_the_embedding_map():
    groups = [torch.tensor(points) for points in embedding_points().values()]
    within = torch.cat([torch.pdist(points) for points in groups])
    between = torch.cat([torch.cdist(a, b).flatten() for i, a in enumerate(groups) for b in groups[i + 1 :]])
    assert within.mean() < 0.6 * between.mean()


def test_label_smoothing_spreads_epsilon_over_all_classes():
    expected = torch.full((10,), 0.01)
    expected[3] = 0.91
    torch.testing.assert_close(smoothed_targets(3, 10, 0.1), expected)
    torch.testing.assert_close(smoothed_targets(3, 10, 0.0), torch.eye(10)[3])


def test_the_smoothed_loss_is_minimal_at_the_smoothed_target():
    confidences = torch.tensor([0.80, 0.90, 0.91, 0.92, 0.99])
    assert loss_by_confidence(confidences, 10, 0.1).argmin() == 2


@pytest.mark.parametrize(("name", "powers"), list(zip(LAYERS, [(2, 1), (2, 1), (1, 1), (1, 2), (1, 2)], strict=True)))
def test_operations_grow_as_table_1_says(name, powers):
    costs = measure(QUICK)[name]
    n = growth(QUICK.lengths, costs["n"].operations)
    d = growth(QUICK.widths, costs["d"].operations)
    assert (n, d) == pytest.approx(powers, abs=0.1)  # restricted attention pads to whole blocks


def test_operation_counts_have_the_factors_of_table_1():
    """Attention and recurrence each have two matrix products; count their multiply-adds."""
    n, d = QUICK.lengths[-1], QUICK.width
    full, fused, restricted, recurrent, convolutional = (
        cost["n"].operations[-1] / 2 for cost in measure(QUICK).values()
    )
    assert full == fused == 2 * n * n * d
    assert recurrent == 2 * n * d * d and convolutional == 3 * n * d * d
    assert 2 * WINDOW * n * d < restricted < 3 * 2 * WINDOW * n * d  # a block of queries attends to two blocks of keys
