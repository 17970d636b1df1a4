"""GPUs give the same results as CPUs. Where possible, each test also runs on a CPU.

make test-gpu
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from family import decoder_only, encoder_decoder, encoder_only, right_padded, tokens
from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer.cli.estimate import step_cost
from vanilla_transformer.fast import make_fast
from vanilla_transformer.fast.chunked_loss import ChunkedCrossEntropy
from vanilla_transformer.fast.transfer import to_device, to_host
from vanilla_transformer.training.optimizer import muon_with_adam
from vanilla_transformer.training.trainer import send_batch


GPU = pytest.param("cuda", marks=pytest.mark.gpu)
on_devices = pytest.mark.parametrize("device", ["cpu", GPU])
WIDE = {"d_model": 64, "d_ff": 128, "dropout": 0.0}  # head width 16, the minimum for flex attention

Gradients = dict[str, Tensor]


def ids_and_mask() -> tuple[Tensor, Tensor]:
    return right_padded([9, 4, 7])


def translation_batch() -> dict[str, Tensor]:
    ids, mask = ids_and_mask()
    labels, real = ids_and_mask()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels.masked_fill(real == 0, -100)}


def token_batch() -> dict[str, Tensor]:
    ids, mask = ids_and_mask()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def tagging_batch() -> dict[str, Tensor]:
    batch = token_batch()
    return batch | {"labels": batch["labels"].clamp(max=1)}


def class_batch() -> dict[str, Tensor]:
    ids, mask = ids_and_mask()
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1, 1])}


def many_classes_batch() -> dict[str, Tensor]:
    return class_batch() | {"labels": torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])}


def answer_batch() -> dict[str, Tensor]:
    ids, mask = ids_and_mask()
    starts = torch.tensor([1, 2, 0])
    return {"input_ids": ids, "attention_mask": mask, "start_positions": starts, "end_positions": starts + 1}


def encoder(model_class):
    return lambda **fields: encoder_only(model_class, **fields)


CLASSES = {
    "translation": (encoder_decoder, translation_batch),
    "language model": (decoder_only, token_batch),
    "masked language model": (encoder(VanillaTransformerForMaskedLM), token_batch),
    "classifier": (encoder(VanillaTransformerForSequenceClassification), class_batch),
    "multi-label classifier": (encoder(VanillaTransformerForSequenceClassification), many_classes_batch),
    "tagger": (encoder(VanillaTransformerForTokenClassification), tagging_batch),
    "reader": (encoder(VanillaTransformerForQuestionAnswering), answer_batch),
}
# Autocast dtype -> maximum relative error of the loss and of the concatenated gradients of all weights
PRECISIONS = {None: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}


def loss_and_gradients(
    model: nn.Module, batch: dict[str, Tensor], device: str, precision: torch.dtype | None = None
) -> tuple[float, Gradients]:
    """Return the loss and gradients of one batch, computed on a device and moved to the CPU."""
    model = model.to(device).train()
    model.zero_grad()
    batch = {name: values.to(device) for name, values in batch.items()}
    with torch.autocast(device, precision) if precision else nullcontext():
        loss = model(**batch).loss
    loss.backward()
    gradients = {name: weight.grad.to("cpu", torch.float32, copy=True) for name, weight in model.named_parameters()}
    model.to("cpu")
    return loss.item(), gradients


def assert_same(found: tuple[float, Gradients], expected: tuple[float, Gradients], tolerance: float) -> None:
    assert found[0] == pytest.approx(expected[0], rel=tolerance)
    ours, theirs = (torch.cat([values.flatten() for values in given[1].values()]) for given in (found, expected))
    assert torch.isfinite(ours).all()
    assert (ours - theirs).norm() <= tolerance * theirs.norm()


@on_devices
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_all_models_have_the_same_loss_and_gradients_on_cpu_and_gpu(name, precision, device):
    if device == "cpu" and precision == torch.float16:
        pytest.skip("float16 is for GPUs")
    make, make_batch = CLASSES[name]
    model, batch = make(**WIDE), make_batch()
    expected = loss_and_gradients(model, batch, "cpu")
    assert_same(loss_and_gradients(model, batch, device, precision), expected, PRECISIONS[precision])


ATTENTION = ["sdpa", "packed_sdpa", "flash_attention_2", "flex_attention"]


@on_devices
@pytest.mark.parametrize("window", [None, 4], ids=["full", "window"])
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("name", ["translation", "language model", "masked language model"])
def test_all_attention_implementations_have_the_same_loss_and_gradients_as_eager(name, attention, window, device):
    if attention == "flash_attention_2" and (device == "cpu" or find_spec("flash_attn") is None):
        pytest.skip("needs CUDA and the package flash-attn")
    if attention == "flex_attention" and device == "cpu":
        pytest.skip("PyTorch has no backward pass of flex attention on a CPU")
    make, make_batch = CLASSES[name]
    model, batch = make(**WIDE, sliding_window=window), make_batch()
    model.set_attn_implementation("eager")
    precision = torch.bfloat16 if attention == "flash_attention_2" else None
    expected = loss_and_gradients(model, batch, device)
    model.set_attn_implementation(attention)
    assert_same(loss_and_gradients(model, batch, device, precision), expected, PRECISIONS[precision])


@on_devices
@pytest.mark.parametrize("name", CLASSES)
def test_packing_in_bfloat16_keeps_the_loss_and_gradients_of_the_padded_batch(name, device):
    """On a GPU, packed rows use FlashAttention's variable-length kernel."""
    make, make_batch = CLASSES[name]
    model, batch = make(**WIDE), make_batch()
    expected = loss_and_gradients(model, batch, device)
    make_fast(model, loss_chunk_size=0)
    assert_same(loss_and_gradients(model, batch, device, torch.bfloat16), expected, PRECISIONS[torch.bfloat16])


@on_devices
def test_packed_documents_have_the_same_losses_as_separate_documents(device):
    model = decoder_only(**WIDE, use_cache=False).to(device)
    documents = [tokens(1, length).to(device) for length in (5, 3, 8)]
    positions = torch.cat([torch.arange(document.shape[1]) for document in documents])[None].to(device)
    with torch.no_grad():
        together = model(input_ids=torch.cat(documents, dim=1), position_ids=positions).logits
        apart = torch.cat([model(input_ids=document).logits for document in documents], dim=1)
    torch.testing.assert_close(together, apart, atol=1e-4, rtol=1e-4)


CACHES = {
    "none": {"use_cache": False},
    "dynamic": {},
    # On a GPU, decoding with a static cache is also compiled and captured in CUDA graphs.
    "static": {"cache_implementation": "static"},
    "offloaded": {"cache_implementation": "offloaded"},
}


@on_devices
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("make", [encoder_decoder, decoder_only])
def test_all_caches_generate_the_same_text_on_cpu_and_gpu(make, cache, beams, device):
    if cache == "offloaded" and (device == "cpu" or make is encoder_decoder):
        pytest.skip("offloads from a GPU, for models of one stack")
    model, (ids, mask) = make(**WIDE), ids_and_mask()
    if make is decoder_only:
        ids, mask = ids.flip(1), mask.flip(1)
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "num_beams": beams}
    expected = model.generate(ids, attention_mask=mask, **options).tolist()
    model.to(device)
    for _ in range(2):  # the second call reuses compiled code
        given = model.generate(ids.to(device), attention_mask=mask.to(device), **options, **CACHES[cache])
        assert given.tolist() == expected


@on_devices
@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="this PyTorch has no linear_cross_entropy")
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
def test_the_chunked_loss_equals_pytorchs_cross_entropy(precision, device):
    states, weight = torch.randn(70, 64, device=device), torch.randn(300, 64, device=device) / 8
    labels = torch.randint(300, (70,), device=device)
    labels[::5] = -100
    given = [(states.clone().requires_grad_(), weight.clone().requires_grad_()) for _ in range(2)]
    with torch.autocast(device, precision, enabled=precision != torch.float32):
        ours = ChunkedCrossEntropy.apply(*given[0], None, labels, 0.0, 16)
    theirs = F.linear_cross_entropy(*given[1], labels, reduction="sum", ignore_index=-100)
    ours.backward()
    theirs.backward()
    tolerance = 1e-4 if precision == torch.float32 else 0.02
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=0)
    for mine, other in zip(*given, strict=True):
        assert (mine.grad - other.grad).norm() <= tolerance * other.grad.norm()


# "fast" has all options that training enables. "plain" has no packing, and then transformers inspects the masks.
FORMS = {"plain": {"packing": False, "loss_chunk_size": 0}, "fast": {"loss_chunk_size": 4}}


class NoWaitingCopies(TorchFunctionMode):
    """Raises an error for copies to a device that are not asynchronous, because they make the host wait."""

    COPIES = (torch.tensor, torch.as_tensor, Tensor.to, Tensor.copy_, Tensor.new_tensor)

    def __torch_function__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        given = arguments[1] if function is Tensor.copy_ else arguments[0] if arguments else None
        from_host = not isinstance(given, Tensor) or given.device.type == "cpu"
        if function in self.COPIES and from_host and result.device.type != "cpu":
            assert (options or {}).get("non_blocking"), f"{function.__name__} makes the host wait"
        return result


@contextmanager
def host_must_not_wait(device: str) -> Iterator[None]:
    """Raise an error if the host waits: on "meta", tensors have no values to read; on a GPU, PyTorch raises it."""
    if device == "meta":
        with NoWaitingCopies():
            yield
        return
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.parametrize("device", ["meta", GPU])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CLASSES)
def test_a_training_step_does_not_synchronise(name, form, device):
    make, make_batch = CLASSES[name]
    model = make_fast(make(**WIDE | {"dropout": 0.1}).to(device).train(), **FORMS[form])
    if form == "fast":
        optimizer = muon_with_adam(model, lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), fused=device == "cuda")
    names = make_batch().keys() - ({"attention_mask"} if form == "plain" else set())

    def step(batch: dict[str, Tensor]) -> None:
        batch = send_batch(batch, torch.device(device))
        items = (batch["labels"] != -100).sum() if "labels" in batch else None
        with torch.autocast(device, torch.bfloat16) if device == "cuda" and form == "fast" else nullcontext():
            loss = model(**batch, num_items_in_batch=items).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    batches = [{name: make_batch()[name] for name in names} for _ in range(2)]
    step(batches[0])  # the first step fills caches
    with host_must_not_wait(device):
        step(batches[1])


@pytest.mark.parametrize("device", ["meta", GPU])
def test_the_host_copy_of_a_tensor_is_used_until_the_tensor_changes(device):
    values = torch.arange(4)
    on_device = to_device(values, torch.device(device))
    with host_must_not_wait(device):
        assert to_host(on_device).equal(values)
    on_device.add_(1)
    if device == "cuda":
        assert to_host(on_device).equal(values + 1)
    else:
        with pytest.raises(NotImplementedError, match="no data"):  # the host copy is outdated
            to_host(on_device)


@on_devices
@pytest.mark.parametrize("name", ["translation", "language model", "masked language model"])
def test_a_training_step_compiles_without_graph_breaks_at_any_length(name, device):
    make, make_batch = CLASSES[name]
    model, backend = make(**WIDE).to(device).train(), "inductor" if device == "cuda" else "eager"
    plain = {name: values.to(device) for name, values in make_batch().items()}
    shorter = {name: values[:, :6].contiguous() for name, values in plain.items()}
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for batch in (plain, shorter):
        expected = loss_of(model, batch)
        found = loss_of(compiled, batch)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss = model(**batch).loss
    loss.backward()
    model.zero_grad()
    return loss.detach()


@pytest.mark.gpu
@pytest.mark.parametrize("preset", ["base", "big"])
def test_the_memory_of_a_training_step_equals_the_estimate(preset):
    config = VanillaTransformerConfig.from_preset(preset)
    rows, length = 100, 32
    cost = step_cost(config, rows * length, length, loss_chunk_size=512)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model = make_fast(VanillaTransformerForConditionalGeneration(config).cuda().train(), packing=False)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    ids = torch.randint(4, 1000, (rows, length), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    taken = torch.cuda.max_memory_allocated() - before
    estimate = sum(cost.memory.values())
    print(f"{preset}: {taken / 2**30:.2f} GiB taken, {estimate / 2**30:.2f} GiB estimated")
    assert estimate == pytest.approx(taken, rel=0.25)
