"""Freed memory is kept by a process that asks for it, and asking is safe anywhere."""

import sys

import pytest

from fresh_process import run_fresh


# Page faults of products into new memory of 32 MiB each, after the first few.
FAULTS = """
import resource, sys, torch
from vanilla_transformer.training.memory import keep_freed_memory
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
def test_large_blocks_are_used_again_instead_of_being_fetched_anew(tmp_path):
    anew, kept = (run_fresh(FAULTS, tmp_path, how, installed=True) for how in ("anew", "keep"))
    assert anew > 20 * 2**13 > 50 * kept  # 2 ** 13 pages of 4 KiB are 32 MiB
