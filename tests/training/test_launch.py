"""Test that the launch recipes start the configured number of processes."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from fresh_process import ROOT, run_python


LAUNCH = ROOT / "launch"
# Print the settings that accelerate derives from the environment of each process.
PROBE = """
import json, os
from accelerate.utils import FullyShardedDataParallelPlugin
use_fsdp = os.environ.get("ACCELERATE_USE_FSDP") == "true"
plugin = FullyShardedDataParallelPlugin() if use_fsdp else None
facts = {
    "world_size": int(os.environ.get("WORLD_SIZE", 1)),
    "precision": os.environ["ACCELERATE_MIXED_PRECISION"],
    "fsdp": plugin and [plugin.fsdp_version, plugin.reshard_after_forward, plugin.state_dict_type.name],
}
if os.environ.get("RANK", "0") == "0":
    print(json.dumps(facts))
"""


@pytest.mark.parametrize(
    ("recipe", "world_size", "fsdp"),
    [("one_gpu", 1, None), ("ddp", 2, None), ("fsdp2", 2, [2, True, "FULL_STATE_DICT"])],
)
def test_each_launch_recipe_starts_the_configured_processes(recipe, world_size, fsdp, tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    launcher = ["-m", "accelerate.commands.launch", "--config_file", LAUNCH / f"{recipe}.yaml"]
    command = [*launcher, "--num_processes", str(world_size), "--main_process_port", "0", tmp_path / "probe.py"]
    result = run_python(command)
    assert result.returncode == 0, result.stderr
    facts = json.loads(re.findall(r"^\{.*\}$", result.stdout, re.MULTILINE)[-1])
    assert facts == {"world_size": world_size, "precision": "bf16", "fsdp": fsdp}


@pytest.mark.parametrize("file", sorted(LAUNCH.glob("*.yaml")), ids=lambda file: Path(file).stem)
def test_accelerate_accepts_each_launch_recipe_and_its_command_names_the_file(file):
    assert load_config_from_file(str(file)).mixed_precision == "bf16"
    assert f"--config_file launch/{file.name}" in file.read_text()


def test_deepspeed_shards_optimizer_states_and_gradients():
    settings = load_config_from_file(str(LAUNCH / "deepspeed_zero2.yaml")).deepspeed_config
    assert settings["zero_stage"] == 2 and settings["gradient_clipping"] == "auto"


def test_the_slurm_file_runs_torchrun_on_all_nodes_and_resumes(tmp_path):
    """Stubs that print their arguments replace the commands of the cluster."""
    torchrun = 'printf "%s\\n" "$@" $TORCH_ELASTIC_SHUTDOWN_TIMEOUT'
    commands = {"scontrol": "echo first; echo second", "srun": 'exec "$@"', "torchrun": torchrun}
    for name, code in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    job = {"JOB_NODELIST": "node[1-2]", "NNODES": "2", "GPUS_ON_NODE": "8", "CPUS_PER_TASK": "32", "JOB_ID": "77"}
    environment = {f"SLURM_{name}": value for name, value in job.items()}
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    command = ["bash", str(LAUNCH / "slurm.sbatch"), "train.py", "--preset", "big model"]
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    to_save = int(asked.pop())  # saving must end before Slurm kills the job, 120 seconds after the signal
    assert to_save == 110 and "--signal=TERM@120" in (LAUNCH / "slurm.sbatch").read_text()
    options = dict(zip(asked[:12:2], asked[1:12:2], strict=True))
    assert options == {
        "--nnodes": "2", "--nproc_per_node": "8", "--max_restarts": "3", "--rdzv_backend": "c10d", "--rdzv_id": "77",
        "--rdzv_endpoint": "first:29500",
    }  # fmt: skip
    assert asked[12:] == ["train.py", "--preset", "big model", "--bf16", "true", "--resume_from_checkpoint", "true"]
