"""Locks on files that a process holds for as long as it lives.

The system gives a lock back however its holder ends, `kill -9` included. A process's id in a file would not
tell that much: ids are used again, and a folder may be shared by machines and containers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def lock(handle: int, *, wait: bool = False) -> bool | None:
    """Whether we alone hold the open file from now on, until it is closed; wait: for whoever holds it. None
    where there are no such locks: on Windows, and on some network file systems."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def still_named(handle: int, path: Path) -> bool:
    """Whether `path` is the open file. Before it was locked another process may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time is in here with this folder, where it can be locked. Raises OSError."""
    if os.name == "nt":  # which does not open folders
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        lock(handle, wait=True)
        yield
    finally:
        os.close(handle)
