"""Fifty visitors at once: no wrong answer, no error but that the demo is busy, no growing memory."""

import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import median

import pytest
from gradio_client import Client

from family import decoder_only, encoder_decoder, encoder_only
from fresh_process import ROOT
from saved_models import save
from vanilla_transformer import VanillaTransformerForSequenceClassification


USERS, PAUSE, SECONDS = 50, 4, 60
BUSY = r"The demo is busy, about \d+ seconds\. Please try again then\."
TEXTS = [f"one {'two ' * i}three" for i in range(4)]
# Endpoint and its arguments.
WISHES = [
    *(("/translate", (text, "2", "mean", "cross")) for text in TEXTS),
    *(("/classify", (text,)) for text in TEXTS),
    *(("/generate", (text, 30, 1.0, 0, 1.0, seed)) for seed, text in enumerate(TEXTS)),
    *(("/mask", ("one two three", kind, 2, 3)) for kind in ("padding", "causal", "padding and causal")),
    *(("/next_tokens", (text, None)) for text in TEXTS),
]


@pytest.fixture
def server(tmp_path):
    """The demo in a process of its own; its address and its process."""
    models = [
        save(tmp_path / "translator", encoder_decoder, "seq2seq"),
        save(tmp_path / "writer", decoder_only, "causal"),
        save(
            tmp_path / "classifier",
            lambda **fields: encoder_only(VanillaTransformerForSequenceClassification, num_labels=3, **fields),
            "encoder",
        ),
    ]
    command = [sys.executable, ROOT / "demo/app.py", "--model", *models]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found[0], process
                break
    finally:
        process.terminate()
        process.wait(timeout=60)


def resident(process: subprocess.Popen) -> float:
    """Memory of a process in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


@pytest.mark.slow
def test_fifty_users_get_right_answers_or_are_told_how_long_the_demo_is_busy(server):
    address, process = server
    alone = Client(address, verbose=False)
    right = {wish: alone.predict(*wish[1], api_name=wish[0]) for wish in WISHES}
    memory = [resident(process)]
    end = time.monotonic() + SECONDS

    def visit(number: int) -> list[tuple[str, str, float]]:
        random, client, outcomes = Random(number), Client(address, verbose=False), []
        time.sleep(random.uniform(0, PAUSE))
        while (begun := time.monotonic()) < end:
            wish = random.choice(WISHES)
            try:
                outcome = "right" if client.predict(*wish[1], api_name=wish[0]) == right[wish] else "wrong"
            except Exception as error:
                outcome = "busy" if re.fullmatch(BUSY, str(error)) else repr(error)
            outcomes.append((wish[0], outcome, time.monotonic() - begun))
            time.sleep(max(0, begun + PAUSE - time.monotonic()))
        return outcomes

    with ThreadPoolExecutor(USERS) as users:
        visits = users.map(visit, range(USERS))
        while time.monotonic() < end:
            time.sleep(5)
            memory.append(resident(process))
        outcomes = [outcome for visited in visits for outcome in visited]
    counts = Counter(outcome for _, outcome, _ in outcomes)
    waits = {name: median(t for n, o, t in outcomes if n == name and o == "right") for name, _ in WISHES}
    print(dict(counts), {name: round(wait, 2) for name, wait in waits.items()}, [round(size) for size in memory])
    assert set(counts) <= {"right", "busy"} and counts["right"] > 100
    # Threads and visitors take their room once; then it is enough.
    assert max(memory[-3:]) < 1.1 * max(memory[len(memory) // 2 - 1 : len(memory) // 2 + 2])
