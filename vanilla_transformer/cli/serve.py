"""Serve a language model over HTTP with an OpenAI-style API.

pip install "vanilla-transformer[serve]"
vanilla-transformer serve FOLDER_OR_HUB_NAME --port 8000

/v1/completions continues a text; /v1/chat/completions needs a tokenizer with a chat template; /v1/models and /health
describe the server. There are no other routes. The server loads one model and no other, whatever a request asks for.
With a temperature an answer is sampled, otherwise it is greedy. An answer ends at the model's max_position_embeddings.
`n`, `logprobs`, `presence_penalty`, and the seed of one of several simultaneous requests have no effect.

The server has no passwords and no encryption, and listens only on this machine unless --host says otherwise. It
refuses requests of more than 1 MB, of web pages, and with a Host header that is not the server's address.

Other options, such as --device and --trust-remote-code, are those of `transformers serve`.
"""

from pathlib import Path
from typing import Any, cast

import transformers
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from huggingface_hub.constants import HF_HUB_CACHE
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.cli import serve as library_server
from transformers.cli.serving import chat_completion, model_manager
from transformers.cli.transformers import app

from vanilla_transformer import VanillaTransformerForCausalLM
from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.loading import load_tokenizer, model_class
from vanilla_transformer.pipeline_vanilla_transformer import is_blank


ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health")
LARGEST_BODY = 1_000_000  # maximum size of a request in bytes

# Options of `transformers serve` that are rejected, with reasons
REFUSED = {
    "--continuous-batching": "would answer past the model's max_position_embeddings",
    "--enable-cors": "would let every web page that you open use the model",
}


class ServedModel(VanillaTransformerForCausalLM):
    """A language model that stops at `max_position_embeddings` tokens, and generates nothing for a blank prompt."""

    tokenizer: PreTrainedTokenizerBase  # set after the model is loaded

    def generate(self, *, input_ids: Tensor, generation_config: GenerationConfig, **options: Any) -> Any:
        length, most = input_ids.shape[1], self.config.max_position_embeddings
        if length >= most:
            raise ValueError(f"The prompt has {length} tokens; it must be shorter than {most}, the most here.")
        asked = generation_config.max_new_tokens
        if asked is not None and asked < 1:
            raise ValueError(f"max_tokens={asked} must be at least 1.")
        generation_config.max_new_tokens = min(asked or most, most - length)
        if is_blank(self.tokenizer.decode(input_ids[0], skip_special_tokens=True)):
            generation_config.max_new_tokens = 1
            generation_config.forced_eos_token_id = self.tokenizer.eos_token_id
        # A request only sets the temperature. All other values come from the model's generation config.
        if generation_config.temperature:
            generation_config.do_sample = True
        generation_config.max_length = None
        # A request may contain a complete generation config, so limit its cost.
        generation_config.num_beams = generation_config.num_return_sequences = 1
        return super().generate(input_ids=input_ids, generation_config=generation_config, **options)


class Guard:
    """ASGI middleware that rejects requests from other web sites and requests that are too large.

    A web page can send requests to a server on the visitor's own machine. Two headers reveal such requests: `Origin`
    contains the web site, and `Host` contains the domain that was pointed at this machine (DNS rebinding).

    Args:
        app: the ASGI application to protect.
        host: the address or name given by `--host`.
    """

    def __init__(self, app: ASGIApp, host: str):
        self.app = app
        self.names = {"localhost", "127.0.0.1", "::1", host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body, size, more = bytearray(), 0, True
        # Read requests that are too large as well: most clients read the response only after sending everything.
        while more and size < 100 * LARGEST_BODY:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
            if size <= LARGEST_BODY:
                body += message.get("body", b"")
        address, port = scope["server"]
        if refusal := self.refusal(Headers(scope=scope), address, port, size):
            await error_response(*refusal)(scope, receive, send)
            return
        messages = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, receive_again, send)

    def refusal(self, headers: Headers, address: str, port: int, size: int) -> tuple[int, str] | None:
        """Return the status code and reason for rejecting a request, or None to accept it. `size` is in bytes."""
        names = {f"[{name}]" if ":" in name else name for name in self.names | {address}}
        hosts = {f"{name}:{port}" for name in names} | (names if port == 80 else set())
        if (found := headers.getlist("host")) not in [[host] for host in hosts]:
            return 403, f"Host {', '.join(found)!r} must be one of: {', '.join(sorted(hosts))}."
        if (origin := headers.get("origin")) not in {None, *(f"http://{host}" for host in hosts)}:
            return 403, f"Origin {origin!r} is another web site, which may not use this server."
        return (413, f"The request has more than {LARGEST_BODY:,} bytes.") if size > LARGEST_BODY else None


def error_response(status: int, message: str) -> JSONResponse:
    """Return an error response in the format of OpenAI's API."""
    return JSONResponse({"error": {"message": message}}, status)


def protect(app: FastAPI, host: str) -> None:
    """Remove all routes except `ROUTES`, add `Guard`, and return error messages to the client."""

    def explain(request: Request, error: Exception) -> JSONResponse:
        return error_response(getattr(error, "status_code", 400), str(getattr(error, "detail", error)))

    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) in ROUTES]
    app.add_middleware(Guard, host=host)
    for kind in (ValueError, HTTPException):
        app.add_exception_handler(kind, explain)


class ProtectedServer(uvicorn.Server):
    """A server with `Guard` that shuts down within seconds, even while it is processing requests."""

    def __init__(self, config: uvicorn.Config):
        protect(cast(FastAPI, config.app), config.host)
        config.timeout_graceful_shutdown = 3  # seconds to wait for pending responses
        super().__init__(config)


class PinnedModelManager(model_manager.ModelManager):
    """Load only the model named on the command line, because a request could name a folder with malicious code."""

    def load_model_and_processor(self, model_id_and_revision: str, *args: Any, **options: Any) -> Any:
        if model_id_and_revision != self.process_model_name(cast(str, self.force_model)):
            raise HTTPException(404, f"This server only serves the model {self.force_model!r}.")
        model, tokenizer = super().load_model_and_processor(model_id_and_revision, *args, **options)
        cast(Any, model).tokenizer = tokenizer
        return model, tokenizer


def patch_library() -> None:
    """Make `transformers serve` use our classes. By default, it only looks up classes inside `transformers`.

    Raises:
        ImportError: this version of transformers looks up classes elsewhere.
    """
    looks_here = getattr(model_manager, "transformers", None) is transformers and hasattr(library_server, "Serve")
    if not looks_here or not hasattr(model_manager.ModelManager, "_load_model"):
        raise ImportError(
            f"`transformers serve` of transformers {transformers.__version__} loads models differently; this is known "
            "to work with 5.24."
        )
    transformers.VanillaTransformerForCausalLM = ServedModel  # type: ignore[attr-defined]
    model_manager.ModelManager = PinnedModelManager  # type: ignore[misc]
    uvicorn.Server = ProtectedServer  # type: ignore[misc]
    # Reject requests with arguments for `apply_chat_template`, such as a custom template or unlimited padding.
    params = chat_completion.TransformersCompletionCreateParamsStreaming
    params.__mutable_keys__ -= {"chat_template_kwargs"}  # type: ignore[attr-defined]
    Path(HF_HUB_CACHE).mkdir(parents=True, exist_ok=True)  # /v1/models lists this folder


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError: the model is not a language model, or an option is rejected.
        ImportError: the installed version of `transformers serve` is not supported.
    """
    parser = CommandParser(description=__doc__)
    parser.add_argument("model", help="The language model's folder or its name on the Hub; before all options.")
    parser.add_argument("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 is open to your network.")
    parser.add_argument("--port", type=int, default=8000, help="Port to listen on.")
    args, others = parser.parse_known_args(arguments)
    for option, reason in REFUSED.items():
        if option in others:
            raise ValueError(f"{option} {reason}: leave it out.")
    model_class(args.model, ("VanillaTransformerForCausalLM",))
    load_tokenizer(args.model)  # loading warns if the tokenizer belongs to another model
    patch_library()
    app(["serve", args.model, "--host", args.host, "--port", str(args.port), *others])
