"""Estimate what training will cost, before it begins: parameters, memory per GPU, operations per step, hours.

vanilla-transformer estimate --preset big --tokens_per_batch 25000 --gpus 8
vanilla-transformer estimate --preset base --gpus 1 --gradient_accumulation_steps 4 --steps 100000
"""

from dataclasses import dataclass, field
from typing import Literal

from vanilla_transformer.cli.costs import StepCost, step_cost
from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.configuration_vanilla_transformer import PRESETS, VanillaTransformerConfig
from vanilla_transformer.fast import LOSS_CHUNK_SIZE
from vanilla_transformer.files import markdown_table


GIB = 2**30


@dataclass
class EstimateArguments:
    """Options of the command: of the model, of a step, of the machines."""

    preset: str = field(default="base", metadata={"help": f"A row of the paper's Table 3: {', '.join(PRESETS)}."})
    vocab_size: int = field(default=37000, metadata={"help": "Tokens of the shared vocabulary (section 5.1: 37000)."})
    norm_position: Literal["post", "pre"] = field(
        default="post", metadata={"help": "Where the layers are normalised, as in training."}
    )
    tokens_per_batch: int = field(
        default=25_000,
        metadata={"help": "Source tokens of a whole step, and as many target tokens (section 5.1: 25000)."},
    )
    sentence_length: int = field(
        default=30, metadata={"help": "Mean number of tokens per sentence; attention costs more in longer ones."}
    )
    gpus: int = field(default=1, metadata={"help": "GPUs that share a step, counted over all machines."})
    gradient_accumulation_steps: int = field(default=1, metadata={"help": "Passes that each GPU makes per step."})
    sharding: Literal["ddp", "zero2", "fsdp2"] = field(
        default="ddp",
        metadata={"help": "How the model is spread over the GPUs, as by the launch file of the same name."},
    )
    bf16: bool = field(default=True, metadata={"help": "Multiply matrices in bfloat16."})
    loss_chunk_size: int = field(
        default=LOSS_CHUNK_SIZE,
        metadata={"help": "Positions whose logits are held at once, as in training; 0 means all."},
    )
    gradient_checkpointing: bool = field(
        default=False, metadata={"help": "Run layers twice to save memory, as in training."}
    )
    steps: list[int] = field(
        default_factory=lambda: [100_000, 300_000],
        metadata={"help": "Training steps (section 5.2: 100000 for base, 300000 for big)."},
    )
    tflops: float = field(
        default=989.0,
        metadata={
            "help": "Peak operations per second of one GPU, in 10^12: dense, in the precision of training (H100: 989)."
        },
    )
    mfu: float = field(default=0.4, metadata={"help": "Share of this peak that training reaches."})

    def __post_init__(self):
        names = ("tokens_per_batch", "sentence_length", "gpus", "gradient_accumulation_steps", "tflops")
        for name, value in [(name, getattr(self, name)) for name in names] + [("steps", n) for n in self.steps]:
            if value <= 0:
                raise ValueError(f"--{name} {value} must be greater than 0.")
        if not 0 < self.mfu <= 1:
            raise ValueError(f"--mfu {self.mfu} is a share: it must be above 0 and at most 1.")
        if self.loss_chunk_size < 0:
            raise ValueError(f"--loss_chunk_size {self.loss_chunk_size} must not be negative; 0 means all at once.")


def rows_of(args: EstimateArguments, cost: StepCost) -> list[tuple[str, str]]:
    """Each quantity and its value."""
    rows = [("parameters", f"{cost.parameters / 1e6:,.1f} million")]
    rows += [(f"memory of a GPU: {part}", f"{size / GIB:.2f} GiB") for part, size in cost.memory.items()]
    rows += [
        ("memory of a GPU: all of these", f"{sum(cost.memory.values()) / GIB:.2f} GiB"),
        ("operations of a step", f"{cost.operations / 1e12:,.1f} x 10^12"),
    ]
    for steps in args.steps:
        hours = cost.hours(steps, args.gpus, args.tflops, args.mfu)
        rows.append((f"{steps:,} steps", f"{hours:,.2f} hours"))
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError: an unknown preset, or a number that cannot be.
    """
    (args,) = CommandParser(EstimateArguments, __doc__).parse_args_into_dataclasses(arguments)
    config = VanillaTransformerConfig.from_preset(
        args.preset, vocab_size=args.vocab_size, norm_position=args.norm_position
    )
    cost = step_cost(
        config,
        args.tokens_per_batch,
        args.sentence_length,
        devices=args.gpus,
        accumulation_steps=args.gradient_accumulation_steps,
        sharding=args.sharding,
        bf16=args.bf16,
        loss_chunk_size=args.loss_chunk_size,
        checkpointing=args.gradient_checkpointing,
    )
    devices = "1 GPU" if args.gpus == 1 else f"{args.gpus} GPUs"
    print(markdown_table((f"{args.preset}, {devices} ({args.sharding})", ""), rows_of(args, cost)))
    print(
        f"\nHours at {args.mfu:.0%} of {args.tflops:g} x 10^12 operations per second (--mfu, --tflops). Beside this "
        "memory, PyTorch needs 1 to 2 GiB for itself and for what it does not fill."
    )
