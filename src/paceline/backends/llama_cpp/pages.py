"""Huge pages for llama.cpp's repacked weights, KV cache and scratch space.

A pass reads all weights and looks up every 4 kB page. Linux gives 2 MB pages on request, which llama.cpp does
not make (docs/log/costs.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from pathlib import Path

HUGE_PAGE_BYTES = 2 << 20  # of x86-64, and of arm64 with base pages of 4 kB
MIN_MAPPING_BYTES = 16 << 20


def advise_huge_pages() -> None:
    """Request huge pages for large anonymous mappings. Pages that were touched already do not change."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError, ValueError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, rights, _, _, inode, *name = line.split(maxsplit=5)
            start, end = (int(x, 16) for x in span.split("-"))
            start = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
            size = end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES - start
            is_anonymous = rights == "rw-p" and inode == "0" and name in ([], ["[heap]"])
            if is_anonymous and size >= MIN_MAPPING_BYTES:
                advise(start, size, mmap.MADV_HUGEPAGE)
