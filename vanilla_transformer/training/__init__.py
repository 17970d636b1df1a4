"""The paper's training recipe on top of the library's Trainer, for models of this project and others.

Training needs the extra `train`; averaging does not.
"""

from typing import TYPE_CHECKING

from vanilla_transformer.lazy import lazy_names


if TYPE_CHECKING:
    from vanilla_transformer.training.averaging import average_checkpoints
    from vanilla_transformer.training.batching import TokenBudgetSampler
    from vanilla_transformer.training.checkpoints import complete_checkpoints
    from vanilla_transformer.training.growing_dropout import GrowingDropout
    from vanilla_transformer.training.initial_weights import start_small
    from vanilla_transformer.training.muon import muon_with_adam
    from vanilla_transformer.training.recipe import RecipeArguments, RecipeSeq2SeqTrainer, RecipeTrainer
    from vanilla_transformer.training.schedule import PaperSchedule

__all__ = [
    "GrowingDropout",
    "PaperSchedule",
    "RecipeArguments",
    "RecipeSeq2SeqTrainer",
    "RecipeTrainer",
    "TokenBudgetSampler",
    "average_checkpoints",
    "complete_checkpoints",
    "muon_with_adam",
    "start_small",
]

__getattr__ = lazy_names(
    __name__,
    {
        "averaging": ("average_checkpoints",),
        "batching": ("TokenBudgetSampler",),
        "checkpoints": ("complete_checkpoints",),
        "growing_dropout": ("GrowingDropout",),
        "initial_weights": ("start_small",),
        "muon": ("muon_with_adam",),
        "recipe": ("RecipeArguments", "RecipeSeq2SeqTrainer", "RecipeTrainer"),
        "schedule": ("PaperSchedule",),
    },
)
