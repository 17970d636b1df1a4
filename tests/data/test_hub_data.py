"""Data sets on the Hub are read like local files, whether downloaded or streamed. Uses the real Hub client."""

from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from data_files import compressed, write
from fresh_process import run_fresh
from hub_server import HubServer, Repo


LOADING = """
from datasets import IterableDataset
from vanilla_transformer.data import DataArguments, load_splits
from vanilla_transformer.tasks import find_task
found = []
for options in arguments[1]:
    splits = load_splits(DataArguments(**options), find_task(arguments[0]).data)
    found.append({split: list(rows) for split, rows in splits.items()})
    assert isinstance(splits["train"], IterableDataset) is options.get("streaming", False)
print(json.dumps(found))
"""


@pytest.fixture
def load_from_hub(own_folder):
    """Return a function that uploads files to a local Hub server and loads them as a data set in a new process."""
    with HubServer() as hub:

        def load(task, files, *options):
            repo = hub.repos["datasets", "user/data"] = Repo(private=False, sdk=None)
            repo.commit("main", {path: Path(file).read_bytes() for path, file in files.items()})
            given = [{"dataset": "user/data", "validation_fraction": 0} | each for each in options]
            environment = hub.environment(own_folder, token=None)
            return run_fresh(LOADING, own_folder, task, given, installed=True, **environment)

        yield load


STRINGS = ["2029-07-04", "NA", "12345678901234567890123", "a\rb"]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "tsv", "parquet"])
def test_strings_stay_strings(load_from_hub, kind):
    rows = [{"id": i, "en": text, "es": "x"} for i, text in enumerate(STRINGS)]
    plain = write(f"a.{kind.removesuffix('.gz')}", rows)
    file = compressed(plain) if kind.endswith(".gz") else plain
    names = {"train": "data/train", "validation": "data/dev", "test": "data/test"}
    options = {"columns": ["source=en", "target=es"], "splits": ["test=none"]}
    found = load_from_hub(
        "translation", {f"{name}.{kind}": file for name in names.values()}, options, {"streaming": True, **options}
    )
    pairs = [{"source": text, "target": "x"} for text in STRINGS]
    assert found == [{"train": pairs, "validation": pairs}] * 2


@pytest.mark.parametrize("streaming", [False, True])
def test_a_split_can_consist_of_several_files(load_from_hub, streaming):
    files = {f"train-0000{i}.jsonl": write(f"{i}.jsonl", [{"text": f"{i} {j}"} for j in range(3)]) for i in range(4)}
    (found,) = load_from_hub("language_modeling", files, {"streaming": streaming})
    assert [row["text"] for row in found["train"]] == [f"{i} {j}" for i in range(4) for j in range(3)]


CARD = """---
dataset_info:
  features:
  - name: sentence
    dtype: string
  - name: label
    dtype:
      class_label:
        names:
          '0': bad
          '1': good
  - name: id
    dtype: int64
---
"""


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_classes_have_the_names_declared_in_the_data_set_card(load_from_hub, kind):
    rows = [{"sentence": "a", "label": 1, "id": 7}, {"sentence": "b", "label": 0, "id": 8}]
    files = {f"data/train.{kind}": write(f"a.{kind}", rows), "README.md": write("README.md", CARD)}
    (found,) = load_from_hub("classification", files, {"columns": ["text=sentence"]})
    assert found["train"] == [{"text": "a", "label": "good"}, {"text": "b", "label": "bad"}]


@pytest.mark.parametrize("streaming", [False, True])
def test_columns_have_the_types_declared_in_the_data_set_card(load_from_hub, streaming):
    card = CARD.replace("sentence", "text").replace("label", "unused", 1)
    features = Features(text=Value("string"), unused=ClassLabel(names=["bad", "good"]), id=Value("int64"))
    Dataset.from_dict({"text": STRINGS, "unused": [0] * 4, "id": range(4)}, features).to_parquet("a.parquet")
    files = {"data/train.parquet": "a.parquet", "README.md": write("README.md", card)}
    (found,) = load_from_hub("language_modeling", files, {"streaming": streaming})
    assert found["train"] == [{"text": text} for text in STRINGS]
