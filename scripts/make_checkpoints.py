"""Train the shipped models by their recipes, and write checkpoints/ with scores and model cards.

python scripts/make_checkpoints.py                       # all; the same as `make checkpoints`
python scripts/make_checkpoints.py --names tagger        # only one; finished runs are not repeated
python scripts/make_checkpoints.py --data_only true      # only write the training data
"""

from dataclasses import dataclass, field
from pathlib import Path

import yaml

from shipping.data import prepare
from shipping.package import PRETRAINING, package
from vanilla_transformer.cli import train
from vanilla_transformer.cli.errors import run_command
from vanilla_transformer.cli.model_card import MODEL_CARD
from vanilla_transformer.cli.parser import CommandParser


# in order of training time, shortest first
CHECKPOINTS = ("intents", "tagger", "reader", "language-model", "masked-lm", "language-id", "en-es")


@dataclass
class CheckpointArguments:
    names: list[str] = field(default_factory=list, metadata={"help": "Make only these, such as tagger."})
    recipes: str = field(default="recipes/checkpoints", metadata={"help": "Folder with the recipes, NAME.yaml."})
    data: str = field(default="runs/data", metadata={"help": "Folder for the data, NAME/train.jsonl and so on."})
    output: str = field(default="checkpoints", metadata={"help": "Folder for the checkpoints."})
    data_only: bool = field(default=False, metadata={"help": "Write the data and stop."})


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError: a name is unknown, or an existing run was trained with another recipe.
    """
    (args,) = CommandParser(CheckpointArguments, __doc__).parse_args_into_dataclasses(arguments)
    if unknown := set(args.names) - {*CHECKPOINTS}:
        raise ValueError(f"--names {' '.join(sorted(unknown))}: choose from {', '.join(CHECKPOINTS)}.")
    for name in args.names or CHECKPOINTS:
        data, recipe = Path(args.data, name), Path(args.recipes, f"{name}.yaml")
        if not (data / "train.jsonl").is_file():
            print(f"Writing the data of {name} into {data}.", flush=True)
            prepare(name, data)
        if args.data_only:
            continue
        for each in filter(Path.is_file, (recipe.parent / PRETRAINING / recipe.name, recipe)):
            folder = Path(yaml.safe_load(each.read_text(encoding="utf-8"))["output_dir"])
            if not (folder / MODEL_CARD).is_file():
                print(f"Training {name} by {each} in {folder}.", flush=True)
                train.main([str(each), "--resume_from_checkpoint", "true"])  # resumes an interrupted run
        package(name, folder, recipe, data, Path(args.output, name))
        print(f"{Path(args.output, name)} is ready.", flush=True)


if __name__ == "__main__":
    run_command(main)
