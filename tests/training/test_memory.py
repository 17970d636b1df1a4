"""Freed memory is kept by a process that asks for it, and asking is safe anywhere; compiled products are not kept."""

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


# What oneDNN says of the products that it compiles: how many of 600 shapes it finds again at the second time.
COMPILED = """
import ctypes, os, torch
from vanilla_transformer.training.memory import limit_compiled_products
limit_compiled_products()
terminal = os.dup(1)
os.dup2(os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
weight = torch.zeros(64, 64, dtype=torch.bfloat16)
for rows in [*range(1, 601)] * 2:
    torch.nn.functional.linear(torch.zeros(rows, 64, dtype=torch.bfloat16), weight)
ctypes.CDLL(None).fflush(None)
os.dup2(terminal, 1)
said = open("said.txt").read()
print([said.count("create:cache_miss"), said.count("create:cache_hit")])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads what a C library prints")
@pytest.mark.slow
def test_products_compiled_for_other_shapes_make_room_unless_the_environment_says_otherwise(tmp_path):
    options = {"installed": True, "ONEDNN_VERBOSE": "profile_create"}
    compiled, again = run_fresh(COMPILED, tmp_path, **options, ONEDNN_PRIMITIVE_CACHE_CAPACITY="1500")
    if again < 599:
        pytest.skip("oneDNN compiles no products in bfloat16 for this processor")
    assert run_fresh(COMPILED, tmp_path, **options) == [compiled + again, 0]
