"""Run each request in a fork of a process that has imported the large libraries, but not this project.

python -I tests/fork_server.py FD    # read requests from the socket with this file descriptor, see fresh_process.py
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import sys
import types
from contextlib import suppress
from typing import Any


PRELOADED = """
accelerate babel.lists datasets pandas sacrebleu sacremoses scipy.optimize seqeval.metrics sklearn.metrics
torch._dynamo torchmetrics transformers.generation.continuous_batching transformers.hf_argparser
transformers.masking_utils transformers.modeling_layers transformers.pipelines transformers.trainer_seq2seq
""".split()
NUMBER = struct.Struct("q")  # must equal the format in fresh_process.py


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next request and its file descriptors, or None after the client has closed the socket."""
    header, descriptors, _, _ = socket.recv_fds(control, NUMBER.size, 4)
    if not header:
        return None
    (size,) = NUMBER.unpack(header)
    return json.loads(control.recv(size, socket.MSG_WAITALL)), descriptors


def fork_and_watch(reply: socket.socket) -> None:
    """Fork and return in the child. The parent sends the process id and wait status of the child, then exits."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if child := os.fork():
        with suppress(BrokenPipeError):
            reply.sendall(NUMBER.pack(child))
            reply.sendall(NUMBER.pack(os.waitpid(child, 0)[1]))
        os._exit(0)
    reply.close()


def serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request until the client closes the socket. Return the request in the forked processes only."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also ends the tests, and that closes the socket
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while received := receive(control):
        request, (*standard, reply) = received
        if os.fork() == 0:
            control.close()
            fork_and_watch(socket.socket(fileno=reply))
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return request, standard
        for descriptor in received[1]:
            os.close(descriptor)
    os._exit(0)


def set_environment(environment: dict[str, str]) -> None:
    """Set environment variables, and update library settings that were read from them on import."""
    os.environ.clear()
    os.environ.update(environment)
    for name in ("huggingface_hub.constants", "datasets.config"):
        before = dict(vars(sys.modules[name]))
        after = vars(importlib.reload(sys.modules[name]))
        replace({key: (old, after[key]) for key, old in before.items() if key.isupper() and key in after})
    hub = sys.modules["transformers.utils.hub"]
    modules = os.getenv("HF_MODULES_CACHE", os.path.join(hub.constants.HF_HOME, "modules"))
    replace({"HF_MODULES_CACHE": (hub.HF_MODULES_CACHE, modules)})


def replace(settings: dict[str, tuple[Any, Any]]) -> None:
    """Replace the old value of each setting, {name: (old, new)}, in all modules that have imported it."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("huggingface_hub", "datasets", "transformers")):
            for key in settings.keys() & vars(module).keys():
                old, new = settings[key]
                if vars(module)[key] is old:
                    setattr(module, key, new)


def run(request: dict[str, Any], standard: list[int]) -> None:
    """Emulate `python ARGUMENTS`, with support for the options `-I`, `-c` and `-m`."""
    for descriptor, (name, given) in enumerate(zip(("stdin", "stdout", "stderr"), standard, strict=True)):
        os.dup2(given, descriptor)
        os.close(given)
        old = getattr(sys, name)
        buffering = 1 if name == "stderr" else -1
        new = open(descriptor, old.mode, buffering, old.encoding, old.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    os.chdir(request["cwd"])
    set_environment(request["environment"])
    sys.modules["numpy"].random.seed()  # like Python, which reseeds only its own generator after a fork
    first, *rest = request["arguments"]
    isolated = first == "-I"
    if isolated:
        first, *rest = rest
    sys.argv = [first, *rest] if first not in ("-c", "-m") else [first, *rest[1:]]
    if not isolated:
        sys.path.insert(0, {"-c": "", "-m": os.getcwd()}.get(first, os.path.dirname(os.path.abspath(first))))
    if first == "-c":
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    elif first == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(first, run_name="__main__")


def leave() -> None:
    """Exit immediately, because tearing down the imported libraries takes longer than forking."""
    if status is not None:
        with suppress(AttributeError, OSError):  # let the regular interpreter exit report the error
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


if __name__ == "__main__":
    status: int | None = None
    atexit.register(leave)  # registered first, so called last
    for name in PRELOADED:
        with suppress(ModuleNotFoundError):  # some environments have only a few of these libraries
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # keep forks from scanning and copying the imported objects
    request, standard = serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        run(request, standard)
        status = 0
    except SystemExit as error:
        status = 0 if error.code is None else error.code if isinstance(error.code, int) else None
        raise
    except Exception:
        status = 1
        raise
