"""Serve a saved language model over HTTP with an OpenAI-style API: `transformers serve` for our models.

pip install "transformers[serving]"
python scripts/serve.py FOLDER_OR_HUB_NAME --port 8000

It is for your own machine: it listens only on 127.0.0.1 unless `--host` says otherwise, without passwords and without
encryption. `/v1/completions` continues a text; `/v1/chat/completions` needs a tokenizer with a chat template. With a
temperature an answer is sampled, else greedy; `n`, `logprobs` and a presence penalty have no effect, nor has a seed if
others ask, too. It ends at the model's `max_position_embeddings`, whatever is asked for. What cannot be done, such as
a negative temperature, is refused with status 400 and why. SIGTERM stops the server within seconds.

Other options, such as --device, are those of `transformers serve`, except --continuous-batching, which has no such
limit. On its own, `transformers serve` (5.24) does not find classes that are saved beside the weights, trusted or not:
it looks for them by name among the library's own. So this puts the installed class there.
"""

from pathlib import Path
from typing import Any

import transformers
import uvicorn
from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse
from huggingface_hub.constants import HF_HUB_CACHE
from torch import Tensor
from transformers import GenerationConfig
from transformers.cli import serve as library_server
from transformers.cli.serving import model_manager
from transformers.cli.transformers import app

from vanilla_transformer import VanillaTransformerForCausalLM
from vanilla_transformer.cli.parser import CommandParser, run_command
from vanilla_transformer.loading import model_class


class ServedModel(VanillaTransformerForCausalLM):
    """The model, whose answers end where its positions do."""

    def generate(self, *, input_ids: Tensor, generation_config: GenerationConfig, **options: Any) -> Any:
        length, most = input_ids.shape[1], self.config.max_position_embeddings
        if length >= most:
            raise ValueError(f"The prompt has {length} tokens; it must be shorter than {most}, the most here.")
        asked = generation_config.max_new_tokens
        if asked is not None and asked < 1:
            raise ValueError(f"max_tokens={asked} must be at least 1.")
        generation_config.max_new_tokens = min(asked or most, most - length)
        # A request sets the temperature alone, and the library leaves the rest to the model's config.
        if generation_config.temperature:
            generation_config.do_sample = True
        generation_config.max_length = None
        generation_config.num_beams = generation_config.num_return_sequences = 1  # a request may bring a whole config
        return super().generate(input_ids=input_ids, generation_config=generation_config, **options)


class PoliteServer(uvicorn.Server):
    """Says what is wrong with a request, and at its end waits for answers under way, but not for ever."""

    def __init__(self, config: uvicorn.Config):
        def told(request: Request, error: Exception) -> JSONResponse:
            message = {"message": getattr(error, "detail", str(error))}  # where clients of OpenAI look
            return JSONResponse({"error": message}, getattr(error, "status_code", 400))

        for kind in (ValueError, HTTPException):
            config.app.add_exception_handler(kind, told)  # type: ignore[union-attr]
        config.timeout_graceful_shutdown = 3  # seconds
        super().__init__(config)


def put_in_place() -> None:
    """Put the classes where the library's server looks for them.

    Raises:
        ImportError: it no longer looks there.
    """
    looks_here = getattr(model_manager, "transformers", None) is transformers and hasattr(library_server, "Serve")
    if not looks_here or not hasattr(model_manager.ModelManager, "_load_model"):
        raise ImportError(
            f"`transformers serve` of transformers {transformers.__version__} loads models otherwise; this is known "
            "to work with 5.24."
        )
    transformers.VanillaTransformerForCausalLM = ServedModel  # type: ignore[attr-defined]
    uvicorn.Server = PoliteServer  # type: ignore[misc]
    Path(HF_HUB_CACHE).mkdir(parents=True, exist_ok=True)  # /v1/models lists what is there


def main(arguments: list[str] | None = None) -> None:
    parser = CommandParser(description=__doc__)
    parser.add_argument("model", help="The language model's folder, or its name on the Hub; before all options.")
    parser.add_argument("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 is open to your network.")
    parser.add_argument("--port", type=int, default=8000, help="Port to listen on.")
    args, others = parser.parse_known_args(arguments)
    if "--continuous-batching" in others:
        raise ValueError("--continuous-batching would answer past the model's max_position_embeddings: leave it out.")
    model_class(args.model, ("VanillaTransformerForCausalLM",))
    put_in_place()
    app(["serve", args.model, "--host", args.host, "--port", str(args.port), *others])


if __name__ == "__main__":
    run_command(main)
