"""A limit on the total time of a server's answer.

The timeout of a socket ends silence only, not a server that sends a byte now and then, or endless headers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Timer


class OverdueError(TimeoutError):
    """The server did not finish in time."""


@contextmanager
def deadline(line: socket.socket, seconds: float) -> Iterator[None]:
    """Shut down the connection after so many seconds, from another thread, and raise OverdueError."""
    overdue = Event()

    def end() -> None:
        overdue.set()
        with suppress(OSError):  # already closed
            # The method of a TLS socket would clear the state that the reading thread uses.
            socket.socket.shutdown(line, socket.SHUT_RDWR)

    timer, cause = Timer(seconds, end), None
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if not overdue.is_set():
            raise
        cause = error
    finally:
        timer.cancel()
        timer.join()
    if overdue.is_set():
        raise OverdueError(f"did not finish within {seconds:g} s") from cause
