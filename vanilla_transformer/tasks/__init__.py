"""The tasks that the library trains and scores models for, one for each head."""

from vanilla_transformer.tasks.classification import CLASSIFICATION
from vanilla_transformer.tasks.language_modeling import LANGUAGE_MODELING
from vanilla_transformer.tasks.masked_language_modeling import MASKED_LANGUAGE_MODELING
from vanilla_transformer.tasks.question_answering import QUESTION_ANSWERING
from vanilla_transformer.tasks.tagging import TAGGING
from vanilla_transformer.tasks.task import Task
from vanilla_transformer.tasks.translation import TRANSLATION


__all__ = [
    "CLASSIFICATION",
    "LANGUAGE_MODELING",
    "MASKED_LANGUAGE_MODELING",
    "QUESTION_ANSWERING",
    "TAGGING",
    "TASKS",
    "TRANSLATION",
]

# By the name of the model's class, as a saved config has it.
TASKS = {
    task.model_class.__name__: task
    for task in (
        TRANSLATION,
        LANGUAGE_MODELING,
        MASKED_LANGUAGE_MODELING,
        CLASSIFICATION,
        TAGGING,
        QUESTION_ANSWERING,
    )
}


def task_names() -> list[str]:
    """Return the names of all tasks, as the command `train` takes them."""
    return [*NAMES]


def find_task(name: str) -> Task:
    """Return the task of a name in `task_names`."""
    return NAMES[name]


NAMES = {
    "translation": TRANSLATION,
    "classification": CLASSIFICATION,
    "multi_label": CLASSIFICATION,
    "regression": CLASSIFICATION,
    "tagging": TAGGING,
    "question_answering": QUESTION_ANSWERING,
    "language_modeling": LANGUAGE_MODELING,
    "masked_language_modeling": MASKED_LANGUAGE_MODELING,
}
