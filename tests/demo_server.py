"""The demo on a real HTTP server, as its visitors get it."""

from collections.abc import Iterator
from contextlib import contextmanager

from gradio_client import Client

from app import build, serve


@contextmanager
def address_of(*models: str, **options) -> Iterator[str]:
    app = build(*models, **options)
    yield serve(app, server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
    app.close()


@contextmanager
def served(*models: str) -> Iterator[Client]:
    with address_of(*models) as address:
        yield Client(address, verbose=False)
