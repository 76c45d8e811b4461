"""A fair lock between threads, and a lock between processes."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from paceline.speculative.errors import PacelineError, UsageError

HOLDER = ".lock"  # the file that names the process of a run_lock


@contextmanager
def folder_lock(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Let one process at a time work in a folder; the system releases the lock even after `kill -9`.
    wait: for the process that has it; otherwise raise BlockingIOError.
    Without locks (Windows, some network file systems) all processes may. Raises OSError."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:
            pass
        yield
    finally:
        os.close(handle)


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Make a folder, and keep other processes out of it for a long run. Raises UsageError, which names the
    process that is there already, and PacelineError if the folder cannot be written."""
    holder = folder / HOLDER
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(folder_lock(folder, wait=False))
            holder.write_text(f"process {os.getpid()} on {platform.node()}", "utf-8")
        except BlockingIOError as error:
            process = "another process"  # which may be starting or ending, or another user's
            with suppress(OSError, ValueError):
                process = holder.read_text("utf-8") or process
            why = f"{folder}: is in use by {process}"
            raise UsageError(f"{why}: wait until that ends, or name another folder") from error
        except OSError as error:
            why = f"{folder}: cannot be written ({error.strerror}); name another folder"
            raise PacelineError(why) from error
        stack.callback(holder.unlink, missing_ok=True)
        yield


class FairLock:
    """A lock that threads acquire in the order of their requests.
    Each inner lock is held by a separate `with` statement, one of them in a generator: wherever Ctrl-C
    comes, both are released."""

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
