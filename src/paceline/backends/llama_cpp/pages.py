"""Large pages for what llama.cpp allocates: weights in an order of its own, the KV cache, scratch space.

A pass reads all weights once, and looks up every page of 4 kB. Linux gives 2 MB pages to memory that asks for
them, and llama.cpp does not ask (docs/log/costs.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from pathlib import Path

HUGE_PAGE_BYTES = 2 << 20  # of x86-64, and of arm64 with base pages of 4 kB
MIN_MAPPING_BYTES = 16 << 20  # bytes of a mapping that is worth it


def advise_huge_pages() -> None:
    """Ask for all large anonymous memory of this process, between allocating and filling: a page that has
    been touched stays as it is. Where it is refused, nothing happens."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError, ValueError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for start, end in large_anonymous_mappings(Path("/proc/self/maps").read_text()):
            advise(start, end - start, mmap.MADV_HUGEPAGE)


def large_anonymous_mappings(maps: str) -> list[tuple[int, int]]:
    """Return start and end of the large mappings that are writable, private and of no file, or the heap."""
    found = []
    for line in maps.splitlines():
        span, rights, _, _, inode, *name = line.split(maxsplit=5)
        start, end = (int(x, 16) for x in span.split("-"))
        start, end = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if (
            rights == "rw-p"
            and inode == "0"
            and name in ([], ["[heap]"])
            and end - start >= MIN_MAPPING_BYTES
        ):
            found.append((start, end))
    return found
