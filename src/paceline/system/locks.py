"""A fair lock between threads, and a lock between processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time work in a folder; the system releases the lock even after `kill -9`.

    Without locks (Windows, some network file systems) all processes may. Raises OSError.
    """
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
    """A lock that threads acquire in the order of their requests.

    Each inner lock is held by a separate `with` statement, one of them in a generator: wherever Ctrl-C
    comes, both are released.
    """

    def __init__(self) -> None:
        self._line, self._lock = threading.Lock(), threading.Lock()

    @contextmanager
    def acquire(self) -> Iterator[None]:
        locked = self._locked()
        try:
            # A plain lock is not fair: a thread that asks again at once gets it again. So one thread waits
            # for it, and the others wait for the line.
            with self._line:
                next(locked)
            yield
        finally:
            locked.close()

    def _locked(self) -> Generator[None, None, None]:
        with self._lock:
            yield
