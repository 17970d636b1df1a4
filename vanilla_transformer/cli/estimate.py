"""Estimate what training will cost, before it begins: parameters, memory per GPU, operations per step, hours.

vanilla-transformer estimate --preset big --tokens_per_batch 25000 --gpus 8
vanilla-transformer estimate --preset base --gpus 1 --gradient_accumulation_steps 4 --steps 100000
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor, UntypedStorage, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from vanilla_transformer import PRESETS, VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.fast import LOSS_CHUNK_SIZE
from vanilla_transformer.files import markdown_table


GIB = 2**30
FLOAT = 4  # bytes per weight, gradient or Adam state: float32 even if matrix multiplications use bfloat16
ADAM_STATES = 2  # moving averages of the gradient and of its square
CHUNK_LOGIT = 2 + 4 + 4 + 2  # bytes per logit: bfloat16, float32, log-probability, and bfloat16 gradient
# Parts of the memory that are sharded across devices
SHARDED: dict[str, tuple[str, ...]] = {
    "ddp": (),
    "zero2": ("gradients", "optimizer"),
    "fsdp2": ("weights", "gradients", "optimizer"),
}


@dataclass
class EstimateArguments:
    """Options of `estimate`: the model, the training step, and the machines.

    Raises:
        ValueError: a value is out of range.
    """

    preset: str = field(default="base", metadata={"help": f"A row of the paper's Table 3: {', '.join(PRESETS)}."})
    vocab_size: int = field(default=37000, metadata={"help": "Tokens of the shared vocabulary (section 5.1: 37000)."})
    tokens_per_batch: int = field(
        default=25_000,
        metadata={"help": "Source tokens of a whole step, and as many target tokens (section 5.1: 25000)."},
    )
    sentence_length: int = field(
        default=30, metadata={"help": "Mean number of tokens per sentence; longer ones cost more attention."}
    )
    gpus: int = field(default=1, metadata={"help": "GPUs that share a step, over all machines."})
    gradient_accumulation_steps: int = field(
        default=1, metadata={"help": "Forward and backward passes of each GPU per step."}
    )
    sharding: Literal["ddp", "zero2", "fsdp2"] = field(
        default="ddp", metadata={"help": "How the model is spread over the GPUs, named like the launch files."}
    )
    bf16: bool = field(default=True, metadata={"help": "Multiply matrices in bfloat16."})
    gradient_checkpointing: bool = field(
        default=False, metadata={"help": "Run layers twice to save memory, as in training."}
    )
    steps: list[int] = field(
        default_factory=lambda: [100_000, 300_000],
        metadata={"help": "Training steps (section 5.2: 100000 for base, 300000 for big)."},
    )
    tflops: float = field(
        default=989.0,
        metadata={"help": "Peak of one GPU in 10^12 operations per second, dense, in bfloat16 (H100: 989)."},
    )
    mfu: float = field(default=0.4, metadata={"help": "Share of this peak that training reaches."})

    def __post_init__(self):
        names = ("tokens_per_batch", "sentence_length", "gpus", "gradient_accumulation_steps", "tflops")
        for name, value in [(name, getattr(self, name)) for name in names] + [("steps", n) for n in self.steps]:
            if value <= 0:
                raise ValueError(f"--{name} {value} must be greater than 0.")
        if not 0 < self.mfu <= 1:
            raise ValueError(f"--mfu {self.mfu} is a share: it must be above 0 and at most 1.")


@dataclass(frozen=True)
class StepCost:
    """The cost of a training step.

    Args:
        parameters: number of trained parameters.
        memory: peak memory per device in bytes, by part.
        operations: multiplications and additions in all matrix multiplications of a step, summed over the devices.
    """

    parameters: int
    memory: dict[str, int]
    operations: int


@dataclass(frozen=True)
class ForwardPass:
    """Bytes that the forward pass keeps for the backward pass: for all activations, the logits, and each layer."""

    activations: int
    logits: int
    layers: tuple[int, ...]


@contextmanager
def saved_bytes(model: nn.Module) -> Iterator[Callable[[], int]]:
    """Yield a function that counts the bytes saved by autograd. Each storage counts once, and weights do not count."""
    # Fake storages have no data pointer, but each has a unique address while it exists.
    weights = {weight.untyped_storage()._cdata for weight in model.parameters()}
    saved: dict[int, UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            saved[storage._cdata] = storage
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield lambda: sum(storage.nbytes() for storage in saved.values())


def fused_dropout(probability: float, states: Tensor) -> Tensor:
    """Apply dropout as on a GPU, where the saved mask has one byte per element; on a CPU, it is a float mask."""
    return torch.native_dropout(states, probability, True)[0]


def checkpoint_layers(model: PreTrainedModel) -> None:
    """Enable gradient checkpointing with the method of the installed transformers version."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def count_pass(
    config: VanillaTransformerConfig, rows: int, length: int, bf16: bool, checkpointing: bool, on_accelerator: bool
) -> ForwardPass:
    """Run a forward pass over `rows` sentence pairs of `length` tokens with fake tensors, and measure its memory."""
    with FakeTensorMode():
        model = VanillaTransformerForConditionalGeneration(config).train()
        if checkpointing:
            checkpoint_layers(model)
        for module in model.modules():
            if on_accelerator and isinstance(module, nn.Dropout) and module.p:
                module.forward = partial(fused_dropout, module.p)  # type: ignore[method-assign]
        ids = torch.zeros(rows, length, dtype=torch.long)
        layers: list[int] = []
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16), saved_bytes(model) as saved:
            for layer in (module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)):
                layer.register_forward_pre_hook(lambda *_: layers.append(-saved()))
                layer.register_forward_hook(lambda *_: layers.append(layers.pop() + saved()))
            states = model.model(input_ids=ids, decoder_input_ids=ids).last_hidden_state
            activations = saved()
            model.logits_and_loss(states, ids)
            return ForwardPass(activations, saved() - activations, tuple(layers))


def count_operations(config: VanillaTransformerConfig, length: int, checkpointing: bool) -> int:
    """Count the operations in the matrix multiplications of a training step with one sentence pair of `length` tokens.

    The count includes the full length x length attention matrix.
    """
    with FakeTensorMode():
        model = VanillaTransformerForConditionalGeneration(deepcopy(config)).train()
        # the counter only recognises eager attention; setting it changes the config
        model.set_attn_implementation("eager")
        if checkpointing:
            checkpoint_layers(model)
        ids = torch.zeros(1, length, dtype=torch.long)
        with FlopCounterMode(display=False) as operations:
            model(input_ids=ids, labels=ids).loss.backward()
        return operations.get_total_flops()


def step_cost(
    config: VanillaTransformerConfig,
    tokens: int,
    length: int,
    devices: int = 1,
    accumulation_steps: int = 1,
    sharding: str = "ddp",
    bf16: bool = True,
    loss_chunk_size: int = 0,
    checkpointing: bool = False,
    on_accelerator: bool = True,
) -> StepCost:
    """Return the cost of a step with `tokens` source and as many target tokens, in sentences of `length` tokens.

    The model runs on fake tensors, which have shapes but no data. PyTorch's hooks count the memory that would be kept
    for the backward pass, and the operations of the matrix multiplications.

    Raises:
        ValueError: `tokens` is less than one sentence for each device and accumulation step.
    """
    rows = tokens // (devices * accumulation_steps * length)
    if rows < 1:
        raise ValueError(
            f"tokens_per_batch={tokens} are fewer than a sentence of {length} tokens for each of {devices} devices x "
            f"{accumulation_steps} accumulation steps."
        )
    config = deepcopy(config)
    config.use_cache = False  # like Trainer
    with torch.device("meta"):
        parameters = VanillaTransformerForConditionalGeneration(config).num_parameters(only_trainable=True)
    # All memory is proportional to the number of rows, except autocast's bfloat16 copies of the weights.
    two, three = (count_pass(config, n, length, bf16, False, on_accelerator) for n in (2, 3))
    by_row, positions = three.activations - two.activations, rows * length
    copies = two.activations - 2 * by_row
    if checkpointing:
        # Memory of the inputs of all layers, plus the activations of one layer at a time in the backward pass
        inputs = [count_pass(config, n, length, bf16, True, on_accelerator).activations for n in (2, 3)]
        by_row = inputs[1] - inputs[0] + max(b - a for a, b in zip(two.layers, three.layers, strict=True))
    vocab_size = config.target_vocab_size or config.vocab_size
    if loss_chunk_size:
        loss = 2 * FLOAT * positions * config.d_model + FLOAT * vocab_size * config.d_model
        loss += CHUNK_LOGIT * min(loss_chunk_size, positions) * vocab_size
    else:
        loss = rows * (three.logits - two.logits) + FLOAT * positions * vocab_size  # plus the gradient of the logits
    states = FLOAT * parameters
    memory = {"weights": states, "gradients": states, "optimizer": ADAM_STATES * states}
    for part in SHARDED[sharding]:
        memory[part] = -(-memory[part] // devices)
    memory["weights"] += copies  # autocast keeps these copies until the end of the forward pass
    if devices > 1 and sharding == "ddp":
        memory["exchange of gradients"] = states
    memory |= {"activations": rows * by_row, "logits and loss": loss}
    return StepCost(parameters, memory, count_operations(config, length, checkpointing) * tokens // length)


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError: the preset is unknown, or a value is out of range.
    """
    (args,) = CommandParser(EstimateArguments, __doc__).parse_args_into_dataclasses(arguments)
    config = VanillaTransformerConfig.from_preset(args.preset, vocab_size=args.vocab_size)
    cost = step_cost(
        config,
        args.tokens_per_batch,
        args.sentence_length,
        devices=args.gpus,
        accumulation_steps=args.gradient_accumulation_steps,
        sharding=args.sharding,
        bf16=args.bf16,
        loss_chunk_size=LOSS_CHUNK_SIZE,
        checkpointing=args.gradient_checkpointing,
    )
    memory = cost.memory | {"all of these": sum(cost.memory.values())}
    rows = [("parameters", f"{cost.parameters / 1e6:,.1f} million")]
    rows += [(f"memory of a GPU: {part}", f"{size / GIB:.2f} GiB") for part, size in memory.items()]
    rows.append(("operations of a step", f"{cost.operations / 1e12:,.1f} x 10^12"))
    seconds = cost.operations / (args.gpus * args.tflops * 1e12 * args.mfu)
    rows += [(f"{steps:,} steps", f"{steps * seconds / 3600:,.2f} hours") for steps in args.steps]
    devices = "1 GPU" if args.gpus == 1 else f"{args.gpus} GPUs"
    print(markdown_table((f"{args.preset}, {devices} ({args.sharding})", ""), rows))
    print(
        f"\nHours at {args.mfu:.0%} of {args.tflops:g} x 10^12 operations per second (--mfu, --tflops). PyTorch "
        "needs 1 to 2 GiB more for itself and for fragmentation."
    )
