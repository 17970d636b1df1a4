"""Read the data in recipes/data."""

import json
from pathlib import Path
from typing import Any

from vanilla_transformer.data.arguments import SPLITS
from vanilla_transformer.files import utf8_lines


DATA = Path(__file__).parents[2] / "recipes" / "data"

Row = dict[str, Any]
Splits = dict[str, list[Row]]  # split -> rows; additional test splits are called test_NAME


def read(folder: str) -> Splits:
    """Return the splits of a folder in recipes/data."""
    return {
        name: [json.loads(line) for line in utf8_lines(str(DATA / folder / f"{name}.jsonl.gz"))] for name in SPLITS
    }


def tatoeba(other: str) -> Splits:
    """Return the splits of the shipped sentence pairs: the columns are `en` and the language code in `other`."""
    return read(f"tatoeba_en_{other}")
