"""Sections that measure each value in its own process: memory, growth with the length, start-up."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from benchmarking.costs import pass_cost, step_memory
from benchmarking.peers import Size, translators
from benchmarking.results import OURS, PACKED, Result
from benchmarking.timing import Machine, exponent
from vanilla_transformer.data.phrasebook import phrasebook
from vanilla_transformer.data.tokenizer import train_tokenizer
from vanilla_transformer.fast import LOSS_CHUNK_SIZE


MIB = 2**20
SCRIPTS = Path(__file__).parent.parent
MEMORY_VOCABULARY = 32_000
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
WINDOW = 64  # positions that each attends to, including its own, with restricted attention


def run_python(code: str, *arguments: Any, folder: Path = SCRIPTS) -> tuple[str, float]:
    """Run code in a fresh process; return its last line of output and its time in seconds."""
    start = time.perf_counter()
    command = [sys.executable, "-c", code, *map(str, arguments)]
    # the modules of this folder can be imported
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"A process of the benchmark failed:\n{done.stderr}")
    return (done.stdout.splitlines() or [""])[-1], seconds


def call_fresh(function: Callable, *arguments: Any) -> Any:
    """Call a function of this folder in a fresh process; arguments and result are passed as JSON."""
    module, name = function.__module__, function.__name__
    code = f"import json, sys, {module}; print(json.dumps({module}.{name}(*json.loads(sys.argv[1]))))"
    return json.loads(run_python(code, json.dumps(arguments))[0])


def measure_memory(size: Size, rounds: int, machine: Machine) -> list[Result]:
    """Measure the MiB that a training step needs beyond the model and its gradients (Linux)."""
    models = {name: (name, 0) for name in (OURS, PACKED, "Marian", "BART", "torch.nn.Transformer")}
    models[f"ours, {LOSS_CHUNK_SIZE} positions at a time"] = (OURS, LOSS_CHUNK_SIZE)
    values: dict[str, list[float]] = {label: [] for label in models}
    for _ in range(rounds):
        for label, (name, chunk) in models.items():
            grown = call_fresh(step_memory, name, astuple(size), chunk, 64, 24, machine.device, machine.threads)
            values[label].append(max(grown, 1) / MIB)
    note = f"vocabulary {size.vocab_size:,}"
    return [Result("memory of a step", label, "MiB", measured, note) for label, measured in values.items()]


def measure_length(size: Size, lengths: tuple[int, ...], machine: Machine) -> list[Result]:
    """Measure time and memory of full and restricted attention at each length, and their growth."""
    kinds = {"full attention": None, f"window of {WINDOW}": WINDOW}
    costs: dict[str, list[tuple[float, int]]] = {kind: [] for kind in kinds}
    for length in lengths:
        for kind, window in kinds.items():
            cost = call_fresh(pass_cost, astuple(size), window, length, machine.device, machine.threads)
            costs[kind].append(cost)
    results = []
    for kind, measured in costs.items():
        seconds, grown = zip(*measured, strict=True)
        mib = [max(value, 1) / MIB for value in grown]
        for quantity, unit, values in (("time", "seconds", seconds), ("memory", "MiB", mib)):
            for length, value in zip(lengths, values, strict=True):
                results.append(Result(f"{quantity} at length {length}", kind, unit, [value]))
            results.append(Result(f"growth of {quantity}", kind, "power of the length", [exponent(lengths, values)]))
    return sorted(results, key=lambda result: result.section.split()[::-1])


# Prints as JSON the seconds until the demo listens, and from then until its first answer.
DEMO = """
import json, sys, time
start = time.perf_counter()
from vanilla_transformer.app import app
from gradio_client import Client
demo = app.build(sys.argv[1])
_, url, _ = demo.queue().launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
listens = time.perf_counter() - start
client = Client(url, verbose=False)
asked = time.perf_counter()
client.predict("Wednesday, July 4, 2029", api_name="/translate")
answered = time.perf_counter() - asked
demo.close()
print(json.dumps([listens, answered]))
"""


def save_translator(size: Size, folder: str) -> None:
    """Return an untrained model of ours with a tokenizer, in the form in which the demo loads it."""
    texts = phrasebook("translation", "en", "es", size=1000)["train"]
    tokenizer = train_tokenizer([*texts["source"], *texts["target"]], vocab_size=size.vocab_size)
    translators(replace(size, vocab_size=len(tokenizer)))[OURS]().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measure_startup(size: Size, rounds: int) -> list[Result]:
    """Measure the seconds to import transformers and a model, to load a saved model, and to start the demo."""
    imports = "from transformers import PreTrainedModel, PreTrainedConfig, GenerationMixin, EncoderDecoderCache\n"
    with tempfile.TemporaryDirectory() as folder:
        save_translator(size, folder)
        codes = {
            "transformers alone": imports,
            OURS: f"{imports}import vanilla_transformer",
            "Marian": f"{imports}from transformers import MarianConfig, MarianMTModel",
            "load a saved model": f"{imports}import vanilla_transformer as v\n"
            f"v.VanillaTransformerForConditionalGeneration.from_pretrained({folder!r})",
        }
        times: dict[str, list[float]] = {name: [] for name in codes}
        answers: dict[str, list[float]] = {"until it listens": [], "its first answer": []}
        for _ in range(rounds):
            for name, code in codes.items():
                times[name].append(run_python(code)[1])
            printed, _ = run_python(DEMO, folder, folder=SCRIPTS.parent / "demo")
            for values, seconds in zip(answers.values(), json.loads(printed), strict=True):
                values.append(seconds)
    started = [Result("startup", name, "seconds", values) for name, values in times.items()]
    return started + [Result("demo", name, "seconds", values) for name, values in answers.items()]
