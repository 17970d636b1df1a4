"""Test the promises in SECURITY.md. Each promise has a test, here or in the tests of the feature."""

import ast
import json
import re
import socket
from http.client import HTTPConnection
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from demo_server import address_of, started
from family import decoder_only
from saved_models import save, with_tokenizer, write
from vanilla_transformer.data.arguments import DataArguments
from vanilla_transformer.data.splits import load_splits
from vanilla_transformer.loading import load_model
from vanilla_transformer.tasks.translation import TranslationTask


ROOT = Path(__file__).parents[1]
LOADING, DEMO, SERVING, HUB = (
    f"{name}.py" for name in ("test_loading", "demo/test_demo_loading", "scripts/test_serving", "scripts/test_hub")
)
RESUMING = "training/test_resuming.py"
# sentence of SECURITY.md -> (file, name) of its test
PROMISES = {
    "Commands run code from the folder only with `--trust_remote_code`.": (
        LOADING,
        "test_translate_runs_code_in_a_model_folder_only_with_trust_remote_code",
    ),
    "PyTorch opens it with `weights_only`.": ("test_security.py", "test_a_pickle_with_code_is_not_run"),
    "A datastore is opened only with `--datastore`.": (
        "test_datastore.py",
        "test_every_command_uses_the_datastore_of_a_trained_model",
    ),
    "non-finite weights are an error that names them.": (
        LOADING,
        "test_error_for_a_damaged_model_describes_the_damage",
    ),
    "A tokenizer that the model was not trained with gives a warning.": (
        LOADING,
        "test_a_tokenizer_from_another_model_gives_a_warning",
    ),
    "parsed as JSON, CSV, Parquet or text and never run.": (
        "test_security.py",
        "test_code_in_a_folder_of_data_is_not_run",
    ),
    "A bad row is reported by file and number.": (
        "data/test_data_faults.py",
        "test_error_for_a_non_string_value_gives_its_row",
    ),
    "If one has changed, the run resumes from the checkpoint before, with a warning.": (
        RESUMING,
        "test_a_checkpoint_whose_contents_have_changed_is_skipped_with_a_warning",
    ),
    "There are four routes:": (SERVING, "test_a_server_has_four_routes_and_runs_no_code_that_a_request_names"),
    "Only the model named on the command line is loaded,": (
        SERVING,
        "test_a_server_has_four_routes_and_runs_no_code_that_a_request_names",
    ),
    "Requests whose `Host` is not the server's address are refused,": (
        SERVING,
        "test_a_server_refuses_other_sites_and_large_requests_before_it_reads_them",
    ),
    "A request of more than 1 MB is refused before it is parsed.": (
        SERVING,
        "test_a_server_refuses_other_sites_and_large_requests_before_it_reads_them",
    ),
    "No answer is longer than the model's positions.": (
        SERVING,
        "test_transformers_serve_gives_the_same_text_as_generate",
    ),
    "The length of a text is limited,": ("demo/test_demo.py", "test_invalid_input_gets_a_clear_message"),
    "uploads are refused.": ("test_security.py", "test_the_demo_refuses_uploads_and_unknown_endpoints"),
    "The answer is 404, without a traceback.": (
        "test_security.py",
        "test_the_demo_refuses_uploads_and_unknown_endpoints",
    ),
    "of the model or of the tokenizer, runs only with `--trust_remote_code`.": (
        DEMO,
        "test_a_tokenizers_code_runs_only_if_it_is_trusted",
    ),
    "The demo leaves that model out, says why in one line, and shows the others.": (
        DEMO,
        "test_a_model_with_malformed_json_is_skipped_with_one_line",
    ),
    "listen only on your own machine unless you say otherwise.": (
        "test_security.py",
        "test_the_demo_listens_only_on_this_machine",
    ),
    "Training, scoring and translating with local files make no network requests.": (
        "scripts/test_training_scripts.py",
        "test_training_scoring_and_translating_make_no_network_requests",
    ),
    "and `--dry_run` lists them.": (HUB, "test_a_dry_run_lists_the_files_and_uploads_nothing"),
    "which contains all training targets, is not among them.": (
        HUB,
        "test_a_datastore_is_uploaded_only_on_request_and_works_after_download",
    ),
    "No Hub token is written to any file.": (RESUMING, "test_arguments_are_pickled_without_the_token"),
}


def test_security_md_contains_every_promise_and_each_has_a_test():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    promised = text.partition("## What we promise")[2].partition("\n## ")[0]
    table = [line for line in promised.splitlines() if line.startswith("|")][2:]
    for row in table:
        assert any(sentence in row for sentence in PROMISES), row
    for sentence, (file, name) in PROMISES.items():
        assert sentence in promised, sentence
        tests = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8")).body
        assert name in {node.name for node in tests if isinstance(node, ast.FunctionDef)}, name


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_a_pickle_with_code_is_not_run(tmp_path):
    write(tmp_path / "model", *with_tokenizer(decoder_only, "causal"))
    weights = load_file(tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save(weights | {"trap": Trap(tmp_path / "trapped")}, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"model cannot be loaded \(UnpicklingError\): Weights only load failed"):
        load_model(tmp_path / "model")
    assert not (tmp_path / "trapped").exists()
    torch.load(tmp_path / "model" / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "trapped").exists()  # make sure that the trap works


def test_code_in_a_folder_of_data_is_not_run(tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    (folder / "train.jsonl").write_text(json.dumps({"source": "a", "target": "b"}) + "\n")
    trap = f"open({str(tmp_path / 'trapped')!r}, 'w')\n"
    (folder / "helper.py").write_text(trap)
    data = DataArguments(dataset=str(folder), validation_fraction=0)
    assert list(load_splits(data, TranslationTask.data)["train"]["source"]) == ["a"]
    (folder / "pairs.py").write_text(trap)  # the name that a dataset loading script would have
    with pytest.raises(ValueError, match="pairs cannot be loaded: Dataset scripts are no longer supported"):
        load_splits(data, TranslationTask.data)
    assert not (tmp_path / "trapped").exists()


def status(address: str, method: str, path: str, body: str | None = None, kind: str = "application/json") -> int:
    host, port = re.search(r"//([\d.]+):(\d+)", address).groups()
    connection = HTTPConnection(host, int(port), timeout=60)
    connection.request(method, path, body, {"Content-Type": kind})
    with connection.getresponse() as response:
        return response.status


def test_the_demo_refuses_uploads_and_unknown_endpoints(tmp_path, capfd):
    folder = save(tmp_path / "writer", decoder_only, "causal")
    with address_of(folder) as address:
        data = json.dumps({"data": ["a"]})
        for path in ("call/nothing", "run/nothing", "api/nothing"):
            assert status(address, "POST", f"/gradio_api/{path}", data) == 404
        unknown = json.dumps({"data": [], "fn_index": 999, "session_hash": "a"})
        assert status(address, "POST", "/gradio_api/queue/join", unknown) == 404
        assert status(address, "GET", "/nothing") == 404
        form = '--x\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\nabc\r\n--x--\r\n'
        assert status(address, "POST", "/gradio_api/upload", form, "multipart/form-data; boundary=x") == 413
        assert status(address, "GET", "/gradio_api/file=/etc/hostname") in (403, 404)
    assert "Traceback" not in capfd.readouterr().err


def test_the_demo_listens_only_on_this_machine(tmp_path):
    folder = save(tmp_path / "writer", decoder_only, "causal")
    with started(folder) as (address, _):
        port = int(address.rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
        with pytest.raises(ConnectionRefusedError):  # a server that listens on all addresses would accept this
            socket.create_connection(("127.0.0.2", port), timeout=10)
