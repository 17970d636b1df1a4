"""Build and serve the demo: the page of the explorer, the files of small models, and endpoints for programs."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
from gradio.route_utils import FnIndexInferError
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from vanilla_transformer.app.endpoints import answers, offer_explorer, offer_tasks, offer_training
from vanilla_transformer.app.loading import PAGE_FILES, DemoModel
from vanilla_transformer.app.training_runs import Runs
from vanilla_transformer.inside.markup import explorer_page


SESSIONS = 100  # maximum number of sessions whose state Gradio keeps
WAITING = 64  # maximum length of Gradio's queue; further requests get status 503
TITLE = "Vanilla Transformer"


def use_all(sources: Sequence[Any], use: Callable[[Any], Any]) -> list[Any]:
    """Return `use(source)` of each model. Skip models for which it fails, and print the reason on stderr.

    Raises:
        ValueError: it fails for all models.
    """
    used, errors = [], []
    for source in sources:
        try:
            used.append(use(source))
        except Exception as error:
            message = " ".join(str(error).split()) or type(error).__name__
            errors.append(message if str(source) in message else f"{source}: {message}")
    if errors and not used:
        raise ValueError("\n".join(errors))
    for error in errors:
        print(f"Left out: {error}", file=sys.stderr)
    return used


def find_models(sources: Sequence[str], trust_remote_code: bool = False) -> list[DemoModel]:
    """Describe models under distinct names, without loading them; see `use_all` for models that cannot be used."""
    models = use_all(sources, lambda source: DemoModel(source, trust_remote_code))
    for model, name in zip(models, distinct([model.name for model in models]), strict=True):
        model.name = name
    return models


def load_all(models: Sequence[DemoModel]) -> list[DemoModel]:
    """Load models, and return those that can be loaded; see `use_all` for the others."""

    def load(model: DemoModel) -> DemoModel:
        assert model.loaded
        return model

    return use_all(models, load)


def distinct(names: list[str]) -> list[str]:
    """Return the names with numbers added to duplicates: "a", "a (2)"."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return found


def not_found(request: Request, error: Exception | None = None) -> Response:
    """Reject a request for an unknown file or endpoint, for which Gradio would raise an internal error."""
    return JSONResponse({"detail": "Not Found"}, 404)


class Demo:
    """The page, and a Gradio API for programs and for models that do not run in the page.

    Args:
        models: see `find_models`. They are loaded when the first request for them arrives.
        runs: folders of training runs whose curves the explorer plots.
    """

    def __init__(self, models: Sequence[DemoModel], runs: Sequence[str] = ()):
        self.models, self.runs = models, Runs(runs)
        with gr.Blocks(title=TITLE, analytics_enabled=False) as self.api:
            offer_explorer(models)
            offer_training(self.runs)
            offer_tasks(models)

    def page(self, request: Request) -> Response:
        """Return the page, which runs small models itself."""
        offered = [model.describe() for model in self.models]
        return HTMLResponse(explorer_page(TITLE, models=offered, runs=self.runs.names, served=True))

    def model_file(self, request: Request) -> Response:
        """Return a file of a model that runs in the page."""
        name, file = request.path_params["name"], request.path_params["file"]
        model = next((model for model in self.models if model.name == name and model.in_page), None)
        if model is not None and file == "steps.json":
            return JSONResponse(answers("explorer").steps_of(model))
        if model is not None and file == "generation_config.json" and not model.file(file).is_file():
            return JSONResponse({})  # only models that generate text have one
        if model is None or file not in PAGE_FILES or not model.file(file).is_file():
            return not_found(request)
        return FileResponse(model.file(file))

    def serve(self, **options: Any) -> str:
        """Serve the demo and return its address. Each endpoint handles one request at a time; uploads are rejected.

        Tracebacks are shown only in the terminal, because they could reveal details about the server.

        Args:
            options: keyword arguments of Gradio's `launch`.
        """
        # Do not let requests bypass the queue.
        self.api.queue(default_concurrency_limit=1, max_size=WAITING, api_open=False)
        # Gradio stores a copy of its page's state for each session, but no component here uses it.
        limits: dict[str, Any] = {"max_file_size": 0, "state_session_capacity": SESSIONS}
        server = {
            "routes": [Route("/", self.page), Route("/models/{name}/{file}", self.model_file)],
            "exception_handlers": {FnIndexInferError: not_found, KeyError: not_found},
        }
        return self.api.launch(app_kwargs=server, show_error=False, run_history=False, **limits, **options)[1]
