"""A lock on a folder, which the system gives back however its holder ends, `kill -9` included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time work in this folder. Without locks (Windows, some network file systems) all
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
