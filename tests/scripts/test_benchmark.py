"""The benchmark counts correctly and compares like with like. No test asserts a speed."""

import copy
import json
import math
from functools import partial

import pytest
import torch

import benchmark
from benchmarking.costs import step_memory
from benchmarking.decoding import decoders
from benchmarking.peers import TOY, causal_mask, classifiers, compiled, language_models, translators
from benchmarking.processes import call_fresh
from benchmarking.recipe import (
    OURS,
    PEER,
    PEER_DEFAULTS,
    PEER_SIMILAR,
    SEED_RUN,
    TORCH_SIMILAR,
    Point,
    TorchTranslator,
    measure_recipe,
    rates,
    results_of,
    run_all,
    seconds_to,
)
from benchmarking.results import PACKED, Result, rows_of, write
from benchmarking.sections import SECTIONS, BenchmarkArguments
from benchmarking.timing import Machine, exponent, in_turns
from benchmarking.training import Batches, Trainee, block, real_lengths
from family import right_padded
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.decoding import translate


CPU = Machine("cpu", threads=1)


@pytest.fixture(scope="module")
def batches():
    return Batches(real_lengths(DataArguments(phrases=1000)), TOY.vocab_size, rows=8)


def test_padding_is_not_counted_as_tokens(batches):
    inputs, tokens = batches.pair(0)
    real = (inputs["input_ids"] != 0).sum() + (inputs["labels"] != -100).sum()
    assert tokens == real < inputs["input_ids"].numel() + inputs["labels"].numel()
    assert torch.equal(inputs["attention_mask"], (inputs["input_ids"] != 0).long())
    sentences, tokens = batches.sentences(1)
    assert tokens == sentences["attention_mask"].sum() and sentences["labels"].shape == (8,)


@pytest.mark.parametrize(
    "makers", [translators(TOY), language_models(TOY, 16), classifiers(TOY)], ids=["seq2seq", "causal", "encoder"]
)
def test_peers_have_the_same_layers_as_our_model(makers):
    """The weights of embedding and layers are equal, apart from biases, positions and the peers' own heads."""
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
def test_all_models_compute_the_loss_of_the_same_batches(batches, precision):
    """Untrained models give about even probabilities, so all must compute the same loss."""
    for makers, batch in (
        (translators(TOY), batches.pair(0)),
        (language_models(TOY, 16), block(TOY.vocab_size, 4, 16)),
    ):
        for name, make in makers.items():
            loss = Trainee(make(), [batch], CPU, precision).loss(batch[0]).item()
            assert loss == pytest.approx(math.log(TOY.vocab_size), rel=0.25), name


@pytest.mark.parametrize("packing", [False, True])
def test_compiled_layers_give_the_same_results_for_any_length(batches, packing):
    """Graph breaks would raise an error. Only a GPU shows what the compiler gains."""
    torch.manual_seed(0)
    plain = translators(TOY)[OURS]().eval()
    twin = compiled(copy.deepcopy(plain), packing, backend="eager")
    for number in range(3):
        inputs, _ = batches.pair(number)
        torch.testing.assert_close(twin(**inputs).loss, plain(**inputs).loss)


def test_gpu_sections_are_refused_without_a_gpu(monkeypatch):
    assert BenchmarkArguments(device="cpu").sections == list(SECTIONS)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="--device cuda: PyTorch finds no CUDA"):
        BenchmarkArguments(device="cuda")


def test_models_are_timed_in_alternating_order_after_a_warm_up():
    calls = []

    def task(name: str):
        return lambda: calls.append(name) or 10.0

    rates = in_turns(CPU, {"a": task("a"), "b": task("b")}, rounds=3)
    assert calls == list("ababbaab")
    assert [len(values) for values in rates.values()] == [3, 3] and min(rates["a"]) > 0


def test_a_step_trains_and_returns_its_token_count(batches):
    trainee = Trainee(translators(TOY)[OURS](), [batches.pair(0)], CPU, "fp32")
    before = trainee.loss(trainee.batches[0][0]).item()
    assert all(trainee() == trainee.batches[0][1] for _ in range(40))
    assert trainee.loss(trainee.batches[0][0]).item() < before


def test_ratios_compare_medians_with_our_model_padded_and_packed():
    results = [
        Result("x", OURS, "tokens/s", [1.0, 3.0, 2.0]),
        Result("x", PACKED, "tokens/s", [6.0, 5.0, 9.0]),
        Result("x", "peer", "tokens/s", [4.0, 4.0, 4.0]),
        Result("y", "peer", "tokens/s", [4.0]),
    ]
    assert [row[4] for row in rows_of(results)] == ["1.00", "0.33", "0.50", ""]
    assert [row[5] for row in rows_of(results)] == ["3.00", "1.00", "1.50", ""]


def test_spread_is_half_the_interquartile_range_over_the_median():
    assert Result("x", "y", "tokens/s", [1.0, 2.0, 3.0, 4.0, 5.0]).spread == pytest.approx((4.5 - 1.5) / 2 / 3)


def test_growth_is_the_exponent_of_the_length():
    lengths = [128, 256, 512, 1024]
    assert exponent(lengths, [3 * n**2 for n in lengths]) == pytest.approx(2)
    assert exponent(lengths, [0.1 * n**1.1 for n in lengths]) == pytest.approx(1.1)


def test_the_time_to_a_score_is_interpolated_between_evaluations():
    points = [Point(0, 0, 0, 6.0, 0.0), Point(10, 100, 150, 4.0, 20.0), Point(20, 300, 450, 3.0, 40.0)]
    assert [seconds_to(loss, points, "loss") for loss in (7.0, 5.0, 3.5)] == [0, 5, 15]
    assert [seconds_to(bleu, points, "bleu") for bleu in (0.0, 10.0, 30.0)] == [0, 5, 15]
    assert seconds_to(2.0, points, "loss") == seconds_to(41.0, points, "bleu") == math.inf
    assert rates(points) == [10, 20]


@pytest.fixture
def short_translations(monkeypatch):
    """Force the longest outputs: an untrained model never ends, and no result here depends on the text."""
    monkeypatch.setattr("benchmarking.recipe.translate", partial(translate, extra_tokens=0))


@pytest.mark.usefixtures("short_translations")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recipe_runs_share_data_and_differ_in_their_batching(precision):
    curves = dict(run_all(DataArguments(phrases=1000), TOY, 3, 8, precision, CPU))
    last = {name: points[-1] for name, points in curves.items()}
    assert last[OURS].tokens == last[PEER].tokens  # the same batches
    assert last[PEER_SIMILAR].tokens == last[TORCH_SIMILAR].tokens
    filled = {name: point.tokens / point.positions for name, point in last.items()}
    assert filled[PEER] < filled[PEER_SIMILAR] > filled[PEER_DEFAULTS]
    assert all(points[0].tokens == 0 and len(points) == 4 for points in curves.values())


@pytest.mark.usefixtures("short_translations")
def test_recipe_curves_before_an_error_are_kept(monkeypatch, tmp_path):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(TorchTranslator, "__init__", stop)
    with pytest.raises(KeyboardInterrupt):
        measure_recipe(DataArguments(phrases=1000), TOY, 2, 8, "fp32", CPU, tmp_path)
    assert [*json.loads((tmp_path / "recipe.json").read_text())] == [OURS, SEED_RUN, PEER_DEFAULTS, PEER, PEER_SIMILAR]
    assert (tmp_path / "recipe.png").stat().st_size > 1000


def test_runs_are_compared_at_the_best_score_of_the_peers():
    """The peer needs 100 s from loss 8 to loss 4 and BLEU 20; ours reaches loss 4 at 20 s and BLEU 20 at 40 s."""

    def curve(*points: tuple[float, float, float]) -> list[Point]:
        return [Point(seconds, int(10 * seconds), int(20 * seconds), loss, bleu) for seconds, loss, bleu in points]

    results = results_of(
        {
            OURS: curve((0, 8, 0), (20, 4, 10), (40, 2, 20), (60, 1.5, 25)),
            PEER: curve((0, 8, 0), (50, 6, 10), (100, 4, 20)),
            TORCH_SIMILAR: curve((0, 8, 0), (50, 7, 1), (100, 6.5, 2)),
        },
        steps=9,
    )
    found = {(result.section, result.model): result.values[0] for result in results if result.unit == "seconds"}
    assert found == pytest.approx({
        ("recipe, to validation loss 6.00", OURS): 10, ("recipe, to validation loss 6.00", PEER): 50,
        ("recipe, to validation loss 4.40", OURS): 18, ("recipe, to validation loss 4.40", PEER): 90,
        ("recipe, to validation loss 4.00", OURS): 20, ("recipe, to validation loss 4.00", PEER): 100,
        ("recipe, to BLEU 10.0", OURS): 20, ("recipe, to BLEU 10.0", PEER): 50,
        ("recipe, to BLEU 18.0", OURS): 36, ("recipe, to BLEU 18.0", PEER): 90,
        ("recipe, to BLEU 20.0", OURS): 40, ("recipe, to BLEU 20.0", PEER): 100,
    })  # fmt: skip
    assert {result.note for result in results if result.unit == "seconds"} == {f"not reached: {TORCH_SIMILAR}"}
    assert [result.values[0] for result in results if result.section == "recipe, BLEU after 9 steps"] == [25, 20, 2]


def test_greedy_decoding_of_torchs_transformer_is_right():
    """The tokens that it generates for one row are its best predictions when it reads them in a batch."""
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
    ids = torch.randint(4, TOY.vocab_size - 1, (3, 16))
    for name, decode in decoders(TOY, CPU, tmp_path).items():
        if not name.endswith("compiled"):  # because it takes long
            assert [decode(ids, beams, 5) for beams in (1, 4)] == [15, 15], name


def test_results_are_written_atomically(tmp_path):
    results = [Result("train", OURS, "tokens/s", [1.0]), Result("train", "GPT-2", "tokens/s", [2.0])]
    for _ in range(2):
        write(results, "this machine", tmp_path / "run")
    written = json.loads((tmp_path / "run" / "benchmark.json").read_text())
    assert written == {"machine": "this machine", "results": [vars(result) for result in results]}
    assert "| train | GPT-2 | 2 tokens/s |" in (tmp_path / "run" / "benchmark.md").read_text()
    assert {path.suffix for path in (tmp_path / "run").iterdir()} == {".json", ".md", ".png"}


def test_measurements_before_an_error_are_kept(monkeypatch, tmp_path):
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
    learned = [result for result in results if "BLEU" not in result.section]  # zero in six steps
    assert all(value > 0 for result in learned for value in result.values)
    assert (tmp_path / "recipe.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_quick_run_measures_the_sections_with_processes_and_a_compiler(tmp_path):
    results = benchmark.main(
        [*QUICK, "--sections", "decode", "memory", "length", "startup", "--output", str(tmp_path)]
    )
    assert {"ours, compiled", "Marian, CTranslate2", PACKED, "window of 64", "its first answer"} <= {
        result.model for result in results
    }
    assert all(value > 0 for result in results if "growth" not in result.section for value in result.values)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("sections", "speed", "sections='speed' must be among: train"),
        ("precision", "int4", "precision='int4' must be"),
    ],
)
def test_an_unknown_choice_is_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        BenchmarkArguments(**{field: [value]})


@pytest.mark.slow
def test_measured_memory_excludes_what_the_process_already_holds():
    held = torch.ones(2**28)  # hold 1 GiB, more than the step needs
    vocabulary, rows, length = 32_000, 64, 24
    size = [256, 1024, 4, 3, vocabulary]
    grown = {chunk: call_fresh(step_memory, OURS, size, chunk, rows, length, "cpu", 1) for chunk in (0, 128)}
    logits = rows * length * vocabulary * 4
    assert grown[0] > 2 * logits and grown[128] < grown[0] / 2 and held.sum() > 0
