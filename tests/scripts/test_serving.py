"""Test serving: the requirements of the Transformers backend of vLLM, and a real `transformers serve`."""

import json
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel
from transformers.cli.serving.server import build_server
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.import_utils import is_serve_available

from family import decoder_only, encoder_decoder, encoder_only, tokens
from fresh_process import Process, running
from saved_models import with_tokenizer, write
from vanilla_transformer import VanillaTransformerDecoderModel, VanillaTransformerEncoderModel
from vanilla_transformer.cli import serve


# https://docs.vllm.ai/en/latest/models/supported_models/#writing-custom-models (encoder-only and decoder-only)

FAMILIES = {VanillaTransformerEncoderModel: encoder_only, VanillaTransformerDecoderModel: decoder_only}


class ServerAttention(nn.Module):
    """Attention of one layer over the concatenated tokens of several requests, like the layers that vLLM provides.

    Inputs and output are (tokens, heads * width).
    """

    def __init__(self, lengths: list[int], heads: int, is_causal: bool):
        super().__init__()
        self.lengths, self.heads, self.is_causal = lengths, heads, is_causal

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        parts = (states.unflatten(-1, (self.heads, -1)).transpose(0, 1) for states in (query, key, value))
        requests = zip(*(part.split(self.lengths, dim=1) for part in parts), strict=True)
        outputs = [F.scaled_dot_product_attention(*one, is_causal=self.is_causal, scale=scale) for one in requests]
        return torch.cat(outputs, dim=1).transpose(0, 1).flatten(1)


def server_attention_forward(module, query, key, value, attention_mask, scaling, attention_instances, **kwargs):
    """Call the server's attention for this layer. vLLM registers such a function with transformers."""
    assert attention_mask is None
    flat = (states.transpose(1, 2).flatten(0, 1).flatten(1) for states in (query, key, value))
    return attention_instances[module.layer_idx](*flat, scale=scaling), None


ALL_ATTENTION_FUNCTIONS.register("server", server_attention_forward)


@pytest.mark.parametrize("base_class", FAMILIES)
@pytest.mark.parametrize("fields", [{}, {"norm_position": "pre", "position_embedding": "learned"}])
def test_attention_of_the_base_model_can_be_replaced_by_a_server(base_class, fields):
    model = FAMILIES[base_class](**fields).model
    is_causal = base_class is VanillaTransformerDecoderModel
    lengths = [5, 1, 8]
    ids = tokens(1, sum(lengths))
    expected = torch.cat([model(part).last_hidden_state for part in ids.split(lengths, dim=1)], dim=1)

    model.config._attn_implementation = "server"
    attention = {i: ServerAttention(lengths, model.config.num_heads, is_causal) for i in range(2)}
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    options = {"attention_instances": attention, "use_cache": False, "return_dict": False}
    hidden_states = model(input_ids=ids, position_ids=positions, inputs_embeds=None, **options)[0]
    torch.testing.assert_close(hidden_states, expected)


@pytest.mark.parametrize("base_class", FAMILIES)
def test_the_base_model_can_be_built_on_the_meta_device_from_its_config(base_class, tmp_path):
    FAMILIES[base_class]().save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["auto_map"]["AutoModel"] == f"modeling_vanilla_transformer.{base_class.__name__}"
    with torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.from_pretrained(tmp_path))
    assert type(model) is base_class and base_class.is_backend_compatible()
    assert type(model.get_decoder()) is base_class
    assert isinstance(model.get_input_embeddings(), nn.Embedding)
    assert not hasattr(model.get_input_embeddings(), "embed_scale")  # vLLM would apply this scale a second time
    assert not list(model.buffers())  # buffers would stay on the meta device


@pytest.mark.parametrize("base_class", FAMILIES)
def test_attention_defines_is_causal_and_layers_are_one_module_list(base_class):
    model = FAMILIES[base_class]().model
    causal = [module.is_causal for module in model.modules() if hasattr(module, "is_causal")]
    assert causal == [base_class is VanillaTransformerDecoderModel] * 2
    assert [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)] == ["layers"]
    assert model.config.num_hidden_layers == len(model.layers) and model.config.head_dim == model.config.d_k


@pytest.mark.parametrize("base_class", FAMILIES)
def test_the_tensor_parallel_plan_covers_every_projection_once(base_class):
    model = FAMILIES[base_class]().model
    projections = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    planned = [
        pattern.replace("*", str(layer))
        for pattern, style in model.config.base_model_tp_plan.items()
        for layer in range(model.config.num_hidden_layers)
        if style == ("rowwise" if pattern.endswith(("o_proj", "fc2")) else "colwise")
    ]
    assert sorted(planned) == sorted(projections)


# --- `transformers serve`


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def ask(url: str, body: dict | None = None, timeout: float = 60) -> dict:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=timeout) as response:
        return json.load(response)


def is_healthy(url: str) -> bool:
    try:
        return ask(f"{url}/health")["status"] == "ok"
    except URLError:
        return False


@contextmanager
def serving(folder: Path, model, tokenizer, *options: str) -> Iterator[tuple[str, Process]]:
    """Start a server in its own process; yield its address and the process."""
    write(folder / "model", model, tokenizer)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = ["-m", "vanilla_transformer", "serve", "model", "--port", str(port), "--device", "cpu", *options]
    environment = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    with (folder / "log").open("w+") as log, running(command, stderr=log, cwd=folder, env=environment) as (server, _):
        while not is_healthy(url):
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.2)
        yield url, server


def language_model(**fields):
    return with_tokenizer(decoder_only, "causal", texts=["To be, or not to be, that is the question"], **fields)


@pytest.fixture
def served(tmp_path):
    """Yield the address of a running server, and the model and tokenizer that it serves."""
    model, tokenizer = language_model(max_position_embeddings=40)
    with serving(tmp_path, model, tokenizer) as (url, _):
        yield url, model, tokenizer


def send(port: int, method: str, path: str, body=None, **headers: str) -> tuple[int, bytes]:
    """Send a request and return the status and body of the response. An iterator as `body` is sent in chunks."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, {"Content-Type": "application/json"} | names)
    with connection.getresponse() as response:
        return response.status, response.read()


needs_server = pytest.mark.skipif(not is_serve_available(), reason='needs pip install "transformers[serving]"')


@needs_server
def test_transformers_serve_gives_the_same_text_as_generate(served):
    url, model, tokenizer = served
    batch = tokenizer("To be, or", return_tensors="pt")
    output = model.generate(**batch, max_new_tokens=7, max_length=None, do_sample=False)
    expected = tokenizer.decode(output[0, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    options = {"model": "model", "max_tokens": 7, "temperature": 0}

    chat = ask(f"{url}/v1/chat/completions", {**options, "messages": [{"role": "user", "content": "To be, or"}]})
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": expected}
    assert (chat["object"], chat["usage"]["completion_tokens"]) == ("chat.completion", 7)
    assert ask(f"{url}/v1/completions", {**options, "prompt": "To be, or"})["choices"][0]["text"] == expected

    # No field of a request can extend the output beyond the maximum length of the model.
    greedy = json.dumps({"max_new_tokens": 10**9, "num_beams": 10**6, "eos_token_id": None})
    for wish in ({"max_tokens": 10**9}, {"generation_config": greedy}):
        answer = ask(f"{url}/v1/completions", {"model": "model", "prompt": "To be, or", **wish})
        assert answer["usage"]["total_tokens"] <= 40
    for wish, reason in (
        ({"prompt": "To be, or " * 50}, "it must be shorter than 40"),
        ({"max_tokens": 0}, "max_tokens=0 must be at least 1"),
        ({"max_tokens": -1}, "max_tokens=-1 must be at least 1"),
        ({"temperature": -1}, "has to be a strictly positive float"),
        ({"temperature": "hot"}, "could not convert string to float: 'hot'"),
        ({"frequency_penalty": -2}, "`penalty` has to be a strictly positive float"),
        ({"model": "other"}, "Server is pinned to 'model'; requested 'other'"),
        ({"messages": []}, "Provide at least one message"),
    ):
        path, text = ("chat/completions", {}) if "messages" in wish else ("completions", {"prompt": "To be, or"})
        with pytest.raises(HTTPError, match="400") as refused:
            ask(f"{url}/v1/{path}", {"model": "model"} | text | wish)
        assert reason in json.load(refused.value)["error"]["message"]  # where OpenAI clients expect the message
    assert ask(f"{url}/v1/models")["object"] == "list"

    for blank in ("", " \u3000", "\u200b"):
        for path, text in (
            ("completions", {"prompt": blank}),
            ("chat/completions", {"messages": [{"role": "user", "content": blank}]}),
        ):
            (choice,) = ask(f"{url}/v1/{path}", options | text)["choices"]
            assert (choice["text"] if path == "completions" else choice["message"]["content"]) == ""

    # With a temperature, outputs are sampled and reproducible for a given seed.
    hot = {"model": "model", "prompt": "To be, or", "max_tokens": 20, "temperature": 2.0}
    first, second, again = (
        ask(f"{url}/v1/completions", hot | {"seed": seed})["choices"][0]["text"] for seed in (1, 2, 1)
    )
    assert first == again != second


@needs_server
def test_a_server_has_four_routes_and_runs_no_code_that_a_request_names(tmp_path):
    harmful = tmp_path / "harmful"
    model, tokenizer = language_model()
    write(harmful, model, tokenizer)
    trap = f"open({str(tmp_path / 'trapped')!r}, 'w')\n"
    for file in harmful.glob("*.py"):
        file.write_text(trap + file.read_text())
    for name in ("config.json", "tokenizer_config.json"):
        settings = json.loads((harmful / name).read_text())
        settings["auto_map"] = {
            "AutoConfig": "trap.Trap",
            "AutoProcessor": "trap.Trap",
            "AutoTokenizer": ["trap.Trap"] * 2,
        }
        (harmful / name).write_text(json.dumps(settings | {"model_type": "trap", "architectures": ["Trap"]}))
    (harmful / "trap.py").write_text(trap)

    everything = {route.path for route in build_server(*[None] * 7).routes}
    # make sure that the list contains the routes of transformers
    assert {"/load_model", "/reset", "/openapi.json"} < everything
    routes = {"/health", "/v1/models", "/v1/completions", "/v1/chat/completions"}
    with serving(tmp_path, model, tokenizer, "--trust-remote-code") as (url, _):
        port = int(url.rpartition(":")[2])
        body = json.dumps({"model": str(harmful), "prompt": "a", "messages": [{"role": "user", "content": "a"}]})
        found = {
            path
            for path in everything
            for method in ("GET", "POST")
            if send(port, method, path, body)[0] not in (404,)
        }
        assert found == routes
        for path in ("/v1/completions", "/v1/chat/completions"):
            for name in (str(harmful), f"{harmful}@main", "../harmful", f"model:{harmful}/a.gguf", [str(harmful)]):
                field = (
                    {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
                )
                status, _ = send(port, "POST", path, json.dumps({"model": name, **field}))
                assert status in (400, 404)
        models = json.loads(send(port, "GET", "/v1/models")[1])
        assert [model["id"] for model in models["data"]] == ["model"]
    assert not (tmp_path / "trapped").exists()


@needs_server
def test_a_server_refuses_other_sites_and_large_requests_before_it_reads_them(served):
    url, *_ = served
    port = int(url.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):  # a server that listens on all addresses would accept the connection
        socket.create_connection(("127.0.0.2", port), timeout=10)
    for host in (f"localhost:{port}", f"127.0.0.1:{port}"):
        assert send(port, "GET", "/health", Host=host)[0] == 200
        assert send(port, "GET", "/health", Host=host, Origin=f"http://{host}")[0] == 200
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "localhost",
        f"localhost:{port + 1}",
        f"127.0.0.1.nip.io:{port}",
        "",
    ):
        assert send(port, "GET", "/v1/models", Host=host)[0] == 403
    for origin in ("https://evil.example", "null", "http://localhost:1", f"https://localhost:{port}"):
        assert send(port, "POST", "/v1/completions", "{}", Origin=origin)[0] == 403

    prompt = json.dumps({"model": "model", "prompt": "a" * 10_000_000})
    for path in ("/v1/completions", "/v1/chat/completions", "/health", "/nothing"):
        # a chunked request has no Content-Length
        chunks = (prompt[i : i + 65536].encode() for i in range(0, len(prompt), 65536))
        for body in (prompt, chunks):
            status, answer = send(port, "POST", path, body)
            assert status == 413 and b"1,000,000 bytes" in answer
    padded = {"padding": "max_length", "max_length": 10**9}
    status, answer = send(
        port, "POST", "/v1/chat/completions", json.dumps({"messages": [], "chat_template_kwargs": padded})
    )
    assert status == 422 and b"chat_template_kwargs" in answer


@needs_server
def test_sigterm_stops_a_busy_server_within_seconds(tmp_path):
    model, tokenizer = language_model(max_position_embeddings=100_000, eos_token_id=None)
    model.generation_config.eos_token_id = None  # each response takes minutes
    with serving(tmp_path, model, tokenizer) as (url, server), ThreadPoolExecutor(1) as pool:
        body = {"model": "model", "prompt": "To be", "max_tokens": 10**9}
        answer = pool.submit(ask, f"{url}/v1/completions", body)
        time.sleep(3)
        assert not answer.done()
        server.terminate()
        server.wait(timeout=15)
        assert answer.exception(timeout=5) is not None


@needs_server
def test_serving_a_model_that_is_not_a_language_model_gives_a_clear_error(tmp_path):
    encoder_decoder().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"ForConditionalGeneration; give a VanillaTransformerForCausalLM"):
        serve.main([str(tmp_path)])
    with pytest.raises(FileNotFoundError, match=r"no such folder\. Give the folder of a trained model, or a name"):
        serve.main([str(tmp_path / "nothing"), "--port", "1"])


@needs_server
@pytest.mark.parametrize("option", ["--continuous-batching", "--enable-cors"])
def test_options_that_lift_a_limit_are_rejected(option, tmp_path):
    language_model()[0].save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=f"{option} would .* leave it out"):
        serve.main([str(tmp_path / "model"), "--port", "1", option])


@needs_server
def test_an_incompatible_transformers_version_gives_a_clear_error(monkeypatch):
    monkeypatch.delattr(serve.model_manager, "transformers")
    with pytest.raises(ImportError, match=r"loads models differently; this is known to work with 5.24"):
        serve.patch_library()
