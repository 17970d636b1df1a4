# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Memory on a CPU: used again instead of being fetched anew from the system, and in large pages."""

import ctypes
import mmap
import sys
from functools import cache


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
NEVER = -1
LARGE_PAGES = 4 * 2**30  # bytes of the heap, the first that the process comes to use


@cache
def keep_freed_memory() -> bool:
    """Let this process keep what it frees, until it ends; returns whether the C library can (glibc on Linux).

    By default glibc gives each large block back to the system when it is freed. A training step frees and asks for
    hundreds of them, and the system has to fill every page of each with zeros first: a tenth of a step's time.
    """
    if sys.platform != "linux":
        return False
    try:
        c_library = ctypes.CDLL(None)
        mallopt = c_library.mallopt
    except (OSError, AttributeError):  # another C library
        return False
    kept = bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
    if kept:
        ask_for_large_pages(c_library)
    return kept


def ask_for_large_pages(c_library: ctypes.CDLL) -> None:
    """Let the heap, as far as it will grow for some time, consist of pages of 2 MiB where the system gives them.

    A step goes through hundreds of megabytes, and each page of 4 KiB has to be looked up anew. Most systems give large
    pages only to who asks (`madvise`). What is asked for here takes an address, and no memory before it is used.
    """
    c_library.malloc.restype = ctypes.c_void_p
    block = c_library.malloc(ctypes.c_size_t(LARGE_PAGES))
    if block is None:  # the process may not have so much
        return
    start = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
    whole_pages = (block + LARGE_PAGES - start) // mmap.PAGESIZE * mmap.PAGESIZE
    c_library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(whole_pages), mmap.MADV_HUGEPAGE)
    c_library.free(ctypes.c_void_p(block))  # the heap keeps it
