# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Memory on a CPU: used again instead of being fetched anew from the system."""

import ctypes
import sys
from functools import cache


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
NEVER = 2**31 - 1


@cache
def keep_freed_memory() -> bool:
    """Let this process keep what it frees, until it ends; returns whether the C library can (glibc on Linux).

    By default glibc gives each large block back to the system when it is freed. A training step frees and asks for
    hundreds of them, and the system has to fill every page of each with zeros first: a tenth of a step's time.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
