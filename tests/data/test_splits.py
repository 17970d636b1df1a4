"""Data is split into train, validation and test with the task's column names and without shared inputs."""

import json
import os
from pathlib import Path

import datasets
import pytest
from datasets import Dataset, DatasetDict
from transformers import AutoTokenizer, HfArgumentParser

from data_files import ANSWERED, NO_SPLIT, PAIRS, TAGGED, load, refused, write
from vanilla_transformer.cli import tokenizer as train_tokenizer
from vanilla_transformer.data import DataArguments, texts_of
from vanilla_transformer.data.phrasebook import TASKS
from vanilla_transformer.tasks import find_task


pytestmark = pytest.mark.usefixtures("own_folder")


def test_several_files_form_one_split():
    files = [write("a.jsonl", PAIRS[:5]), write("b.jsonl", PAIRS[5:])]
    assert load("translation", train_file=files, **NO_SPLIT)["train"].to_list() == PAIRS


def test_user_splits_are_used():
    files = {f"{s}_file": [write(f"{s}.jsonl", PAIRS[:n])] for s, n in (("train", 9), ("validation", 4), ("test", 3))}
    splits = load("translation", **files)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 9, "validation": 4, "test": 3}


def test_a_test_file_alone_is_accepted():
    assert list(load("translation", test_file=[write("test.jsonl", PAIRS)])) == ["test"]


@pytest.mark.parametrize("task", TASKS)
def test_phrasebook_data_is_valid_for_each_task(task):
    splits = load(task, phrases=1000)
    assert set(splits) == {"train", "validation", "test"}
    for rows in splits.values():
        assert set(rows.column_names) == set(find_task(task).data.columns)


def test_the_phrasebook_uses_the_requested_languages():
    text = " ".join(load("translation", phrases=1000, source_locale="hi", target_locale="en")["train"]["source"])
    assert "जनवरी" in text


def test_the_phrasebook_depends_on_the_seed():
    first, again, other = (load("regression", phrases=1000, data_split_seed=n)["train"][:] for n in (1, 1, 2))
    assert first == again != other


def test_columns_are_renamed_and_unused_columns_dropped():
    rows = [{"en": "a", "de": "b", "score": 1}]
    splits = load("translation", train_file=[write("a.jsonl", rows)], columns=["source=de", "target=en"], **NO_SPLIT)
    assert splits["train"].to_list() == [{"source": "b", "target": "a"}]


def test_columns_can_be_swapped():
    columns = ["source=target", "target=source"]
    splits = load("translation", train_file=[write("a.jsonl", PAIRS)], columns=columns, **NO_SPLIT)
    assert splits["train"][0] == {"source": "uno 0", "target": "one 0"}


def test_rows_are_held_out_reproducibly_if_there_is_no_validation_split():
    file = write("a.jsonl", PAIRS)
    first, again, other = (
        load("translation", train_file=[file], validation_fraction=0.25, data_split_seed=seed) for seed in (1, 1, 2)
    )
    assert {split: rows.to_list() for split, rows in first.items()} == {s: r.to_list() for s, r in again.items()}
    assert first["validation"].to_list() != other["validation"].to_list()
    assert len(first["validation"]) == 5
    together = first["train"].to_list() + first["validation"].to_list()
    assert sorted(row["source"] for row in together) == sorted(row["source"] for row in PAIRS)


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("translation", {"source": "one {}", "target": "uno {}"}),
        ("classification", {"text": "text {}", "label": "any"}),
        ("tagging", {"tokens": ["in", "place {}"], "tags": ["O", "O"]}),
        ("language_modeling", {"text": "text {}"}),
        ("question_answering", ANSWERED | {"question": "Where is {}?"}),
    ],
)
def test_rows_with_the_same_input_stay_in_the_same_split(task, row):
    """If the same input were in both splits, the score would reward memorisation."""
    rows = [json.loads(json.dumps(row).replace("{}", str(i % 40))) for i in range(120)]
    rows[0] |= {"target": "another translation"} if task == "translation" else {}
    files = {"train_file": [write("a.jsonl", rows)], "validation_fraction": 0.1}
    splits, again = (load(task, **files) for _ in range(2))
    name = next(iter(row))
    assert len(splits["train"]) == 108 and len(splits["validation"]) == 12
    held_out = [str(value) for value in splits["validation"][name]]
    assert not {*held_out} & {str(value) for value in splits["train"][name]} and len({*held_out}) == 4
    assert held_out == [str(value) for value in again["validation"][name]]
    # rows are shuffled, because --max_eval_samples selects the first ones
    assert held_out != sorted(held_out, key=held_out.index)


def test_the_only_example_of_a_class_stays_in_training():
    rows = [{"text": f"text {i}", "label": "rare" if i == 7 else "common"} for i in range(10)]
    file = write("a.jsonl", rows)
    for seed in range(10):
        splits = load("classification", train_file=[file], validation_fraction=0.5, data_split_seed=seed)
        assert "rare" in splits["train"]["label"][:]
        assert len(splits["train"]) + len(splits["validation"]) == 10


def test_the_end_of_a_single_document_is_held_out():
    text = "First line.\n\n" + "abcdefghij" * 100
    splits = load("language_modeling", train_file=[write("book.txt", text)], validation_fraction=0.1)
    assert splits["train"]["text"][:] == [text[: int(len(text) * 0.9)]]
    assert splits["validation"]["text"][:] == [text[int(len(text) * 0.9) :]]


def test_max_samples_limits_the_number_of_rows():
    splits = load("translation", train_file=[write("a.jsonl", PAIRS)], max_train_samples=10, max_eval_samples=3)
    assert len(splits["train"]) + len(splits["validation"]) == 10
    splits = load("translation", test_file=["a.jsonl"], max_eval_samples=3)
    assert splits["test"].to_list() == PAIRS[:3]
    assert len(load("translation", test_file=["a.jsonl"], max_eval_samples=300)["test"]) == 20


def test_streamed_splits_are_reproducible_and_cover_the_stream():
    texts = [f"document {i}" for i in range(400)] + ["", " "]
    file = write("a.jsonl", [{"story": text} for text in texts])
    options = {"train_file": [file], "columns": ["text=story"], "streaming": True, "validation_fraction": 0.25}
    splits = load("language_modeling", **options)
    assert isinstance(splits["train"], datasets.IterableDataset)
    train, validation = ([row["text"] for row in splits[split]] for split in ("train", "validation"))
    assert sorted(train + validation) == sorted(texts[:400])
    assert 60 < len(validation) < 140
    assert validation == [row["text"] for row in load("language_modeling", **options)["validation"]]
    other = load("language_modeling", **options, data_split_seed=1)["validation"]
    assert validation != [row["text"] for row in other]


@pytest.mark.parametrize("rows", [2, 7, 99])
def test_a_short_stream_holds_out_at_least_one_row(rows):
    pairs = [{"source": f"one {i}", "target": f"uno {i}"} for i in range(rows)]
    file = write("a.jsonl", pairs)
    for fraction, seed in ((0.001, 0), (0.4, 1), (0.4, 2)):
        options = {"streaming": True, "validation_fraction": fraction, "data_split_seed": seed}
        splits = load("translation", train_file=[file], **options)
        assert isinstance(splits["validation"], datasets.IterableDataset)
        train, validation = (list(splits[split]) for split in ("train", "validation"))
        assert train and validation
        assert sorted(row["source"] for row in train + validation) == sorted(row["source"] for row in pairs)


def test_parallel_files_can_be_streamed():
    files = [write("a.en", "".join(f"one {i}\n" for i in range(20))), write("a.es", "uno\n" * 20)]
    splits = load("translation", train_file=files, streaming=True, validation_fraction=0.25)
    assert isinstance(splits["train"], datasets.IterableDataset)
    rows = [row for split in ("train", "validation") for row in splits[split]]
    assert sorted(row["source"] for row in rows) == sorted(f"one {i}" for i in range(20))
    assert {row["target"] for row in rows} == {"uno"}


def test_a_stream_can_begin_with_skipped_rows():
    rows = [{"source": "a", "target": ""}] * 250 + PAIRS
    options = {"streaming": True, "drop_empty": True, **NO_SPLIT}
    assert list(load("translation", train_file=[write("a.jsonl", rows)], **options)["train"]) == PAIRS
    columns = ["source=source", "target=number"]
    numbers = [{"source": " ", "number": 1}] * 250 + [{"source": "a", "number": 1}] * 2
    file = write("b.jsonl", numbers)
    refused("translation", "b.jsonl, row 251: target is 1; it must be", train_file=[file], columns=columns, **options)


def test_every_option_is_parsed_and_documented():
    parser = HfArgumentParser(DataArguments)
    (parsed,) = parser.parse_args_into_dataclasses(
        "--train_file a.en a.de --columns source=en target=de --streaming --sample_by line".split()
    )
    assert (parsed.train_file, parsed.columns, parsed.sample_by) == (
        ["a.en", "a.de"],
        ["source=en", "target=de"],
        "line",
    )
    assert parsed.streaming
    assert all(action.help for action in parser._actions)


def test_tokenizer_training_texts_include_every_text_column_and_joined_tokens():
    assert list(texts_of(Dataset.from_list(TAGGED), find_task("tagging").data)) == [" in Norway", " now"]
    assert list(texts_of(Dataset.from_list(PAIRS[:1]), find_task("translation").data)) == ["one 0", "uno 0"]
    assert list(texts_of(Dataset.from_list([ANSWERED]), find_task("question_answering").data)) == [
        "Where?",
        "In Norway.",
    ]


def test_the_tokenizer_command_saves_a_tokenizer_and_reports_statistics(capsys):
    options = "--task tagging --phrases 1000 --vocab_size 500 --output_dir out".split()
    train_tokenizer.main(options)
    tokenizer = AutoTokenizer.from_pretrained("out")
    assert tokenizer.mask_token_id == 3
    printed = capsys.readouterr().out
    assert f"out: {len(tokenizer)} tokens" in printed
    texts = list(texts_of(load("tagging", phrases=1000)["test"], find_task("tagging").data))
    tokens = sum(len(tokenizer.tokenize(text)) for text in texts)
    size = len("".join(texts).encode())
    assert f"test: {tokens / len(texts):.2f} tokens per text, {size / tokens:.2f} bytes per token" in printed
    with pytest.raises(ValueError, match="output_dir=out is not empty"):
        train_tokenizer.main(options)
    train_tokenizer.main([*options, "--overwrite", "--template", "causal", "--tokenizer_kind", "character"])
    assert AutoTokenizer.from_pretrained("out").mask_token is None


# --- Real data sets, if VANILLA_TRANSFORMER_DATA is set to their folder

DATA = os.environ.get("VANILLA_TRANSFORMER_DATA")
ROWS = {
    "multi30k_en_de": ("translation", ["source=en", "target=de"], (29000, 1014, 1000)),
    "sst2": ("classification", ["text=sentence"], (6920, 872, 1821)),
    "clear_readability": ("regression", [], (3780, 472, 472)),
    "wnut17": ("tagging", ["tags=ner_tags"], (3394, 1009, 1287)),
}
needs_data = pytest.mark.skipif(not DATA, reason="set VANILLA_TRANSFORMER_DATA to the folder of the data sets")


@needs_data
@pytest.mark.parametrize("name", ROWS)
def test_real_data_sets_are_loaded_completely(name):
    task, columns, sizes = ROWS[name]
    files = {f"{s}_file": [f"{DATA}/{name}/{s}.jsonl.gz"] for s in ("train", "validation", "test")}
    splits = load(task, columns=columns, **files)
    assert isinstance(splits, DatasetDict)
    assert tuple(len(rows) for rows in splits.values()) == sizes
    assert set(splits["train"].column_names) == set(find_task(task).data.columns)


@needs_data
def test_real_text_is_split_as_in_nanogpt():
    file = Path(DATA, "tinyshakespeare/input.txt")
    splits = load("language_modeling", train_file=[str(file)], validation_fraction=0.1)
    text = file.read_text(encoding="utf-8")
    assert splits["train"][0]["text"] == text[:1_003_854]
    assert splits["validation"][0]["text"] == text[1_003_854:]
