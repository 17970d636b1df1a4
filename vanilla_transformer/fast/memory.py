# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Keep freed memory in the process (glibc)."""

import ctypes
import sys
from functools import cache


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # constants of glibc's malloc.h
NEVER = -1


@cache
def keep_freed_memory() -> bool:
    """Let this process keep freed memory until it exits; return whether the C library supports this.

    By default, glibc returns each large freed block to the system. A training step frees and allocates hundreds of
    such blocks, and the kernel zeroes every page of a new block, which takes a tenth of the step time.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # the C library is not glibc
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
