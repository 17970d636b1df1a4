"""Every head computes the right loss, however a training step is split into batches or chunks."""

import copy

import pytest
import torch
from datasets import Dataset
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments

from family import decoder_only, encoder_decoder, encoder_only, tokens
from vanilla_transformer import (
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer.fast import make_fast
from vanilla_transformer.modeling_vanilla_transformer import CACHE


def ragged_labels() -> torch.Tensor:
    labels = tokens(3, 6)
    labels[0, 4:], labels[2, 1:] = -100, -100
    return labels


def test_translation_loss_compares_each_position_with_its_own_label():
    model, labels = encoder_decoder(), ragged_labels()
    output = model(tokens(3, 7), labels=labels)
    assert output.loss.item() == pytest.approx(F.cross_entropy(output.logits.flatten(0, 1), labels.flatten()).item())


def test_language_model_loss_compares_each_position_with_the_next_token():
    model, labels = decoder_only(), tokens(3, 6)
    output = model(labels, labels=labels)
    expected = F.cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert output.loss.item() == pytest.approx(expected.item())


def test_loss_after_a_cached_prefix_equals_the_loss_of_the_continuation():
    """Prefix tuning and scoring a continuation of a cached prompt need this loss."""
    model, ids = decoder_only(), tokens(2, 9)
    prefix, rest = ids[:, :4], ids[:, 4:]
    labels = torch.cat((torch.full_like(prefix, -100), rest), dim=1)
    labels[:, 4] = -100  # the last token of the cached prefix predicts this label
    cache = model(prefix, use_cache=True)[CACHE]
    loss = model(rest, past_key_values=cache, labels=rest).loss
    torch.testing.assert_close(loss, model(ids, labels=labels).loss)


def test_loss_after_a_cached_prefix_uses_the_end_of_the_mask():
    """The second prompt is padded on the left. The mask covers the cached prefix, but the labels do not."""
    model, ids = decoder_only(), tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    labels = ids.clone()
    labels[:, :5] = -100
    cache = model(ids[:, :4], attention_mask=mask[:, :4], use_cache=True)[CACHE]
    loss = model(ids[:, 4:], attention_mask=mask, past_key_values=cache, labels=labels[:, 4:]).loss
    torch.testing.assert_close(loss, model(ids, attention_mask=mask, labels=labels).loss)


def test_loss_ignores_targets_masked_out_by_the_decoder_mask():
    model, source, labels = encoder_decoder(), tokens(2, 5), tokens(2, 6)
    mask = torch.ones_like(labels)
    mask[0, 4:] = 0
    read = model.prepare_decoder_input_ids_from_labels(labels)
    hidden = {"decoder_input_ids": read, "decoder_attention_mask": mask}
    expected = model(source, labels=labels.masked_fill(mask == 0, -100), **hidden).loss
    torch.testing.assert_close(model(source, labels=labels, **hidden).loss, expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_language_model_loss_ignores_padding(side):
    model, ids = decoder_only(), tokens(2, 6)
    alone = [model(ids[:1], labels=ids[:1]).loss * 5, model(ids[1:, :4], labels=ids[1:, :4]).loss * 3]
    padding = torch.zeros(2, dtype=torch.long)
    short = torch.cat((padding, ids[1, :4]) if side == "left" else (ids[1, :4], padding))
    ids = torch.stack((ids[0], short))
    mask = torch.ones_like(ids)
    mask[1, slice(2) if side == "left" else slice(4, None)] = 0
    torch.testing.assert_close(model(ids, attention_mask=mask, labels=ids).loss, sum(alone) / 8)


@pytest.mark.parametrize("labels", [[-100.0, 5.0, -100.0], [-100.0] * 3, [1.0, 2.0, 3.0]])
def test_minus_100_is_an_ordinary_target_in_regression(labels):
    model, ids = encoder_only(VanillaTransformerForSequenceClassification, num_labels=1), tokens(3, 6)
    labels = torch.tensor(labels)
    output = model(ids, labels=labels, num_items_in_batch=labels.ne(-100).sum())
    torch.testing.assert_close(output.loss, F.mse_loss(output.logits[:, 0], labels))


@pytest.mark.parametrize("make", [encoder_decoder, encoder_only])
def test_per_example_gradients_equal_those_of_single_example_batches(make):
    """Differentially private training (DP-SGD) and influence functions need per-example gradients."""
    model, ids, labels = make(dropout=0.0), tokens(3, 6), tokens(3, 6)
    weights = dict(model.named_parameters())

    def loss(weights, ids, labels):
        return functional_call(model, weights, (), {"input_ids": ids[None], "labels": labels[None]}).loss

    found = vmap(grad(loss), (None, 0, 0))(weights, ids, labels)
    for i in range(3):
        model.zero_grad()
        loss(weights, ids[i], labels[i]).backward()
        for name, weight in weights.items():
            torch.testing.assert_close(found[name][i], weight.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("make", [encoder_decoder, encoder_only])
def test_label_smoothing_applies_only_in_training(make):
    model, ids, labels = make(dropout=0.0, label_smoothing=0.2), tokens(3, 6), ragged_labels()
    for training, smoothing in ((True, 0.2), (False, 0.0)):
        model.train(training)
        output = model(ids, labels=labels)
        logits = output.logits.flatten(0, 1)
        expected = F.cross_entropy(logits, labels.flatten(), label_smoothing=smoothing)
        assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "labels", "expected"),
    [
        ({"num_labels": 3}, torch.tensor([0, 2]), F.cross_entropy),
        ({"num_labels": 1}, torch.tensor([0.5, -2.0]), lambda logits, y: F.mse_loss(logits[:, 0], y)),
        ({"num_labels": 4, "problem_type": "regression"}, torch.randn(2, 4), F.mse_loss),
        ({"num_labels": 3}, torch.tensor([[0.0, 1, 1], [1, 0, 0]]), F.binary_cross_entropy_with_logits),
    ],
)
def test_sequence_classification_uses_the_loss_of_its_problem_type(fields, labels, expected):
    model = encoder_only(VanillaTransformerForSequenceClassification, **fields)
    ids = tokens(2, 5)
    output = model(ids, labels=labels)
    assert output.logits.shape == (2, fields["num_labels"])
    assert output.loss.item() == pytest.approx(expected(output.logits, labels).item(), rel=1e-5)
    half = model(ids, labels=labels, num_items_in_batch=2 * labels.numel()).loss
    assert half.item() == pytest.approx(output.loss.item() / 2, rel=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_pooling_ignores_padding(pooling):
    model = encoder_only(VanillaTransformerForSequenceClassification, pooling=pooling)
    ids = tokens(1, 5)
    padded = torch.cat((tokens(1, 2), ids, tokens(1, 3)), dim=1)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 0, 0, 0]])
    torch.testing.assert_close(model(padded, attention_mask=mask).logits, model(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_a_row_of_only_padding_keeps_the_loss_finite(pooling):
    model = encoder_only(VanillaTransformerForSequenceClassification, pooling=pooling)
    mask = torch.tensor([[1] * 5, [0] * 5])
    output = model(tokens(2, 5), attention_mask=mask, labels=torch.tensor([1, -100]))
    assert output.logits.isfinite().all() and output.loss.isfinite()


def test_question_answering_loss_ignores_truncated_answers():
    model = encoder_only(VanillaTransformerForQuestionAnswering)
    ids = tokens(2, 6)
    output = model(ids, start_positions=torch.tensor([1, 9]), end_positions=torch.tensor([3, 9]))
    expected = (
        F.cross_entropy(output.start_logits[:1], torch.tensor([1]))
        + F.cross_entropy(output.end_logits[:1], torch.tensor([3]))
    ) / 2
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "packed_sdpa"])
def test_question_answering_loss_does_not_depend_on_padding(implementation):
    torch.manual_seed(0)
    model = encoder_only(VanillaTransformerForQuestionAnswering)
    model.set_attn_implementation(implementation)
    ids, answer = tokens(2, 6), {"start_positions": torch.tensor([1, 0]), "end_positions": torch.tensor([4, 2])}
    alone = model(ids, **answer).loss
    for padding in (1, 30):
        padded = F.pad(ids, (0, padding))
        loss = model(padded, attention_mask=F.pad(torch.ones_like(ids), (0, padding)), **answer).loss
        torch.testing.assert_close(loss, alone)


@pytest.mark.parametrize("outside", [-1, 6, 9])
def test_question_answering_loss_is_0_if_no_sequence_contains_its_answer(outside):
    model, ids = encoder_only(VanillaTransformerForQuestionAnswering), tokens(2, 6)
    positions = torch.full((2,), outside)
    assert model(ids, start_positions=positions, end_positions=positions).loss == 0


def rows_for(model) -> Dataset:
    """Return 16 examples. If their labels are sequences, examples differ in the number of labels."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 50, (16, 6), generator=generator)
    kind = type(model).__name__
    if "SequenceClassification" in kind:
        labels = torch.randint(0, 2, (16,), generator=generator)
    elif "TokenClassification" in kind:
        labels = torch.where(torch.arange(6) <= torch.arange(16)[:, None] % 6, ids % 2, -100)
    else:
        labels = torch.where(torch.arange(6) <= 1 + torch.arange(16)[:, None] % 5, ids, -100)
    return Dataset.from_dict({"input_ids": ids.tolist(), "labels": labels.tolist()})


@pytest.mark.parametrize(
    "make",
    [
        encoder_decoder,
        decoder_only,
        encoder_only,
        lambda **f: encoder_only(VanillaTransformerForSequenceClassification, **f),
        lambda **f: encoder_only(
            VanillaTransformerForSequenceClassification, problem_type="regression", num_labels=1, **f
        ),
        lambda **f: encoder_only(VanillaTransformerForTokenClassification, **f),
    ],
)
def test_accumulating_four_batches_trains_like_one_large_batch(make, tmp_path):
    """The batches differ in their number of targets, but the weights after two steps must be the same."""
    trained = []
    for batch_size, accumulation in ((8, 1), (2, 4)):
        torch.manual_seed(0)
        model = make(dropout=0.0)
        arguments = TrainingArguments(
            output_dir=tmp_path, max_steps=2, per_device_train_batch_size=batch_size, learning_rate=0.1, optim="sgd",
            gradient_accumulation_steps=accumulation, train_sampling_strategy="sequential", max_grad_norm=0,
            lr_scheduler_type="constant", save_strategy="no", use_cpu=True, disable_tqdm=True, report_to="none",
        )  # fmt: skip
        rows = rows_for(model)
        if model.config.problem_type == "regression":
            rows = rows.map(lambda row: {"labels": float(row["labels"])})
        Trainer(model=model, args=arguments, train_dataset=rows).train()
        trained.append(model.state_dict())
    for name, weight in trained[0].items():
        torch.testing.assert_close(trained[1][name], weight, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_chunked_loss_is_as_exact_as_the_plain_loss_in_16_bits(dtype):
    torch.manual_seed(0)
    model = decoder_only(dropout=0.0, num_layers=1, tie_word_embeddings=False, output_bias=True).to(dtype).train()
    ids = tokens(64, 33)

    def gradients(model, chunk: int) -> list[torch.Tensor]:
        make_fast(model, packing=False, loss_chunk_size=chunk)
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        return [parameter.grad.double() for parameter in model.lm_head.parameters()]

    exact = gradients(copy.deepcopy(model).double(), 0)
    for whole, chunked, true in zip(gradients(model, 0), gradients(model, 16), exact, strict=True):
        assert (chunked - true).norm() < 1.5 * (whole - true).norm()


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("fields", [{}, {"tie_word_embeddings": False, "output_bias": True}])
@pytest.mark.parametrize("make", [encoder_decoder, decoder_only, encoder_only])
def test_the_chunked_loss_has_the_same_value_and_gradients_as_the_plain_loss(make, fields, label_smoothing):
    torch.manual_seed(0)
    model = make(dropout=0.0, label_smoothing=label_smoothing, **fields).double().train()
    labels = tokens(3, 7)
    labels[0, 2:5] = -100
    inputs = {"input_ids": tokens(3, 7), "labels": labels}
    found = []
    for chunk in (0, 4, 1000):
        make_fast(model, packing=False, loss_chunk_size=chunk)
        for count in (None, torch.tensor(40)):
            model.zero_grad()
            output = model(**inputs, num_items_in_batch=count)
            (output.loss * 3).backward()
            gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
            found.append((chunk, count, output, gradients))
    for chunk, count, output, gradients in found:
        whole = found[0] if count is None else found[1]
        assert (output.logits is None) == bool(chunk)
        torch.testing.assert_close(output.loss, whole[2].loss, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(gradients, whole[3], atol=1e-6, rtol=1e-5)
    model.eval()
    assert model(**inputs).logits.shape[:2] == (3, 7)  # only training skips the logits
