"""Write the explorer as a static page: the models run in the browser, without a server or network access."""

from collections.abc import Sequence
from pathlib import Path

from vanilla_transformer.app.loading import DemoModel
from vanilla_transformer.files import new_folder
from vanilla_transformer.inside.markup import explorer_page, for_script
from vanilla_transformer.inside.model_files import model_files


def model_script(loaded: DemoModel) -> str:
    """Return JavaScript that gives the page a model."""
    content = for_script(model_files(loaded.model, loaded.tokenizer))
    return f"(globalThis.savedModels ??= {{}})[{for_script(loaded.name)}] = {content};\n"


def write_static_page(models: Sequence[DemoModel], folder: str | Path) -> None:
    """Write index.html and one file per model to a new folder.

    Raises:
        ValueError: `models` is empty.
        FileExistsError: the folder already exists.
    """
    if not models:
        raise ValueError("A static page needs at least one model: give its folder, or its name on the Hub.")
    offered = [model.describe() | {"inPage": True} for model in models]
    with new_folder(folder) as new:
        new.mkdir()
        for loaded in models:
            (new / f"{loaded.name}.js").write_text(model_script(loaded), encoding="utf-8")
        page = explorer_page("Vanilla Transformer", models=offered)
        (new / "index.html").write_text(page, encoding="utf-8")
