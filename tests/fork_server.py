"""A Python process that has imported the large libraries but nothing of this project. It runs each request in a fork.

python -I tests/fork_server.py FD    read requests from this socket, see `fresh_process.start`
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
NUMBER = struct.Struct("q")  # the same in fresh_process.py


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next request and its file descriptors, or None when the tests have ended."""
    header, descriptors, _, _ = socket.recv_fds(control, NUMBER.size, 4)
    if not header:
        return None
    (size,) = NUMBER.unpack(header)
    return json.loads(control.recv(size, socket.MSG_WAITALL)), descriptors


def fork_and_watch(reply: socket.socket) -> None:
    """Fork. The child returns; the parent sends the child's process id and wait status, and exits."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if child := os.fork():
        with suppress(BrokenPipeError):
            reply.sendall(NUMBER.pack(child))
            reply.sendall(NUMBER.pack(os.waitpid(child, 0)[1]))
        os._exit(0)
    reply.close()


def serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request until the tests end. Only the forked processes return, with their request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the tests, which then close the socket
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
    """Set the environment, and the library settings that were read from it on import."""
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
    """Update a setting in every module that has imported its old value."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("huggingface_hub", "datasets", "transformers")):
            for key in settings.keys() & vars(module).keys():
                old, new = settings[key]
                if vars(module)[key] is old:
                    setattr(module, key, new)


def run(request: dict[str, Any], standard: list[int]) -> None:
    """Do the same as `python ARGUMENTS`, where the options `-I`, `-c` and `-m` are supported."""
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
    sys.modules["numpy"].random.seed()  # reseed in each process, as Python does after a fork for its own generator
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
    """Exit at once: tearing down the imported libraries takes longer than forking."""
    if status is not None:
        with suppress(AttributeError, OSError):  # the interpreter's own exit then reports the error
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


if __name__ == "__main__":
    status: int | None = None
    atexit.register(leave)  # registered first, so it is called last
    for name in PRELOADED:
        with suppress(ModuleNotFoundError):  # some environments have only few of them
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that forks neither scan nor copy the imported objects
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
