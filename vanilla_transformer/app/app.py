"""Build and serve the demo page: its tabs, and API endpoints for the loaded models."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence

import gradio as gr
from fastapi import Request
from fastapi.responses import JSONResponse
from gradio.route_utils import FnIndexInferError

from vanilla_transformer.app.continue_text import generate_tab
from vanilla_transformer.app.explorer import explore_tab
from vanilla_transformer.app.inside import inside_tab
from vanilla_transformer.app.loading import Loaded, load
from vanilla_transformer.app.training_runs import Runs
from vanilla_transformer.app.translation import offer_translations
from vanilla_transformer.app.understand import offer_answers, offer_classes, offer_tags, offer_words


# Task verb -> function that adds its endpoints. Language models are missing: their own tab adds the endpoints.
ENDPOINTS: dict[str, Callable[[Loaded], None]] = {
    "translate": offer_translations,
    "generate": lambda loaded: None,
    "fill": offer_words,
    "classify": offer_classes,
    "tag": offer_tags,
    "answer": offer_answers,
}
SESSIONS = 100  # maximum number of sessions whose state Gradio keeps
WAITING = 64  # maximum length of Gradio's queue; further requests get status 503

# On narrow screens, heat maps keep their size and scroll horizontally, with a permanent scroll bar and a hint. Numbers
# in cells are for screen readers. Clickable tokens are underlined separately.
STYLE = """
.heat-map .wide { overflow-x: auto; position: relative }
.heat-map .wide::-webkit-scrollbar { height: 8px }
.heat-map .wide::-webkit-scrollbar-thumb { background: var(--border-color-primary); border-radius: 4px }
.heat-map table { border-collapse: collapse; width: auto; margin: auto; font-size: var(--text-sm) }
.heat-map caption { caption-side: bottom; padding-top: 6px }
.heat-map th { font-weight: 400; white-space: nowrap; padding: 1px 4px }
.heat-map thead th { vertical-align: bottom; padding: 4px 0 }
.heat-map thead span { display: inline-block; writing-mode: vertical-rl; transform: rotate(180deg) }
.heat-map tbody th { text-align: right }
.heat-map tbody td { position: relative; min-width: 26px; height: 26px; padding: 0 }
.heat-map tbody td { border: 1px solid var(--border-color-primary) }
.heat-map tbody td span { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
@media (max-width: 640px) {
  .heat-map::after { content: "\\2194  Move a wide picture sideways to see all of it."; display: block;
    padding: 0 12px 8px; color: var(--body-text-color-subdued); font-size: var(--text-sm) }
}
.tokens .token { box-shadow: inset 0 -2px var(--border-color-primary); margin-right: 3px }
"""

THEME = gr.themes.Default(primary_hue="blue").set(  # matches the explorer's colours
    button_primary_background_fill="*primary_600",  # dark enough for white text
    button_primary_background_fill_hover="*primary_700",
)

# metadata that other sites show for a link to the page
ABOUT = "The Transformer of Attention Is All You Need: translate, classify, generate, and see what it does inside."
HEAD = f'<meta name="description" content="{ABOUT}"><meta property="og:description" content="{ABOUT}">'


def load_all(
    models: Sequence[str], trust_remote_code: bool, engine: str = "pytorch", quantization: str | None = None
) -> list[Loaded]:
    """Load the models under distinct names. Skip models that fail to load, and print the reason on stderr.

    Raises:
        ValueError: models are given, but none can be loaded.
    """
    loaded, errors = [], []
    for model in models:
        try:
            loaded.append(load(model, trust_remote_code, engine, quantization))
        except Exception as error:
            message = " ".join(str(error).split()) or type(error).__name__
            errors.append(message if model in message else f"{model}: {message}")
    if errors and not loaded:
        raise ValueError("\n".join(errors))
    for error in errors:
        print(f"Left out: {error}", file=sys.stderr)
    for model, name in zip(loaded, distinct([model.name for model in loaded]), strict=True):
        model.name = name
    return loaded


def distinct(names: list[str]) -> list[str]:
    """Return the names with numbers added to duplicates: "a", "a (2)"."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return found


def build(
    *models: str,
    runs: Sequence[str] = (),
    trust_remote_code: bool = False,
    engine: str = "pytorch",
    quantization: str | None = None,
    note: str = "",
) -> gr.Blocks:
    """Build the app for the given models. Without models, it has only the tabs that do not need one.

    Args:
        runs: folders of training runs whose curves the explorer plots.
        note: Markdown to show at the top of the page.
    """
    loaded = load_all(models, trust_remote_code, engine, quantization)
    writers = [model for model in loaded if model.task == "generate"]
    with gr.Blocks(title="Vanilla Transformer", analytics_enabled=False) as app:
        gr.Markdown("# Vanilla Transformer\nSmall trained models of *Attention Is All You Need*. Watch them work.")
        if note:
            gr.Markdown(note)
        with gr.Tab("Explore"):
            explore_tab(loaded, Runs(runs))
        for writer in writers:
            with gr.Tab("Generate" if len(writers) == 1 else f"Generate: {writer.name}"):
                generate_tab(writer)
        with gr.Tab("Look inside"):
            inside_tab(loaded)
        for model in loaded:
            ENDPOINTS[model.task](model)
    return app


def not_found(request: Request, error: Exception) -> JSONResponse:
    """Reject a request for an unknown endpoint, for which Gradio would raise an internal error."""
    return JSONResponse({"detail": "Not Found"}, 404)


def serve(app: gr.Blocks, **options) -> str:
    """Serve the app and return its address. Each endpoint handles one request at a time; uploads are rejected.

    Tracebacks are shown only in the terminal, because they could reveal details about the server.

    Args:
        options: keyword arguments of Gradio's `launch`.
    """
    # Do not let requests bypass the queue.
    app.queue(default_concurrency_limit=1, max_size=WAITING, api_open=False)
    # Gradio stores a copy of the page's state for each session, but no component here uses it.
    limits = {"max_file_size": 0, "state_session_capacity": SESSIONS}
    looks = {"theme": THEME, "css": STYLE, "head": HEAD}
    handlers = {"exception_handlers": {FnIndexInferError: not_found, KeyError: not_found}}
    return app.launch(app_kwargs=handlers, show_error=False, run_history=False, **limits, **looks, **options)[1]
