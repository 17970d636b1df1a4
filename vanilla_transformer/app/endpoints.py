"""Offer the models to programs. The page uses the same endpoints for models that do not run in it.

This module has the signatures. The modules that answer import PyTorch, which takes seconds, so they are imported when
the first request arrives.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, TypedDict

import gradio as gr

from vanilla_transformer.app.loading import DemoModel
from vanilla_transformer.app.reading import is_integer, refusal
from vanilla_transformer.app.training_runs import Runs


TRAININGS = 2  # maximum number of concurrent live training runs of all visitors
Json = dict[str, Any]


class Exploration(TypedDict):
    """All that the page draws about one text."""

    model: Json
    text: str
    context: str | None
    source: list[Json]
    target: list[Json] | None
    written: int
    steps: list[Json]
    answer: str
    hypotheses: list[Json]
    attention: list[Json]
    heads: list[Json]
    lens: list[list[Json]]


class Comparison(TypedDict):
    """A prediction under changes; `same` are the steps of the original prediction, scored by the changed model."""

    changed: Json
    same: list[Json]
    rows: list[list[Any]]


class Frame(TypedDict):
    """The state of live training after `step` of `steps`."""

    step: int
    steps: int
    loss: float | None
    right: float
    text: str
    written: str
    attention: list[list[list[int]]]


class Translation(TypedDict):
    """The best hypothesis, and all hypotheses, each with text and score."""

    translation: str
    hypotheses: list[Json]


class Labels(TypedDict):
    """The probability (or value) of each label, and what each piece of the text contributes and attracts."""

    labels: dict[str, float]
    attribution: list[Json]
    attention: list[Json]


class Spans(TypedDict):
    """Tagged spans, each with text, tag, start and end."""

    spans: list[Json]


class Answer(TypedDict):
    """An answer with its place in the context and its score."""

    answer: str
    start: int
    end: int
    score: float


class Filled(TypedDict):
    """The filled text, and the most probable tokens for each blank."""

    text: str
    blanks: list[dict[str, float]]


class Text(TypedDict):
    """A text."""

    text: str


class Tokens(TypedDict):
    """Tokens, each with token, id and probability."""

    tokens: list[Json]


class Models(TypedDict):
    """The loaded models. Other endpoints take a model's number, which is its place in this list."""

    models: list[Json]


class Effects(TypedDict):
    """The effect of each head, with kind, layer, head and effect."""

    effects: list[Json]


class Steps(TypedDict):
    """The steps of a layer, each with equation, shape, line of code and values."""

    steps: list[Json]


class Log(TypedDict):
    """The progress and the logged values of a training run."""

    global_step: int
    max_steps: int
    epoch: float | None
    log_history: list[dict[str, float]]


def answers(name: str) -> Any:
    """Import a module of `app` that needs PyTorch."""
    return import_module(f"vanilla_transformer.app.{name}")


def choose(models: Sequence[DemoModel], number: Any, is_wanted: Callable[[DemoModel], bool]) -> DemoModel:
    """Return the model with this number; for None, the first wanted one. Raise an error if there is no such model."""
    numbers = [i for i, model in enumerate(models) if is_wanted(model)]
    if number is None:
        number = numbers[0]
    if not is_integer(number) or number not in numbers:
        listed = ", ".join(map(str, numbers))
        raise refusal(f"There is no model {number!r:.50} for this endpoint, only: {listed}.")
    try:
        models[number].model.eval()
    except Exception:  # the reason may contain paths of the server
        raise refusal(f"{models[number].name} cannot be loaded. The terminal of the demo says why.") from None
    return models[number]


def offer_explorer(models: Sequence[DemoModel]) -> None:
    """Add the endpoints that the page uses."""

    @cache
    def explorer() -> Any:
        return answers("explorer").Explorer(models)

    def check(model: int) -> None:
        choose(models, model if model is not None else "None", lambda _: True)

    def explore(
        model: int, text: str, target: str | list[int] | None = None, context: str | None = None
    ) -> Exploration:
        """Return all attention weights, each step of the prediction, and the prediction after each layer."""
        check(model)
        return explorer().explore(model, text, target, context)

    def effects(model: int, text: str, target: str | list[int] | None = None, context: str | None = None) -> Effects:
        """Return each head's effect on the prediction, largest first: positive if it supports the prediction."""
        check(model)
        return {"effects": explorer().effects(model, text, target, context)}

    def layer(
        model: int,
        text: str,
        target: str | list[int] | None = None,
        context: str | None = None,
        stack: str = "encoder",
        layer: int = 0,
        changes: Json | None = None,
    ) -> Steps:
        """Return a layer's equations, shapes, lines of code and values, under interventions if given."""
        check(model)
        return {"steps": explorer().layer((model, text, target, context), stack, layer, changes)}

    def changed(
        model: int, text: str, changes: Json, target: str | list[int] | None = None, context: str | None = None
    ) -> Comparison:
        """Return the prediction under interventions, and the probability then assigned to the original prediction."""
        check(model)
        return explorer().changed((model, text, target, context), changes)

    def models_endpoint() -> Models:
        """Return the loaded models, with their tasks, what they know, and example texts."""
        return {"models": [model.describe() for model in models]}

    gr.api(models_endpoint, api_name="models")
    gr.api(explore, api_name="explore")
    gr.api(effects, api_name="explore_effects")
    gr.api(layer, api_name="explore_layer")
    gr.api(changed, api_name="explore_changed")


def offer_training(runs: Runs) -> None:
    """Add the endpoints for live training and for the curves of training runs."""

    def train(
        heads: int = 4, positions: bool = True, warmup: bool = True, mask: bool = True, norm: str = "post"
    ) -> Frame:  # type: ignore[misc]  # Gradio reads the type of what is yielded
        """Train a tiny encoder-decoder for some seconds, and yield the data to draw every few steps."""
        yield from answers("live_training").train_live(heads, positions, warmup, mask, norm)

    def training_run(number: int) -> Log:
        """Return a training run's progress and logged values."""
        return runs.training_run(number)

    gr.api(train, api_name="train", concurrency_limit=TRAININGS)
    gr.api(training_run, api_name="training_run")


def offer_tasks(models: Sequence[DemoModel]) -> None:
    """Add the endpoints of the tasks of the models. Each takes the number of a model, by default the first one."""

    def chosen(task: str, number: int | None, estimates: bool = False) -> DemoModel:
        return choose(models, number, lambda model: (model.task, model.estimates) == (task, estimates))

    def translate(text: str, model: int | None = None) -> Translation:
        """Return the translation, and all hypotheses of the beam search with their scores."""
        return answers("answers").translate(chosen("translate", model), text)

    def classify(text: str, model: int | None = None) -> Labels:
        """Return the probability of each class, and gradient x input and attention for each piece of the text."""
        return answers("answers").classify(chosen("classify", model), text)

    def regress(text: str, model: int | None = None) -> Labels:
        """Return the value of each label, and gradient x input and attention for each piece of the text."""
        return answers("answers").classify(chosen("classify", model, estimates=True), text)

    def tag(text: str, model: int | None = None) -> Spans:
        """Return the tagged spans."""
        return answers("answers").tag(chosen("tag", model), text)

    def answer(question: str, context: str, model: int | None = None) -> Answer:
        """Return the answer to a question, a span of the context."""
        return answers("answers").answer(chosen("answer", model), question, context)

    def fill(text: str, model: int | None = None) -> Filled:
        """Return the text with its blanks, ___, filled, and the most probable tokens for each blank."""
        return answers("answers").fill(chosen("fill", model), text)

    def next_tokens(text: str, model: int | None = None) -> Tokens:
        """Return the ten most probable tokens after a text."""
        return answers("answers").next_tokens(chosen("generate", model), text)

    def generate(
        text: str,
        new_tokens: int = 40,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1,
        seed: int | None = None,
        model: int | None = None,
    ) -> Text:  # type: ignore[misc]
        """Continue a text, and yield it as it grows. Temperature 0 takes the most probable token each time."""
        writing = answers("continue_text").continue_text
        for grown in writing(chosen("generate", model), text, new_tokens, temperature, top_k, top_p, seed):
            yield {"text": grown}

    offered = {
        "translate": [translate],
        "classify": [classify],
        "regress": [regress],
        "tag": [tag],
        "answer": [answer],
        "fill": [fill],
        "generate": [generate, next_tokens],
    }
    present = {"regress" if model.estimates else model.task for model in models}
    for task, functions in offered.items():
        for function in functions if task in present else ():
            gr.api(function, api_name=function.__name__)
