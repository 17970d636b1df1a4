"""Draw block diagrams: Figures 1 and 2 of the paper, and the three model families. Boxes link to the model code."""

import inspect
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from operator import attrgetter

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

from vanilla_transformer import modeling_vanilla_transformer


HEIGHT, WIDTH = 0.62, 2.7  # width of a box
CENTERED = {"ha": "center", "va": "center"}
FEED_FORWARD, ATTENTION, OUTPUT, EMBEDDING, NORM = "C0", "C1", "C3", "C4", "C5"  # colours of the theme


@cache
def line_of(place: str) -> int:
    """Return the line number in the model file for a place given as "Class.function: substring of the line"."""
    name, _, text = place.partition(": ")
    lines, first = inspect.getsourcelines(attrgetter(name)(modeling_vanilla_transformer))
    wanted = text or f"{name.split('.')[-1]}("  # skip decorators: find the line with the definition
    return first + next(i for i, line in enumerate(lines) if wanted in line)


def link_to(place: str) -> str:
    """Return a link, relative to docs/figures, to a place in the model file (see `line_of`)."""
    return f"../../modeling_vanilla_transformer.py#L{line_of(place)}"


@dataclass
class Canvas:
    """Draws boxes and arrows on axes without a frame. One unit is about as wide as ten letters."""

    ax: Axes
    scale: float  # relative font size
    x: float = 0.0  # centre of the current column

    @classmethod
    def of_size(cls, width: float, height: float, inches: float = 0.62) -> "Canvas":
        _, ax = plt.subplots(figsize=(width * inches, height * inches))
        ax.set(xlim=(0, width), ylim=(0, height))
        ax.axis("off")
        return cls(ax, inches / 0.62)

    def box(self, y: float, label: str, color: str, place: str, x: float = 0.0, width: float = WIDTH) -> None:
        """Draw a box around (x, y) that links to a place in the model file."""
        x, link = self.x + x, link_to(place)
        corner = (x - width / 2, y - HEIGHT / 2)
        patch = FancyBboxPatch(corner, width, HEIGHT, "round,pad=0,rounding_size=0.12", linewidth=1.3, url=link)
        patch.set(edgecolor=color, facecolor=(color, 0.2), zorder=3)
        self.ax.add_patch(patch)
        self.ax.text(x, y, label, fontsize=9 * self.scale, **CENTERED, zorder=4, linespacing=1.05, url=link)

    def arrow(self, *points: tuple[float, float], head: bool = True) -> None:
        """Draw a line through `points`, with an arrowhead at the last point if `head` is true."""
        xs, ys = [self.x + x for x, _ in points], [y for _, y in points]
        color = plt.rcParams["text.color"]
        self.ax.plot(xs, ys, color=color, linewidth=1.0, linestyle="-", zorder=2)
        if head:
            style = {"arrowstyle": "-|>", "color": color, "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0}
            self.ax.annotate("", (xs[-1], ys[-1]), (xs[-2], ys[-2]), arrowprops=style, zorder=2)

    def label(self, x: float, y: float, text: str, **options) -> None:
        options = CENTERED | {"fontsize": 8.5} | options
        options["fontsize"] *= self.scale
        self.ax.text(self.x + x, y, text, **options)

    def frame(self, bottom: float, top: float, text: str, side: int) -> None:
        """Draw a frame around the layers of a stack, labelled with the number of layers."""
        half = WIDTH / 2 + 0.55
        patch = FancyBboxPatch((self.x - half, bottom), 2 * half, top - bottom, "round,pad=0,rounding_size=0.2")
        patch.set(facecolor="none", edgecolor=(plt.rcParams["text.color"], 0.25), zorder=1)
        self.ax.add_patch(patch)
        place = (side * (half + 0.12), (bottom + top) / 2)
        self.label(*place, text, ha="right" if side < 0 else "left", fontsize=11)


@dataclass(frozen=True)
class Sublayer:
    """A sub-layer in Figure 1, drawn with its Add & Norm: label, colour, and the line of code that calls it."""

    label: str
    color: str
    place: str


@dataclass(frozen=True)
class Stack:
    """One half of Figure 1: the encoder or the decoder.

    Args:
        side: where to draw the residual connections, -1 (left) or 1 (right).
        top: (label, place in the code) of each box above the layers, from bottom to top.
    """

    inputs: str
    layers: str
    sublayers: tuple[Sublayer, ...]
    top: tuple[tuple[str, str], ...] = ()
    result: str = ""
    side: int = -1


SELF, FORWARD = ": self.self_attn(x, x", ": self.feed_forward(x)"
FEED = Sublayer("Feed-forward", FEED_FORWARD, f"TransformerLayer.forward{FORWARD}")
MASKED = "Masked multi-head\nself-attention"
ENCODER = Stack(
    inputs="source tokens",
    layers="N ×",
    sublayers=(Sublayer("Multi-head\nself-attention", ATTENTION, f"TransformerLayer.forward{SELF}"), FEED),
)
DECODER = Stack(
    inputs="target tokens, shifted right",
    layers="× N",
    sublayers=(
        Sublayer(MASKED, ATTENTION, f"DecoderLayer.forward{SELF}"),
        Sublayer("Multi-head\ncross-attention", ATTENTION, "DecoderLayer.forward: self.cross_attn(x, memory"),
        Sublayer("Feed-forward", FEED_FORWARD, f"DecoderLayer.forward{FORWARD}"),
    ),
    top=(
        ("Linear, tied to the embedding", "LMHeadModel.add_lm_head: self.lm_head ="),
        ("Softmax, in the loss", "LMHeadModel.logits_and_loss"),
    ),
    result="probabilities of the next token",
    side=1,
)
ADD_NORM = "AddAndNorm.forward: return self.norm("
EMBED, SUM = 1.05, 2.1  # y of the embedding box, and of the sum with the positional encoding
FIRST, STEP = 3.75, 2.0  # y of the first sub-layer, and the distance between sub-layers


def stack_top(stack: Stack) -> float:
    """Return the y coordinate of the last Add & Norm."""
    return FIRST + STEP * (len(stack.sublayers) - 1) + 0.8


def draw_stack(canvas: Canvas, stack: Stack) -> None:
    """Draw one half of Figure 1, from the input tokens to the output."""
    side = stack.side
    canvas.label(0, 0.3, stack.inputs)
    canvas.arrow((0, 0.5), (0, EMBED - HEIGHT / 2))
    canvas.box(EMBED, "Embedding · √d_model", EMBEDDING, "TransformerStack.add_positions: self.embed_scale")
    canvas.arrow((0, EMBED + HEIGHT / 2), (0, SUM - 0.17))
    canvas.ax.add_patch(Circle((canvas.x, SUM), 0.17, facecolor="none", edgecolor=plt.rcParams["text.color"]))
    canvas.label(0, SUM, "+", fontsize=11)
    canvas.box(SUM, "Positions", EMBEDDING, "sinusoids", x=side * 1.55, width=1.7)
    canvas.arrow((side * 0.7, SUM), (side * 0.17, SUM))
    canvas.frame(SUM + 0.55, stack_top(stack) + 0.62, stack.layers, side)

    below = SUM + 0.17
    for number, sublayer in enumerate(stack.sublayers):
        y = FIRST + STEP * number
        bottom, norm = y - HEIGHT / 2, y + 0.8
        fork = bottom - 0.42
        canvas.arrow((0, below), (0, bottom))
        if "self-attention" in sublayer.label:  # queries, keys and values come from the same input
            for x in (-0.7, 0.7):
                canvas.arrow((0, fork), (x, fork), (x, bottom))
        around = side * (WIDTH / 2 + 0.28)
        canvas.arrow((0, fork - 0.12), (around, fork - 0.12), (around, norm), (side * WIDTH / 2, norm))
        canvas.arrow((0, y + HEIGHT / 2), (0, norm - HEIGHT / 2))
        canvas.box(y, sublayer.label, sublayer.color, sublayer.place)
        canvas.box(norm, "Add & norm", NORM, ADD_NORM)
        below = norm + HEIGHT / 2
    for number, (label, place) in enumerate(stack.top):
        y = stack_top(stack) + 1.45 + number
        canvas.arrow((0, below), (0, y - HEIGHT / 2))
        canvas.box(y, label, OUTPUT, place, width=WIDTH + 0.9)
        below = y + HEIGHT / 2
    if stack.result:
        canvas.arrow((0, below), (0, below + 0.5))
        canvas.label(0, below + 0.68, stack.result)


def memory_arrow(canvas: Canvas, encoder_x: float, decoder_x: float) -> None:
    """Draw the arrow from the encoder's output to the decoder's second sub-layer."""
    canvas.x, top, cross = 0, stack_top(ENCODER) + HEIGHT / 2, FIRST + STEP
    between = (encoder_x + decoder_x) / 2
    canvas.arrow(
        (encoder_x, top), (encoder_x, top + 0.75), (between, top + 0.75), (between, cross),
        (decoder_x - WIDTH / 2, cross),
    )  # fmt: skip
    canvas.label((encoder_x + between) / 2, top + 0.95, "keys and values", fontsize=8)


def encoder_decoder() -> Figure:
    canvas = Canvas.of_size(10.4, 12.3)
    for x, stack in ((2.95, ENCODER), (7.45, DECODER)):
        canvas.x = x
        draw_stack(canvas, stack)
    memory_arrow(canvas, 2.95, 7.45)
    return canvas.ax.figure


def attention() -> Figure:
    """Draw Figure 2: scaled dot-product attention (Equation 1) on the left, multi-head attention on the right."""
    canvas = Canvas.of_size(11.7, 8.0)
    canvas.x = 2.6
    canvas.label(0, 7.6, "Scaled dot-product attention", fontsize=11)
    equation = "eager_attention_forward"
    rows = [
        (1.7, "Matrix product Q Kᵀ", OUTPUT, "scores = query @ key"),
        (2.7, "Scale by 1 / √d_k", NORM, "* scaling"),
        (3.7, "Mask: add −∞ where hidden", EMBEDDING, "scores = scores + attention_mask"),
        (4.7, "Softmax", FEED_FORWARD, "weights = scores.softmax"),
        (5.9, "Matrix product with V", OUTPUT, "output = weights @ value"),
    ]
    for y, label, color, text in rows:
        canvas.box(y, label, color, f"{equation}: {text}", width=3.2)
    for (y, *_), (above, *_) in pairwise(rows):
        canvas.arrow((0, y + HEIGHT / 2), (0, above - HEIGHT / 2))
    for x, name in ((-0.8, "Q"), (0.8, "K")):
        canvas.label(x, 0.55, name, fontsize=10)
        canvas.arrow((x, 0.8), (x, 1.7 - HEIGHT / 2))
    canvas.label(2.0, 0.55, "V", fontsize=10)
    canvas.arrow((2.0, 0.8), (2.0, 5.2), (1.1, 5.2), (1.1, 5.9 - HEIGHT / 2))
    canvas.arrow((0, 5.9 + HEIGHT / 2), (0, 6.75))
    canvas.label(0, 6.95, "head")
    canvas.label(-0.12, 5.3, "weights", ha="right", fontsize=8)

    canvas.x = 8.1
    canvas.label(0, 7.6, "Multi-head attention", fontsize=11)
    heads = "MultiHeadAttention"
    linears = [
        (-1.75, "Linear W_Q", "query = self.split_heads", f"{heads}.forward", "x"),
        (0.0, "Linear W_K", "self.k_proj(source)", f"{heads}.keys_and_values", "x or memory"),
        (1.75, "Linear W_V", "self.v_proj(source)", f"{heads}.keys_and_values", "x or memory"),
    ]
    for x, label, text, function, given in linears:
        canvas.label(x, 0.55, given, fontsize=10)
        canvas.arrow((x, 0.8), (x, 1.7 - HEIGHT / 2))
        canvas.box(1.7, label, OUTPUT, f"{function}: {text}", x=x, width=1.55)
        canvas.arrow((x, 1.7 + HEIGHT / 2), (x, 3.5 - HEIGHT / 2))
        canvas.label(x + 0.1, 2.75, label[-1], ha="left", fontsize=8)
    for shift in (0.36, 0.24, 0.12):  # draw the other heads behind the first
        corner = (canvas.x - 2.6 + shift, 3.5 - HEIGHT / 2 + shift)
        behind = FancyBboxPatch(corner, 5.2, HEIGHT, "round,pad=0,rounding_size=0.12", linewidth=0.8)
        behind.set(edgecolor=ATTENTION, facecolor=plt.rcParams["figure.facecolor"], zorder=2.5)
        canvas.ax.add_patch(behind)
    canvas.ax.add_patch(
        plt.Rectangle((canvas.x - 2.55, 3.22), 5.1, 0.56, color=plt.rcParams["figure.facecolor"], zorder=2.6)
    )
    canvas.box(3.5, "Scaled dot-product attention", ATTENTION, f"{heads}.forward: attention(", width=5.2)
    canvas.label(3.1, 3.62, "h", ha="left", fontsize=11)
    canvas.arrow((0, 3.5 + HEIGHT / 2 + 0.36), (0, 4.7 - HEIGHT / 2))
    canvas.box(4.7, "Concatenate the heads", NORM, f"{heads}.forward: heads.reshape", width=3.2)
    canvas.arrow((0, 4.7 + HEIGHT / 2), (0, 5.9 - HEIGHT / 2))
    canvas.box(5.9, "Linear W_O", OUTPUT, f"{heads}.forward: self.o_proj", width=3.2)
    canvas.arrow((0, 5.9 + HEIGHT / 2), (0, 6.75))
    canvas.label(0, 6.95, "as wide as x")
    return canvas.ax.figure


def families() -> Figure:
    """Draw the three model families side by side."""
    head = ("Task head", "VanillaTransformerForSequenceClassification")
    encoder = Stack("tokens", "N ×", ENCODER.sublayers, (head,), "a class, a tag, a number")
    causal = (Sublayer(MASKED, ATTENTION, f"TransformerLayer.forward{SELF}"), FEED)
    decoder = Stack("tokens so far", "N ×", causal, DECODER.top, DECODER.result)
    canvas = Canvas.of_size(19.6, 13.2, inches=0.5)
    for x, stack in ((2.85, ENCODER), (7.35, DECODER), (12.4, encoder), (17.2, decoder)):
        canvas.x = x
        draw_stack(canvas, stack)
    memory_arrow(canvas, 2.85, 7.35)
    for x, name, task, model in (
        (5.1, "Encoder-decoder", "translation", "VanillaTransformerModel"),
        (12.4, "Encoder-only", "classes, tags, answers, masked words", "VanillaTransformerEncoderModel"),
        (17.2, "Decoder-only", "text, token by token", "VanillaTransformerDecoderModel"),
    ):
        canvas.x = x
        canvas.label(0, 12.9, name, fontsize=15, weight="bold", url=link_to(model))
        canvas.label(0, 12.35, task, fontsize=11)
    return canvas.ax.figure
