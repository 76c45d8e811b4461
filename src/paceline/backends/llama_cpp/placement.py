"""Where threads run and where memory lies, as far as that needs no root (Linux).

pinned      each thread stays on a core of its own, as with llama.cpp's --cpu-strict
interleave  memory is spread over all NUMA nodes, as with `numactl --interleave=all`; pages of a file that are
            in memory already stay where they are
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.hardware.threads import memory_nodes, processors_by_core
from paceline.settings import INTERLEAVE, PINNED
from paceline.speculative.errors import UsageError
from paceline.system.forks import OpenMPThreads

SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}  # numbers of the system call
MPOL_DEFAULT, MPOL_INTERLEAVE = 0, 3
MAX_NODES = 1024  # of the kernel

_pools: dict[Any, Any] = {}  # ggml's thread pools by context
_unpinned: frozenset[int] | None = None  # the processors of the calling thread before it was pinned


class PoolParams(ctypes.Structure):
    """ggml_threadpool_params of ggml.h."""

    _fields_ = [
        ("cpumask", ctypes.c_bool * 512), ("n_threads", ctypes.c_int), ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32), ("strict_cpu", ctypes.c_bool), ("paused", ctypes.c_bool),
    ]  # fmt: skip


def pin(cpp: Any, context: Any, threads: int) -> None:
    """Pin the threads of a context's passes. Raises UsageError if this system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        raise UsageError(f"placement {PINNED}: this system pins no threads: leave it out")
    params, new = PoolParams(), cpp._lib.ggml_threadpool_new
    cpp._lib.ggml_threadpool_params_init(ctypes.byref(params), threads)
    for cpu in processors_by_core()[:threads]:
        params.cpumask[cpu] = True
    params.strict_cpu, new.restype = True, ctypes.c_void_p
    pool = _pools[context] = ctypes.c_void_p(new(ctypes.byref(params)))
    cpp._lib.llama_attach_threadpool(ctypes.c_void_p(context), pool, pool)


def before_pass(context: Any, helpers: OpenMPThreads) -> None:
    """Undo the pinning of another context: GCC's OpenMP computes the passes of all with the same threads."""
    global _unpinned
    if context in _pools:
        _unpinned = _unpinned or frozenset(os.sched_getaffinity(0))
    elif _unpinned is not None:
        os.sched_setaffinity(0, _unpinned)
        helpers.release()
        _unpinned = None


def free(cpp: Any, context: Any, helpers: OpenMPThreads) -> None:
    """Free a context and its threads."""
    cpp.llama_free(context)
    if pool := _pools.pop(context, None):
        before_pass(None, helpers)
        cpp._lib.ggml_threadpool_free(pool)


@contextlib.contextmanager
def interleaved(placement: str, nodes: Sequence[int] | None = None) -> Iterator[None]:
    """Spread memory that this thread allocates over all nodes, if that is asked for. Raises UsageError."""
    if placement != INTERLEAVE:
        yield
        return
    number, nodes = SET_MEMPOLICY.get(platform.machine()), memory_nodes() if nodes is None else nodes
    if len(nodes) < 2 or number is None:
        raise UsageError(f"placement {INTERLEAVE}: this machine has {max(1, len(nodes))} memory node")
    mask = sum(1 << node for node in set(nodes)).to_bytes(MAX_NODES // 8, "little")
    call = ctypes.CDLL(None).syscall
    if call(number, MPOL_INTERLEAVE, mask, ctypes.c_ulong(MAX_NODES + 1)):
        raise UsageError(f"placement {INTERLEAVE}: this system does not allow it: leave it out")
    try:
        yield
    finally:
        call(number, MPOL_DEFAULT, None, ctypes.c_ulong(0))
