"""The caches of parsed files and tokenizers depend on file contents, not on modification times."""

import json
import os
from pathlib import Path

import pytest

from data_files import ANSWERED, NO_SPLIT, PAIRS, TAGGED, compressed, load, rows_of, write
from family import decoder_only
from saved_models import save
from vanilla_transformer.cli import evaluate
from vanilla_transformer.data import texts_of, train_tokenizer
from vanilla_transformer.data.tokenizer import KINDS, TEMPLATES, cached_tokenizer
from vanilla_transformer.tasks import find_task
from vanilla_transformer.tasks.translation import encode_pairs


pytestmark = pytest.mark.usefixtures("own_folder")


def write_at_one_time(name, content):
    """Write a file with a fixed modification time, as archives, copies and `touch -d` can produce."""
    write(name, content)
    os.utime(name, ns=(10**18, 10**18))
    return name


# For each task, two data sets whose files have the same size
ROWS = {
    "translation": [[{"source": "one", "target": word}] * 2 for word in ("uno", "dos")],
    "classification": [[{"text": "one", "label": word}] * 2 for word in ("uno", "dos")],
    "multi_label": [[{"text": "one", "label": [word]}] * 2 for word in ("uno", "dos")],
    "regression": [[{"text": "one", "label": number}] * 2 for number in (0.5, 1.5)],
    "tagging": [[{"tokens": ["one"], "tags": [word]}] * 2 for word in ("uno", "dos")],
    "question_answering": [[ANSWERED | {"question": word}] * 2 for word in ("uno", "dos")],
    "language_modeling": [[{"text": word}] * 2 for word in ("uno", "dos")],
}
CASES = [(task, f"a.{kind}") for task in ROWS for kind in ("jsonl", "json", "parquet")]
CASES += [(task, f"a.{kind}") for task in ("translation", "classification", "regression") for kind in ("csv", "tsv")]


@pytest.mark.parametrize(("task", "name"), CASES)
def test_changed_rows_are_reread_even_if_size_and_mtime_are_equal(task, name):
    for rows in (*ROWS[task], *ROWS[task]):
        assert rows_of(task, write_at_one_time(name, rows)) == rows
    for rows in ROWS[task]:
        packed = Path(compressed(write(name, rows)))
        assert rows_of(task, write_at_one_time(packed.name, packed.read_bytes())) == rows


@pytest.mark.parametrize("sample_by", ["line", "paragraph", "document"])
def test_a_changed_text_file_is_reread_even_if_size_and_mtime_are_equal(sample_by):
    for text in ("one", "two"):
        file = write_at_one_time("a.txt", text)
        assert rows_of("language_modeling", file, sample_by=sample_by) == [{"text": text}]


def test_changed_parallel_files_are_reread_even_if_size_and_mtime_are_equal():
    files = [write_at_one_time("a.en", "one\n"), "a.es"]
    for text in ("uno", "dos"):
        write_at_one_time("a.es", f"{text}\n")
        assert rows_of("translation", *files) == [{"source": "one", "target": text}]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_a_changed_folder_is_reread_even_if_size_and_mtime_are_equal(kind):
    Path("folder").mkdir()
    for rows in ROWS["translation"]:
        write_at_one_time(f"folder/train.{kind}", rows)
        os.utime("folder", ns=(10**18, 10**18))
        assert list(load("translation", dataset="folder", **NO_SPLIT)["train"]) == rows


def test_evaluation_uses_the_current_content_of_a_file(own_folder):
    model = save(own_folder / "model", decoder_only, "causal")
    losses = []
    options = ["--model", model, "--block_size", "4", "--use_cpu", "true"]
    for text in ("one two three", "ten ten ten !"):
        file = write_at_one_time("t.jsonl", [{"text": text}])
        losses.append(evaluate.main([*options, "--test_file", file])["test"]["loss"])
    assert losses[0] != losses[1]


def test_files_are_parsed_once_per_set_of_options():
    file = write("a.jsonl", [*PAIRS, {"source": "a", "target": ""}])
    options = {"train_file": [file], "drop_empty": True, **NO_SPLIT}
    first, again = (load("translation", **options)["train"] for _ in range(2))
    assert first.cache_files == again.cache_files != []  # cached on disk, not in memory
    copy = Path("copy.jsonl")
    copy.write_bytes(Path(file).read_bytes())
    assert load("translation", **options | {"train_file": [str(copy)]})["train"].cache_files == first.cache_files
    swapped = load("translation", **options, columns=["source=target", "target=source"])["train"]
    assert swapped.to_list() == [{"source": row["target"], "target": row["source"]} for row in PAIRS]
    assert [row["text"] for row in rows_of("language_modeling", file, columns=["text=source"])][-1] == "a"


def test_an_error_is_reported_on_every_run():
    file = write("a.jsonl", [*PAIRS, {"source": "a", "target": ""}])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"a\.jsonl, row 21: target is empty"):
            rows_of("translation", file)


def test_tokenized_rows_are_cached():
    tokenizer = train_tokenizer(["one uno"] * 3, vocab_size=300)
    files = [write("a.en", "one\ntwo\n"), write("a.es", "uno\ndos\n")]
    rows = load("translation", train_file=files, **NO_SPLIT)["train"]
    first, again, other = (encode_pairs(rows, tokenizer, length) for length in (8, 8, 2))
    assert first.cache_files == again.cache_files != other.cache_files
    assert encode_pairs(rows, tokenizer, 8, num_workers=2)[:] == first[:]
    assert first[:] == again[:] and {len(ids) for ids in other["labels"]} == {2}


class Texts:
    """Texts of a data set, with a counter of how often they are read."""

    def __init__(self, rows, task="translation"):
        self.rows, self.task, self.read = rows, task, 0

    def __call__(self):
        self.read += 1
        return texts_of(self.rows, find_task(self.task).data)


def saved(tokenizer, folder):
    tokenizer.save_pretrained(folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_trained_tokenizer_is_cached(template, kind, own_folder):
    lines = "".join(f"the house stands {number}\n" for number in range(100))
    files = [write("a.en", lines), write("a.de", lines.replace("the house stands", "das Haus steht"))]
    texts = Texts(load("translation", train_file=files, **NO_SPLIT)["train"])
    options = (template, kind, 300, False)
    tokenizers = [cached_tokenizer(own_folder / "kept", texts, *options) for _ in range(2)]
    assert texts.read == 3  # twice for the cache key and once for training
    tokenizers.append(train_tokenizer(texts(), *options))
    one, other, fresh = (saved(tokenizer, own_folder / str(i)) for i, tokenizer in enumerate(tokenizers))
    assert one == other == fresh


def test_different_texts_or_options_train_a_new_tokenizer(own_folder):
    folder, options = own_folder / "kept", ("seq2seq", "byte_bpe", 300, False)
    rows = [load("tagging", train_file=[write("a.jsonl", TAGGED)], **NO_SPLIT)["train"]] * 2
    rows.append(load("tagging", train_file=[write("a.jsonl", TAGGED[:1])], **NO_SPLIT)["train"])
    rows.append(load("tagging", train_file=[write("a.jsonl", TAGGED)], max_train_samples=1, **NO_SPLIT)["train"])
    trained = []
    for each in rows:
        texts = Texts(each, "tagging")
        cached_tokenizer(folder, texts, *options)
        trained.append(texts.read == 2)
    assert trained == [True, False, True, False]
    for other in (
        ("causal", "byte_bpe", 300, False),
        ("seq2seq", "byte_bpe", 301, False),
        ("seq2seq", "byte_bpe", 300, True),
    ):
        texts = Texts(rows[0], "tagging")
        cached_tokenizer(folder, texts, *other)
        assert texts.read == 2
    assert len([*folder.iterdir()]) == 5 and all(json.loads(file.read_text()) for file in folder.iterdir())
