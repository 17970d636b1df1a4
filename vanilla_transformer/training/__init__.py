"""The paper's training recipe as subclasses of Trainer, for the models of this package and any other.

Training needs the extra `train`, but averaging checkpoints does not. Names are therefore imported on first use.
"""

from vanilla_transformer.lazy import lazy_names


MODULES = {
    "arguments": ("RecipeArguments",),
    "averaging": ("average_checkpoints",),
    "batching": ("TokenBudgetSampler",),
    "callbacks": ("DropoutSchedule",),
    "checkpoints": ("complete_checkpoints",),
    "optimizer": ("PaperSchedule", "init_small", "muon_with_adam"),
    "trainer": ("RecipeSeq2SeqTrainer", "RecipeTrainer"),
}

__all__ = [name for names in MODULES.values() for name in names]
__getattr__ = lazy_names(__name__, MODULES)
