"""Answers that stream over HTTP, each piece with the time it came.

What we spend on reading is taken from a server that computes on the same cores, so it has to be little: 15 us
a piece by the standard library's client, against 40 by httpx and 50 by httpx2, which parse chunks in Python.
Pieces are kept as bytes and understood when the clock has stopped.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from paceline.core.errors import PeerError, UsageError

BUFFER = 65536


@dataclass(frozen=True)
class Event:
    """A message of a server-sent event stream. seconds: from asking until all of it was there."""

    seconds: float
    data: dict[str, Any]


@dataclass(frozen=True)
class Endpoint:
    """An HTTP server. name: for error messages. timeout: seconds it may be silent."""

    name: str
    url: str
    timeout: float
    headers: Mapping[str, str]

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{self.name}: {self.url!r} is no address: write http://HOST:PORT")

    @property
    def base(self) -> str:
        """The path that every other path is below."""
        return urlsplit(self.url).path.rstrip("/")

    def connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self.timeout)

    def get(self, path: str, connection: http.client.HTTPConnection | None = None) -> tuple[int, bytes]:
        """(status, body). Raises PeerError where nobody answers."""
        own = self.connect() if connection is None else connection
        try:
            own.request("GET", self.base + path, headers=dict(self.headers))
            response = own.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self.failed(error) from error
        finally:
            if connection is None:
                own.close()

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """(status, the JSON of the answer). Raises PeerError where nobody answers, or not in JSON."""
        connection = self.connect()
        try:
            _send(connection, self.base + path, json.dumps(body).encode(), self.headers)
            response = connection.getresponse()
            said = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self.failed(error) from error
        finally:
            connection.close()
        return response.status, self.parsed(said)

    def stream(self, connection: http.client.HTTPConnection, path: str, body: bytes) -> list[Event]:
        """Ask, and read the answer to its end."""
        pieces: list[tuple[float, bytes]] = []
        try:
            began = perf_counter()
            _send(connection, self.base + path, body, self.headers)
            response = connection.getresponse()
            if response.status != 200:
                said = self.parsed(response.read())
                raise PeerError(f"{self.name} refused: {complaint(said)} (HTTP {response.status})")
            spoke = began
            while piece := response.read1(BUFFER):
                now = perf_counter()
                pieces.append((now - began, piece))
                # A comment shows that a server is there, and not that it gets on.
                if not piece.startswith(b":"):
                    spoke = now
                elif now - spoke > self.timeout:
                    raise TimeoutError
        except (OSError, http.client.HTTPException) as error:
            raise self.failed(error) from error
        return self.events(pieces)

    def stream_all(self, path: str, bodies: Sequence[Mapping[str, Any]], hello: str) -> list[list[Event]]:
        """Ask everything at the same time. Connections are set up, by asking for `hello`, before any clock
        runs, and are new each time: llama-server ends a stream by hanging up."""
        sent = [json.dumps(body).encode() for body in bodies]
        connections = [self.connect() for _ in bodies]
        try:
            for connection in connections:
                self.get(hello, connection)
            if len(sent) == 1:
                return [self.stream(connections[0], path, sent[0])]
            with ThreadPoolExecutor(len(sent)) as pool:
                try:
                    return list(pool.map(self.stream, connections, [path] * len(sent), sent))
                except BaseException:
                    _hang_up(connections)  # the others would be read to their end first
                    raise
        finally:
            for connection in connections:
                connection.close()

    def events(self, pieces: Sequence[tuple[float, bytes]]) -> list[Event]:
        """The messages of a stream. A line may come in several pieces, and a piece may hold several lines."""
        found: list[Event] = []
        rest = b""
        for seconds, piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                field, _, value = line.strip().partition(b":")
                if field == b"data" and value.strip() != b"[DONE]":
                    found.append(Event(seconds, self.parsed(value)))
                elif field not in (b"data", b"", b"event", b"id", b"retry"):
                    raise PeerError(f"{self.name} said {line[:80]!r}, which is no message of an event stream")
        if broken := next((event for event in found if "error" in event.data), None):
            raise PeerError(f"{self.name} broke off: {complaint(broken.data)}")
        return found

    def parsed(self, said: bytes) -> dict[str, Any]:
        try:
            data = json.loads(said)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise PeerError(f"{self.name} said {said[:80]!r}, which is not the JSON that was expected")
        return data

    def failed(self, error: Exception) -> PeerError:
        if isinstance(error, TimeoutError):
            return PeerError(f"{self.name} said nothing for {self.timeout:g} s")
        if type(error) is http.client.BadStatusLine:
            return PeerError(f"{self.name} said {str(error).strip()[:80]!r}, which is not HTTP")
        if isinstance(error, ConnectionRefusedError | socket.gaierror):
            return PeerError(f"{self.name}: nobody answers at {self.url}: is the server running?")
        return PeerError(f"{self.name} broke off: {error or type(error).__name__}")


def complaint(data: Mapping[str, Any]) -> str:
    """What an answer says is wrong: every server words it otherwise."""
    error = data.get("error", data)
    if isinstance(error, Mapping):
        error = error.get("message") or error.get("detail") or json.dumps(error)
    return str(error)[:300]


def _send(connection: http.client.HTTPConnection, path: str, body: bytes, headers: Mapping[str, str]) -> None:
    connection.request("POST", path, body, {"Content-Type": "application/json", **headers})


def _hang_up(connections: Sequence[http.client.HTTPConnection]) -> None:
    for connection in connections:
        with contextlib.suppress(OSError, AttributeError):  # it may have no socket any more
            connection.sock.shutdown(socket.SHUT_RDWR)
