"""Check that the demo shows its page before it imports PyTorch, and what the page says about a model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from browsing import NEEDS_CHROMIUM, expect, visit
from demo_server import address_of
from family import decoder_only
from fresh_process import ROOT
from saved_models import save, with_tokenizer
from vanilla_transformer.inside import explore


pytestmark = NEEDS_CHROMIUM
SLOW = ("torch", "scipy", "matplotlib")  # packages that take about a second or more to import
LISTEN = f"""
import os, sys
folder, sys.argv[0] = sys.argv[1], "vanilla-transformer"
import httpx
from vanilla_transformer.app.app import Demo, find_models
from vanilla_transformer.cli import demo
address = Demo(find_models([folder])).serve(prevent_thread_lock=True, quiet=True)
page, weights = (httpx.get(address + path) for path in ("", "models/writer/model.safetensors"))
print("mountExplorer" in page.text, len(weights.content), [name for name in {SLOW} if name in sys.modules])
sys.stdout.flush()
os._exit(0)
"""


def test_demo_serves_its_page_and_the_weights_before_it_imports_pytorch(tmp_path):
    folder = save(tmp_path / "writer", decoder_only, "causal")
    command = [sys.executable, "-c", LISTEN, folder]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    size = Path(folder, "model.safetensors").stat().st_size
    assert result.stdout.splitlines()[-1:] == [f"True {size} []"], result.stderr


def test_page_says_what_the_model_knows_if_its_card_does(browser, tmp_path):
    knows = "Short sentences of a phrasebook. It has never seen names."
    told, silent = (Path(save(tmp_path / name, decoder_only, "causal")) for name in ("told", "silent"))
    (told / "README.md").write_text(f"---\nknows: {knows}\n---\n")
    (silent / "README.md").unlink(missing_ok=True)
    with address_of(str(told), str(silent)) as address, visit(browser, address) as page:
        expect(page.locator(".knows")).to_have_text(knows)
        page.get_by_label("Task and model").select_option(label="Continue · silent")
        expect(page.locator(".knows")).to_have_count(0)


@pytest.mark.parametrize("policy", ["", "worker-src 'none'", "script-src 'unsafe-inline'"])
def test_saved_page_runs_the_model_without_a_network_workers_or_webassembly(browser, tmp_path, policy):
    model, tokenizer = with_tokenizer(decoder_only, "causal")
    page = explore(model, tokenizer, "one two").page()
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">' if policy else ""
    (tmp_path / "page.html").write_text(page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">{head}'))
    with visit(browser, "about:blank", complains=bool(policy)) as page:
        page.context.set_offline(True)
        page.goto((tmp_path / "page.html").as_uri())
        text = page.get_by_label("Text to continue")
        text.fill("three")
        text.press("Enter")
        expect(page.locator(".output .answer")).to_contain_text("three")


def test_page_warns_if_most_letters_are_unknown_to_the_model(browser, tmp_path):
    with address_of(save(tmp_path / "writer", decoder_only, "causal")) as address, visit(browser, address) as page:
        text, hint = page.get_by_label("Text to continue"), page.locator(".hint")
        text.fill("Οδυσσέας")
        text.press("Enter")
        expect(hint).to_contain_text("not in the vocabulary of the model")
        text.fill("one two")
        text.press("Enter")
        expect(hint).to_be_empty()
