"""Test batching with a token budget, and packing documents into blocks."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq

from family import decoder_only, encoder_decoder
from vanilla_transformer.data.tokenizer import train_tokenizer
from vanilla_transformer.training.arguments import RecipeArguments
from vanilla_transformer.training.batching import (
    TokenBudgetSampler,
    TokenBudgetStream,
    pack_documents,
    row_lengths,
)
from vanilla_transformer.training.trainer import RecipeSeq2SeqTrainer


def lengths() -> np.ndarray:
    return np.random.default_rng(0).integers(1, 40, size=(500, 2))


def test_batches_contain_every_row_once_and_stay_within_the_budget():
    sampler = TokenBudgetSampler(lengths(), tokens_per_batch=200, seed=1)
    batches = list(sampler)
    assert sorted(row for batch in batches for row in batch) == list(range(500))
    assert len(batches) == len(sampler)
    # Padded sizes of the source and the target side of each batch
    padded = [len(batch) * lengths()[batch].max(axis=0) for batch in batches]
    assert np.max(padded) <= 200
    assert np.mean(np.max(padded, axis=1)) > 150  # most of the budget is used


def test_batches_differ_between_epochs_and_are_reproducible_within_an_epoch():
    sampler = TokenBudgetSampler(lengths(), 200)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    assert len(first) == len(second)
    sampler.set_epoch(0)
    assert list(sampler) == first


def ends_row_by_row(lengths: np.ndarray, budget: int) -> list[int]:
    """Return the ends of batches, filled one row at a time: a row that does not fit starts the next batch."""
    ends, start = [], 0
    for row in range(len(lengths)):
        if (row + 1 - start) * lengths[start : row + 1].max() > budget:
            ends.append(row)
            start = row
    return [*ends, len(lengths)]


@pytest.mark.parametrize("seed", range(20))
def test_batches_equal_those_of_a_row_by_row_implementation(seed):
    random = np.random.default_rng(seed)
    rows, sides = random.integers(1, 400), random.integers(1, 3)
    lengths = random.integers(0, random.integers(2, 60), size=(rows, sides)).astype(random.choice([np.int32, int]))
    budget = int(random.integers(max(lengths.max(), 1), 300))
    sampler = TokenBudgetSampler(lengths, budget)
    in_order = lengths[sampler.order(np.arange(rows))]
    assert sampler.ends == ends_row_by_row(in_order, budget)


def shares(processes: int, accumulation_steps: int = 1, **options) -> list[list[list[int]]]:
    """Return the batches of each process."""
    return [
        list(TokenBudgetSampler(lengths(), 400, 0, rank, processes, accumulation_steps, **options))
        for rank in range(processes)
    ]


@pytest.mark.parametrize(("processes", "accumulation_steps"), [(2, 1), (3, 1), (1, 2), (2, 2), (4, 2)])
def test_a_step_has_the_same_rows_for_any_number_of_devices_and_accumulation_steps(processes, accumulation_steps):
    alone = [sorted(batch) for batch in TokenBudgetSampler(lengths(), 400)]
    parts = shares(processes, accumulation_steps)
    steps = [
        [batch for share in parts for batch in share[start : start + accumulation_steps]]
        for start in range(0, len(parts[0]), accumulation_steps)
    ]
    together = [sorted(row for batch in step for row in batch) for step in steps]
    # A few steps may differ, because the longest rows of a batch can be too few to split evenly.
    assert len(together) == len(alone) and sum(a != b for a, b in zip(alone, together, strict=True)) < 6
    assert sorted(row for rows in together for row in rows) == list(range(500))
    for step in steps:  # the parts together fit the budget, and have about the same size
        sizes = [len(batch) * lengths()[batch].max(axis=0) for batch in step]
        assert np.max(np.sum(sizes, axis=0)) <= 400
        assert np.ptp([len(batch) for batch in step]) <= 1


def test_error_for_a_budget_too_small_for_the_processes_suggests_one_that_works():
    rows = np.full((30, 1), 9)
    with pytest.raises(ValueError, match=r"tokens_per_batch=64 .* 2 rows.* 2 processes x 4 .* such as to 144"):
        TokenBudgetSampler(rows, 64, 0, 0, 2, 4)
    assert len(TokenBudgetSampler(rows, 144, 0, 0, 2, 4)) == 2 * 4
    with pytest.raises(ValueError, match="give more rows, or accumulate"):
        TokenBudgetSampler(rows[:3], 64, 0, 0, 2, 4)


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_each_process_gets_the_same_number_of_batches_with_a_budget_per_device(processes):
    parts = shares(processes, per_device=True)
    assert len({len(share) for share in parts}) == 1
    assert sorted(row for share in parts for batch in share for row in batch) == list(range(500))


@pytest.mark.parametrize(("processes", "accumulation_steps"), [(1, 1), (2, 1), (2, 2)])
def test_batches_without_bucketing_contain_every_row_once_and_similar_token_counts(processes, accumulation_steps):
    samplers = [
        TokenBudgetSampler(lengths(), 400, 0, rank, processes, accumulation_steps, bucketing="none")
        for rank in range(processes)
    ]
    shared = [list(sampler) for sampler in samplers]
    assert {len(share) for share in shared} == {len(samplers[0])}
    assert all(batch for share in shared for batch in share)
    steps = [
        [row for share in shared for batch in share[start : start + accumulation_steps] for row in batch]
        for start in range(0, len(shared[0]), accumulation_steps)
    ]
    assert sorted(row for step in steps for row in step) == list(range(500))
    tokens = np.array([lengths()[step].max(axis=1).sum() for step in steps])
    # the sizes of batches differ by less than the longest row
    assert 360 < tokens.mean() <= 400 and np.abs(tokens - tokens.mean()).max() <= 39
    longest = [lengths()[step].max(axis=1).max() for step in steps]
    assert min(longest) > 30  # each step contains long rows
    alone = [sorted(batch) for batch in TokenBudgetSampler(lengths(), 400, bucketing="none")]
    assert sorted(alone) == sorted(map(sorted, steps))


def test_batches_without_bucketing_differ_between_epochs_but_not_in_number():
    sampler = TokenBudgetSampler(lengths(), 200, bucketing="none")
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert {frozenset(batch) for batch in first}.isdisjoint(map(frozenset, second))
    assert len(first) == len(second) == len(sampler)
    devices = shares(3, per_device=True, bucketing="none")
    assert {len(share) for share in devices} == {-(-int(lengths().max(axis=1).sum()) // 1200)}
    assert sorted(row for share in devices for batch in share for row in batch) == list(range(500))


def test_rows_too_long_for_batches_without_bucketing_raise_an_error():
    with pytest.raises(ValueError, match=r"=64 .* 30 rows.* bucketing=none .* 8 x 9, .*: raise it"):
        TokenBudgetSampler(np.full((30, 1), 9), 64, 0, 0, 2, 4, bucketing="none")


def test_a_row_longer_than_the_budget_raises_an_error():
    with pytest.raises(ValueError, match="Row 2 has 9 tokens, more than tokens_per_batch=8"):
        TokenBudgetSampler(np.array([[1, 2], [3, 1], [4, 9]]), 8)


def test_too_few_rows_for_the_processes_raise_an_error():
    with pytest.raises(ValueError, match=r"3 rows, each a batch of its own, .* 2 processes: raise tokens_per_batch=8"):
        TokenBudgetSampler(np.array([8, 8, 8]), 8, num_processes=2, per_device=True)


def test_row_lengths_are_in_the_order_of_the_dataset():
    rows = [[1] * n for n in (3, 1, 0, 4)]
    pairs = Dataset.from_dict({"input_ids": rows, "labels": [[1], [1, 2], [1, 2, 3], []]}).select([3, 1, 0])
    assert row_lengths(pairs).tolist() == [[4, 0], [1, 2], [3, 1]]
    assert row_lengths(pairs.with_format("torch")).tolist() == [[4, 0], [1, 2], [3, 1]]
    classes = Dataset.from_dict({"input_ids": rows, "labels": [0, 1, 0, 1]})
    assert row_lengths(classes).tolist() == [[3], [1], [0], [4]]
    several = Dataset.from_dict({"input_ids": rows, "labels": [[0.0, 1.0, 1.0, 0.0, 1.0]] * 4})
    assert row_lengths(several).tolist() == [[3], [1], [0], [4]]


def test_a_stream_is_bucketed_within_the_budget_and_repeated_forever():
    rows = [{"input_ids": [i] * a, "labels": [i] * b} for i, (a, b) in enumerate(lengths())]
    stream = TokenBudgetStream(Dataset.from_list(rows).to_iterable_dataset(), 200, seed=1, buffer_size=100)
    batches = iter(stream)
    first = []
    while sum(map(len, first)) < 500:
        first.append(next(batches))
    assert sorted(row["input_ids"][0] for batch in first for row in batch) == list(range(500))
    sizes = [len(batch) * max(len(row[side]) for row in batch for side in row) for batch in first]
    assert max(sizes) <= 200 and np.mean(sizes) > 140
    second = [next(batches) for _ in first]
    assert {row["input_ids"][0] for batch in second for row in batch} == set(range(500))
    assert first != second  # each pass over the stream is shuffled differently
    again = iter(TokenBudgetStream(stream.rows, 200, seed=1, buffer_size=100))
    assert [next(again) for _ in first] == first


def test_batches_of_a_stream_without_bucketing_mix_lengths():
    rows = [{"input_ids": [i] * a, "labels": [i] * b} for i, (a, b) in enumerate(lengths())]
    batches = iter(TokenBudgetStream(Dataset.from_list(rows).to_iterable_dataset(), 200, 1, 100, bucketing="none"))
    first = []
    while sum(map(len, first)) < 500:
        first.append(next(batches))
    assert sorted(row["input_ids"][0] for batch in first for row in batch) == list(range(500))
    tokens = [sum(max(map(len, row.values())) for row in batch) for batch in first]
    assert max(tokens) <= 239 and np.mean(tokens) > 170
    assert all(len({len(row["input_ids"]) for row in batch}) > 2 for batch in first[:-1])


def test_a_streamed_row_longer_than_the_budget_raises_an_error():
    rows = Dataset.from_dict({"input_ids": [[1, 2, 3]], "labels": [[1]]}).to_iterable_dataset()
    with pytest.raises(ValueError, match="A row has 3 tokens, more than the 2 of a batch"):
        next(iter(TokenBudgetStream(rows, 2)))


def test_multi_label_and_regression_targets_are_not_counted_as_tokens():
    rows = Dataset.from_dict({"input_ids": [[1, 2]] * 6, "labels": [[0.0, 1.0, 1.0, 0.0, 1.0]] * 6})
    batches = iter(TokenBudgetStream(rows.to_iterable_dataset(), 4))
    assert [len(next(batches)) for _ in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("given", ["a mask in the rows", "a padding option", "nothing"])
def test_token_budget_batches_use_the_collator_and_keep_extra_columns(given, tmp_path):
    model, tokenizer = encoder_decoder(), train_tokenizer(["a b c"] * 3, vocab_size=300)
    columns = {"input_ids": [[5, 6, 7], [8, 9], [9, 10]], "labels": [[5], [6, 7, 8], [9]]}
    if given == "a mask in the rows":
        columns["attention_mask"] = [[1, 1, 0], [0, 1], [1, 1]]
    collator = DataCollatorForSeq2Seq(tokenizer, model, pad_to_multiple_of=8 if given == "a padding option" else None)
    trainer = RecipeSeq2SeqTrainer(
        model=model,
        args=RecipeArguments(output_dir=str(tmp_path), tokens_per_batch=100, use_cpu=True),
        train_dataset=Dataset.from_dict(columns),
        data_collator=collator,
    )
    loader = trainer.get_train_dataloader()
    (numbers,) = loader.batch_sampler
    expected = collator([trainer.train_dataset[i] for i in numbers])
    (batch,) = loader
    assert batch.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(batch[name], values), name


def test_documents_are_packed_into_full_blocks():
    packed = pack_documents([[5, 6, 7], [], [8], [9, 10]], block_size=4, eos_token_id=2)
    assert packed["input_ids"] == [[5, 6, 7, 2], [8, 2, 9, 10]]
    assert packed["position_ids"] == [[0, 1, 2, 3], [0, 1, 0, 1]]
    assert packed["labels"] == [[-100, 6, 7, 2], [-100, 2, -100, 10]]


def test_positions_restart_when_a_document_continues_in_the_next_block():
    packed = pack_documents([[5, 6, 7, 8], [9, 10]], block_size=3, eos_token_id=None)
    assert packed["input_ids"] == [[5, 6, 7], [8, 9, 10]]
    assert packed["position_ids"] == [[0, 1, 2], [0, 0, 1]]
    assert packed["labels"] == [[-100, 6, 7], [-100, -100, 10]]


def test_losses_of_a_packed_block_equal_those_of_its_separate_documents():
    model = decoder_only(use_cache=False)
    documents = [[5, 6, 7, 8, 9], [10, 11, 12], [13, 14, 15, 16]]
    packed = {name: torch.tensor(rows) for name, rows in pack_documents(documents, 15, 2).items()}
    apart = [torch.tensor([[*document, 2]]) for document in documents]
    logits = model(input_ids=packed["input_ids"], position_ids=packed["position_ids"]).logits[0]
    torch.testing.assert_close(logits, torch.cat([model(ids).logits[0] for ids in apart]), atol=1e-5, rtol=1e-5)

    losses = torch.nn.functional.cross_entropy(logits[:-1], packed["labels"][0, 1:], reduction="none")
    expected = [
        torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none") for ids in apart
    ]
    torch.testing.assert_close(losses[losses > 0], torch.cat(expected))
    torch.testing.assert_close(model(**packed).loss, torch.cat(expected).mean())
