"""Which memory nodes new pages come from: spread over all, so that every processor reads some from near and
all memory channels work at once."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from paceline.core.errors import PacelineError

# set_mempolicy(2) and get_mempolicy(2): libc has no functions for them, and libnuma need not be installed.
SYSCALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}
INTERLEAVE = 3
BITS, WORDS = 64, 16  # of a mask of nodes: as many as a kernel is built for

Policy = tuple[int, Sequence[int]]  # a mode, and the nodes that it is about


def placeable() -> bool:
    """Whether this system lets a program say."""
    return sys.platform == "linux" and platform.machine() in SYSCALLS


@contextmanager
def spread(nodes: Sequence[int]) -> Iterator[None]:
    """What this thread touches first meanwhile lies on these nodes in turns. What is mapped from a file and
    in the page cache already stays where it is. Raises PacelineError where the system forbids it."""
    before = policy()
    set_policy((INTERLEAVE, nodes))
    try:
        yield
    finally:
        set_policy(before)  # numactl may have given it one


def policy() -> Policy:
    """Of this thread. Raises PacelineError."""
    mode, mask = ctypes.c_int(), (ctypes.c_ulong * WORDS)()
    _call(1, ctypes.byref(mode), mask, WORDS * BITS + 1, None, 0)
    return mode.value, [node for node in range(WORDS * BITS) if mask[node // BITS] >> node % BITS & 1]


def set_policy(policy: Policy) -> None:
    mode, nodes = policy
    mask = (ctypes.c_ulong * WORDS)()
    for node in nodes:
        mask[node // BITS] |= 1 << (node % BITS)
    _call(0, mode, mask, WORDS * BITS + 1)  # the kernel reads one bit less than it is told of


def _call(which: int, *args: Any) -> None:
    if not placeable():
        raise PacelineError("memory cannot be spread over nodes on this system")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(SYSCALLS[platform.machine()][which], *args) != 0:
        raise PacelineError(f"memory cannot be spread over nodes: {os.strerror(ctypes.get_errno())}")
