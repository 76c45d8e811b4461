"""Large pages for what llama.cpp allocates: weights in an order of its own, the KV cache, scratch space.

A pass reads all weights once, and on pages of 4 kB looks up every one of them, twice over in a virtual
machine. Linux commonly gives 2 MB pages to memory that asks for them, and llama.cpp does not ask
(docs/log/costs.md: what that costs). Weights that are mapped from a file lie in the page cache, whose pages
are as large as the file system makes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from pathlib import Path

PAGE = 2 << 20  # of x86-64, and of arm64 with base pages of 4 kB
LEAST = 16 << 20  # bytes of a mapping that is worth it


def ask() -> None:
    """For all large anonymous memory of this process. A page that has been touched stays as it is, so the
    time to ask is between allocating and filling. Elsewhere than on Linux, and where it is refused, nothing
    happens: it is a wish."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError, ValueError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for start, end in anonymous(Path("/proc/self/maps").read_text()):
            advise(start, end - start, mmap.MADV_HUGEPAGE)


def anonymous(maps: str) -> list[tuple[int, int]]:
    """Start and end of the large mappings that are writable, private and of no file, in whole large pages.
    The heap is one: the allocator takes from it what fits."""
    found = []
    for line in maps.splitlines():
        span, rights, _, _, inode, *name = line.split(maxsplit=5)
        start, end = (int(x, 16) for x in span.split("-"))
        start, end = -(-start // PAGE) * PAGE, end // PAGE * PAGE
        if rights == "rw-p" and inode == "0" and name in ([], ["[heap]"]) and end - start >= LEAST:
            found.append((start, end))
    return found
