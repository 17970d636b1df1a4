"""Models for a demo that is given none: a translator, a classifier and a language model, trained on the phrasebook."""

import subprocess
import sys
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


def train(recipe: list[str], folder: Path) -> None:
    """Start a training script as a person would, in a process of its own.

    Raises:
        FileNotFoundError: the scripts are not here, as in a Space.
        RuntimeError: training failed; what went wrong stands above, in the terminal.
    """
    script, *options = recipe
    if not Path(script).is_file():
        raise FileNotFoundError(
            f"No model is given, and none can be trained here (there is no {Path(script).name}). "
            "Give some with --model, or in the variable MODEL_ID, as in a Space."
        )
    status = subprocess.run([sys.executable, script, *options, "--output_dir", str(folder)]).returncode
    if status:
        raise RuntimeError(f"{Path(script).name} ended with status {status}: no {folder.name} for the demo.")


def train_missing(recipes: Recipes, folder: Path) -> None:
    """Train the models that `folder` has not, the first of the recipes last.

    A model moves to its place when it is whole, so that training that breaks off leaves nothing there.

    Raises:
        FileExistsError: the place of a model is taken by something else.
    """
    missing = [name for name in reversed(recipes) if not is_whole(folder / name)]
    for name in missing:
        if (folder / name).exists():
            raise FileExistsError(f"{folder / name} holds training that is not finished: remove it first.")
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(missing, start=1):
        print(f"\nTraining model {number} of {len(missing)} for the demo, a few minutes: {name}", flush=True)
        with TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished:
            train(recipes[name], Path(unfinished, name))
            Path(unfinished, name).rename(folder / name)


def first_models(recipes: Recipes, folder: Path) -> list[str]:
    """The models of the recipes that `folder` has; all of them, trained now, where it has not the first."""
    if not is_whole(folder / next(iter(recipes))):
        train_missing(recipes, folder)
    return [str(folder / name) for name in recipes if is_whole(folder / name)]
