"""Reproduce published worked examples with the model's own modules.

    example = EXAMPLES["today"]
    steps = record(example.model(), example.inputs(), head=0)

A published example starts from given vectors and omits parts of the model. Here, these vectors become the token
embeddings, position embeddings are learned ones set to zero, and an omitted part is zero or the identity.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from vanilla_transformer.configuration_vanilla_transformer import (
    VanillaTransformerDecoderConfig,
    VanillaTransformerEncoderConfig,
)
from vanilla_transformer.inside import midwinter
from vanilla_transformer.inside.explanations import arrangement
from vanilla_transformer.inside.recorder import Step, record
from vanilla_transformer.inside.rendering import Walk
from vanilla_transformer.modeling_vanilla_transformer import (
    TransformerLayer,
    VanillaTransformerDecoderModel,
    VanillaTransformerEncoderModel,
)


PADDING = "<pad>"

# fmt: off
TODAY_W_Q = [
    [.694, .555, .236, -.082], [.877, -.625, -.57, -.745], [.984, .6, .264, -.565], [.421, -.045, .145, -.717],
]
TODAY_W_K = [
    [-.409, -.828, .788, -.419], [.863, .552, .022, .992], [.164, .506, .283, -.291], [-.992, -.45, -.289, .57],
]
TODAY_W_V = [
    [-.373, -.581, .068, -.877], [-.229, -.712, -.348, -.073], [.38, -.246, -.266, .453], [.866, -.687, .66, .545],
]
TODAY_W_O = [
    [-.316, .36, -.145, -.636], [.194, -.697, .66, .081], [.103, .118, -.965, -.342], [-.048, .567, -.067, .864],
    [.081, -.768, .116, -.883], [-.214, .584, .388, .62], [.906, -.117, -.752, -.705], [-.467, -.903, -.705, -.469],
]
TODAY_HEAD_2 = [[-.097, .082, -.477, .266], [-.084, .102, -.521, .239], [-.07, .033, -.559, .337]]
TODAY_HEAD_1 = {  # the vectors are one-hot, so queries, keys and values are the first rows of the matrices
    "queries": TODAY_W_Q[:3],
    "keys": TODAY_W_K[:3],
    "values": TODAY_W_V[:3],
    "scores": [[-.524, .83, .486], [.023, -.34, -.116], [-.455, .626, .705]],
    "scaled scores": [[-.262, .415, .243], [.011, -.17, -.058], [-.227, .313, .352]],
    "weights": [[.216, .426, .358], [.361, .302, .337], [.222, .381, .397]],
    "heads": [[-.042, -.517, -.229, -.058], [-.076, -.508, -.17, -.186], [-.02, -.498, -.223, -.043]],
}
TODAY_PRINTED = {
    "output projection": [[-.689, .223, .081, .361], [-.695, .17, .106, .297], [-.788, .124, .081, .33]],
    "residual": [[.311, .223, .081, .361], [-.695, 1.17, .106, .297], [-.788, .124, 1.081, .33]],
}
# fmt: on


def bare_encoder(
    vectors: Tensor, num_heads: int, d_k: int, d_ff: int, d_v: int | None = None
) -> VanillaTransformerEncoderModel:
    """Build a one-layer encoder whose embeddings are `vectors` (tokens, d_model), without positions and scaling."""
    tokens, d_model = vectors.shape
    encoder = VanillaTransformerEncoderModel(
        VanillaTransformerEncoderConfig(
            vocab_size=tokens,
            d_model=d_model,
            num_heads=num_heads,
            d_k=d_k,
            d_v=d_k if d_v is None else d_v,
            d_ff=d_ff,
            num_layers=1,
            position_embedding="learned",
            max_position_embeddings=tokens,
            scale_embedding=False,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    ).eval()
    encoder.embed_tokens.weight.copy_(vectors)
    encoder.embed_positions.weight.zero_()
    return encoder


def set_matrices(encoder: VanillaTransformerEncoderModel, **matrices: Tensor) -> None:
    """Set the q, k, v or o projection of the first layer to W (inputs, outputs), which multiplies as x W."""
    attention = cast(TransformerLayer, encoder.layers[0]).self_attn
    for name, matrix in matrices.items():
        getattr(attention, f"{name}_proj").weight.copy_(matrix.T)  # PyTorch stores the transpose


def today_model() -> VanillaTransformerEncoderModel:
    """Build a layer with two heads of width 4 on one-hot vectors, adding the parts that the source omits.

    The feed-forward network has width 8 and is untrained. The source prints only the output of head 2. To reproduce
    it, head 2 attends only to the query's own position, and the values are the printed rows.
    """
    encoder = bare_encoder(torch.eye(4), num_heads=2, d_k=4, d_ff=8)
    itself = 100 * torch.eye(4)  # large scores give all weight to the query's own position
    values = F.pad(torch.tensor(TODAY_HEAD_2), (0, 0, 0, 1))  # the sentence does not contain the fourth word
    heads = {"q": (TODAY_W_Q, itself), "k": (TODAY_W_K, itself), "v": (TODAY_W_V, values)}
    projections = {name: torch.cat((torch.tensor(first), second), dim=1) for name, (first, second) in heads.items()}
    set_matrices(encoder, **projections, o=torch.tensor(TODAY_W_O))
    return encoder


def midwinter_model() -> VanillaTransformerEncoderModel:
    """Build the published layer: one head of width 300, W_O equal to the identity, and no biases."""
    made = {name: matrix.float() for name, matrix in midwinter.matrices().items()}
    d_model = made["X"].shape[1]
    encoder = bare_encoder(made["X"], num_heads=1, d_k=d_model, d_ff=made["W_1"].shape[1])
    set_matrices(encoder, **{letter: made[f"W_{letter.upper()}"] for letter in "qkv"}, o=torch.eye(d_model))
    network = cast(TransformerLayer, encoder.layers[0]).feed_forward
    for layer, name in ((network.fc1, "W_1"), (network.fc2, "W_2")):
        layer.weight.copy_(made[name].T)
    return encoder


SMALL: dict[str, Any] = {"vocab_size": 20, "d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1}


def causal_model() -> VanillaTransformerDecoderModel:
    """Build a small untrained decoder."""
    return VanillaTransformerDecoderModel(VanillaTransformerDecoderConfig(**SMALL)).eval()


def padding_model() -> VanillaTransformerEncoderModel:
    """Build a small untrained encoder."""
    return VanillaTransformerEncoderModel(VanillaTransformerEncoderConfig(**SMALL)).eval()


ATTENTION_STEPS = (
    "queries", "keys", "values", "scores", "scaled scores", "weights", "heads", "concatenation", "output projection",
    "residual",
)  # fmt: skip


FEED_FORWARD_STEPS = ("hidden", "activation", "feed-forward output", "residual", "layer norm")


@dataclass(frozen=True)
class WorkedExample:
    """A worked example from a publication, or with your own numbers.

    Args:
        title: heading.
        note: what the source omits, and what replaces it here.
        sentences: the words of each sentence.
        build: function that builds the model.
        steps: (part, name) of the steps that the source explains.
        beyond: (part, name) of steps that the source omits, or whose inputs it does not print completely.
        printed: function that returns the source's values for the first sentence and all heads together, by (part,
            name) of the step; NaN where a printed value is cut off.
        edges: number of first and last columns that the source prints of wide matrices; 0 means all columns.
        printed_by_head: for each head, the name of a self-attention step -> printed values.
        first_head_only: names of steps to show only for the first head, because the source has no values for others.
        precision: number of decimals to display.
        tolerance: allowed difference from the printed values, whose inputs are rounded in print.
        numbered: give each position its own vector, even if a word is repeated.
    """

    title: str
    note: str
    sentences: list[list[str]]
    build: Callable[[], PreTrainedModel]
    steps: tuple[tuple[str, str], ...]
    printed: Callable[[], dict[tuple[str, str], list]] = dict
    edges: int = 0
    printed_by_head: tuple[dict[str, list], ...] = ()
    first_head_only: frozenset[str] = frozenset()
    beyond: tuple[tuple[str, str], ...] = ()
    precision: int = 3
    tolerance: float = 0.0
    numbered: bool = False

    def printed_of(self, head: int) -> dict[tuple[str, str], list]:
        """Return the printed values by (part, name): those of one head (from 0), and those of all heads together."""
        own: dict[str, list] = dict(*self.printed_by_head[head : head + 1])
        return self.printed() | {("self-attention", name): values for name, values in own.items()}

    @torch.no_grad()
    def model(self) -> PreTrainedModel:
        """Build the model with reproducible weights."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.build()

    def inputs(self) -> dict[str, Tensor]:
        """Return input ids (sentences, length), with words numbered by first occurrence, and the padding mask."""
        if self.numbered:
            return {"input_ids": torch.arange(len(self.sentences[0]))[None]}
        vocabulary = list(dict.fromkeys(chain.from_iterable(self.sentences)))
        rows = [torch.tensor([vocabulary.index(word) for word in sentence]) for sentence in self.sentences]
        ids = pad_sequence(rows, batch_first=True)
        return {"input_ids": ids, "attention_mask": pad_sequence(list(map(torch.ones_like, rows)), batch_first=True)}

    def words(self) -> list[list[str]]:
        """Return the word at each position of `inputs`, including padding."""
        length = max(map(len, self.sentences))
        return [sentence + [PADDING] * (length - len(sentence)) for sentence in self.sentences]


MASK_STEPS = tuple(("self-attention", name) for name in ("scaled scores", "mask", "weights"))

# (part, name) of a step -> name of its matrix in midwinter.json
MIDWINTER_STEPS = {
    ("embedding", "embeddings"): "X",
    ("self-attention", "queries"): "Q",
    ("self-attention", "keys"): "K",
    ("self-attention", "values"): "V",
    ("self-attention", "scaled scores"): "scaled_scores",
    ("self-attention", "weights"): "weights",
    ("self-attention", "heads"): "Y",
    ("self-attention", "layer norm"): "O",
    ("feed-forward", "feed-forward output"): "FFN",
    ("feed-forward", "layer norm"): "encoder_output",
}

EXAMPLES = {
    "today": WorkedExample(
        title="Today is sunday: multi-head attention and its residual, number by number",
        note="The source stops at the residual connection. Layer norm and feed-forward network follow here with "
        "untrained weights of ours. It uses no positions. It prints only the output of head 2, so only that is shown.",
        sentences=["Today is sunday".split()],
        build=today_model,
        steps=(("embedding", "embeddings"), *(("self-attention", name) for name in ATTENTION_STEPS)),
        printed=lambda: {("self-attention", name): values for name, values in TODAY_PRINTED.items()},
        printed_by_head=(TODAY_HEAD_1, {"heads": TODAY_HEAD_2}),
        first_head_only=frozenset({"queries", "keys", "values", "scores", "scaled scores", "weights"}),
        beyond=(("self-attention", "layer norm"), *(("feed-forward", name) for name in FEED_FORWARD_STEPS)),
        tolerance=2e-3,
    ),
    "midwinter": WorkedExample(
        title="in the bleak midwinter: an encoder layer in seven steps",
        note="X, W_Q, W_K and W_V are the source's own, drawn again from its seeds. W_1 and W_2 are "
        "constructed so that all numbers agree with the source, which prints only their joint result. "
        "It uses no positions and no W_O.",
        sentences=["in the bleak midwinter".split()],
        build=midwinter_model,
        steps=(*MIDWINTER_STEPS, ("feed-forward", "hidden")),
        printed=lambda: {step: midwinter.printed()[name].tolist() for step, name in MIDWINTER_STEPS.items()},
        edges=3,
        beyond=(("feed-forward", "hidden"),),
        precision=8,
        tolerance=1e-6,
    ),
    "causal-mask": WorkedExample(
        title="orange is my favorite fruit . : a position attends to itself and to earlier positions",
        note="The numbers come from a small untrained model; the mask is the same in any decoder.",
        sentences=["orange is my favorite fruit .".split()],
        build=causal_model,
        steps=MASK_STEPS,
    ),
    "padding-mask": WorkedExample(
        title="three sentences of 5, 4 and 3 tokens: no position attends to padding",
        note="The numbers come from a small untrained model; the mask is the same in any encoder.",
        sentences=["orange is my favorite fruit".split(), "so are ripe pears".split(), "and sweet plums".split()],
        build=padding_model,
        steps=MASK_STEPS,
    ),
}


def walk_example(example: WorkedExample, layer: int, head: int) -> Walk:
    """Return the walk through a worked example, with the steps that it covers. Layer and head are indices from 0."""
    model = example.model()
    steps = record(model, example.inputs(), layer, head)
    steps_shown = (*example.steps, *example.beyond)
    wanted = {(part, name) for part, name in steps_shown if head == 0 or name not in example.first_head_only}
    shown = [as_given(step) for step in steps if (step.part, step.name) in wanted]
    beyond = frozenset((part, as_given_name(name)) for part, name in example.beyond)
    printed = {(part, as_given_name(name)): values for (part, name), values in example.printed_of(head).items()}
    heads = model.config.num_heads
    note = f"{example.note} This is head {head + 1} of {heads}." if heads > 1 else example.note
    if any(step.name == "layer norm" for step in shown):
        note += f" {arrangement(model.config)}"
    return Walk(example.title, note, shown, example.words(), [], printed, example.edges, beyond)


def as_given(step: Step) -> Step:
    """Rename the step "embeddings" of a worked example, because its vectors X are given and not learned."""
    return replace(step, name=as_given_name(step.name), equation="X") if step.name == "embeddings" else step


def as_given_name(name: str) -> str:
    """Return the name to display for a step of a worked example."""
    return "vectors" if name == "embeddings" else name


def own_example(file: str) -> WorkedExample:
    """Build a worked example from a JSON file with your own matrices X, W_Q, W_K, W_V and W_O.

    Shapes: X (words, d_model); W_Q, W_K (d_model, h * d_k); W_V (d_model, h * d_v); W_O (h * d_v, d_model), by default
    the identity. The optional `words` names the rows of X, and `heads` is h, by default 1.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is not valid JSON, or a matrix is missing or has the wrong shape.
    """
    try:
        given = json.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not a valid JSON file: {error}.") from error
    known = ("X", "W_Q", "W_K", "W_V", "W_O", "words", "heads")
    if not isinstance(given, dict) or not set(known[:4]) <= given.keys() <= set(known):
        raise ValueError(
            f"{file} must be a JSON object with X, W_Q, W_K and W_V, and optionally W_O, words and heads."
        )
    matrices = {name: matrix_of(file, name, given[name]) for name in known[:5] if name in given}
    (words, d_model), keys, values = (matrices[name].shape for name in ("X", "W_Q", "W_V"))
    matrices.setdefault("W_O", torch.eye(values[1]))
    shapes = {"W_Q": (d_model, keys[1]), "W_K": (d_model, keys[1]), "W_V": (d_model, values[1])}
    for name, shape in (shapes | {"W_O": (values[1], d_model)}).items():
        if matrices[name].shape != shape:
            found = tuple(matrices[name].shape)
            raise ValueError(f"{file}: {name} has the shape {found}, but the other matrices need {shape}.")
    heads, names = given.get("heads", 1), given.get("words", [f"x{i + 1}" for i in range(words)])
    if not isinstance(heads, int) or heads < 1 or keys[1] % heads or values[1] % heads:
        raise ValueError(f"{file}: heads={heads} must divide the columns of W_Q ({keys[1]}) and W_V ({values[1]}).")
    if not isinstance(names, list) or len(names) != words:
        raise ValueError(f"{file}: words={names!r:.50} must be a list of {words} names, one for each row of X.")

    def build() -> PreTrainedModel:
        encoder = bare_encoder(matrices["X"], heads, keys[1] // heads, d_ff=1, d_v=values[1] // heads)
        set_matrices(encoder, **{letter: matrices[f"W_{letter.upper()}"] for letter in "qkvo"})
        return encoder

    return WorkedExample(
        title=f"The numbers of {file}: {'multi-head' if heads > 1 else 'single-head'} attention",
        note="X, W_Q, W_K, W_V and W_O are as given; everything else is computed from them.",
        sentences=[[str(name) for name in names]],
        build=build,
        steps=(("embedding", "embeddings"), *(("self-attention", name) for name in ATTENTION_STEPS)),
        numbered=True,
    )


def matrix_of(file: str, name: str, rows: Any) -> Tensor:
    """Convert the rows of a matrix to a tensor; raise a ValueError if they are not a matrix of finite numbers."""
    try:
        matrix = torch.tensor(rows, dtype=torch.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {name} is not a matrix of numbers ({error}).") from error
    if matrix.dim() != 2 or not matrix.numel() or not matrix.isfinite().all():
        raise ValueError(f"{file}: {name} must be a list of rows, each a list of finite numbers.")
    return matrix
