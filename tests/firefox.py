"""Control Firefox without a driver program, through its Marionette protocol."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


FIREFOX = shutil.which("firefox") or shutil.which("firefox-esr")
START_SECONDS = 120  # time limit for the start, long enough for a busy machine


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Firefox:
    """A session of Firefox. Each message is a JSON array after its length and a colon."""

    def __init__(self, connection: socket.socket):
        self.file = connection.makefile("rwb")
        self.receive()  # the greeting
        timeouts = {"script": 120_000, "pageLoad": 120_000}
        self.call("WebDriver:NewSession", timeouts=timeouts)

    def receive(self) -> Any:
        size = b""
        while not size.endswith(b":"):
            size += self.file.read(1)
        return json.loads(self.file.read(int(size[:-1])))

    def call(self, name: str, **parameters: Any) -> Any:
        message = json.dumps([0, 1, name, parameters]).encode()
        self.file.write(b"%d:%s" % (len(message), message))
        self.file.flush()
        _, _, error, result = self.receive()
        assert error is None, error
        return result

    def open(self, address: str) -> None:
        self.call("WebDriver:Navigate", url=address)

    def run(self, script: str) -> Any:
        """Run the body of an asynchronous JavaScript function in the page, and return its result."""
        body = f"const [done] = arguments; (async () => {{ {script} }})().then(done, (error) => done(`${{error}}`));"
        return self.call("WebDriver:ExecuteAsyncScript", script=body, args=[])["value"]


@contextmanager
def firefox(profile: Path) -> Iterator[Firefox]:
    """Start Firefox without a window, with a new profile in the folder."""
    assert FIREFOX is not None
    port = free_port()
    (profile / "user.js").write_text(f'user_pref("marionette.port", {port});\n')
    command = [FIREFOX, "--headless", "--marionette", "--no-remote", "--profile", str(profile)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", port))
                break
            except OSError:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.2)
        with connection:
            yield Firefox(connection)
    finally:
        process.terminate()
        process.wait()
