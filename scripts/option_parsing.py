"""Options of a script, from the command line or from one file."""

import sys
from typing import Any

from transformers import HfArgumentParser


def parse_options(dataclasses: list[type], arguments: list[str] | None = None) -> tuple[Any, ...]:
    """An instance of each dataclass. A single argument that ends in .yaml, .yml or .json is a file with the options.

    Raises:
        ValueError: an option that none of them has.
    """
    parser = HfArgumentParser(dataclasses)
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) == 1 and given[0].endswith((".yaml", ".yml")):
        return parser.parse_yaml_file(given[0])
    if len(given) == 1 and given[0].endswith(".json"):
        return parser.parse_json_file(given[0])
    return parser.parse_args_into_dataclasses(given)
