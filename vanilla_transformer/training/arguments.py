"""Training arguments: Trainer's own, with the paper's values as defaults, and the options of the recipes."""

import logging
import math
import os
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import torch
from transformers import Seq2SeqTrainingArguments
from transformers.trainer_utils import SchedulerType


logger = logging.getLogger(__name__)


def has_bf16_matmul(device: str) -> bool:
    """Whether devices of this type ("cpu", "cuda", ...) have instructions for bfloat16 matrix multiplication.

    Without them, a multiplication in bfloat16 takes at least ten times as long as in float32.
    """
    if device != "cpu":
        return device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))


@dataclass
class RecipeArguments(Seq2SeqTrainingArguments):
    """Like `Seq2SeqTrainingArguments`, but with the paper's values as defaults and additional options for recipes.

    Raises:
        ValueError: a value is out of range, or two options contradict each other.
    """

    # Bounds of numeric fields: low <= value < high. Subclasses add bounds for their own fields.
    LIMITS: ClassVar[dict[str, tuple[float, float]]] = {
        "average_checkpoints": (1, math.inf),
        "dropout_start": (0, 1),
        "embedding_decay": (0, math.inf),
        "muon_momentum": (0, 1),
        "tokens_per_batch": (0, math.inf),
    }

    output_dir: str = field(default="runs/model", metadata={"help": "Folder for checkpoints and the final model."})
    do_train: bool = field(default=True, metadata={"help": "Train; with false, only evaluate."})
    schedule: Literal["paper", "library"] | None = field(
        default=None,
        metadata={
            "help": "paper (section 5.3): --learning_rate_scale * d_model^-0.5 * min(step^-0.5, step * "
            "warmup_steps^-1.5); library: --lr_scheduler_type with a peak of --learning_rate. The "
            "default is library if a --learning_rate is given, and paper otherwise."
        },
    )
    # The inherited types exclude None. `resolve_schedule` and `resolve_precision` replace None with a value.
    learning_rate: float | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Peak learning rate of a transformers schedule."}
    )
    lr_scheduler_type: SchedulerType | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Which transformers schedule to use. The default is linear."}
    )
    learning_rate_scale: float = field(default=1.0, metadata={"help": "Factor that multiplies the paper's schedule."})
    warmup_steps: float = field(
        default=4000,
        metadata={"help": "Steps over which the learning rate rises; a number below 1 is a share of all steps."},
    )
    adam_beta2: float = field(default=0.98, metadata={"help": "Adam's beta2 (section 5.3)."})
    adam_epsilon: float = field(default=1e-9, metadata={"help": "Adam's epsilon (section 5.3)."})
    muon: bool = field(
        default=False,
        metadata={
            "help": "Train the layers' matrices with Muon and the rest with Adam. Small translators need less than "
            "half the steps for the same loss. Not for sharded weights (FSDP)."
        },
    )
    muon_momentum: float = field(
        default=0.95,
        metadata={
            "help": "Muon's momentum, from 0 to 1. Runs of a few hundred steps do better with less, such as 0.8."
        },
    )
    embedding_decay: float = field(
        default=0.0,
        metadata={
            "help": "With --muon: weight decay of the embeddings, which --weight_decay leaves out. Limits overfitting "
            "over many epochs."
        },
    )
    dropout_start: float | None = field(
        default=None,
        metadata={
            "help": "Start dropout at this rate and increase it linearly to --dropout. Low dropout speeds up early "
            "training; high dropout limits overfitting later."
        },
    )
    max_grad_norm: float = field(default=0.0, metadata={"help": "Clip gradients to this norm; 0 means no clipping."})
    tokens_per_batch: int = field(
        default=0,
        metadata={
            "help": "Fill batches up to this many source tokens and as many target tokens, padding included "
            "(section 5.1: 25000). 0 means batches of --per_device_train_batch_size sequences."
        },
    )
    tokens_per_batch_of: Literal["step", "device"] = field(
        default="step",
        metadata={
            "help": "What --tokens_per_batch counts: step (the tokens of one optimizer step, over all devices and "
            "accumulation steps) or device (the tokens that one device processes at once)."
        },
    )
    bucketing: Literal["length", "none"] = field(
        default="length",
        metadata={
            "help": "How --tokens_per_batch fills a batch: length (sequences of similar length, as in the paper) or "
            "none (random sequences; padding is not counted, since packed models skip it). Short runs need fewer "
            "steps with none."
        },
    )
    average_checkpoints: int = field(
        default=1, metadata={"help": "Average the weights of this many last checkpoints (section 6.1: 5)."}
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={
            "help": "Stop after this many evaluations without improvement in --metric_for_best_model. Needs "
            "--load_best_model_at_end true."
        },
    )
    bf16: bool | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "Multiply matrices in bfloat16, with weights and sums in float32. On by default if the "
            "processor has instructions for it."
        },
    )
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Log the last finite loss instead of one that is nan or inf."}
    )
    save_on_signal: bool = field(default=True, metadata={"help": "Save a checkpoint and stop on SIGTERM or Ctrl-C."})

    def __post_init__(self):
        for name, (low, high) in self.LIMITS.items():
            value = getattr(self, name)
            if value is not None and not low <= value < high:
                below = "" if high == math.inf else f" and less than {high}"
                raise ValueError(f"{name}={value} must be at least {low}{below}.")
        self.check_conflicts()
        self.resolve_average()
        self.resolve_schedule()
        self.resolve_precision()
        if self.greater_is_better is None and str(self.metric_for_best_model).removeprefix("eval_") == "rmse":
            self.greater_is_better = False  # Trainer assumes this only for losses
        # the command line passes strings
        given = str(self.resume_from_checkpoint).lower()
        self.resume_from_checkpoint = {"true": True, "false": None}.get(given, self.resume_from_checkpoint)
        super().__post_init__()
        if self.device_type() == "cpu":
            self.dataloader_pin_memory = False  # without a GPU, PyTorch would warn about pinned memory

    def check_conflicts(self) -> None:
        """Raise a ValueError if two options contradict each other."""
        if self.label_smoothing_factor:
            # Trainer's label smoother shifts labels only for language models defined in transformers.
            raise ValueError(
                f"label_smoothing_factor={self.label_smoothing_factor}: the model smooths its labels, so give "
                "--label_smoothing instead."
            )
        if self.early_stopping_patience is not None and not self.load_best_model_at_end:
            raise ValueError(
                f"early_stopping_patience={self.early_stopping_patience} needs --load_best_model_at_end true, "
                "with the same --eval_strategy and --save_strategy."
            )
        if self.embedding_decay and not self.muon:
            raise ValueError(
                f"embedding_decay={self.embedding_decay} needs --muon true: without it, --weight_decay applies to the "
                "embeddings as well."
            )
        if self.bucketing == "none" and not self.tokens_per_batch:
            raise ValueError("bucketing=none needs --tokens_per_batch, which is 0.")
        if self.dropout_start is not None and self.torch_compile:
            raise ValueError(
                f"dropout_start={self.dropout_start} changes the rate at each step, and --torch_compile would compile "
                "the model for each rate: leave out one of the two."
            )
        if self.muon and self.fsdp:
            raise ValueError("muon=True needs whole matrices, but --fsdp shards them: leave out one of the two.")
        if self.muon and self.optim != type(self).optim:
            raise ValueError(f"optim={self.optim} has no effect with muon=True: leave out one of the two.")

    def resolve_average(self) -> None:
        """Reduce `average_checkpoints` to the number that other options allow, and log a warning."""
        if self.load_best_model_at_end and self.average_checkpoints > 1:
            logger.warning("The final model is the best one, not the average of the last checkpoints.")
            self.average_checkpoints = 1
        if 0 < (self.save_total_limit or 0) < self.average_checkpoints:
            self.average_checkpoints = cast(int, self.save_total_limit)
            logger.warning("The final model is the average of the %d checkpoints kept.", self.average_checkpoints)

    def resolve_schedule(self) -> None:
        """Fill in `schedule` and `learning_rate`. Idempotent, so copied or reloaded arguments do not change."""
        if self.schedule is None:
            paper = self.learning_rate is None and self.lr_scheduler_type is None
            self.schedule = "paper" if paper else "library"
        self.lr_scheduler_type = SchedulerType(self.lr_scheduler_type or "linear")
        if self.schedule == "library" and self.learning_rate is None:
            raise ValueError(f"lr_scheduler_type={self.lr_scheduler_type.value} needs a --learning_rate.")
        if self.schedule == "paper":
            if self.learning_rate not in (None, self.learning_rate_scale):
                raise ValueError(
                    f"learning_rate={self.learning_rate} belongs to --schedule library; the paper's schedule has a "
                    f"--learning_rate_scale, here {self.learning_rate_scale}."
                )
            self.learning_rate = self.learning_rate_scale  # PaperSchedule multiplies its rate by this

    def resolve_precision(self) -> None:
        """Enable bfloat16 if no precision was chosen and the processor has instructions for it."""
        device = self.device_type()
        if self.bf16 is None:
            chosen = self.fp16 or "ACCELERATE_MIXED_PRECISION" in os.environ  # `accelerate launch` sets this variable
            self.bf16 = not chosen and has_bf16_matmul(device)
        elif self.bf16 and not has_bf16_matmul(device):
            logger.warning(
                "bf16=True: this %s has no instructions for products in bfloat16, which may take ten times as long as "
                "in float32 (--bf16 false).",
                "processor" if device == "cpu" else device,
            )
        if self.bf16 and not torch.accelerator.is_available():
            self.use_cpu = True  # otherwise TrainingArguments would reject bfloat16

    def device_type(self) -> str:
        """Return the type of the training device ("cpu", "cuda", ...), even before Trainer sets up its devices."""
        accelerator = None if self.use_cpu else torch.accelerator.current_accelerator(check_available=True)
        return accelerator.type if accelerator else "cpu"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle into a checkpoint: everything except the secret `hub_token`."""
        return vars(self) | {"hub_token": None}
