"""Worked examples that teachers have printed, poured into the real modules: their numbers come out again.

    example = EXAMPLES["today"]
    steps = record(example.model(), example.inputs(), head=0)

A printed example starts from vectors and leaves out what it does not explain. So tokens are embedded as the vectors it
starts from, positions are learned ones that are all zero, and a part that it does not have is zero or the identity.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from configuration_vanilla_transformer import VanillaTransformerDecoderConfig, VanillaTransformerEncoderConfig
from modeling_vanilla_transformer import (
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
TODAY_HEAD_1 = {
    "scores": [[-.524, .83, .486], [.023, -.34, -.116], [-.455, .626, .705]],
    "weights": [[.216, .426, .358], [.361, .302, .337], [.222, .381, .397]],
    "heads": [[-.042, -.517, -.229, -.058], [-.076, -.508, -.17, -.186], [-.02, -.498, -.223, -.043]],
}
TODAY_PRINTED = {
    "output projection": [[-.689, .223, .081, .361], [-.695, .17, .106, .297], [-.788, .124, .081, .33]],
    "residual": [[.311, .223, .081, .361], [-.695, 1.17, .106, .297], [-.788, .124, 1.081, .33]],
}

MIDWINTER_PRINTED = {
    "scaled scores": [
        [.00263519, -.00174089, -.00037623, -.00035859], [.00236044, .00206439, .00187134, .00241708],
        [-.00104838, .00487237, -.00182653, .00039156], [.00036275, .00206183, -.00057808, .00099374],
    ],
    "weights": [
        [.25064936, .24955489, .24989569, .24990009], [.2500455, .24997151, .24992326, .25005966],
        [.24958809, .25107023, .24939394, .24994774], [.24991307, .25033805, .24967806, .2500708],
    ],
}
# fmt: on


def fill(projection: nn.Linear, matrix: Tensor) -> None:
    """Make the projection x W of a printed matrix W (inputs, outputs); PyTorch stores it the other way round."""
    projection.weight.copy_(matrix.T)


def bare_encoder(vectors: Tensor, num_heads: int, d_k: int, d_ff: int) -> VanillaTransformerEncoderModel:
    """One encoder layer on token vectors (tokens, d_model) as they are: no positions, no factor sqrt(d_model)."""
    tokens, d_model = vectors.shape
    encoder = VanillaTransformerEncoderModel(
        VanillaTransformerEncoderConfig(
            vocab_size=tokens,
            d_model=d_model,
            num_heads=num_heads,
            d_k=d_k,
            d_v=d_k,
            d_ff=d_ff,
            num_layers=1,
            position_embedding="learned",
            max_position_embeddings=tokens,
            scale_embedding=False,
        )
    ).eval()
    encoder.embed_tokens.weight.copy_(vectors)
    encoder.embed_positions.weight.zero_()
    return encoder


def today_model() -> VanillaTransformerEncoderModel:
    """Two heads of width 4 on one-hot vectors, without layer norm and feed-forward network.

    Of head 2 the source prints the outcome alone. Its stand-in pays all attention to the query's own position, where
    the value is the printed row.
    """
    encoder = bare_encoder(torch.eye(4), num_heads=2, d_k=4, d_ff=1)
    layer = cast(TransformerLayer, encoder.layers[0])
    itself = 100 * torch.eye(4)
    values = F.pad(torch.tensor(TODAY_HEAD_2), (0, 0, 0, 1))  # the vocabulary's fourth word does not occur
    fill(layer.self_attn.q_proj, torch.cat((torch.tensor(TODAY_W_Q), itself), dim=1))
    fill(layer.self_attn.k_proj, torch.cat((torch.tensor(TODAY_W_K), itself), dim=1))
    fill(layer.self_attn.v_proj, torch.cat((torch.tensor(TODAY_W_V), values), dim=1))
    fill(layer.self_attn.o_proj, torch.tensor(TODAY_W_O))
    layer.feed_forward.fc2.weight.zero_()
    layer.self_attn_add_norm.add_module("norm", nn.Identity())
    layer.feed_forward_add_norm.add_module("norm", nn.Identity())
    return encoder


def midwinter_model() -> VanillaTransformerEncoderModel:
    """One head of width 300 on vectors of 300 numbers, whose W_Q and W_K give the printed scores.

    The source prints the edges of vectors and matrices only, too little to compute with. Of four random vectors X, W_K
    makes unit vectors and W_Q the printed scores times sqrt(300), so that Q K^T / sqrt(300) is what was printed. There
    is no W_O.
    """
    d_model = 300
    vectors = torch.randn(4, d_model)
    encoder = bare_encoder(vectors, num_heads=1, d_k=d_model, d_ff=4 * d_model)
    attention = cast(TransformerLayer, encoder.layers[0]).self_attn
    inverse = torch.linalg.pinv(vectors)  # X inverse = I
    scores = torch.tensor(MIDWINTER_PRINTED["scaled scores"]) * math.sqrt(d_model)
    fill(attention.q_proj, inverse @ F.pad(scores, (0, d_model - 4)))
    fill(attention.k_proj, inverse @ torch.eye(4, d_model))
    fill(attention.o_proj, torch.eye(d_model))
    return encoder


SMALL: dict[str, Any] = {"vocab_size": 20, "d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1}


def causal_model() -> VanillaTransformerDecoderModel:
    """A small decoder that was not trained."""
    return VanillaTransformerDecoderModel(VanillaTransformerDecoderConfig(**SMALL)).eval()


def padding_model() -> VanillaTransformerEncoderModel:
    """A small encoder that was not trained."""
    return VanillaTransformerEncoderModel(VanillaTransformerEncoderConfig(**SMALL)).eval()


ATTENTION_STEPS = (
    "queries", "keys", "values", "scores", "scaled scores", "weights", "heads", "concatenation", "output projection",
    "residual",
)  # fmt: skip


@dataclass(frozen=True)
class WorkedExample:
    """A published example.

    Args:
        title: what it shows.
        note: what the source leaves out, and what stands in its place.
        sentences: its tokens.
        build: makes the model that computes it.
        steps: the steps that the source explains, as (part, name) of the recorder.
        printed: what the source prints of self-attention, for all heads together: name of the step -> values of the
            first sentence.
        printed_by_head: the same for each head.
        first_head_only: names of the steps that are made up in the other heads, and so not shown.
        precision: decimals that it prints.
        tolerance: how far results may be from them, since the printed inputs are rounded too.
    """

    title: str
    note: str
    sentences: list[list[str]]
    build: Callable[[], PreTrainedModel]
    steps: tuple[tuple[str, str], ...]
    printed: dict[str, list] = field(default_factory=dict)
    printed_by_head: tuple[dict[str, list], ...] = ()
    first_head_only: frozenset[str] = frozenset()
    precision: int = 3
    tolerance: float = 0.0

    def printed_of(self, head: int) -> dict[str, list]:
        """What the source prints of a head, counted from 0, and of all of them."""
        return self.printed | dict(*self.printed_by_head[head : head + 1])

    @torch.no_grad()
    def model(self) -> PreTrainedModel:
        """The model, always with the same weights."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.build()

    def inputs(self) -> dict[str, Tensor]:
        """Ids (sentences, length), numbered in the order of the words' first occurrence, and the padding mask."""
        vocabulary = list(dict.fromkeys(chain.from_iterable(self.sentences)))
        rows = [torch.tensor([vocabulary.index(word) for word in sentence]) for sentence in self.sentences]
        ids = pad_sequence(rows, batch_first=True)
        return {"input_ids": ids, "attention_mask": pad_sequence(list(map(torch.ones_like, rows)), batch_first=True)}

    def words(self) -> list[list[str]]:
        """What stands at each place of `inputs`."""
        length = max(map(len, self.sentences))
        return [sentence + [PADDING] * (length - len(sentence)) for sentence in self.sentences]


MASK_STEPS = tuple(("self-attention", name) for name in ("scaled scores", "mask", "weights"))

EXAMPLES = {
    "today": WorkedExample(
        title="Today is sunday: multi-head attention and its residual, number by number",
        note="The source has no positions, no layer norm and no feed-forward network. Of head 2 it prints the outcome "
        "alone, so only that is shown here.",
        sentences=["Today is sunday".split()],
        build=today_model,
        steps=(("embedding", "embeddings"), *(("self-attention", name) for name in ATTENTION_STEPS)),
        printed=TODAY_PRINTED,
        printed_by_head=(TODAY_HEAD_1, {"heads": TODAY_HEAD_2}),
        first_head_only=frozenset({"queries", "keys", "values", "scores", "scaled scores", "weights"}),
        tolerance=2e-3,
    ),
    "midwinter": WorkedExample(
        title="in the bleak midwinter: an encoder layer in seven steps",
        note="Only the scaled scores and the weights are the source's numbers, which it prints in full. Of vectors "
        "and matrices it prints the edges; all others here are made up so that they give these scores. It has no "
        "positions and no W_O.",
        sentences=["in the bleak midwinter".split()],
        build=midwinter_model,
        steps=(
            ("embedding", "embeddings"),
            ("self-attention", "queries"),
            ("self-attention", "keys"),
            ("self-attention", "values"),
            ("self-attention", "scaled scores"),
            ("self-attention", "weights"),
            ("self-attention", "heads"),
            ("self-attention", "layer norm"),
            ("feed-forward", "hidden"),
            ("feed-forward", "feed-forward output"),
            ("feed-forward", "layer norm"),
        ),
        printed=MIDWINTER_PRINTED,
        precision=8,
        tolerance=1e-7,
    ),
    "causal-mask": WorkedExample(
        title="orange is my favorite fruit . : a position sees itself and those before it",
        note="The numbers are those of a small model that was not trained; the mask is any decoder's.",
        sentences=["orange is my favorite fruit .".split()],
        build=causal_model,
        steps=MASK_STEPS,
    ),
    "padding-mask": WorkedExample(
        title="three sentences of 5, 4 and 3 tokens: nobody attends to padding",
        note="The numbers are those of a small model that was not trained; the mask is any encoder's.",
        sentences=["orange is my favorite fruit".split(), "so are ripe pears".split(), "and sweet plums".split()],
        build=padding_model,
        steps=MASK_STEPS,
    ),
}
