"""Average the last checkpoints of a run (section 6.1) into a complete model folder.

vanilla-transformer average --run RUN_FOLDER --last 5 --output NEW_FOLDER
vanilla-transformer average --checkpoints FOLDER FOLDER --output NEW_FOLDER
"""

from dataclasses import dataclass, field
from pathlib import Path

from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.training.averaging import save_average
from vanilla_transformer.training.checkpoints import checkpoints_to_average


@dataclass
class AverageArguments:
    """Options of `average`: the checkpoints, and the folder for their average."""

    output: str = field(metadata={"help": "Folder to create for the averaged model."})
    run: str | None = field(default=None, metadata={"help": "Folder of a training run, with its checkpoints."})
    last: int = field(default=5, metadata={"help": "Number of the run's last checkpoints to average."})
    checkpoints: list[str] = field(
        default_factory=list, metadata={"help": "Average these folders instead of a run's last checkpoints."}
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        FileNotFoundError: a checkpoint does not exist, or one of its files is missing.
        ValueError: neither a run nor checkpoints are given, or both are; the run has too few checkpoints; the
            checkpoints are of different models; the output folder exists or is inside the last checkpoint.
    """
    (args,) = CommandParser(AverageArguments, __doc__).parse_args_into_dataclasses(arguments)
    if bool(args.run) == bool(args.checkpoints):
        raise ValueError("Give either --run or --checkpoints.")
    folders = [Path(folder) for folder in args.checkpoints]
    if args.last < 1:
        raise ValueError(f"--last {args.last} must be at least 1.")
    if args.run:
        folders = checkpoints_to_average(Path(args.run))[-args.last :]
        if len(folders) < args.last:
            raise ValueError(
                f"{args.run} has only {len(folders)} of --last {args.last} complete checkpoints; those saved on "
                "SIGTERM do not count."
            )
    save_average(folders, Path(args.output))
    print(f"{args.output} is the mean of {', '.join(folder.name for folder in folders)}.")
