"""Models for a demo that is given none: a translator, a classifier and a language model, trained on the phrasebook."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from vanilla_transformer.training.phrasebook_recipes import CLASSIFIER, LANGUAGE_MODEL, TRANSLATOR


SCRIPTS = Path(__file__).parents[1] / "scripts"

Recipes = dict[str, list[str]]
# Folder's name -> training script and its options.
RECIPES: Recipes = {
    "quickstart-en-es": [str(SCRIPTS / "train_translation.py"), *TRANSLATOR],
    "phrasebook-classifier": [str(SCRIPTS / "train_classifier.py"), *CLASSIFIER],
    "phrasebook-language-model": [str(SCRIPTS / "train_language_model.py"), *LANGUAGE_MODEL],
}


def is_whole(model: Path) -> bool:
    return (model / "model.safetensors").is_file()


def whole(recipes: Recipes, folder: Path) -> list[str]:
    """The models of the recipes that `folder` has."""
    return [str(folder / name) for name in recipes if is_whole(folder / name)]


def can_train(recipes: Recipes) -> bool:
    """Whether the scripts are here, as they are not in a Space."""
    return all(Path(script).is_file() for script, *_ in recipes.values())


def missing(recipes: Recipes, folder: Path) -> list[str]:
    """The names of the models that `folder` has not.

    Raises:
        FileExistsError: the place of one is taken by something else.
    """
    names = [name for name in recipes if not is_whole(folder / name)]
    for name in names:
        if (folder / name).exists():
            raise FileExistsError(f"{folder / name} holds training that is not finished: remove it first.")
    return names


def train(recipe: list[str], folder: Path) -> None:
    """Start a training script as a person would, in a process of its own.

    Raises:
        RuntimeError: training failed; what went wrong stands above, in the terminal.
    """
    script, *options = recipe
    status = subprocess.run([sys.executable, script, *options, "--output_dir", str(folder)]).returncode
    if status:
        raise RuntimeError(f"{Path(script).name} ended with status {status}: no {folder.name} for the demo.")


def train_missing(recipes: Recipes, folder: Path) -> Iterator[str]:
    """Train the models that `folder` has not, one after the other; yields the name of each that is done.

    A model moves to its place when it is whole, so that training that breaks off leaves nothing there.
    """
    names = missing(recipes, folder)
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names, start=1):
        print(f"\nTraining model {number} of {len(names)} for the demo, a few minutes: {name}", flush=True)
        with TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished:
            train(recipes[name], Path(unfinished, name))
            Path(unfinished, name).rename(folder / name)
        yield name
