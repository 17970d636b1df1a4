"""Write the explorer as a static page: the models run in the browser, without a server or network access."""

import json
from base64 import b64encode
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from vanilla_transformer.app.loading import Loaded
from vanilla_transformer.files import new_folder
from vanilla_transformer.inside.page import component_files, explore_data, for_script


PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Vanilla Transformer</title>
<style>html {{ color-scheme: light dark }} body {{ margin: 0 auto; max-width: 1500px; padding: 0 16px }}</style>
<div id="explorer"></div>
<script>
const savedModels = {{}};
{script}
{engine}
mountExplorer(document.getElementById("explorer"), {{style: {style}, host: pageHost({models})}});
</script>
</html>
"""


def compact_weights(loaded: Loaded) -> dict[str, Tensor]:
    """Return the weights, with shared weights stored once, in bfloat16 if that is lossless."""
    weights: dict[int, tuple[str, Tensor]] = {}
    for name, weight in loaded.model.state_dict().items():
        weights.setdefault(weight.data_ptr(), (name, weight.float().contiguous()))
    found = dict(weights.values())
    halves = {name: weight.bfloat16() for name, weight in found.items()}
    return halves if all(torch.equal(halves[name].float(), weight) for name, weight in found.items()) else found


def layer_steps(loaded: Loaded) -> dict[str, list[dict[str, Any]]]:
    """Return the steps of each layer, such as "encoder 0", for the explorer, without their values."""
    example = loaded.examples[0]
    data = explore_data(loaded.model, loaded.tokenizer, example["text"], context=example.get("context"), effects=False)
    left_out = ("values", "shape")
    return {
        layer: [{name: value for name, value in step.items() if name not in left_out} for step in steps]
        for layer, steps in data["values"].items()
    }


def model_file(loaded: Loaded) -> str:
    """Return JavaScript that adds a model to `savedModels`."""
    model = {
        "config": loaded.model.config.to_dict(),
        "generation": loaded.model.generation_config.to_dict() if loaded.model.can_generate() else {},
        "tokenizer": json.loads(loaded.tokenizer.backend_tokenizer.to_str()),
        "steps": layer_steps(loaded),
        "weights": b64encode(save(compact_weights(loaded))).decode(),
    }
    return f"savedModels[{for_script(loaded.name)}] = {for_script(model)};\n"


def write_static_page(models: Sequence[Loaded], folder: str | Path) -> None:
    """Write index.html and one file per model to a new folder.

    Raises:
        ValueError: `models` is empty.
        FileExistsError: the folder already exists.
    """
    if not models:
        raise ValueError("A static page needs at least one model: give its folder, or its name on the Hub.")
    script, style = component_files()
    explorer = files("vanilla_transformer.inside").joinpath("explorer")
    engine = [explorer.joinpath(name).read_text(encoding="utf-8") for name in ("transformer.js", "answers.js")]
    offered = [
        {"name": each.name, "task": each.task, "regression": each.estimates, "examples": each.examples}
        for each in models
    ]
    page = PAGE.format(script=script, style=for_script(style), engine="\n".join(engine), models=for_script(offered))
    with new_folder(folder) as new:
        new.mkdir()
        for loaded in models:
            (new / f"{loaded.name}.js").write_text(model_file(loaded), encoding="utf-8")
        (new / "index.html").write_text(page, encoding="utf-8")
