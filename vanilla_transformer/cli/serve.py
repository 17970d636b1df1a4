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
from transformers import GenerationConfig
from transformers.cli import serve as library_server
from transformers.cli.serving import chat_completion, model_manager
from transformers.cli.transformers import app

from vanilla_transformer import VanillaTransformerForCausalLM
from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.loading import model_class


ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health")
LARGEST_BODY = 1_000_000  # maximum size of a request in bytes

# Options of `transformers serve` that are refused, with reasons
REFUSED = {
    "--continuous-batching": "would answer past the model's max_position_embeddings",
    "--enable-cors": "would let every web page that you open use the model",
}


class ServedModel(VanillaTransformerForCausalLM):
    """A generation manager that ends answers at `max_position_embeddings`."""

    def generate(self, *, input_ids: Tensor, generation_config: GenerationConfig, **options: Any) -> Any:
        length, most = input_ids.shape[1], self.config.max_position_embeddings
        if length >= most:
            raise ValueError(f"The prompt has {length} tokens; it must be shorter than {most}, the most here.")
        asked = generation_config.max_new_tokens
        if asked is not None and asked < 1:
            raise ValueError(f"max_tokens={asked} must be at least 1.")
        generation_config.max_new_tokens = min(asked or most, most - length)
        # A request sets only the temperature; transformers takes everything else from the model's config.
        if generation_config.temperature:
            generation_config.do_sample = True
        generation_config.max_length = None
        # a request may contain a whole generation config
        generation_config.num_beams = generation_config.num_return_sequences = 1
        return super().generate(input_ids=input_ids, generation_config=generation_config, **options)


class Guard:
    """ASGI middleware that refuses requests from other web sites and requests that are too large.

    A web page can send requests to a server on its reader's machine. Two headers reveal this: `Origin` contains the
    page's
    site, and `Host` the domain that was pointed at this machine (DNS rebinding).

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
        headers = Headers(scope=scope)
        body, more = b"", True
        refusal = self.refusal(headers, self.hosts(*scope["server"]))
        while more and not refusal:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            refusal = too_large(len(body))
        if refusal:
            await refuse(*refusal, send, receive if more else None)
        else:
            await self.app(scope, replay(body, receive), send)

    def hosts(self, address: str, port: int) -> set[str]:
        """Return the valid `Host` values for requests to this address and port."""
        names = {f"[{name}]" if ":" in name else name for name in self.names | {address}}
        return {f"{name}:{port}" for name in names} | (names if port == 80 else set())

    def refusal(self, headers: Headers, hosts: set[str]) -> tuple[int, str] | None:
        """Return status and reason if the headers are enough to refuse the request."""
        if (found := headers.getlist("host")) not in [[host] for host in hosts]:
            return 403, f"Host {', '.join(found)!r} must be one of: {', '.join(sorted(hosts))}."
        if (origin := headers.get("origin")) not in {None, *(f"http://{host}" for host in hosts)}:
            return 403, f"Origin {origin!r} is another web site, which may not use this server."
        length = headers.get("content-length", "0")
        return too_large(int(length)) if length.isdecimal() else None


def too_large(size: int) -> tuple[int, str] | None:
    """Return status and reason if a body of this size is refused."""
    return (413, f"The request has more than {LARGEST_BODY:,} bytes.") if size > LARGEST_BODY else None


async def refuse(status: int, reason: str, send: Send, receive: Receive | None) -> None:
    """Send an error, then discard the rest of the request, because most clients read no answer before they have sent
    all.

    Args:
        receive: None if the request has ended.
    """
    response = error_response(status, reason)
    await send({"type": "http.response.start", "status": status, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": receive is not None})
    discarded = 0
    while receive is not None and discarded < 100 * LARGEST_BODY:
        message = await receive()
        discarded += len(message.get("body", b""))
        if not message.get("more_body", False):
            await send({"type": "http.response.body"})
            return


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first yields the body already read, and then the messages of `receive`."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def error_response(status: int, message: str) -> JSONResponse:
    """Return an error in the format that OpenAI's clients expect."""
    return JSONResponse({"error": {"message": message}}, status)


def protect(app: FastAPI, host: str) -> None:
    """Remove all routes except `ROUTES`, add `Guard`, and let errors show their messages."""

    def explain(request: Request, error: Exception) -> JSONResponse:
        return error_response(getattr(error, "status_code", 400), str(getattr(error, "detail", error)))

    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) in ROUTES]
    app.add_middleware(Guard, host=host)
    for kind in (ValueError, HTTPException):
        app.add_exception_handler(kind, explain)


class ProtectedServer(uvicorn.Server):
    """A server with `Guard` that stops within seconds even while it is answering."""

    def __init__(self, config: uvicorn.Config):
        protect(cast(FastAPI, config.app), config.host)
        config.timeout_graceful_shutdown = 3  # seconds to wait for answers
        super().__init__(config)


class PinnedModelManager(model_manager.ModelManager):
    """Loads only the model that the command names, because a request could name a folder with harmful code."""

    def load_model_and_processor(self, model_id_and_revision: str, *args: Any, **options: Any) -> Any:
        if model_id_and_revision != self.process_model_name(cast(str, self.force_model)):
            raise HTTPException(404, f"This server has the model {self.force_model!r} and no other.")
        return super().load_model_and_processor(model_id_and_revision, *args, **options)


def patch_library() -> None:
    """Make `transformers serve` use our classes; by default it looks up classes only inside `transformers`.

    Raises:
        ImportError: this version of transformers looks classes up elsewhere.
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
    # Refuse arguments for `apply_chat_template` in a request, such as its own template or unlimited padding.
    params = chat_completion.TransformersCompletionCreateParamsStreaming
    params.__mutable_keys__ -= {"chat_template_kwargs"}  # type: ignore[attr-defined]
    Path(HF_HUB_CACHE).mkdir(parents=True, exist_ok=True)  # /v1/models lists this folder


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError: the model is not a language model; an option is refused.
        ImportError: `transformers serve` does not work as expected.
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
    patch_library()
    app(["serve", args.model, "--host", args.host, "--port", str(args.port), *others])
