"""Test fifty concurrent visitors: no wrong prediction, no error except "busy", and no memory growth."""

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median

import httpx
import pytest

from demo_server import started
from family import decoder_only, encoder_decoder, encoder_only
from saved_models import save
from vanilla_transformer import VanillaTransformerForSequenceClassification


USERS, PAUSE, SECONDS = 50, 4, 120
PATIENCE = 120  # maximum waiting time of a visitor in seconds, on a shared machine
TEXTS = [f"one {'two ' * i}three" for i in range(4)]
CHANGES = [{"heads_off": [["cross", 1, 0]], "positions_off": ["encoder"]}, {"causal_off": True}]
# (name of an endpoint, arguments)
WISHES = [
    *(("explore", [model, text, None, None]) for model in range(3) for text in TEXTS),
    *(("explore_effects", [model, text, None, None]) for model in range(3) for text in TEXTS),
    *(("explore_layer", [0, text, None, None, "decoder", 1]) for text in TEXTS),
    *(("explore_changed", [0, text, changes, None, None]) for text in TEXTS for changes in CHANGES),
    *(("translate", [text, None]) for text in TEXTS),
    *(("classify", [text, None]) for text in TEXTS),
    *(("generate", [text, 30, 1.0, 0, 1.0, seed, None]) for seed, text in enumerate(TEXTS)),
    *(("next_tokens", [text, None]) for text in TEXTS),
]


@pytest.fixture
def server(tmp_path) -> Iterator[tuple[str, int]]:
    """Start the demo in a separate process, and yield its address and process id."""
    models = [
        save(tmp_path / "translator", encoder_decoder, "seq2seq"),
        save(tmp_path / "writer", decoder_only, "causal"),
        save(
            tmp_path / "classifier",
            lambda **fields: encoder_only(VanillaTransformerForSequenceClassification, num_labels=3, **fields),
            "encoder",
        ),
    ]
    with started("--model", *models) as address_and_process:
        yield address_and_process


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def processor_time(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def ask(client: httpx.AsyncClient, name: str, values: list) -> str:
    """Call an endpoint like the page does, and return its last output; raise a RuntimeError if it fails."""
    joined = await client.post(f"/gradio_api/call/{name}", json={"data": values})
    joined.raise_for_status()
    events = (await client.get(f"/gradio_api/call/{name}/{joined.json()['event_id']}")).text.split("\n\n")
    event, data = re.match(r"event: (\w+)\ndata: (.*)", events[-2]).groups()
    if event != "complete":
        error = json.loads(data)
        raise RuntimeError(error.get("error") if isinstance(error, dict) else error)
    return data


@pytest.mark.slow
def test_fifty_concurrent_users_get_correct_predictions_or_a_busy_error(server):
    address, pid = server
    outcomes: list[tuple[str, str, float]] = []
    memory: list[float] = []

    async def visit(number: int, right: dict[str, str], end: float) -> None:
        random = Random(number)
        # Drop idle connections before the server closes them.
        limits = httpx.Limits(keepalive_expiry=2)
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE, limits=limits) as client:
            await asyncio.sleep(random.uniform(0, PAUSE))
            while (begun := time.monotonic()) < end:
                wish = random.choice(WISHES)
                try:
                    outcome = "right" if await ask(client, *wish) == right[str(wish)] else "wrong"
                except httpx.HTTPStatusError as error:
                    outcome = "busy" if error.response.status_code == 503 else repr(error)
                except Exception as error:
                    outcome = repr(error)
                outcomes.append((wish[0], outcome, time.monotonic() - begun))
                await asyncio.sleep(max(0, begun + PAUSE - time.monotonic()))

    async def watch(end: float) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(5)
            memory.append(resident(pid))

    async def run() -> float:
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE) as alone:
            right = {str(wish): await ask(alone, *wish) for wish in WISHES}
        begun, end = processor_time(pid), time.monotonic() + SECONDS
        await asyncio.gather(watch(end), *(visit(number, right, end) for number in range(USERS)))
        return processor_time(pid) - begun

    used = asyncio.run(run())
    counts = Counter(outcome for _, outcome, _ in outcomes)
    names = sorted({name for name, _ in WISHES})
    waits = {name: median(t for n, o, t in outcomes if n == name and o == "right") for name in names}
    print(dict(counts), {name: round(wait, 2) for name, wait in waits.items()}, [round(size) for size in memory])
    print(f"{counts['right'] / used:.1f} right answers for each second of a core")
    assert set(counts) <= {"right", "busy"} and counts["right"] > 100
    # Threads and connections allocate memory at the start. After that, memory must not grow.
    assert max(memory[-3:]) < 1.1 * max(memory[len(memory) // 2 - 1 : len(memory) // 2 + 2])
