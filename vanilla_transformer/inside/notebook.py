"""Show the explorer, an interactive view of one prediction, in a notebook or a saved page.

explore(model, tokenizer, "Wednesday, July 4, 2029")  # in a notebook
explore(model, tokenizer, "Wednesday, July 4, 2029").save("wednesday.html")
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.inside.interventions import NO_INTERVENTIONS, Interventions
from vanilla_transformer.inside.markup import explorer_html, explorer_page
from vanilla_transformer.inside.model_files import model_files, runs_in_page
from vanilla_transformer.inside.page import compare_data, explore_data


@dataclass
class Explorer:
    """An interactive view of `explore_data`, which notebooks display.

    Args:
        data: the prediction to show first.
        files: what the page needs to run the model itself, see `model_files`; None if it cannot.
    """

    data: dict[str, Any]
    files: dict[str, Any] | None = None

    def options(self) -> dict[str, Any]:
        """Return the arguments of the JavaScript function mountExplorer."""
        if self.files is None:
            return {"data": self.data}
        request = self.data["request"]
        model = {"name": self.data["name"], "examples": [request], "inPage": True}
        model |= {name: self.data["model"][name] for name in ("task", "regression")}
        return {"data": self.data, "models": [model], "saved": {self.data["name"]: self.files}}

    def _repr_html_(self) -> str:
        return explorer_html(**self.options(), linked=False)

    def page(self) -> str:
        """Return a self-contained HTML page."""
        return explorer_page(self.data["text"].strip() or "Explorer", **self.options())

    def save(self, file: str | Path) -> None:
        """Write `page` to a file that works offline and without this package."""
        Path(file).write_text(self.page(), encoding="utf-8")


def explore(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    target: str | Sequence[int] | None = None,
    context: str | None = None,
    interventions: Interventions = NO_INTERVENTIONS,
    small: bool = False,
) -> Explorer:
    """Return an interactive view of a model's prediction for one text, to display in a notebook or save as a page.

    A model of up to 20 MB is part of the view and runs in it, if it has the paper's settings: other texts and
    interventions then work in the page.

    Args:
        text, target, context, interventions: see `predict`.
        small: leave out the model and the numbers of the steps, so that a stored notebook stays below 1 MB.

    Raises:
        ValueError: see `predict`.
    """
    name = Path(model.config.name_or_path or "").name or "model"
    target = target if target is None or isinstance(target, str) else list(target)
    request: Any = {"model": 0, "text": text, "context": context, "target": target}
    runs = not small and runs_in_page(model, tokenizer)
    files = model_files(model, tokenizer) if runs else None
    data = explore_data(model, tokenizer, text, target, context, values=not runs and not small)
    data |= {"name": name, "request": request}
    if interventions:
        compared = compare_data(model, tokenizer, text, interventions, target, context)
        changed = compared.pop("changed") | {"name": f"{name}, changed", "request": request}
        data["beside"] = {"title": "Changed", "data": changed, "above": True} | compared
    return Explorer(data, files)
