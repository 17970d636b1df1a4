"""Open saved models in the browser: the explorer, and endpoints for programs.

vanilla-transformer demo
vanilla-transformer demo --model runs/quickstart-en-es runs/phrasebook-classifier
vanilla-transformer demo --run runs/quickstart-en-es  # draws the curves of a run

The models come from folders or the Hub. Without --model, the demo shows this project's own from checkpoints/. The code
in a model folder runs only with --trust_remote_code, and then with your rights.
"""

import argparse
import os
import sys
from io import TextIOWrapper

from vanilla_transformer.cli.export import QUANTIZATIONS
from vanilla_transformer.loading import shipped_models


NO_MODEL = (
    "**No model is given**, and `checkpoints` has none. This is what works without a model. In a Space, name "
    "models of the Hub in the variable `MODEL_ID`; elsewhere, give them with `--model`."
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", help="Model folders, or names on the Hub.")
    parser.add_argument(
        "--run",
        nargs="+",
        default=[],
        help="Folders of training runs; the explorer draws their curves while they are in progress.",
    )
    parser.add_argument("--port", type=int, help="Port to listen on; by default, the first free one from 7860.")
    parser.add_argument(
        "--trust_remote_code",
        action="store_true",
        help="Run the code in the model folders with your rights: read it first.",
    )
    parser.add_argument(
        "--engine",
        choices=["pytorch", "ctranslate2"],
        default="pytorch",
        help="Engine of the beam search; CTranslate2 is faster. What the page shows still comes from PyTorch.",
    )
    parser.add_argument("--quantization", choices=QUANTIZATIONS, help="Type of the weights in CTranslate2.")
    args = parser.parse_args(arguments)
    if args.quantization and args.engine != "ctranslate2":
        parser.error(f"--quantization {args.quantization} is for CTranslate2: add --engine ctranslate2.")
    from vanilla_transformer.app.app import build, serve  # Gradio takes seconds to import

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # show the address at once, in a log file too
    models = args.model or os.environ.get("MODEL_ID", "").split() or shipped_models()
    try:
        note = "" if models else NO_MODEL
        searching = {"engine": args.engine, "quantization": args.quantization}
        page = build(*models, runs=args.run, trust_remote_code=args.trust_remote_code, note=note, **searching)
        serve(page, server_port=args.port)
    except (ImportError, OSError, OverflowError, ValueError) as error:  # OverflowError: the port is too large
        parser.error(str(error))
