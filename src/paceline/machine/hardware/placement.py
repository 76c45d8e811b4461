"""Which memory nodes new pages come from: spread over all, so that every processor reads some from near and
all memory channels work at once."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paceline.core.errors import PacelineError

# set_mempolicy(2): libc has no function for it, and libnuma need not be installed.
SYSCALLS = {"x86_64": 238, "aarch64": 237}
DEFAULT, INTERLEAVE = 0, 3
BITS = 64  # of a word of the mask


def placeable() -> bool:
    """Whether this system lets a program say."""
    return sys.platform == "linux" and platform.machine() in SYSCALLS


@contextmanager
def spread(nodes: Sequence[int]) -> Iterator[None]:
    """What this thread touches first meanwhile lies on these nodes in turns. What is mapped from a file and
    in the page cache already stays where it is. Raises PacelineError where the system forbids it."""
    _set(INTERLEAVE, nodes)
    try:
        yield
    finally:
        _set(DEFAULT, ())


def _set(mode: int, nodes: Sequence[int]) -> None:
    if not placeable():
        raise PacelineError("memory cannot be spread over nodes on this system")
    words = (max(nodes, default=0) // BITS) + 1
    mask = (ctypes.c_ulong * words)()
    for node in nodes:
        mask[node // BITS] |= 1 << (node % BITS)
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is told of.
    code = libc.syscall(SYSCALLS[platform.machine()], mode, mask if nodes else None, words * BITS + 1)
    if code != 0:
        raise PacelineError(f"memory cannot be spread over nodes: {os.strerror(ctypes.get_errno())}")
