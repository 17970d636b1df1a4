"""The paper's training recipe on top of the library's Trainer, for models of this project and others.

Training needs the extra `train`; averaging does not.
"""

from typing import TYPE_CHECKING

from vanilla_transformer.lazy import lazy_names


if TYPE_CHECKING:
    from vanilla_transformer.training.averaging import average_checkpoints
    from vanilla_transformer.training.batching import TokenBudgetSampler
    from vanilla_transformer.training.checkpoints import complete_checkpoints
    from vanilla_transformer.training.fast import make_fast
    from vanilla_transformer.training.recipe import RecipeArguments, RecipeSeq2SeqTrainer, RecipeTrainer
    from vanilla_transformer.training.schedule import PaperSchedule
    from vanilla_transformer.training.task import Task

__all__ = [
    "PaperSchedule",
    "RecipeArguments",
    "RecipeSeq2SeqTrainer",
    "RecipeTrainer",
    "Task",
    "TokenBudgetSampler",
    "average_checkpoints",
    "complete_checkpoints",
    "make_fast",
]

__getattr__ = lazy_names(
    __name__,
    {
        "averaging": ("average_checkpoints",),
        "batching": ("TokenBudgetSampler",),
        "checkpoints": ("complete_checkpoints",),
        "fast": ("make_fast",),
        "recipe": ("RecipeArguments", "RecipeSeq2SeqTrainer", "RecipeTrainer"),
        "schedule": ("PaperSchedule",),
        "task": ("Task",),
    },
)
