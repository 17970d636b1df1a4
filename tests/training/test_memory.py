"""Test that a process can keep freed memory, and that the setting is safe on any system."""

import sys

import pytest

from fresh_process import run_fresh


# Print the number of page faults when 32 MiB are allocated repeatedly, after a warm-up.
FAULTS = """
import resource, sys, torch
from vanilla_transformer.fast.memory import keep_freed_memory
if arguments[0] == "keep":
    assert keep_freed_memory()
for i in range(30):
    if i == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(8, 2**20) + 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
@pytest.mark.slow
def test_freed_blocks_are_reused(tmp_path):
    anew, kept = (run_fresh(FAULTS, tmp_path, how, installed=True, cold=True) for how in ("anew", "keep"))
    assert anew > 20 * 2**13 > 50 * kept  # 32 MiB are 2 ** 13 pages of 4 KiB
