"""Record a shipped checkpoint's answers, and its score on rows of its test split, for tests/test_golden.py.

python tests/golden.py en-es --test_file recipes/data/tatoeba_en_es/test.jsonl.gz --columns source=en target=es

The options name the data, as for `vanilla-transformer evaluate`. Record a checkpoint again only after new training: if
only code has changed, a different answer is a bug.
"""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoTokenizer, HfArgumentParser

from answers import answer
from vanilla_transformer.cli import evaluate
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.data.splits import load_splits
from vanilla_transformer.loading import CHECKPOINTS, load_model
from vanilla_transformer.tasks import task_of


GOLDEN = Path(__file__).parent / "golden"
ROWS, ANSWERED = 32, 4  # number of rows to score, and to record outputs for
# inputs that readers of the README will try first
FIRST_TEXTS = {"en-es": [["I like to travel."], ["I really like to travel"], ["Hello!"]]}


def texts_of(row: dict[str, Any], task: str, mask: str | None) -> list[str]:
    """Return the model inputs for a row of data. For text generation, the prompt is the first three words."""
    if task == "question-answering":
        return [row["question"], row["context"]]
    text = next(row[name] for name in ("source", "text", "tokens") if name in row)
    words = text if isinstance(text, list) else text.split(" ")
    if task == "text-generation":
        words = words[:3]
    if task == "fill-mask":
        words = [words[0], mask, *words[2:]]
    return [" ".join(words)]


def score(folder: Path, rows: list[dict]) -> dict[str, float]:
    """Return the scores that `evaluate` computes for a model on `rows`."""
    with TemporaryDirectory() as place:
        file = Path(place, "rows.jsonl")
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return evaluate.main(["--model", str(folder), "--test_file", str(file), "--use_cpu", "true"])["test"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="Name of the checkpoint.")
    args, options = parser.parse_known_args()
    (data,) = HfArgumentParser(DataArguments).parse_args_into_dataclasses(options, look_for_args_file=False)
    folder = CHECKPOINTS / args.name
    model, tokenizer = load_model(folder), AutoTokenizer.from_pretrained(folder)
    task = task_of(type(model), model.config)
    test = load_splits(data, task.data)["test"]
    rows = list(test.select(range(0, len(test), len(test) // ROWS)))[:ROWS]  # evenly spaced over the split
    asked = [texts_of(row, task.pipeline_tag, tokenizer.mask_token) for row in rows[:ANSWERED]]
    asked += FIRST_TEXTS.get(args.name, [])
    golden = {
        "command": f"python tests/golden.py {' '.join(sys.argv[1:])}",
        "asked": asked,
        "answers": [answer(model, tokenizer, texts) for texts in asked],
        "scores": score(folder, rows),
        "rows": rows,
    }
    GOLDEN.mkdir(exist_ok=True)
    lines = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in golden.items()]
    (GOLDEN / f"{args.name}.json").write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
