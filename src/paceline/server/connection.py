"""A client's connection: uvicorn's own, for clients that stall and for those that do not speak HTTP."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

STALL_TIMEOUT_SECONDS = 30.0  # seconds
_numbers = count()


class GuardedConnection(H11Protocol):
    """One that stands still for `patience` is dropped, after twice as long at the latest: one whose next
    request does not come to the end of its headers, and one that reads nothing of what was sent. (The body of
    a request is the guard's.)"""

    patience = STALL_TIMEOUT_SECONDS
    number = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        super().connection_made(transport)
        self.number = next(_numbers)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            others = [one for one in self.connections if isinstance(one, GuardedConnection) and one._idle]
            # Without room every request would be refused: the oldest connection that stands idle makes some.
            if len(others) > 1:
                min(others, key=lambda one: one.number).transport.abort()
        self._before: tuple[str, Any] | None = None
        self._timer = self.loop.call_later(self.patience, self._check_stalled)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    @property
    def _idle(self) -> bool:
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()

    def _check_stalled(self) -> None:
        now = self._progress()
        if now is not None and now == self._before:
            self.transport.abort()  # closing it would wait until the rest has been read
            return
        self._before = now
        self._timer = self.loop.call_later(self.patience, self._check_stalled)

    def _progress(self) -> tuple[str, Any] | None:
        """What it waits for from its client, and how far that is; the same where nothing has moved."""
        if self.transport.is_closing() or self.flow.write_paused:
            return "reading", self.transport.get_write_buffer_size()
        if self._idle:
            return "silent", self.cycle
        return None

    def handle_events(self) -> None:
        try:
            super().handle_events()
        except h11.LocalProtocolError:  # nonsense after an answer that has begun
            self.transport.abort()

    def shutdown(self) -> None:
        with suppress(h11.LocalProtocolError):  # it has failed already
            super().shutdown()
