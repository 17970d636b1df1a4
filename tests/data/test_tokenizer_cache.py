"""A tokenizer is trained once on rows that lie on disk, and the one that is found again is the same."""

from pathlib import Path

import datasets
import pytest
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.data.sources import DataArguments
from vanilla_transformer.data.splits import load_splits, texts_of
from vanilla_transformer.data.tokenizer import KINDS, TEMPLATES, train_tokenizer
from vanilla_transformer.data.tokenizer_cache import trained_once


@pytest.fixture
def files(tmp_path, monkeypatch) -> list[str]:
    """Two files of parallel lines; what is made of them is kept in the test's own folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    found = [tmp_path / "train.en", tmp_path / "train.de"]
    for file, words in zip(found, ("the house stands", "das Haus steht"), strict=True):
        file.write_text("".join(f"{words} {number}\n" for number in range(100)))
    return [str(file) for file in found]


class Run:
    """What a run does, and which vocabularies it had to train."""

    def __init__(self, files: list[str], **options):
        self.rows = load_splits(DataArguments(train_file=files, **options), "translation")["train"]
        self.trained: list[int] = []

    def tokenizer(self, template: str = "seq2seq", kind: str = "byte_bpe", size: int = 300) -> PreTrainedTokenizerBase:
        def train() -> PreTrainedTokenizerBase:
            self.trained.append(size)
            return train_tokenizer(texts_of(self.rows, "translation"), template, kind, size)

        return trained_once(train, self.rows, template, kind, size)


def saved(tokenizer: PreTrainedTokenizerBase, folder: Path) -> dict[str, bytes]:
    tokenizer.save_pretrained(folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_second_run_finds_the_tokenizer_of_the_first(template, kind, files, tmp_path):
    first, second = Run(files), Run(files)
    tokenizers = [run.tokenizer(template, kind) for run in (first, second)]
    assert (first.trained, second.trained) == ([300], [])
    tokenizers.append(train_tokenizer(texts_of(first.rows, "translation"), template, kind, 300))
    one, other, fresh = (saved(tokenizer, tmp_path / str(i)) for i, tokenizer in enumerate(tokenizers))
    assert one == other == fresh


def test_other_rows_or_options_are_another_tokenizer(files):
    Run(files).tokenizer()
    run = Run(files)
    run.tokenizer(size=301)
    run.tokenizer(kind="character")
    fewer = Run(files, max_train_samples=50)
    fewer.tokenizer()
    with open(files[0], "a") as source, open(files[1], "a") as target:
        source.write("one more\n"), target.write("noch eins\n")
    changed = Run(files)
    changed.tokenizer()
    assert (run.trained, fewer.trained, changed.trained) == ([301, 300], [300], [300])


def test_rows_in_memory_are_read_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    run = Run([], phrases=1000)
    for _ in range(2):
        run.tokenizer(size=400)
    assert run.trained == [400, 400] and not (tmp_path / "cache").exists()
