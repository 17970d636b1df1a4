"""Define the training tasks, one per module. Adding a module here adds a task."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING


if TYPE_CHECKING:  # avoid importing transformers just to check task names
    from transformers import PreTrainedConfig, PreTrainedModel

    from vanilla_transformer.tasks.task import Task

HELPERS = ("metrics", "task")  # modules that do not define a task


def task_names() -> list[str]:
    """Return the names of all tasks, as used by the command `train`, without importing their modules."""
    return [module.name for module in iter_modules(__path__) if module.name not in HELPERS]


def find_task(name: str) -> "type[Task]":
    """Return the task class defined in the module `name`."""
    from vanilla_transformer.tasks.task import Task

    module = import_module(f"{__name__}.{name}")
    return next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Task) and value.__module__ == module.__name__
    )


@cache
def all_tasks() -> "tuple[type[Task], ...]":
    """Return all task classes."""
    return tuple(map(find_task, task_names()))


def model_classes() -> tuple[str, ...]:
    """Return the names of all model classes used by a task."""
    return tuple({task.model_class.__name__: None for task in all_tasks()})


def task_of(model_class: "type[PreTrainedModel]", config: "PreTrainedConfig") -> "type[Task]":
    """Return the task of a saved model. Its class may be a subclass or a copy of the task's model class."""
    names = [base.__name__ for base in model_class.__mro__]
    return next(task for task in all_tasks() if task.model_class.__name__ in names and task.fits(config))
