"""Saved models to try in the browser: each of those given gets the tab of its task.

    python demo/app.py --model runs/quickstart-en-es runs/phrasebook-classifier

The models come through the Auto classes from folders or the Hub, with the code that lies beside their weights. Where
none is given, it is the quickstart's; where there is none of that either, three small ones are trained first.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import gradio as gr

from continue_text import generate_tab
from first_models import RECIPES, first_models
from inside import inside_tab
from loading import Loaded, load
from translation import translate_tab
from understand import answer_tab, classify_tab, tag_tab


TABS: dict[str, tuple[str, Callable[[Loaded], None]]] = {
    "ForConditionalGeneration": ("Translate", translate_tab),
    "ForSequenceClassification": ("Classify", classify_tab),
    "ForTokenClassification": ("Tag", tag_tab),
    "ForQuestionAnswering": ("Answer", answer_tab),
    "ForCausalLM": ("Generate", generate_tab),
}

# Heat maps keep their size on a narrow screen, where one moves them sideways, and are sharp on one of many pixels.
# Tokens to click show where each ends.
STYLE = """
.heat-map .matplotlib { overflow-x: auto; align-items: flex-start }
.heat-map img { max-width: none; margin: auto; zoom: 0.6 }
.tokens .token { box-shadow: inset 0 -2px var(--border-color-primary); margin-right: 3px }
"""


def build(*models: str) -> gr.Blocks:
    """The app on some models."""
    with gr.Blocks(title="Vanilla Transformer") as app:
        gr.Markdown(
            "# Vanilla Transformer\nThe model of *Attention Is All You Need*, trained small. Look what it does."
        )
        loaded = [load(model) for model in models]
        for model in loaded:
            title, tab = TABS[model.head]
            with gr.Tab(title):
                tab(model)
        with gr.Tab("Look inside"):
            inside_tab(loaded)
    return app


def serve(app: gr.Blocks, **options) -> str:
    """Open the app to visitors, within limits: 32 of them wait, each endpoint answers one at a time, no file comes in.

    What goes wrong inside is told to the terminal only, not to the visitor, who could read of this machine in it.

    Args:
        options: of `launch`.

    Returns:
        The address.
    """
    app.queue(max_size=32, default_concurrency_limit=1, api_open=False)  # nobody gets round the queue
    return app.launch(show_error=False, max_file_size=0, css=STYLE, **options)[1]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", help="Folders of models, or their names on the Hub.")
    parser.add_argument("--port", type=int, help="Of the address; else the first free one from 7860 on.")
    args = parser.parse_args(arguments)
    models = args.model or os.environ.get("MODEL_ID", "").split()
    try:
        app = build(*(models or first_models(RECIPES, Path("runs"))))
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        parser.error(str(error))
    serve(app, server_port=args.port)


if __name__ == "__main__":
    main()
