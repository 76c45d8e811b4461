"""How many threads decoding should use: one a physical core (hyperthreads share the units it saturates)."""

from __future__ import annotations

import os

from paceline.core.errors import UsageError


def physical_cores() -> int:
    import psutil

    return min(psutil.cpu_count(logical=False) or logical_cores(), logical_cores())


def logical_cores() -> int:
    """Cores this process may run on, which in a container can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_threads(asked: int | None) -> int:
    """`asked` if the machine has that many cores; physical cores if None."""
    if asked is None:
        return physical_cores()
    if asked < 1:
        raise UsageError(f"{asked} threads: must be at least 1")
    if asked > logical_cores():
        raise UsageError(
            f"{asked} threads, but this machine has {logical_cores()} cores: use -t {physical_cores()}"
        )
    return asked
