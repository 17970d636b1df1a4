"""Models for a demo that is given none: a translator, a classifier and a language model, trained on the phrasebook."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory


SIZE = "--d_model 128 --d_ff 512 --num_heads 4 --dropout 0 --learning_rate_scale 0.4 --logging_steps 50".split()
CLASSIFIER = """
    --num_layers 2 --vocab_size 4000 --tokens_per_batch 1000 --warmup_steps 200 --max_steps 1000 --save_strategy no
""".split()
LANGUAGE_MODEL = """
    --num_layers 3 --vocab_size 2000 --block_size 128 --per_device_train_batch_size 16 --warmup_steps 200
    --max_steps 800 --save_strategy no
""".split()


Recipes = dict[str, tuple[Callable[[list[str]], object], list[str]]]


def recipes() -> Recipes:
    """Folder's name -> main function of a training script, and its options.

    Raises:
        ImportError: the scripts are not here, as in a Space, or a library is not that they need.
    """
    try:
        import quickstart
        import train_classifier
        import train_language_model
        import train_translation
    except ImportError as error:
        raise ImportError(
            f"No model is given, and none can be trained here ({error}). "
            "Give some with --model, or in the variable MODEL_ID, as in a Space."
        ) from error

    return {
        "quickstart-en-es": (train_translation.main, quickstart.RECIPE),
        "phrasebook-classifier": (train_classifier.main, [*SIZE, *CLASSIFIER]),
        "phrasebook-language-model": (train_language_model.main, [*SIZE, *LANGUAGE_MODEL]),
    }


def is_whole(model: Path) -> bool:
    return (model / "model.safetensors").is_file()


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
        train, options = recipes[name]
        with TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished:
            train([*options, "--output_dir", f"{unfinished}/{name}"])
            Path(unfinished, name).rename(folder / name)


def first_models(recipes: Recipes, folder: Path) -> list[str]:
    """The models of the recipes that `folder` has; all of them, trained now, where it has not the first."""
    if not is_whole(folder / next(iter(recipes))):
        train_missing(recipes, folder)
    return [str(folder / name) for name in recipes if is_whole(folder / name)]
