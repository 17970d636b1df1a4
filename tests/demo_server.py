"""Run the demo on a real HTTP server."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gradio_client import Client

from fresh_process import ROOT, running
from vanilla_transformer.app.app import Demo, find_models


ADDRESS = r"http://127\.0\.0\.1:\d+"


@contextmanager
def address_of(*models: str, runs: Sequence[str] = (), in_page: bool = True) -> Iterator[str]:
    """Serve the demo of some models, and yield its address.

    Args:
        in_page: let the models run in the page. Otherwise, the page asks the server, as for a large model.
    """
    demo = Demo(find_models(models), runs)
    for model in () if in_page else demo.models:
        model.in_page = False
    yield demo.serve(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
    demo.api.close()


@contextmanager
def served(*models: str) -> Iterator[Client]:
    with address_of(*models) as address:
        yield Client(address, verbose=False)


@contextmanager
def started(*arguments: str) -> Iterator[tuple[str, int]]:
    """Start the demo script in its own process; yield its address and process id."""
    with running([ROOT / "demo/app.py", *arguments]) as (process, output):
        yield next(found[0] for line in output if (found := re.search(ADDRESS, line))), process.pid
