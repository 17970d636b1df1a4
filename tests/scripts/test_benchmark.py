"""Test that the benchmark counts correctly and compares equal work. No test asserts a speed."""

import json
import math
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch

import benchmark
from benchmarking.decoding import decoders
from benchmarking.peers import TOY, causal_mask, classifiers, language_models, translators
from benchmarking.recipe import (
    OURS,
    PEER,
    PEER_DEFAULTS,
    PEER_SIMILAR,
    SEED_RUN,
    TORCH_SIMILAR,
    Point,
    TimedTrainer,
    TorchTranslator,
    measure_recipe,
    results_of,
    run_all,
    seconds_to,
)
from benchmarking.results import PACKED, Result, rows_of, write
from benchmarking.sections import SECTIONS, BenchmarkArguments
from benchmarking.timing import in_turns, peak_memory
from benchmarking.training import Batches, Trainee, block, measure_memory, real_lengths
from family import right_padded
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.decoding import translate


@pytest.fixture(scope="module")
def batches():
    return Batches(real_lengths(DataArguments(phrases=1000)), TOY.vocab_size, rows=8)


def test_padding_does_not_count_as_tokens(batches):
    inputs, tokens = batches.pair(0)
    real = (inputs["input_ids"] != 0).sum() + (inputs["labels"] != -100).sum()
    assert tokens == real < inputs["input_ids"].numel() + inputs["labels"].numel()
    assert torch.equal(inputs["attention_mask"], (inputs["input_ids"] != 0).long())
    sentences, tokens = batches.sentences(1)
    assert tokens == sentences["attention_mask"].sum() and sentences["labels"].shape == (8,)


@pytest.mark.parametrize(
    "makers", [translators(TOY), language_models(TOY, 16), classifiers(TOY)], ids=["seq2seq", "causal", "encoder"]
)
def test_peers_are_as_large_as_our_model(makers):
    """The number of weights is equal, not counting biases, position embeddings, and the heads of the peers."""
    sizes = {}
    for name, make in makers.items():
        matrices = {
            id(p): p.numel()
            for n, p in make().named_parameters()
            if p.dim() == 2 and not any(part in n for part in ("pos", "wpe", "pre_classifier"))
        }
        sizes[name] = sum(matrices.values())
    assert len(set(sizes.values())) == 1, sizes


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_all_models_compute_the_same_loss(batches, precision):
    """Untrained models predict nearly uniform distributions, so all losses on the same batch must agree."""
    for makers, batch in (
        (translators(TOY), batches.pair(0)),
        (language_models(TOY, 16), block(TOY.vocab_size, 4, 16)),
    ):
        for name, make in makers.items():
            loss = Trainee(make(), [batch], "cpu", precision).loss(batch[0]).item()
            assert loss == pytest.approx(math.log(TOY.vocab_size), rel=0.25), name


def test_gpu_sections_are_rejected_without_a_gpu(monkeypatch):
    assert BenchmarkArguments(device="cpu").sections == list(SECTIONS)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="--device cuda: PyTorch finds no CUDA"):
        BenchmarkArguments(device="cuda")


def test_models_are_timed_in_alternating_order_after_a_warm_up():
    calls = []

    def task(name: str):
        return lambda: calls.append(name) or 10.0

    rates = in_turns({"a": task("a"), "b": task("b")}, 3, "cpu")
    assert calls == list("ababbaab")
    assert [len(values) for values in rates.values()] == [3, 3] and min(rates["a"]) > 0


def test_a_training_step_updates_the_model_and_returns_its_token_count(batches):
    trainee = Trainee(translators(TOY)[OURS](), [batches.pair(0)], "cpu", "fp32")
    before = trainee.loss(trainee.batches[0][0]).item()
    assert all(trainee() == trainee.batches[0][1] for _ in range(40))
    assert trainee.loss(trainee.batches[0][0]).item() < before


def test_ratios_are_relative_to_the_median_of_our_packed_model_if_there_is_one():
    results = [
        Result("x", OURS, "tokens/s", [1.0, 3.0, 2.0]),
        Result("x", PACKED, "tokens/s", [6.0, 5.0, 9.0]),
        Result("x", "peer", "tokens/s", [4.0, 4.0, 4.0]),
        Result("y", OURS, "tokens/s", [2.0]),
        Result("y", "peer", "tokens/s", [4.0]),
        Result("z", "peer", "tokens/s", [4.0]),
    ]
    assert [row[4] for row in rows_of(results)] == ["3.00", "1.00", "1.50", "1.00", "0.50", ""]


def test_spread_is_half_the_interquartile_range_over_the_median():
    assert Result("x", "y", "tokens/s", [1.0, 2.0, 3.0, 4.0, 5.0]).spread == pytest.approx((4.5 - 1.5) / 2 / 3)


def test_the_time_to_reach_a_score_is_interpolated_between_evaluations():
    points = [Point(0, 6.0, 0.0), Point(10, 4.0, 20.0), Point(20, 5.0, 10.0), Point(30, 3.0, 40.0)]
    assert [seconds_to(bleu, points) for bleu in (0.0, 10.0, 20.0, 25.0)] == [0, 5, 10, 25]
    assert seconds_to(41.0, points) == math.inf


@pytest.fixture
def short_translations(monkeypatch):
    """Limit the output length: untrained models never generate an end token, and no test here checks the text."""
    monkeypatch.setattr("benchmarking.recipe.translate", partial(translate, extra_tokens=0))


@pytest.mark.usefixtures("short_translations")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recipe_runs_train_on_the_same_data_with_different_batching(precision, monkeypatch):
    counts, run_step = Counter(), TimedTrainer.training_step

    def counting_step(trainer, model, inputs, *arguments):
        counts["tokens"] += int(inputs["attention_mask"].sum() + (inputs["labels"] != -100).sum())
        counts["positions"] += inputs["input_ids"].numel() + inputs["labels"].numel()
        return run_step(trainer, model, inputs, *arguments)

    monkeypatch.setattr(TimedTrainer, "training_step", counting_step)
    tokens, filled = {}, {}
    for name, points in run_all(DataArguments(phrases=1000), TOY, 3, 8, precision, "cpu"):
        tokens[name], filled[name] = counts["tokens"], counts["tokens"] / counts["positions"]
        counts.clear()
        assert len(points) == 4 and points[0].seconds == 0 < points[1].seconds < points[2].seconds
    assert tokens[OURS] == tokens[PEER]  # both models train on the same batches
    assert tokens[PEER_SIMILAR] == tokens[TORCH_SIMILAR]
    assert filled[PEER] < filled[PEER_SIMILAR] > filled[PEER_DEFAULTS]


@pytest.mark.usefixtures("short_translations")
def test_an_error_keeps_the_recipe_curves_of_earlier_runs(monkeypatch, tmp_path):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(TorchTranslator, "__init__", stop)
    with pytest.raises(KeyboardInterrupt):
        measure_recipe(DataArguments(phrases=1000), TOY, 2, 8, "fp32", "cpu", tmp_path)
    assert [*json.loads((tmp_path / "recipe.json").read_text())] == [OURS, SEED_RUN, PEER_DEFAULTS, PEER, PEER_SIMILAR]
    assert (tmp_path / "recipe.png").stat().st_size > 1000


def test_runs_are_compared_by_their_time_to_the_final_bleu_of_marian():
    results = results_of({
        OURS: [Point(0, 8, 0), Point(20, 4, 10), Point(40, 2, 30)],
        PEER_DEFAULTS: [Point(0, 8, 0), Point(100, 4, 20)],
        PEER: [Point(0, 8, 0), Point(50, 7, 1), Point(90, 6.5, 2)],
    })  # fmt: skip
    found = {(result.section, result.model): result.values[0] for result in results}
    assert {key: value for key, value in found.items() if key[0] == "recipe, to BLEU 20.0"} == {
        ("recipe, to BLEU 20.0", OURS): 30,
        ("recipe, to BLEU 20.0", PEER_DEFAULTS): 100,
    }
    assert [found["recipe, whole run", name] for name in (OURS, PEER_DEFAULTS, PEER)] == [40, 100, 90]
    assert found["recipe, final BLEU", OURS] == 30 and found["recipe, final validation loss", PEER] == 6.5


def test_greedy_decoding_with_torch_nn_transformer_is_correct():
    """Step-by-step tokens equal the argmax of one parallel decoder pass, and do not depend on padding."""
    model = TorchTranslator(TOY).eval()
    ids, mask = right_padded([6, 3])
    with torch.inference_mode():
        alone = model.generate(ids[1:, :3], mask[1:, :3], 9)
        both = model.generate(ids, mask, 9)
        memory = model.body.encoder(model.states(ids[1:, :3]))
        states = model.body.decoder(model.states(alone), memory, tgt_mask=causal_mask(alone))
        best = (states @ model.embed.weight.T).argmax(-1)
    assert torch.equal(both[1:], alone)
    assert torch.equal(best[:, :-1], alone[:, 1:])


def test_all_runtimes_generate_the_requested_length(tmp_path):
    ids = torch.randint(4, TOY.vocab_size, (3, 16))
    for name, decode in decoders(TOY, "cpu", str(tmp_path)).items():
        assert [decode(ids, beams, 5) for beams in (1, 4)] == [15, 15], name


def test_results_are_written_atomically(tmp_path):
    results = [Result("train", OURS, "tokens/s", [1.0]), Result("train", "GPT-2", "tokens/s", [2.0])]
    for _ in range(2):
        write(results, "this machine", tmp_path / "run")
    written = json.loads((tmp_path / "run" / "benchmark.json").read_text())
    assert written == {"machine": "this machine", "results": [vars(result) for result in results]}
    assert "| train | GPT-2 | 2 tokens/s |" in (tmp_path / "run" / "benchmark.md").read_text()
    assert {path.suffix for path in (tmp_path / "run").iterdir()} == {".json", ".md"}


def test_an_error_keeps_earlier_measurements(monkeypatch, tmp_path):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarking.sections.classifiers", stop)
    sections = ["--sections", "language model", "classifier", "--precision", "fp32"]
    with pytest.raises(KeyboardInterrupt):
        benchmark.main(
            [*sections, "--quick", "true", "--threads", "1", "--phrases", "1000", "--output", str(tmp_path)]
        )
    written = json.loads((tmp_path / "benchmark.json").read_text())["results"]
    assert [result["model"] for result in written][:3] == [OURS, PACKED, "GPT-2"]


QUICK = ["--quick", "true", "--threads", "1", "--phrases", "1000"]


@pytest.mark.slow
def test_a_quick_run_measures_training(tmp_path):
    sections = ["train", "base", "language model", "classifier", "recipe"]
    results = benchmark.main([*QUICK, "--sections", *sections, "--precision", "fp32", "--output", str(tmp_path)])
    assert {result.section.split(",")[0] for result in results} == {"train", "recipe"}
    learned = [result for result in results if "BLEU" not in result.section]  # after six steps, BLEU is 0
    assert all(value > 0 for result in learned for value in result.values)
    assert (tmp_path / "recipe.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_quick_run_measures_decoding_memory_and_length(tmp_path):
    results = benchmark.main([*QUICK, "--sections", "decode", "memory", "length", "--output", str(tmp_path)])
    assert {"ours, CTranslate2", PACKED, "window of 64"} <= {result.model for result in results}
    assert all(value > 0 for result in results for value in result.values)


@pytest.mark.parametrize(("option", "value"), [("--sections", "speed"), ("--precision", "int4")])
def test_an_unknown_choice_is_rejected(option, value, capsys):
    with pytest.raises(SystemExit):
        benchmark.main([option, value])
    assert f"invalid choice: '{value}'" in capsys.readouterr().err


def test_peak_memory_counts_only_allocations_of_the_task():
    mib = 2**20
    held = torch.ones(2**26)  # 256 MiB that must not count, because the task does not allocate them
    assert peak_memory(lambda: torch.ones(mib // 4)) == mib
    assert peak_memory(lambda: torch.ones(mib // 4) + torch.ones(mib // 4)) == 3 * mib
    assert peak_memory(lambda: [torch.ones(mib // 4) for _ in range(4)][0]) == 4 * mib  # noqa: RUF015 (keep all four)
    assert held.sum() > 0


def test_the_chunked_loss_never_allocates_all_logits_at_once():
    size, rows, length = replace(TOY, vocab_size=32_000), 64, 24
    used = {result.model: result.median for result in measure_memory(size, rows, length)}
    logits = rows * length * size.vocab_size * 4 / 2**20
    assert used[OURS] > 2 * logits and used[PACKED] < used[OURS] / 2
