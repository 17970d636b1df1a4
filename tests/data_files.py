"""Write data files to the working folder, and load them like the commands do."""

import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vanilla_transformer.data import DataArguments, load_splits
from vanilla_transformer.tasks import find_task


PAIRS = [{"source": f"one {i}", "target": f"uno {i}"} for i in range(20)]
TAGGED = [{"tokens": ["in", "Norway"], "tags": ["O", "B-PLACE"]}, {"tokens": ["now"], "tags": ["O"]}]
ANSWERED = {"question": "Where?", "context": "In Norway.", "answers": {"text": ["Norway"], "answer_start": [3]}}
NO_SPLIT = {"validation_fraction": 0}


def write(name, content):
    """Write a string, bytes, or rows in the format given by the file extension. Return the name."""
    path = Path(name)
    kind = path.suffix.lower()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_bytes(content.encode())
    elif kind == ".csv":
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, content[0].keys(), quoting=csv.QUOTE_ALL)
            writer.writeheader()
            writer.writerows(content)
    elif kind == ".tsv":
        lines = [content[0].keys(), *(map(str, row.values()) for row in content)]
        write(name, "".join("\t".join(line) + "\n" for line in lines))
    elif kind == ".parquet":
        pq.write_table(pa.Table.from_pylist(content), name)
    elif kind == ".json":
        write(name, json.dumps(content, indent=1))
    else:
        write(name, "".join(json.dumps(row) + "\n" for row in content))
    return name


def compressed(name):
    Path(f"{name}.gz").write_bytes(gzip.compress(Path(name).read_bytes()))
    return f"{name}.gz"


def load(task, **options):
    return load_splits(DataArguments(**options), find_task(task).data)


def rows_of(task, *files, **options):
    """Load files as training data without a validation split, and return the rows."""
    return list(load(task, train_file=list(files), **NO_SPLIT, **options)["train"])


def refused(task, message, **options):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load(task, **options)
