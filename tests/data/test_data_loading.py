"""Data from every source under the same names, and faults found before training, with the file and the row."""

import csv
import gzip
import json
import os
from itertools import islice
from pathlib import Path

import datasets
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from transformers import AutoTokenizer, HfArgumentParser

from fresh_process import UNDER_WATCH, run_fresh
from vanilla_transformer.cli import tokenizer as train_tokenizer
from vanilla_transformer.data.checks import COLUMNS
from vanilla_transformer.data.phrasebook import TASKS
from vanilla_transformer.data.sources import DataArguments
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.data.tokenizer import train_tokenizer as new_tokenizer
from vanilla_transformer.tasks.translation import encode_pairs


PAIRS = [{"source": f"one {i}", "target": f"uno {i}"} for i in range(20)]
# Texts that readers like to take for something else.
ODD = [
    {"source": text, "target": "x"} for text in ("NA", "null", 'say "no", twice', "café\u2028", "हिन्दी", "two\nlines")
]
TAGGED = [{"tokens": ["in", "Norway"], "tags": ["O", "B-PLACE"]}, {"tokens": ["now"], "tags": ["O"]}]
ANSWERED = {"question": "Where?", "context": "In Norway.", "answers": {"text": ["Norway"], "answer_start": [3]}}
NO_SPLIT = {"validation_fraction": 0}


@pytest.fixture(autouse=True)
def own_folder_without_network(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)


def write(name, content):
    """A file in the working directory: text, bytes, or rows in the format that its name says."""
    path = Path(name)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8", newline="")
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, content[0].keys())
            writer.writeheader()
            writer.writerows(content)
    elif path.suffix == ".parquet":
        Dataset.from_list(content).to_parquet(name)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    return name


def compressed(name):
    Path(f"{name}.gz").write_bytes(gzip.compress(Path(name).read_bytes()))
    return f"{name}.gz"


def load(task, **options):
    return load_splits(DataArguments(**options), task)


def refused(task, message, **options):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load(task, **options)


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.json", "pairs.csv", "pairs.parquet"])
def test_tables_of_every_format_give_their_rows(name):
    assert load("translation", train_file=[write(name, PAIRS + ODD)], **NO_SPLIT)["train"].to_list() == PAIRS + ODD


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.csv"])
def test_gzipped_tables_give_their_rows(name):
    assert load("translation", train_file=[compressed(write(name, PAIRS))], **NO_SPLIT)["train"].to_list() == PAIRS


@pytest.mark.parametrize("names", [("train.en", "train.es"), ("en.txt", "es.txt")])
@pytest.mark.parametrize("pack", [str, compressed])
def test_parallel_files_pair_their_lines(names, pack):
    source, target = "one\u2028\x85\rmore\r\ntwo\n  three ", "uno\r\ndos\n tres\n"
    files = [pack(write(names[0], source)), pack(write(names[1], target))]
    rows = load("translation", train_file=files, **NO_SPLIT)["train"]
    assert rows["source"][:] == ["one\u2028\x85\rmore", "two", "  three "]
    assert rows["target"][:] == ["uno", "dos", " tres"]


def test_several_files_are_one_split():
    files = [write("a.jsonl", PAIRS[:5]), write("b.jsonl", PAIRS[5:])]
    assert load("translation", train_file=files, **NO_SPLIT)["train"].to_list() == PAIRS


@pytest.mark.parametrize("streaming", [False, True])
def test_files_of_several_formats_are_one_split(streaming):
    files = [write(f"a.{kind}", PAIRS[:5]) for kind in ("csv", "jsonl", "parquet")]
    rows = load("translation", train_file=files, streaming=streaming, **NO_SPLIT)["train"]
    assert list(rows) == PAIRS[:5] * 3
    write("a.txt", "a line\n")
    files = [write("b.csv", [{"text": "a text"}] * 2), *["a.txt"] * 2]
    rows = load("language_modeling", train_file=files, sample_by="line", **NO_SPLIT)["train"]
    assert [row["text"] for row in rows] == ["a text", "a text", "a line", "a line"]


def test_lists_of_large_texts_join_those_of_others():
    large = Features(tokens=datasets.LargeList(Value("large_string")), tags=List(Value("large_string")))
    Dataset.from_list(TAGGED, features=large).to_parquet("a.parquet")
    files = ["a.parquet", write("b.jsonl", TAGGED)]
    assert load("tagging", train_file=files, **NO_SPLIT)["train"].to_list() == TAGGED * 2


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("pack", [str, compressed])
def test_between_tabs_quotes_are_characters_as_any_others(pack, streaming):
    pairs = [('"Yes," he said.', '"Sí", dijo.'), ('say "no', "NA"), ("007", "1.5"), ('"open', "end"), ("a, b", 'a "')]
    lines = [("es", "extra", "en"), *((target, "1", source) for source, target in pairs)]
    file = pack(write("a.tsv", "\ufeff" + "".join("\t".join(line) + "\r\n" for line in lines)))
    options = {"train_file": [file], "columns": ["source=en", "target=es"], "streaming": streaming, **NO_SPLIT}
    assert [(row["source"], row["target"]) for row in load("translation", **options)["train"]] == pairs


def test_classes_and_numbers_between_tabs_are_as_in_a_csv_file():
    file = write("a.tsv", "text\tlabel\n" + "a\t7\n" * 10_000 + "b\tother\n")
    assert load("classification", train_file=[file], **NO_SPLIT)["train"]["label"][-2:] == ["7", "other"]
    file = write("b.tsv", "text\tlabel\na\t007\nb\t7\n")
    refused("classification", "b.tsv: label has '007' and '7', which a TSV file's", train_file=[file], **NO_SPLIT)


def test_names_of_files_may_be_in_capitals():
    assert load("translation", train_file=[write("A.JSONL", PAIRS)] * 2, **NO_SPLIT)["train"].to_list() == PAIRS * 2


@pytest.mark.parametrize("streaming", [False, True])
def test_texts_of_a_csv_file_may_be_numerals(streaming):
    pairs = [{"source": "007", "target": "zero zero seven"}, {"source": "1.50", "target": "1e3"}]
    file = write("a.csv", pairs)
    assert list(load("translation", train_file=[file], streaming=streaming, **NO_SPLIT)["train"]) == pairs


@pytest.mark.parametrize(("task", "labels"), [("classification", [0, 1]), ("regression", [0.0, 1.0])])
def test_numerals_are_texts_in_a_column_of_texts_and_numbers_in_one_of_labels(task, labels):
    file = write("a.csv", "house,sold\n007,0\n12,1\n")
    rows = load(task, train_file=[file], columns=["text=house", "label=sold"], **NO_SPLIT)["train"]
    assert rows["text"][:] == ["007", "12"] and rows["label"][:] == labels


@pytest.mark.parametrize(
    ("task", "last", "labels"), [("regression", "0.5", [1.0, 0.5]), ("classification", "other", ["1", "other"])]
)
def test_a_column_may_change_its_type_behind_the_rows_that_are_read_first(task, last, labels):
    file = write("a.csv", "number,text,label\n" + "7,08,1\n" * 10_000 + f"7,b,{last}\n")
    train = load(task, train_file=[file], **NO_SPLIT)["train"]
    assert train["label"][9_999:] == labels and train["text"][9_999:] == ["08", "b"]
    columns = ["text=text", "label=number"]
    assert load("classification", train_file=[file], columns=columns, **NO_SPLIT)["train"]["label"][-1] == 7


def test_the_splits_are_those_that_the_user_gives():
    files = {f"{s}_file": [write(f"{s}.jsonl", PAIRS[:n])] for s, n in (("train", 9), ("validation", 4), ("test", 3))}
    splits = load("translation", **files)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 9, "validation": 4, "test": 3}


def test_a_test_file_alone_is_enough_to_evaluate():
    assert list(load("translation", test_file=[write("test.jsonl", PAIRS)])) == ["test"]


@pytest.mark.parametrize("task", TASKS)
def test_the_phrasebook_has_the_columns_and_no_fault(task):
    splits = load(task, phrases=1000)
    assert set(splits) == {"train", "validation", "test"}
    for rows in splits.values():
        assert set(rows.column_names) == set(COLUMNS[task])


def test_the_phrasebook_speaks_the_languages_asked_for():
    text = " ".join(load("translation", phrases=1000, source_locale="hi", target_locale="en")["train"]["source"])
    assert "जनवरी" in text


def test_the_phrasebook_follows_the_seed():
    first, again, other = (load("regression", phrases=1000, data_split_seed=n)["train"][:] for n in (1, 1, 2))
    assert first == again != other


def test_user_columns_get_the_names_of_the_task_and_others_go():
    rows = [{"en": "a", "de": "b", "score": 1}]
    splits = load("translation", train_file=[write("a.jsonl", rows)], columns=["source=de", "target=en"], **NO_SPLIT)
    assert splits["train"].to_list() == [{"source": "b", "target": "a"}]


def test_columns_can_be_swapped():
    columns = ["source=target", "target=source"]
    splits = load("translation", train_file=[write("a.jsonl", PAIRS)], columns=columns, **NO_SPLIT)
    assert splits["train"][0] == {"source": "uno 0", "target": "one 0"}


@pytest.mark.parametrize(
    "feature", [{"en": Value("string"), "de": Value("string")}, datasets.Translation(["en", "de"])]
)
def test_a_member_of_a_nested_column_is_a_column(feature):
    rows = [{"translation": {"en": "a", "de": "b"}}]
    Dataset.from_list(rows, features=Features(translation=feature)).to_parquet("wmt.parquet")
    columns = ["source=translation.de", "target=translation.en"]
    splits = load("translation", train_file=["wmt.parquet"], columns=columns, **NO_SPLIT)
    assert splits["train"].to_list() == [{"source": "b", "target": "a"}]


def save_data_set(**splits):
    """A folder that `load_dataset` reads as it reads a data set on the Hub."""
    Path("data_set/data").mkdir(parents=True)
    for split, rows in splits.items():
        rows.to_parquet(f"data_set/data/{split}-00000-of-00001.parquet")
    return "data_set"


def test_a_data_set_gives_its_splits_by_name():
    names = {"train": 5, "validation_matched": 3, "test": 2}
    folder = save_data_set(**{split: Dataset.from_list(PAIRS[:n]) for split, n in names.items()})
    splits = load("translation", dataset=folder, splits=["validation=validation_matched", "test=none"])
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 5, "validation": 3}
    refused("translation", "no split 'dev'; it has: .*validation_matched", dataset=folder, splits=["validation=dev"])


def test_numbered_classes_get_their_names():
    features = Features(text=Value("string"), label=ClassLabel(names=["bad", "good"]))
    rows = Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    assert load("classification", dataset=save_data_set(train=rows), **NO_SPLIT)["train"]["label"][:] == [
        "good",
        "bad",
    ]


def test_numbered_tags_get_their_names():
    features = Features(tokens=List(Value("string")), tags=List(ClassLabel(names=["O", "B-PLACE"])))
    rows = Dataset.from_dict({"tokens": [["in", "Oslo"], ["so"]], "tags": [[0, 1], [0]]}, features=features)
    tags = load("tagging", dataset=save_data_set(train=rows), **NO_SPLIT)["train"]["tags"][:]
    assert tags == [["O", "B-PLACE"], ["O"]]


def test_a_withheld_label_is_refused():
    features = Features(text=Value("string"), label=ClassLabel(names=["bad", "good"]))
    rows = Dataset.from_dict({"text": ["a", "b"], "label": [1, -1]}, features=features)
    refused("classification", "data_set train, row 2: label: .*withheld", dataset=save_data_set(train=rows))


def test_rows_are_held_out_by_seed_where_there_is_no_validation_split():
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
def test_rows_with_the_same_input_are_held_out_together(task, row):
    """The same sentence on both sides would make the score of what was learned by heart."""
    rows = [json.loads(json.dumps(row).replace("{}", str(i % 40))) for i in range(120)]
    rows[0] |= {"target": "another translation"} if task == "translation" else {}
    files = {"train_file": [write("a.jsonl", rows)], "validation_fraction": 0.1}
    splits, again = (load(task, **files) for _ in range(2))
    name = next(iter(row))
    assert len(splits["train"]) == 108 and len(splits["validation"]) == 12
    held_out = [str(value) for value in splits["validation"][name]]
    assert not {*held_out} & {str(value) for value in splits["train"][name]} and len({*held_out}) == 4
    assert held_out == [str(value) for value in again["validation"][name]]
    assert held_out != sorted(held_out, key=held_out.index)  # mixed, as what --max_eval_samples takes first should be


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


@pytest.mark.parametrize(("sample_by", "documents"), [("line", 3), ("paragraph", 2), ("document", 1)])
def test_a_text_file_has_the_documents_asked_for(sample_by, documents):
    file = write("book.txt", "a\nb\n\nc\n")
    assert len(load("language_modeling", train_file=[file], sample_by=sample_by, **NO_SPLIT)["train"]) == documents


def test_fewer_rows_are_used_on_request():
    splits = load("translation", train_file=[write("a.jsonl", PAIRS)], max_train_samples=10, max_eval_samples=3)
    assert len(splits["train"]) + len(splits["validation"]) == 10
    splits = load("translation", test_file=["a.jsonl"], max_eval_samples=3)
    assert splits["test"].to_list() == PAIRS[:3]
    assert len(load("translation", test_file=["a.jsonl"], max_eval_samples=300)["test"]) == 20


def test_a_stream_is_read_as_it_comes_and_its_halves_are_all_of_it():
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
def test_a_stream_of_few_rows_holds_out_one_of_them_at_least(rows):
    pairs = [{"source": f"one {i}", "target": f"uno {i}"} for i in range(rows)]
    file = write("a.jsonl", pairs)
    for fraction, seed in ((0.001, 0), (0.4, 1), (0.4, 2)):
        options = {"streaming": True, "validation_fraction": fraction, "data_split_seed": seed}
        splits = load("translation", train_file=[file], **options)
        assert isinstance(splits["validation"], datasets.IterableDataset)
        train, validation = (list(splits[split]) for split in ("train", "validation"))
        assert train and validation
        assert sorted(row["source"] for row in train + validation) == sorted(row["source"] for row in pairs)


def test_parallel_files_stream_as_their_pairs():
    files = [write("a.en", "".join(f"one {i}\n" for i in range(20))), write("a.es", "uno\n" * 20)]
    splits = load("translation", train_file=files, streaming=True, validation_fraction=0.25)
    assert isinstance(splits["train"], datasets.IterableDataset)
    rows = [row for split in ("train", "validation") for row in splits[split]]
    assert sorted(row["source"] for row in rows) == sorted(f"one {i}" for i in range(20))
    assert {row["target"] for row in rows} == {"uno"}


def test_parallel_files_are_read_once_and_anew_when_they_change():
    files = [write("a.en", "a\nb\n"), write("a.es", "c\nd\n")]
    first, again = (load("translation", train_file=files, **NO_SPLIT)["train"] for _ in range(2))
    assert first.cache_files == again.cache_files != []  # on disk, and not in memory
    write("a.es", "c\ne!\n")
    assert load("translation", train_file=files, **NO_SPLIT)["train"]["target"][:] == ["c", "e!"]


def test_pairs_on_disk_are_tokenized_once():
    tokenizer = new_tokenizer(["one uno"] * 3, vocab_size=300)
    files = [write("a.en", "one\ntwo\n"), write("a.es", "uno\ndos\n")]
    rows = load("translation", train_file=files, **NO_SPLIT)["train"]
    first, again, other = (encode_pairs(rows, tokenizer, length) for length in (8, 8, 2))
    assert first.cache_files == again.cache_files != other.cache_files
    assert encode_pairs(rows, tokenizer, 8, num_workers=2)[:] == first[:]
    assert first[:] == again[:] and {len(ids) for ids in other["labels"]} == {2}


def test_a_column_of_records_gives_its_members_without_a_copy():
    rows = [{"n": i, "translation": {"en": f"one {i}", "es": f"uno {i}"}} for i in range(3)]
    write("a.parquet", rows)
    options = {"columns": ["source=translation.en", "target=translation.es"], **NO_SPLIT}
    train = load("translation", train_file=["a.parquet"], **options)["train"]
    assert train.to_list() == [{"source": f"one {i}", "target": f"uno {i}"} for i in range(3)]


def test_a_stream_is_checked_no_further_than_its_first_rows():
    rows = [{"text": "good"}] * 5000
    load("language_modeling", train_file=[write("late.jsonl", [*rows, {"text": 7}])], streaming=True)
    early = write("early.jsonl", [{"text": "good", "n": 1}, {"text": "good", "n": 2}])
    refused(
        "language_modeling", "early.jsonl, row 1: text: 1 is", train_file=[early], columns=["text=n"], streaming=True
    )


def test_a_stream_may_begin_with_rows_that_are_left_out():
    rows = [{"source": "a", "target": ""}] * 250 + PAIRS
    options = {"streaming": True, "drop_empty": True, **NO_SPLIT}
    assert list(load("translation", train_file=[write("a.jsonl", rows)], **options)["train"]) == PAIRS
    columns = ["source=source", "target=number"]
    numbers = [{"source": " ", "number": 1}] * 250 + [{"source": "a", "number": 1}] * 2
    file = write("b.jsonl", numbers)
    refused("translation", "b.jsonl, row 251: target: 1 is not", train_file=[file], columns=columns, **options)


def test_empty_texts_are_refused_or_left_out_and_rows_keep_their_numbers():
    rows = [{"text": "a", "label": 0}, {"text": " ", "label": 0}, {"text": "b", "label": 1}]
    train, test = write("train.jsonl", rows[:2]), write("test.jsonl", rows[1:])
    refused("classification", "train.jsonl, row 2: text: is empty", train_file=[train])
    refused(
        "classification", "test.jsonl, row 2: label 1 never", train_file=[train], test_file=[test], drop_empty=True
    )
    kept = load("classification", train_file=[train], drop_empty=True, **NO_SPLIT)
    assert kept["train"].to_list() == rows[:1]


FAULTS = {
    "missing file": ("translation", "none.jsonl: there is no such file", {"train_file": ["none.jsonl"]}),
    "folder": ("translation", "folder is a folder: give files, or .* --dataset folder", {"train_file": ["folder"]}),
    "missing column": (
        "translation",
        "a.jsonl has no column 'target'; it has: source, nested, nested.de",
        {"train_file": [("a.jsonl", [{"source": "a", "nested": {"de": "b"}}])]},
    ),
    "column used twice": (
        "translation",
        "one of ours only",
        {"train_file": [("a.jsonl", PAIRS)], "columns": ["target=source"]},
    ),
    "unknown column of ours": (
        "translation",
        "--columns text=a: .* source, target",
        {"train_file": [("a.jsonl", PAIRS)], "columns": ["text=a"]},
    ),
    "empty table": ("translation", "a.jsonl is empty", {"train_file": [("a.jsonl", "")]}),
    "only a header": ("translation", "a.csv has no rows", {"train_file": [("a.csv", "source,target\n")]}),
    "no text at all": ("language_modeling", "a.txt: there are no rows", {"train_file": [("a.txt", "\n\n")]}),
    "broken JSON": (
        "translation",
        "a.jsonl has no rows that can be read",
        {"train_file": [("a.jsonl", '{"a": 1}\n{')]},
    ),
    "unknown format": (
        "language_modeling",
        "a.doc: its name must end in one of .json.* Save a table of another kind as one of these, such as .csv",
        {"train_file": [("a.doc", "a")]},
    ),
    "unequal parallel files": (
        "translation",
        "a.en has 2 lines, but a.es has 1",
        {"train_file": [("a.en", "a\nb\n"), ("a.es", "c\n")]},
    ),
    "one parallel file": ("translation", "a.en: .* two files", {"train_file": [("a.en", "a\n")]}),
    "other encoding in a table": (
        "translation",
        "a.csv, line 3: not UTF-8",
        {"train_file": [("a.csv", "source,target\na,b\né,c\n".encode("latin-1"))]},
    ),
    "other encoding in parallel files": (
        "translation",
        "a.es, line 2: not UTF-8 .* byte 4",
        {"train_file": [("a.en", "a\nb\n"), ("a.es", "a\nniño\n".encode("cp1252").replace(b"\xf1o", b"oo\xf1o"))]},
    ),
    "missing text": (
        "translation",
        "a.jsonl, row 2: target: is empty",
        {"train_file": [("a.jsonl", [PAIRS[0], {"source": "a", "target": None}])]},
    ),
    "empty line": (
        "translation",
        "a.en and a.es, row 2: source: is empty",
        {"train_file": [("a.en", "a\n\nc\n"), ("a.es", "a\nb\nc\n")]},
    ),
    "number for a text": (
        "classification",
        "a.jsonl, row 1: text: 5 is not a text",
        {"train_file": [("a.jsonl", [{"text": 5, "label": 1}])]},
    ),
    "fault in the second file": (
        "translation",
        "b.jsonl, row 1: source: is empty",
        {"train_file": [("a.jsonl", PAIRS), ("b.jsonl", [{"source": "", "target": "a"}])]},
    ),
    "missing class": (
        "classification",
        "a.jsonl, row 2: label: None is not a class",
        {"train_file": [("a.jsonl", [{"text": "a", "label": "x"}, {"text": "a", "label": None}])]},
    ),
    "number for a class": (
        "classification",
        "a.jsonl, row 1: label: 0.5 is not a class",
        {"train_file": [("a.jsonl", [{"text": "a", "label": 0.5}])]},
    ),
    "unseen class": (
        "classification",
        "b.jsonl, row 2: label 'y' never occurs in training",
        {
            "train_file": [("a.jsonl", [{"text": "a", "label": "x"}])],
            "test_file": [("b.jsonl", [{"text": "a", "label": "x"}, {"text": "a", "label": "y"}])],
        },
    ),
    "unseen class among several": (
        "multi_label",
        "b.jsonl, row 1: label 'y' never occurs in training",
        {
            "train_file": [("a.jsonl", [{"text": "a", "label": ["x", "z"]}])],
            "test_file": [("b.jsonl", [{"text": "a", "label": ["z", "y"]}])],
        },
    ),
    "class for a number": (
        "regression",
        "a.jsonl, row 1: label: 'high' is not a number",
        {"train_file": [("a.jsonl", [{"text": "a", "label": "high"}])]},
    ),
    "not a number": (
        "regression",
        "a.parquet, row 2: label: nan is not a number",
        {"train_file": [("a.parquet", [{"text": "a", "label": 1.5}, {"text": "a", "label": float("nan")}])]},
    ),
    "one class for several": (
        "multi_label",
        "a.jsonl, row 1: label: 'uk' is not a list of classes; .* classification",
        {"train_file": [("a.jsonl", [{"text": "a", "label": "uk"}])]},
    ),
    "several classes for one": (
        "classification",
        "a.jsonl, row 1: label: \\['pt'\\] is a list, .* multi_label",
        {"train_file": [("a.jsonl", [{"text": "a", "label": ["pt"]}])]},
    ),
    "the phrasebook for several classes": ("multi_label", "phrasebook has no data for multi_label", {}),
    "more numbers than in another row": (
        "regression",
        "a.jsonl, row 2: label: there are 1 numbers, but 2 in a.jsonl, row 1",
        {"train_file": [("a.jsonl", [{"text": "a", "label": [1.0, 2.0]}, {"text": "b", "label": [1.0]}])]},
    ),
    "more numbers than in training": (
        "regression",
        "b.jsonl, row 1: label: there are 2 numbers, but 1 in a.jsonl, row 1",
        {
            "train_file": [("a.jsonl", [{"text": "a", "label": 1}])],
            "test_file": [("b.jsonl", [{"text": "a", "label": [1, 2]}])],
        },
    ),
    "no number": (
        "regression",
        "a.jsonl, row 2: label: \\[\\] holds no number",
        {"train_file": [("a.jsonl", [{"text": "a", "label": [1.0]}, {"text": "b", "label": []}])]},
    ),
    "number beyond 32 bits": (
        "regression",
        "a.jsonl, row 2: label: -1e\\+300 is too large .* 1e\\+18",
        {"train_file": [("a.jsonl", [{"text": "a", "label": 1.0}, {"text": "b", "label": -1e300}])]},
    ),
    "labels of two types": (
        "classification",
        "one type: a.jsonl has .*'label': Value\\('int64'\\).*; b.jsonl has .*'label': Value\\('string'\\)",
        {"train_file": [("a.jsonl", [{"text": "a", "label": 1}]), ("b.jsonl", [{"text": "b", "label": "1"}])]},
    ),
    "too few tags": (
        "tagging",
        "a.jsonl, row 1: tags: .* is not a list of 2 tags",
        {"train_file": [("a.jsonl", [{"tokens": ["a", "b"], "tags": ["O"]}])]},
    ),
    "text for tokens": (
        "tagging",
        "a.jsonl, row 1: tokens: 'a b' is not a list of tokens",
        {"train_file": [("a.jsonl", [{"tokens": "a b", "tags": ["O", "O"]}])]},
    ),
    "empty token": (
        "tagging",
        "a.jsonl, row 1: tokens: ' ' is not a token",
        {"train_file": [("a.jsonl", [{"tokens": ["a", " "], "tags": ["O", "O"]}])]},
    ),
    "unseen tag": (
        "tagging",
        "b.jsonl, row 1: tags 'B-TIME' never occurs in training",
        {
            "train_file": [("a.jsonl", TAGGED)],
            "validation_file": [("b.jsonl", [{"tokens": ["now"], "tags": ["B-TIME"]}])],
        },
    ),
    "misplaced answer": (
        "question_answering",
        "a.jsonl, row 1: answers: 'Norway' does not stand at character 0 .* 'In Nor'",
        {"train_file": [("a.jsonl", [ANSWERED | {"answers": {"text": ["Norway"], "answer_start": [0]}}])]},
    ),
    "answer without a place": (
        "question_answering",
        "a.jsonl, row 1: answers: 'Norway' is not",
        {"train_file": [("a.jsonl", [ANSWERED | {"answers": "Norway"}])]},
    ),
    "start of null": (
        "question_answering",
        "a.jsonl, row 2: answers: None is not the number of a character",
        {"train_file": [("a.jsonl", [ANSWERED, ANSWERED | {"answers": {"text": ["In"], "answer_start": [None]}}])]},
    ),
    "fraction for a start": (
        "question_answering",
        "a.jsonl, row 1: answers: 3.5 is not the number of a character",
        {"train_file": [("a.jsonl", [ANSWERED | {"answers": {"text": ["Norway"], "answer_start": [3.5]}}])]},
    ),
    "negative start": (
        "question_answering",
        "a.jsonl, row 1: answers: 'Norway' does not stand at character -7",
        {"train_file": [("a.jsonl", [ANSWERED | {"answers": {"text": ["Norway"], "answer_start": [-7]}}])]},
    ),
    "answer of null": (
        "question_answering",
        "a.jsonl, row 1: answers: None is not a text",
        {"train_file": [("a.jsonl", [ANSWERED | {"answers": {"text": [None], "answer_start": [3]}}])]},
    ),
    "answer and start without lists": (
        "question_answering",
        'a.jsonl, row 1: answers: .* is not {"text": ',
        {"train_file": [("a.jsonl", [ANSWERED | {"answers": {"text": "Norway", "answer_start": 3}}])]},
    ),
    "answers of null": (
        "question_answering",
        'a.jsonl, row 1: answers: .* is not {"text": ',
        {"train_file": [("a.jsonl", [ANSWERED | {"answers": {"text": None, "answer_start": None}}])]},
    ),
    "one row to split": (
        "translation",
        "a.jsonl: there is one training row, and there is no validation split",
        {"train_file": [("a.jsonl", PAIRS[:1])]},
    ),
    "copies of one row to split": (
        "classification",
        "a.jsonl: all 30 rows have the same input, and there is no validation split: give",
        {"train_file": [("a.jsonl", [{"text": "a", "label": 1}, {"text": "a", "label": 0}] * 15)]},
    ),
    "all rows held out": (
        "translation",
        "a.jsonl: --validation_fraction 0.999 of 20 rows leaves none to train on",
        {"train_file": [("a.jsonl", PAIRS)], "validation_fraction": 0.999},
    ),
    "all of a document held out": (
        "language_modeling",
        "a.txt: --validation_fraction 0.999 of 3 characters leaves none on one side",
        {"train_file": [("a.txt", "abc")], "validation_fraction": 0.999},
    ),
    "each class once": (
        "classification",
        "a.jsonl: no row can be held out, since each has the only example of a class",
        {"train_file": [("a.jsonl", [{"text": name, "label": name} for name in "abc"])]},
    ),
    "column name with a space before it": (
        "translation",
        "a.csv has no column 'target'; it has: source, ' target'. Name yours with --columns",
        {"train_file": [("a.csv", "source, target\na,b\n")]},
    ),
    "rows without names above them": (
        "translation",
        "a.tsv has no column 'source'; it has: Hello!, ¡Hola!. Name yours with --columns, or write a first row",
        {"train_file": [("a.tsv", "Hello!\t¡Hola!\nThank you.\tGracias.\n")]},
    ),
    "tabs in a file of commas": (
        "translation",
        r"a.csv has no column 'source'; it has: 'source\\ttarget'",
        {"train_file": [("a.csv", "source\ttarget\na\tb\n")]},
    ),
    "column name given twice": (
        "translation",
        "a.csv has two columns named 'source'",
        {"train_file": [("a.csv", "source,target,source\na,b,c\n")]},
    ),
    "more fields than columns in the first row": (
        "classification",
        r"a.csv, row 1: there are 3 fields for 2 columns \(text, label\): put a text with a comma in quotes ",
        {"train_file": [("a.csv", "text,label\ngood, really,1\nbad,0\n")]},
    ),
    "more fields than columns further down": (
        "classification",
        "a.csv, row 3: there are 3 fields for 2 columns",
        {"train_file": [("a.csv", '\ntext,label\n"good, really",1\n\n"two\nlines",0\nbad, really,0\n')]},
    ),
    "more fields than columns between tabs": (
        "translation",
        r"a.tsv, row 1: there are 3 fields for 2 columns \(source, target\): leave tabs out of texts, and give",
        {"train_file": [("a.tsv", "source\ttarget\na\tb\tc\n")]},
    ),
    "more fields than columns in a stream": (
        "translation",
        "a.csv, row 2: there are 3 fields for 2 columns",
        {"train_file": [("a.csv", "source,target\na,b\na,b,c\n")], "streaming": True},
    ),
    "blank for a number": (
        "regression",
        "a.csv, row 3: label: '' is not a number",
        {"train_file": [("a.csv", "text,label\na,0.5\nb,1\nc,\n")]},
    ),
    "numbers in quotes": (
        "regression",
        "a.jsonl, row 1: label: '0.5' is not a number",
        {"train_file": [("a.jsonl", [{"text": "a", "label": "0.5"}, {"text": "b", "label": "1"}])]},
    ),
    "two bytes a character": (
        "translation",
        'a.en is UTF-16, which Windows calls "Unicode": save it as UTF-8',
        {"train_file": [("a.en", "a\r\n".encode("utf-16")), ("a.es", b"a\r\n")]},
    ),
    "two bytes a character in a table": (
        "translation",
        "a.csv is UTF-16",
        {"train_file": [("a.csv", "source,target\r\na,b\r\n".encode("utf-16"))]},
    ),
    "two bytes a character in a stream": (
        "language_modeling",
        "a.txt is UTF-16",
        {"train_file": [("a.txt", "a\r\nb\r\n".encode("utf-16"))], "streaming": True, "sample_by": "line"},
    ),
    "broken JSON in a stream": (
        "language_modeling",
        "a.jsonl has no rows that can be read",
        {"train_file": [("a.jsonl", '{"text": "a"}\n5\n')], "streaming": True},
    ),
    "stream of one document": (
        "language_modeling",
        "a.txt: a stream of one document .*--sample_by",
        {"train_file": [("a.txt", "a\nb\n")], "streaming": True},
    ),
    "stream of one row": (
        "translation",
        "a.jsonl: a stream of one row cannot be mixed or split: leave out --streaming",
        {"train_file": [("a.jsonl", PAIRS[:1])], "streaming": True},
    ),
    "stream of empty rows": (
        "translation",
        "a.jsonl: there are no rows",
        {
            "train_file": [("a.jsonl", [{"source": "a", "target": ""}] * 300)],
            "streaming": True,
            "drop_empty": True,
        },
    ),
    "stream for another task": (
        "tagging",
        "--streaming is for language models and translation",
        {"train_file": [("a.jsonl", TAGGED)], "streaming": True},
    ),
}


@pytest.mark.parametrize(("task", "message", "options"), FAULTS.values(), ids=FAULTS)
def test_faults_are_refused_with_their_place(task, message, options):
    Path("folder").mkdir()
    written = {
        name: [write(*file) if isinstance(file, tuple) else file for file in files]
        if name.endswith("_file")
        else files
        for name, files in options.items()
    }
    refused(task, message, **written)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "squad", "train_file": ["a.jsonl"]}, "--dataset squad and --train_file exclude each other"),
        ({"dataset_config": "plain"}, "--dataset_config belongs to a data set on the Hub"),
        ({"splits": ["test=none"], "train_file": ["a.jsonl"]}, "--splits belongs to a data set on the Hub"),
        ({"validation_fraction": 1.0}, "--validation_fraction 1.0 must be"),
        ({"max_train_samples": 0}, "--max_train_samples 0 must be at least 1"),
        ({"max_eval_samples": -1}, "--max_eval_samples -1 must be at least 1"),
        ({"phrases": 200}, "--phrases 200 is out of range: choose from 1000 to 100000"),
    ],
)
def test_options_without_a_meaning_together_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DataArguments(**options)


@pytest.mark.parametrize("content", ["null", '[null, {"source": "a", "target": "b"}]', "null\nnull\n", "5", "[[1]]"])
@pytest.mark.parametrize("pack", [str, compressed])
def test_a_json_file_that_begins_with_null_is_refused_and_ends_no_process(content, pack):
    row = '\n{"source": "a", "target": "b"}\n'
    file = pack(write("a.json", content if content.startswith("[") else content + row))
    refused("translation", f"{file}: its first row is not an object", train_file=[file])


@pytest.mark.parametrize("damage", ["cut short", "damaged", "another checksum", "not gzipped", "empty"])
@pytest.mark.parametrize("task", ["translation", "language_modeling"])
def test_a_gzip_file_that_is_not_whole_is_refused_by_its_name(task, damage):
    lines = "".join(f"line {i} of many\n" for i in range(5000))
    whole = Path(compressed(write("a.en" if task == "translation" else "a.txt", lines)))
    data = whole.read_bytes()
    middle = len(data) // 2
    whole.write_bytes(
        {
            "cut short": data[:middle],
            "damaged": data[:middle] + bytes(20) + data[middle + 20 :],
            "another checksum": data[:-8] + bytes(4) + data[-4:],
            "not gzipped": lines.encode(),
            "empty": b"",
        }[damage]
    )
    files = [str(whole), str(whole)] if task == "translation" else [str(whole)]
    message = (
        "(is not a whole gzip file|is empty|.*: there are no rows)"
        if damage == "empty"
        else "is not a whole gzip file"
    )
    refused(task, f"{whole.name} {message}", train_file=files)


@pytest.mark.parametrize("damage", ["cut short", "damaged", "another checksum", "not gzipped"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_a_stream_names_the_gzip_file_that_proves_damaged_after_rows_that_could_be_read(name, damage):
    """Its second member is damaged, as of files that were put one behind the other; the first fills several reads."""
    text = " ".join(str(i) for i in range(250))
    line = f'{{"text": "{text}"}}\n' if name == "a.jsonl" else f"{text}\n"
    first, lines = ("text\n" if name == "a.csv" else "") + line * 12_000, line * 200
    second = gzip.compress(lines.encode())
    middle = len(second) // 2
    broken = {
        "cut short": second[:middle],
        "damaged": second[:middle] + bytes(20) + second[middle + 20 :],
        "another checksum": second[:-8] + bytes(4) + second[-4:],
        "not gzipped": lines.encode(),
    }[damage]
    Path(f"{name}.gz").write_bytes(gzip.compress(first.encode(), compresslevel=1) + broken)
    options = {"train_file": [f"{name}.gz"], "streaming": True, "sample_by": "line", "validation_fraction": 0.0}
    rows = iter(load("language_modeling", **options)["train"])
    assert {row["text"] for row in islice(rows, 1000)} == {text}
    with pytest.raises(ValueError, match=rf"^{name}.gz is not a whole gzip file \(.*\): fetch or compress it again"):
        list(rows)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_a_stream_names_the_file_that_proves_not_to_be_utf8_after_rows_that_could_be_read(name):
    text = " ".join(str(i) for i in range(250))
    line = (f'{{"text": "{text}"}}\n' if name == "a.jsonl" else f"{text}\n").encode()
    first = b"text\n" if name == "a.csv" else b""
    Path(name).write_bytes(first + line * 22_000 + line.replace(b"249", b"\xff"))
    options = {"train_file": [name], "streaming": True, "sample_by": "line", "validation_fraction": 0.0}
    rows = iter(load("language_modeling", **options)["train"])
    assert {row["text"] for row in islice(rows, 1000)} == {text}
    with pytest.raises(ValueError, match=rf"^{name}: not UTF-8 \(invalid start byte after the rows that were read\)"):
        list(rows)


# As editors on Windows write it: a byte order mark, and lines that end with \r\n.


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"source": "12 miles", "target": "12 millas"}\r\n{"source": "a", "target": "b"}\r\n'),
        ("a.json", '[{"source": "12 miles", "target": "12 millas"},\r\n{"source": "a", "target": "b"}]\r\n'),
        ("a.csv", "source,target\r\n12 miles,12 millas\r\na,b\r\n"),
        ("a.csv", '"source","target"\r\n"12 miles","12 millas"\r\n"a","b"\r\n'),
    ],
)
def test_a_table_as_windows_writes_it_has_its_rows(name, content):
    file = write(name, content.encode("utf-8-sig"))
    rows = load("translation", train_file=[file], **NO_SPLIT)["train"].to_list()
    assert rows == [{"source": "12 miles", "target": "12 millas"}, {"source": "a", "target": "b"}]


@pytest.mark.parametrize("pack", [str, compressed])
def test_parallel_files_as_windows_writes_them_have_their_lines(pack):
    files = [pack(write(name, "12 miles\r\na\r\n".encode("utf-8-sig"))) for name in ("a.en", "a.es")]
    rows = load("translation", train_file=files, **NO_SPLIT)["train"]
    assert rows["source"][:] == rows["target"][:] == ["12 miles", "a"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("pack", [str, compressed])
def test_a_text_as_windows_writes_it_has_its_lines(pack, streaming):
    file = pack(write("a.txt", "one\r\ntwo\r\n".encode("utf-8-sig")))
    options = {"train_file": [file], "sample_by": "line", "streaming": streaming}
    rows = load("language_modeling", **options, **NO_SPLIT)["train"]
    assert [row["text"] for row in rows] == ["one", "two"]


def test_whole_and_other_numbers_of_two_files_are_one_column():
    files = [write("a.jsonl", [{"text": "a", "label": 1}]), write("b.jsonl", [{"text": "b", "label": 2.5}])]
    assert load("regression", train_file=files, **NO_SPLIT)["train"]["label"][:] == [1.0, 2.5]


def test_several_classes_to_a_text_or_none_are_a_list():
    rows = [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": []}]
    assert load("multi_label", train_file=[write("a.jsonl", rows)], **NO_SPLIT)["train"].to_list() == rows


def test_a_file_that_has_changed_is_read_anew():
    for rows in (PAIRS[:2], PAIRS[2:5]):
        assert load("translation", train_file=[write("a.jsonl", rows)], **NO_SPLIT)["train"].to_list() == rows


LOADING = """
import sys
from vanilla_transformer.data import DataArguments, load_splits
for file in ("a.jsonl", "a.csv", "a.parquet"):
    load_splits(DataArguments(train_file=[file]), "translation")
load_splits(DataArguments(train_file=["a.en", "a.es"]), "translation")
for file, streaming in (("a.txt", False), ("a.txt", True), ("a.txt.gz", True)):
    options = {"train_file": [file], "sample_by": "line", "streaming": streaming}
    load_splits(DataArguments(**options), "language_modeling")
load_splits(DataArguments(dataset="data_set"), "translation")
print(json.dumps(asked))
"""


def test_local_data_are_read_without_a_request_to_anybody(tmp_path):
    for name in ("a.jsonl", "a.csv", "a.parquet"):
        write(name, PAIRS)
    for name in ("a.en", "a.es", "a.txt"):
        write(name, "one\ntwo\nthree\n")
    compressed("a.txt")
    save_data_set(train=Dataset.from_list(PAIRS))
    assert run_fresh(UNDER_WATCH + LOADING, tmp_path, installed=True) == []


def test_answers_that_are_missing_or_in_place_are_accepted():
    unanswerable = ANSWERED | {"answers": {"text": [], "answer_start": []}}
    rows = [ANSWERED, unanswerable]
    assert load("question_answering", train_file=[write("a.jsonl", rows)], **NO_SPLIT)["train"].to_list() == rows


def test_every_option_is_parsed_and_explained():
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


def test_a_tokenizer_reads_every_text_and_tokens_as_a_sentence():
    assert list(texts_of(Dataset.from_list(TAGGED), "tagging")) == ["in Norway", "now"]
    assert list(texts_of(Dataset.from_list(PAIRS[:1]), "translation")) == ["one 0", "uno 0"]
    assert list(texts_of(Dataset.from_list([ANSWERED]), "question_answering")) == ["Where?", "In Norway."]


def test_the_tokenizer_script_saves_a_tokenizer_and_says_how_it_does(capsys):
    options = "--task tagging --phrases 1000 --vocab_size 500 --output_dir out".split()
    train_tokenizer.main(options)
    tokenizer = AutoTokenizer.from_pretrained("out")
    assert tokenizer.mask_token_id == 3
    printed = capsys.readouterr().out
    assert f"out: {len(tokenizer)} tokens" in printed
    texts = list(texts_of(load("tagging", phrases=1000)["test"], "tagging"))
    tokens = sum(len(tokenizer.tokenize(text)) for text in texts)
    size = len("".join(texts).encode())
    assert f"test: {tokens / len(texts):.2f} tokens per text, {size / tokens:.2f} bytes per token" in printed
    with pytest.raises(ValueError, match="output_dir=out is not empty"):
        train_tokenizer.main(options)
    train_tokenizer.main([*options, "--overwrite", "--template", "causal", "--tokenizer_kind", "character"])
    assert AutoTokenizer.from_pretrained("out").mask_token is None


# The real data sets, where they are at hand.

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
def test_real_data_sets_are_loaded_whole(name):
    task, columns, sizes = ROWS[name]
    files = {f"{s}_file": [f"{DATA}/{name}/{s}.jsonl.gz"] for s in ("train", "validation", "test")}
    splits = load(task, columns=columns, **files)
    assert isinstance(splits, DatasetDict)
    assert tuple(len(rows) for rows in splits.values()) == sizes
    assert set(splits["train"].column_names) == set(COLUMNS[task])


@needs_data
def test_real_text_is_split_as_nanogpt_splits_it():
    file = Path(DATA, "tinyshakespeare/input.txt")
    splits = load("language_modeling", train_file=[str(file)], validation_fraction=0.1)
    text = file.read_text(encoding="utf-8")
    assert splits["train"][0]["text"] == text[:1_003_854]
    assert splits["validation"][0]["text"] == text[1_003_854:]
