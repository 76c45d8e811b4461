"""A limit on the total time of a server's answer.

The timeout of a socket ends silence only, not a server that sends a byte now and then, or endless headers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread


class OverdueError(TimeoutError):
    """The server did not finish in time."""


@contextmanager
def deadline(line: socket.socket, seconds: float) -> Iterator[None]:
    """Shut down the connection after so many seconds, from another thread, and raise OverdueError."""
    done, overdue = Event(), Event()

    def wait() -> None:
        if not done.wait(seconds):
            overdue.set()
            with suppress(OSError):  # already closed
                # The method of a TLS socket would clear the state that the reading thread uses.
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
