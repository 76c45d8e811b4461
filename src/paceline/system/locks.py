"""Locks between threads, in the order in which they ask, and between processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time work in this folder; the system gives the lock back however its holder ends,
    `kill -9` included. Without locks (Windows, some network file systems) all
    may. Raises OSError."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class FairLock:
    """A lock that threads get in the order in which they asked for it.

    Each lock inside is held by a `with` statement of its own, one of them in a generator: wherever Ctrl-C
    comes, what it leaves behind gives them back."""

    def __init__(self) -> None:
        self._line, self._lock = threading.Lock(), threading.Lock()

    @contextmanager
    def acquire(self) -> Iterator[None]:
        locked = self._locked()
        try:
            # A lock is not fair: a thread that asks again at once gets it again. So one thread waits for it,
            # and the others wait for their place behind that one.
            with self._line:
                next(locked)
            yield
        finally:
            locked.close()

    def _locked(self) -> Generator[None, None, None]:
        with self._lock:
            yield
