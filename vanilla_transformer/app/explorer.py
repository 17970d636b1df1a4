"""Compute what the page shows, for models that do not run in the page and for programs."""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import torch

from vanilla_transformer.app.loading import DemoModel
from vanilla_transformer.app.reading import (
    MOST_TOKENS,
    check_length,
    check_text,
    encode,
    is_integer,
    refusal,
    refusing,
)
from vanilla_transformer.decoding import EXTRA_TOKENS
from vanilla_transformer.inside.effects import ablation_effects
from vanilla_transformer.inside.interventions import interventions_from_json
from vanilla_transformer.inside.model_files import layer_steps
from vanilla_transformer.inside.page import compare_data, explore_data, layer_values
from vanilla_transformer.inside.predictions import Prediction, predict
from vanilla_transformer.inside.readings import BLANK, tokenizer_options


REMEMBERED = 32  # size of each response cache
MOST_WRITTEN = MOST_TOKENS + EXTRA_TOKENS  # maximum number of tokens in an output or target


def keeps_space(loaded: DemoModel) -> bool:
    """Whether leading and trailing spaces of a text matter to the model."""
    return loaded.task == "generate"


@cache
def steps_of(loaded: DemoModel) -> dict[str, list[dict[str, Any]]]:
    """Return the steps of each layer for the page, without their values."""
    return layer_steps(loaded.model)


class Explorer:
    """The loaded models, addressed by index, behind the page and the API."""

    def __init__(self, models: Sequence[DemoModel]):
        self.models = models
        # Cache responses: every visitor's page requests the first example and its effects.
        self.cached_data = lru_cache(REMEMBERED)(self.compute_data)
        self.cached_prediction = lru_cache(REMEMBERED)(self.predict)
        self.cached_effects = lru_cache(REMEMBERED)(self.compute_effects)

    def check(self, model: int, text: str, target: Any, context: str | None) -> tuple:
        """Validate a request and return it as a cache key; raise an error if it is invalid."""
        loaded = self.models[model]
        text = check_text(text, "to explore", keeps_space(loaded))
        if loaded.task == "answer":
            context = check_text(context, "to look for the answer in")
            both = loaded.tokenizer(text, context, **tokenizer_options(loaded.model))
            check_length(loaded, len(both["input_ids"]), "the question with its text")
        else:
            context = None
            encode(loaded, text.replace(BLANK, loaded.tokenizer.mask_token or BLANK))
        return model, text, self.check_target(loaded, target), context

    def check_target(self, loaded: DemoModel, target: Any) -> str | tuple[int, ...] | None:
        """Validate the target of a request and return it; raise an error if it is invalid."""
        if target is None or (isinstance(target, str) and not target.strip()):
            return None
        if isinstance(target, str):
            target = check_text(target, "to write", keeps_space(loaded))
            ids = loaded.tokenizer(text_target=target, **tokenizer_options(loaded.model))["input_ids"]
        else:
            config = loaded.model.config
            most = (getattr(config, "target_vocab_size", None) or config.vocab_size) - 1
            if not isinstance(target, list) or not all(is_integer(i) and 0 <= i <= most for i in target):
                raise refusal(
                    f"A target is a text, or a list of the numbers of tokens, 0 to {most}: not {target!r:.50}."
                )
            target = ids = tuple(target)
        check_length(loaded, len(ids), "the text to write", MOST_WRITTEN)
        return target

    def predict(self, model: int, *wish: Any) -> Prediction:
        """Return the encoded input and the model's prediction."""
        loaded = self.models[model]
        return predict(loaded.model, loaded.tokenizer, *wish)[0]

    def compute_data(self, model: int, *wish: Any) -> dict[str, Any]:
        loaded = self.models[model]
        return explore_data(loaded.model, loaded.tokenizer, *wish, effects=False, values=False)

    @torch.inference_mode()
    def compute_effects(self, model: int, *wish: Any) -> list[dict[str, Any]]:
        return ablation_effects(self.models[model].model, self.cached_prediction(model, *wish))

    # The next methods answer the endpoints in endpoints.py; `wish` is (model, text, target, context).

    def explore(self, *wish: Any) -> dict[str, Any]:
        with refusing():
            return self.cached_data(*self.check(*wish))

    def effects(self, *wish: Any) -> list[dict[str, Any]]:
        with refusing():
            return self.cached_effects(*self.check(*wish))

    def layer(self, wish: tuple, stack: str, layer: int, changes: dict[str, Any] | None) -> list[dict[str, Any]]:
        with refusing():
            model, prediction = self.models[wish[0]].model, self.cached_prediction(*self.check(*wish))
            return layer_values(model, prediction, stack, layer, interventions_from_json(changes))

    def changed(self, wish: tuple, changes: dict[str, Any]) -> dict[str, Any]:
        model, text, *forced = self.check(*wish)
        loaded = self.models[model]
        with refusing():
            interventions, prediction = interventions_from_json(changes), self.cached_prediction(model, text, *forced)
            return compare_data(loaded.model, loaded.tokenizer, text, interventions, *forced, prediction)
