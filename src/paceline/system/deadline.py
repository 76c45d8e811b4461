"""A limit on how long a server may take in all.

The timeout of a socket ends silence only. A server that sends a byte now and then, or headers without end,
would be waited for as long as it likes.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread


class OverdueError(TimeoutError):
    """A server was sending, and still had not finished."""


@contextmanager
def deadline(line: socket.socket, seconds: float) -> Iterator[None]:
    """Hang up after so many seconds, from another thread, and end in OverdueError then."""
    done, overdue = Event(), Event()

    def wait() -> None:
        if not done.wait(seconds):
            overdue.set()
            with suppress(OSError):  # it has ended already
                # Not the method of a TLS socket, which takes its state away from the thread that reads.
                socket.socket.shutdown(line, socket.SHUT_RDWR)

    thread = Thread(target=wait, daemon=True)
    thread.start()
    cause: Exception | None = None
    try:
        yield
    except Exception as error:
        if not overdue.is_set():
            raise
        cause = error
    finally:
        done.set()
        thread.join()
    if overdue.is_set():
        raise OverdueError(f"did not finish within {seconds:g} s") from cause
