"""Serve a saved language model over HTTP, in the form of OpenAI's interface: `transformers serve` for our models.

pip install "transformers[serving]"
python scripts/serve.py FOLDER_OR_HUB_NAME --host 127.0.0.1 --port 8000

`/v1/completions` continues a text; `/v1/chat/completions` needs a tokenizer with a chat template. The options are
those of `transformers serve`, which by itself (in 5.23) finds no class that is saved beside the weights, not even with
--trust-remote-code: it looks for the name of the class among the library's own. So this puts the class there.
"""

import sys

from transformers.cli.serving import model_manager
from transformers.cli.transformers import app

from vanilla_transformer import VanillaTransformerForCausalLM


def main() -> None:
    model_manager.transformers.VanillaTransformerForCausalLM = VanillaTransformerForCausalLM  # type: ignore[attr-defined]
    app(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    main()
