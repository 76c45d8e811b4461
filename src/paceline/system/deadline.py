"""A limit on how long a server may take in all.

The timeout of a socket ends silence only. A server that sends a byte now and then, or headers without end,
would be waited for as long as it likes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from time import monotonic

AGAIN = 0.1  # seconds between two attempts to hang up: a connection may be made after the first


class OverdueError(TimeoutError):
    """A server was sending, and still had not finished."""


class Deadline:
    """For a `with` block that talks to a server: when it lasts longer than `seconds`, its connections are
    hung up, from another thread, and it ends in OverdueError. Sole owner of that thread."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._sockets: list[Callable[[], socket.socket | None]] = []
        self._done = Event()
        self._passed = False
        self._thread = Thread(target=self._wait, daemon=True)

    def __enter__(self) -> Deadline:
        self.extend()
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        self._done.set()
        self._thread.join()
        if self._passed and (error is None or isinstance(error, Exception)):
            raise OverdueError(f"did not finish within {self._seconds:g} s") from error

    def extend(self) -> None:
        """From now on, the whole time again."""
        self._ends = monotonic() + self._seconds

    def watch(self, current: Callable[[], socket.socket | None]) -> None:
        """`current`: the socket of a connection, which may change while it is set up."""
        self._sockets.append(current)

    def _wait(self) -> None:
        while not self._done.wait(AGAIN if self._passed else max(0.0, self._ends - monotonic())):
            if monotonic() >= self._ends:
                self._passed = True
                for current in list(self._sockets):
                    hang_up(current())


def hang_up(line: socket.socket | None) -> None:
    """End a connection that another thread may be reading."""
    if line is not None:
        with suppress(OSError):  # it has ended already
            # Not the method of a TLS socket, which takes its state away from the thread that reads.
            socket.socket.shutdown(line, socket.SHUT_RDWR)
