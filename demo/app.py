"""Saved models to try in the browser: each of those given gets the tab of its task.

    python demo/app.py --model runs/quickstart-en-es runs/language-model runs/classifier

The models come through the Auto classes from folders or the Hub, with the code that lies beside their weights.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import gradio as gr

from continue_text import generate_tab
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("MODEL_ID", "runs/quickstart-en-es").split()
    parser.add_argument("--model", nargs="+", default=default, help="Folders of models, or their names on the Hub.")
    parser.add_argument("--port", type=int, default=7860)
    arguments = parser.parse_args()
    for model in arguments.model:
        if not Path(model).is_dir() and model.startswith(("runs/", "./", "/")):
            parser.error(f"{model}: there is no such folder. Train one first with: make quickstart")
    build(*arguments.model).queue(max_size=32, default_concurrency_limit=1).launch(server_port=arguments.port)


if __name__ == "__main__":
    main()
