"""The benchmark counts what it says and compares like with like; how fast anything is, no test asserts."""

import json

import pytest
import torch

import benchmark
from benchmark import Batches, BenchmarkArguments, Result, Trainee, in_turns, rows_of
from benchmark_peers import Size, classifiers, language_models, translators
from data_loading import DataArguments


TINY = Size(d_model=32, d_ff=64, num_heads=4, layers=2, vocab_size=60)


@pytest.fixture(scope="module")
def batches():
    return Batches(DataArguments(phrases=1000), TINY.vocab_size, rows=8)


def test_real_tokens_are_counted_without_padding(batches):
    inputs, tokens = batches.pair(0)
    real = (inputs["input_ids"] != 0).sum() + (inputs["labels"] != -100).sum()
    assert tokens == real < inputs["input_ids"].numel() + inputs["labels"].numel()
    assert torch.equal(inputs["attention_mask"], (inputs["input_ids"] != 0).long())
    sentences, tokens = batches.sentences(1)
    assert tokens == sentences["attention_mask"].sum() and sentences["labels"].shape == (8,)


@pytest.mark.parametrize(
    "models", [translators(TINY), language_models(TINY, 16), classifiers(TINY)], ids=["seq2seq", "causal", "encoder"]
)
def test_peers_have_the_same_body_as_ours(models):
    """The same weights in embedding and layers, but for biases and what the peer's own embedding has beside."""
    sizes = {}
    for name, model in models.items():
        matrices = {id(p): p.numel() for n, p in model.named_parameters() if p.dim() == 2 and "position" not in n}
        extra = [m for n, m in model.named_parameters() if n.startswith(("pre_classifier", "transformer.wpe"))]
        sizes[name] = sum(matrices.values()) - sum(p.numel() for p in extra if p.dim() == 2)
    assert len(set(sizes.values())) == 1, sizes


def test_each_model_takes_its_turn_after_a_first_one_that_does_not_count():
    calls = []

    def task(name: str):
        return lambda: calls.append(name) or 10.0

    rates = in_turns({"a": task("a"), "b": task("b")}, rounds=3)
    assert calls == ["a", "b"] * 4
    assert [len(values) for values in rates.values()] == [3, 3] and min(rates["a"]) > 0


def test_a_step_trains_and_gives_its_tokens(batches):
    trainee = Trainee(translators(TINY)["ours"], [batches.pair(0)])
    before = trainee.loss(trainee.batches[0][0]).item()
    assert all(trainee() == trainee.batches[0][1] for _ in range(40))
    assert trainee.loss(trainee.batches[0][0]).item() < before
    assert trainee.flops_per_token() > 6 * TINY.d_model * TINY.vocab_size / 2  # the output layer alone, for half


def test_ratios_are_of_medians_to_ours():
    results = [Result("x", "ours", "tokens/s", [1.0, 3.0, 2.0]), Result("x", "peer", "tokens/s", [4.0, 4.0, 4.0])]
    assert [row[4] for row in rows_of(results)] == ["1.00", "0.50"]


def test_a_quick_run_writes_table_numbers_and_picture(monkeypatch, tmp_path):
    monkeypatch.setitem(benchmark.SIZES, "language model", TINY)
    results = benchmark.main(
        ["--sections", "language model", "--rounds", "1", "--threads", "1", "--output", str(tmp_path / "run")]
    )
    written = json.loads((tmp_path / "run" / "benchmark.json").read_text())
    assert [result["model"] for result in written["results"]] == [result.model for result in results]
    assert "| train, language model | GPT-2 |" in (tmp_path / "run" / "benchmark.md").read_text()
    assert (tmp_path / "run" / "benchmark.png").stat().st_size > 1000


def test_an_unknown_section_is_refused():
    with pytest.raises(ValueError, match="sections='speed' must be among: train"):
        BenchmarkArguments(sections=["speed"])


def test_memory_is_that_of_the_step_however_much_this_process_holds():
    held = torch.ones(2**29)  # 2 GiB, more than the step needs
    vocabulary = benchmark.MEMORY_VOCABULARY
    grown = {chunk: float(benchmark.run_python(benchmark.STEP, "ours", vocabulary, 1, chunk)[0]) for chunk in (0, 128)}
    logits = 64 * 24 * vocabulary * 4
    assert grown[0] > 2 * logits and grown[128] < grown[0] / 2 and held.sum() > 0
