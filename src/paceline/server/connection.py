"""A client's connection: uvicorn's, hardened against clients that stall or do not speak HTTP."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

STALL_TIMEOUT_SECONDS = 30.0


class GuardedConnection(H11Protocol):
    """A connection that is aborted when its client has stalled for `patience` to twice `patience` seconds.
    A client stalls if it does not complete the headers of a request, or reads nothing of what was sent.
    (security.py times the body of a request.)"""

    patience = STALL_TIMEOUT_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        super().connection_made(transport)
        self._before: tuple[str, Any] | None = None
        self._timer = self.loop.call_later(self.patience, self._check_stalled)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _check_stalled(self) -> None:
        now = self._progress()
        if now is not None and now == self._before:
            self.transport.abort()  # close() would wait until the client has read the rest
            return
        self._before = now
        self._timer = self.loop.call_later(self.patience, self._check_stalled)

    def _progress(self) -> tuple[str, Any] | None:
        """Return what it waits for from its client, and a mark of progress; None if it waits for nothing."""
        if self.transport.is_closing() or self.flow.write_paused:
            return "reading", self.transport.get_write_buffer_size()
        if self.cycle is None or self.cycle.response_complete:
            return "silent", self.cycle
        return None

    def handle_events(self) -> None:
        try:
            super().handle_events()
        except h11.LocalProtocolError:  # invalid HTTP after a response has begun
            self.transport.abort()

    def shutdown(self) -> None:
        with suppress(h11.LocalProtocolError):  # the connection has failed already
            super().shutdown()
