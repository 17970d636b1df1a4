"""Test that two hosts (network namespaces connected by a virtual cable) train the same model as one process.

The tests are skipped unless run as root with `ip netns` available.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fresh_process import ROOT
from vanilla_transformer.training.checkpoints import complete_checkpoints, is_complete


pytestmark = pytest.mark.slow

PROGRAM = str(ROOT / "tests" / "tiny_training.py")
# A low learning rate limits the effect of different rounding.
OPTIONS = {"dropout": 0.0, "tokens_per_batch": 64, "bf16": False, "learning_rate_scale": 0.01}
PORT = 29_400


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)


class Host:
    """A network namespace with its own address."""

    def __init__(self, number: int):
        self.name = f"vt{os.getpid()}h{number}"
        self.device = f"vt{os.getpid() % 100_000}e{number}"
        self.address = f"10.213.7.{number + 1}"

    def connect(self) -> None:
        """Move one end of the cable into the namespace, and bring the interface up."""
        ip("link", "set", self.device, "netns", self.name)
        ip("-n", self.name, "address", "add", f"{self.address}/24", "dev", self.device)
        for device in (self.device, "lo"):
            ip("-n", self.name, "link", "set", device, "up")

    def start(self, folder: Path, main: "Host", **options) -> subprocess.Popen:
        """Start torchrun on this host, with at most three restarts."""
        command = [
            "ip", "netns", "exec", self.name, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
            "--nproc_per_node", "1", "--rdzv_backend", "c10d", "--rdzv_endpoint", f"{main.address}:{PORT}",
            "--rdzv_id", folder.name, "--rdzv_conf", f"is_host={int(self is main)}", "--local_addr", self.address,
            "--max_restarts", "3", PROGRAM, str(folder), json.dumps(OPTIONS | {"ddp_backend": "gloo"} | options),
        ]  # fmt: skip
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": self.device}
        log = folder.with_name(f"{folder.name}-{self.address}.log").open("w")
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def workers(self) -> list[int]:
        """Return the process ids of the training processes on this host, without torchrun."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True)
        commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_text() for pid in found.stdout.split()}
        return [pid for pid, text in commands.items() if PROGRAM in text and "torch.distributed.run" not in text]


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    if sys.platform != "linux" or shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need Linux, root and the command `ip`")
    made = [Host(0), Host(1)]
    try:
        for host in made:
            ip("netns", "add", host.name)
        ip("link", "add", made[0].device, "type", "veth", "peer", "name", made[1].device)
        for host in made:
            host.connect()
    except subprocess.CalledProcessError as error:
        remove(made)
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    yield made
    remove(made)


def remove(hosts: list[Host]) -> None:
    for host in hosts:
        subprocess.run(["ip", "netns", "delete", host.name], capture_output=True)


def finish(processes: list[subprocess.Popen], folder: Path) -> None:
    """Wait until the processes on both hosts have ended successfully."""
    try:
        statuses = [process.wait(600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    logs = [file.read_text()[-3000:] for file in folder.parent.glob(f"{folder.name}-*.log")]
    assert statuses == [0, 0], "\n".join(logs)


def result(folder: Path) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of each step and the final weights."""
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    losses = torch.tensor([entry["loss"] for entry in history if "loss" in entry])
    return losses, load_file(folder / "model.safetensors")


def train_alone(folder: Path, **options) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Train in one process, with two accumulation steps in place of the two hosts."""
    given = json.dumps(OPTIONS | {"gradient_accumulation_steps": 2} | options)
    subprocess.run(
        [sys.executable, PROGRAM, str(folder), given],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True, timeout=600,
    )  # fmt: skip
    return result(folder)


@pytest.mark.parametrize("sharding", [False, True], ids=["DDP", "FSDP2"])
def test_two_hosts_give_the_same_model_as_one_process(sharding, hosts, tmp_path):
    options = {"max_steps": 6, "save_steps": 6}
    expected = train_alone(tmp_path / "alone", **options)
    folder = tmp_path / "together"
    options |= {"fsdp": True} if sharding else {}
    finish([host.start(folder, hosts[0], **options) for host in hosts], folder)
    losses, weights = result(folder)
    kept = {name: weights[name] for name in expected[1]}  # FSDP2 saves tied weights under every name
    torch.testing.assert_close((losses, kept), expected, atol=5e-5, rtol=1e-4)


def test_a_killed_worker_is_restarted_and_the_run_ends_with_the_same_weights(hosts, tmp_path):
    options = {"max_steps": 120, "save_steps": 20, "save_total_limit": 2}
    expected = train_alone(tmp_path / "alone", **options)
    folder = tmp_path / "together"
    processes = [host.start(folder, hosts[0], **options, resume=True) for host in hosts]
    deadline = time.monotonic() + 400
    while not is_complete(folder / "checkpoint-20"):
        assert time.monotonic() < deadline and all(process.poll() is None for process in processes)
        time.sleep(0.02)
    (victim,) = hosts[1].workers()
    os.kill(victim, signal.SIGKILL)
    assert not (folder / "checkpoint-120").exists()
    finish(processes, folder)
    assert complete_checkpoints(folder)[-1].name == "checkpoint-120"
    torch.testing.assert_close(result(folder), expected, atol=1e-5, rtol=1e-4)
