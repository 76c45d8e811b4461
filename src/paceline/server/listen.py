"""The server's process: its socket, its signals and its logs."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
from math import ceil
from types import FrameType
from typing import Any

import uvicorn

from paceline.server.connection import STALL_TIMEOUT_SECONDS, GuardedConnection
from paceline.server.service import ServingEngine
from paceline.speculative.errors import PacelineError, UsageError
from paceline.system.shutdown import exit_now

MAX_CONNECTIONS, MIN_CONNECTIONS = 1024, 16  # at once
RESERVED_FILES = 128  # that may be open beside the connections
BACKLOG = 2048  # connections that wait to be accepted
FINAL_GRACE_SECONDS = 0.5  # to send the last errors after the grace, and then for the pass under way

log = logging.getLogger("paceline.server")


class GracefulServer(uvicorn.Server):
    """A server that refuses new requests on a signal, and ends the open streams with an error after `grace`
    seconds. It exits if the engine has failed."""

    def __init__(self, config: uvicorn.Config, service: ServingEngine, grace: float) -> None:
        super().__init__(config)
        self._service, self._grace = service, grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.announce_shutdown()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._service.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timer = asyncio.get_running_loop().call_later(self._grace, self._service.abort_all)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


class JsonFormatter(logging.Formatter):
    """A formatter of log records as JSON, one object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None) or {"message": super().format(record)}
        return json.dumps({"time": self.formatTime(record), "level": record.levelname, **fields})


def bind(host: str, port: int) -> socket.socket:
    """Return a socket of that address; port 0 is any free port. Raises UsageError if it cannot be bound."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot listen on {host} port {port}: {reason}; is another server there? choose with --port"
        ) from error
    return bound


def listen_on(bound: socket.socket) -> None:
    """Listen. Raises UsageError if another process listens by now: both could bind while neither listened."""
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        raise UsageError(f"port {bound.getsockname()[1]}: {error.strerror}; choose with --port") from error


def configure_logging(as_json: bool, quiet: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    line = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else line)
    # A response that the end of the process cancels is no error.
    handler.addFilter(lambda it: not (it.exc_info and isinstance(it.exc_info[1], asyncio.CancelledError)))
    for name in ("paceline.server", "paceline.backends", "paceline.text", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        own = logging.WARNING if quiet else logging.INFO
        logger.setLevel(own if name.startswith("paceline") else logging.ERROR)
        logger.propagate = False


def max_connections(most: int = MAX_CONNECTIONS) -> int:
    """Return how many connections the limit on open files allows, after raising it as far as needed."""
    try:
        import resource
    except ImportError:  # no such limit on Windows
        return most
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard):
        return most
    if soft < (wanted := min(most + RESERVED_FILES, hard)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(MIN_CONNECTIONS, min(most, soft - RESERVED_FILES))


def uvicorn_config(
    app: Any, grace: float, patience: float = STALL_TIMEOUT_SECONDS, most: int = MAX_CONNECTIONS
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=type("Connection", (GuardedConnection,), {"patience": patience}),
        ws="none",
        log_config=None,
        access_log=False,
        limit_concurrency=most,
        backlog=BACKLOG,
        timeout_graceful_shutdown=ceil(grace + FINAL_GRACE_SECONDS),
        server_header=False,
        proxy_headers=False,  # app.py adds the middleware for them
        h11_max_incomplete_event_size=1 << 16,
        lifespan="off",
    )


def run(app: Any, service: ServingEngine, listening: socket.socket, grace: float) -> None:
    """Serve until SIGINT or SIGTERM; then streams have `grace` seconds to end.
    Raises UsageError if another server listens on the port, and PacelineError if the engine has failed."""
    config = uvicorn_config(app, grace, most=max_connections())
    # uvicorn raises the signal again after its shutdown: ignore that.
    before = {kind: signal.signal(kind, lambda *_: None) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        listen_on(listening)
        GracefulServer(config, service, grace).run(sockets=[listening])
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        listening.close()
        if not service.close(patience=FINAL_GRACE_SECONDS):
            log.warning("the pass under way takes longer than the grace: the process ends without it")
            exit_now(0)
    if service.failure is not None:
        raise PacelineError(service.problem)
