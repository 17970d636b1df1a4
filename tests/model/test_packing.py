"""`make_fast` packs the real tokens of a batch into one row; loss and gradients equal those of the padded batch."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from family import decoder_only, encoder_decoder, encoder_only
from vanilla_transformer import (
    VanillaTransformerForMaskedLM,
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
)
from vanilla_transformer.fast import make_fast, packing
from vanilla_transformer.fast.packing import (
    LONGEST_PLAIN,
    Layout,
    Packing,
    plain_attention,
    plain_is_faster,
    round_up,
    worst_fit_decreasing,
)


LENGTHS = (7, 3, 1, 5)
SOURCE_LENGTHS = (2, 8, 6, 4)


def real(lengths: tuple[int, ...], side: str = "right") -> Tensor:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return (mask if side == "right" else mask.flip(1)).long()


def ids_of(mask: Tensor) -> Tensor:
    ids = torch.randint(3, 50, mask.shape, generator=torch.Generator().manual_seed(1))
    return ids.where(mask.bool(), 0)


def labelled(mask: Tensor) -> Tensor:
    return ids_of(mask).where(mask.bool(), -100)


def translator_batch(side: str) -> dict[str, Tensor]:
    source, target = real(SOURCE_LENGTHS, side), real(LENGTHS)
    return {"input_ids": ids_of(source), "attention_mask": source, "labels": labelled(target)}


def sequence_batch(side: str) -> dict[str, Tensor]:
    """Return a batch that also has labels on padding, as from some collators; the loss must ignore them."""
    mask = real(LENGTHS, side)
    return {"input_ids": ids_of(mask), "attention_mask": mask, "labels": ids_of(torch.ones_like(mask))}


def classifier_batch(side: str) -> dict[str, Tensor]:
    return sequence_batch(side) | {"labels": torch.tensor([0, 1, 1, 0])}


def answer_batch(side: str) -> dict[str, Tensor]:
    batch = sequence_batch(side)
    del batch["labels"]
    first = batch["attention_mask"].argmax(dim=1)
    return batch | {"start_positions": first, "end_positions": first + torch.tensor(LENGTHS) - 1}


CASES = {
    "encoder-decoder": (encoder_decoder, translator_batch),
    "decoder-only": (decoder_only, sequence_batch),
    "masked LM": (lambda **fields: encoder_only(VanillaTransformerForMaskedLM, **fields), sequence_batch),
    "classifier": (
        lambda **fields: encoder_only(VanillaTransformerForSequenceClassification, **fields),
        classifier_batch,
    ),
    "question answering": (
        lambda **fields: encoder_only(VanillaTransformerForQuestionAnswering, **fields),
        answer_batch,
    ),
}


def loss_and_gradients(
    model, batch: dict[str, Tensor], packed: bool, chunk: int = 0
) -> tuple[Tensor, dict[str, Tensor]]:
    make_fast(model, packing=packed, loss_chunk_size=chunk)
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("norm_position", "chunk"), [("post", 0), ("pre", 4)], ids=["post", "pre, chunked"])
@pytest.mark.parametrize("family", CASES)
def test_packing_keeps_the_loss_and_gradients_of_the_padded_batch(family, norm_position, chunk, side):
    make, make_batch = CASES[family]
    torch.manual_seed(0)
    model = make(vocab_size=50, dropout=0.0, norm_position=norm_position).double().train()
    batch = make_batch(side)
    expected, expected_gradients = loss_and_gradients(model, batch, False, chunk)
    loss, gradients = loss_and_gradients(model, batch, True, chunk)
    assert torch.allclose(loss, expected, rtol=1e-12)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("family", CASES)
def test_layers_process_only_real_tokens(family):
    make, make_batch = CASES[family]
    model = make_fast(make(vocab_size=50).train())
    seen: dict[str, int] = {}

    def count(name: str, inputs: tuple[Tensor, ...]) -> None:
        seen[name] = inputs[0].shape[:-1].numel()

    for name, module in model.named_modules():
        if name.endswith(("fc1", "coder.dropout", "model.dropout")):  # inside the layers, and before them
            module.register_forward_hook(lambda _, inputs, __, name=name: count(name, inputs))
    model(**make_batch("right"))
    source = SOURCE_LENGTHS if family == "encoder-decoder" else LENGTHS
    assert seen == {name: sum(source if "encoder" in name else LENGTHS) for name in seen} and seen


@pytest.mark.parametrize("family", CASES)
def test_requested_layer_outputs_have_the_padded_shape(family):
    make, make_batch = CASES[family]
    model = make(vocab_size=50).eval()
    batch = make_batch("right")
    model.set_attn_implementation("eager")
    expected = model(**batch, output_hidden_states=True)
    found = make_fast(model)(**batch, output_hidden_states=True)
    name = "decoder_hidden_states" if family == "encoder-decoder" else "hidden_states"
    assert [states.shape for states in found[name]] == [states.shape for states in expected[name]]
    torch.testing.assert_close(found.loss, expected.loss)


@pytest.mark.parametrize("position_embedding", ["sinusoidal", "learned"])
def test_given_position_ids_are_packed_with_their_tokens(position_embedding):
    """Also test a single row of position ids, which is broadcast over the batch."""
    model = encoder_only(VanillaTransformerForMaskedLM, vocab_size=50, position_embedding=position_embedding).eval()
    mask = real(LENGTHS, "left")
    for rows in (1, len(LENGTHS)):
        positions = torch.randint(0, 16, (rows, max(LENGTHS)), generator=torch.Generator().manual_seed(2))
        batch = {"input_ids": ids_of(mask), "attention_mask": mask, "position_ids": positions}
        model.set_attn_implementation("eager")
        expected = model(**batch).logits
        torch.testing.assert_close(make_fast(model)(**batch).logits[mask.bool()], expected[mask.bool()])


def test_packing_does_not_change_generation():
    model = encoder_decoder(vocab_size=50).eval()
    mask = real(SOURCE_LENGTHS)
    batch = {"input_ids": ids_of(mask), "attention_mask": mask, "max_new_tokens": 6, "num_beams": 3}
    expected = model.generate(**batch)
    assert torch.equal(make_fast(model).generate(**batch), expected)


@pytest.mark.parametrize("family", CASES)
def test_packed_sdpa_without_make_fast_equals_sdpa(family):
    make, make_batch = CASES[family]
    model = make(vocab_size=50).eval()
    for side in ("left", "right"):
        losses = []
        for implementation in ("sdpa", "packed_sdpa"):
            model.set_attn_implementation(implementation)
            losses.append(model(**make_batch(side)).loss)
        assert torch.equal(*losses)


def test_labels_may_contain_minus_100_in_the_middle():
    """A label of -100 between other labels means a token without a target, not padding."""
    model = encoder_decoder(vocab_size=50, dropout=0.0).double().train()
    batch = translator_batch("right")
    batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    batch["labels"][:, 1] = -100
    expected, _ = loss_and_gradients(model, batch, False)
    assert torch.allclose(loss_and_gradients(model, batch, True)[0], expected)


def test_empty_sequences_keep_gradients_finite():
    mask = real((4, 0, 2))
    rows = Packing(mask.bool(), mask.device)
    states = torch.randn(3, 4, 6)
    packed = rows.pack(states)
    assert packed.shape == (1, 6, 6)
    assert torch.equal(rows.unpack(packed), states * mask[..., None])
    model = make_fast(encoder_only(VanillaTransformerForMaskedLM, vocab_size=50).train())
    model(input_ids=ids_of(mask), attention_mask=mask, labels=labelled(mask)).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


# --- Plain matrix products, for bfloat16 on a CPU


@pytest.mark.parametrize("is_causal", [True, False])
def test_plain_attention_equals_fused_attention(is_causal):
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = None if is_causal else real((6, 2)).bool()[:, None, None, :]
    options = {"attn_mask": mask, "dropout_p": 0.0, "is_causal": is_causal, "scale": 0.3}
    outputs = [attend(query, key, value, **options) for attend in (plain_attention, F.scaled_dot_product_attention)]
    torch.testing.assert_close(*outputs)
    upstream = torch.randn_like(outputs[0])
    plain, fused = (torch.autograd.grad(output, (query, key, value), upstream) for output in outputs)
    torch.testing.assert_close(plain, fused)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("fields", [{}, {"output_hidden_states": True}], ids=["packed", "padded"])
@pytest.mark.parametrize("family", CASES)
def test_plain_products_give_the_same_loss_and_gradients(family, fields, side, monkeypatch):
    """Training uses plain matrix products in bfloat16; the test uses double precision, which reveals any error."""
    make, make_batch = CASES[family]
    torch.manual_seed(0)
    model = make(vocab_size=50, dropout=0.0).double().train()
    batch = make_batch(side)
    expected, expected_gradients = loss_and_gradients(model, batch, False)
    monkeypatch.setattr(packing, "plain_is_faster", lambda query, keys: True)
    loss, gradients = loss_and_gradients(model, batch | fields, True)
    assert torch.allclose(loss, expected, rtol=1e-12)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-8, atol=1e-10, msg=name)


# length of the longest sequence; the widths of the rows are 32, 32, 48 and 80
@pytest.mark.parametrize("longest", [3, 16, 40, 70])
def test_sequences_that_share_a_row_do_not_attend_to_each_other(longest, monkeypatch):
    """With plain matrix products, each row of a batch holds as many sequences as fit."""
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(longest)
    source, target = (real(tuple(torch.randint(1, longest + 1, (50,), generator=random).tolist())) for _ in range(2))
    model = encoder_decoder(vocab_size=50, dropout=0.0).double().train()
    batch = {"input_ids": ids_of(source), "attention_mask": source, "labels": labelled(target)}
    expected, expected_gradients = loss_and_gradients(model, batch, False)
    monkeypatch.setattr(packing, "plain_is_faster", lambda query, keys: True)
    loss, gradients = loss_and_gradients(model, batch, True)
    assert torch.allclose(loss, expected, rtol=1e-12)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-8, atol=1e-10, msg=name)


def test_worst_fit_decreasing_packs_rows_densely():
    assert worst_fit_decreasing([2, 8, 5, 3, 1], 8) == [
        16,
        0,
        8,
        13,
        18,
    ]  # rows of width 8 with sequences of lengths (8), (5, 3) and (2, 1)
    assert worst_fit_decreasing([4], 4) == [0]
    sizes = torch.randint(1, 33, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    starts = worst_fit_decreasing(sizes, 32)
    places = [start + position for start, size in zip(starts, sizes, strict=True) for position in range(size)]
    assert len(set(places)) == sum(sizes)
    assert all(start // 32 == (start + size - 1) // 32 for start, size in zip(starts, sizes, strict=True))
    assert max(starts) // 32 + 1 <= 1.1 * sum(sizes) / 32


@pytest.mark.parametrize("is_causal", [True, False])
def test_shared_rows_give_the_same_attention_as_one_row_per_sequence(is_causal, monkeypatch):
    """The second case has a sequence without keys, which gets a row of its own."""
    torch.manual_seed(0)
    lengths = (3, 4, 2, 3), (3, 4, 2, 3) if is_causal else (2, 0, 4, 1)
    queries, keys = (Packing(real(counts).bool(), torch.device("cpu")) for counts in lengths)
    heads = [torch.randn(1, 2, side.tokens, 4, dtype=torch.float64) for side in (queries, keys, keys)]
    separate = Layout(queries, keys, is_causal, heads[0])
    monkeypatch.setattr(packing, "plain_is_faster", lambda query, keys: True)
    shared = Layout(queries, keys, is_causal, heads[0])
    assert (separate.rows, shared.rows) == (4, 1 if is_causal else 2)
    found, expected = (layout.attend(*heads, is_causal, 0.0, 0.5) for layout in (shared, separate))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("longest", [LONGEST_PLAIN, LONGEST_PLAIN + 1])
@pytest.mark.parametrize("long_side", ["queries", "keys"])
def test_sequences_share_rows_only_if_queries_and_keys_are_short(long_side, longest):
    """Rows are as wide as the longest query or key sequence, so long sequences would cause much padding."""
    sides = [Packing(torch.ones(1, length, dtype=torch.bool), torch.device("cpu")) for length in (longest, 3)]
    queries, keys = sides if long_side == "queries" else sides[::-1]
    layout = Layout(queries, keys, False, torch.zeros(1, dtype=torch.bfloat16))
    assert layout.shared == (longest == LONGEST_PLAIN)


def test_row_lengths_are_rounded_up_to_few_distinct_values():
    """Rounding limits the number of distinct shapes, because oneDNN compiles a kernel for each shape."""
    rounded = [round_up(number) for number in range(5000)]
    assert rounded[:32] == list(range(32))
    assert all(number <= up < 1.0625 * number + 1e-9 for number, up in enumerate(rounded))
    assert len({up for up in rounded if 2000 < up <= 4000}) < 32


class Products(TorchDispatchMode):
    """Records the row counts of all operands of matrix products."""

    def __init__(self):
        super().__init__()
        self.rows: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.rows |= {operand.shape[0] for operand in args}
        return func(*args, **(kwargs or {}))


def test_batches_of_many_lengths_need_few_matrix_product_shapes():
    """Count shapes in layers and loss, forward and backward, over thirty batches of 807 to 1,039 tokens."""
    model = make_fast(encoder_only(VanillaTransformerForMaskedLM, vocab_size=50), loss_chunk_size=2000).train()
    with Products() as products:
        for count in range(100, 130):
            mask = real((8,) * count + (7,))
            labels = labelled(mask)
            labels[:10] = -100
            model(input_ids=ids_of(mask), attention_mask=mask, labels=labels).loss.backward()
    assert 10 < len({rows for rows in products.rows if rows > 500}) <= 20


def test_plain_products_are_used_only_for_training_short_sequences_in_bfloat16():
    heads = torch.zeros(1, 2, LONGEST_PLAIN, 4, dtype=torch.bfloat16)
    assert plain_is_faster(heads, LONGEST_PLAIN)
    assert not plain_is_faster(heads.float(), LONGEST_PLAIN)
    assert not plain_is_faster(heads, LONGEST_PLAIN + 1)
    with torch.no_grad():
        assert not plain_is_faster(heads, LONGEST_PLAIN)


def test_plain_products_apply_attention_dropout():
    torch.manual_seed(0)
    ones = torch.ones(1, 1, 1000, 1)
    dropped = plain_attention(ones, ones, ones, None, 0.25, False, 1.0)
    assert dropped.mean() == pytest.approx(1, abs=0.01) and dropped.std() > 0.01


@pytest.mark.parametrize("family", CASES)
def test_a_batch_of_only_padding_is_not_packed(family):
    make, make_batch = CASES[family]
    model = make(vocab_size=50, dropout=0.0).train()
    batch = {name: values.clone() for name, values in make_batch("right").items()}
    batch["attention_mask"].zero_()
    if "labels" in batch and batch["labels"].dim() == 2:
        batch["labels"].fill_(-100)
    torch.testing.assert_close(loss_and_gradients(model, batch, True)[0], loss_and_gradients(model, batch, False)[0])
