# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Keep freed memory in the process and back the heap with huge pages (glibc)."""

import ctypes
import mmap
import sys
from functools import cache


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
NEVER = -1
HUGE_PAGES = 4 * 2**30  # the first bytes of the heap


@cache
def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, until it ends; return whether the C library supports this.

    By default glibc returns each large freed block to the system. A training step frees and allocates hundreds of
    blocks, and the system fills every page of a new block with zeros: a tenth of a step's time.
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
        request_huge_pages(c_library)
    return kept


def request_huge_pages(c_library: ctypes.CDLL) -> None:
    """Back the first part of the heap with pages of 2 MiB, if the system has them.

    A step uses hundreds of megabytes, and every page of 4 KiB needs its own address translation. Most systems give
    huge pages only on request (`madvise`). The request reserves addresses, and no memory until it is used.
    """
    c_library.malloc.restype = ctypes.c_void_p
    block = c_library.malloc(ctypes.c_size_t(HUGE_PAGES))
    if block is None:  # more than the process may have
        return
    start = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
    whole_pages = (block + HUGE_PAGES - start) // mmap.PAGESIZE * mmap.PAGESIZE
    c_library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(whole_pages), mmap.MADV_HUGEPAGE)
    c_library.free(ctypes.c_void_p(block))  # the heap keeps the addresses
