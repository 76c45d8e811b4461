"""An HTTP client for streamed answers that records the arrival time of each piece.

The client runs on the server's cores, so reading has to be cheap: the standard library takes 15 us per piece,
httpx 40 and httpx2 50, which parse chunks in Python. Pieces are parsed after the measurement. The server is
not trusted: its answers are limited in bytes and time, and pydantic rejects fields that are missing
or wrong."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AliasChoices, BaseModel, Field, ValidationError, model_validator
from pydantic_core import from_json

from paceline.bench.jsonl import describe
from paceline.bench.system import BenchAnswer
from paceline.speculative.errors import BaselineError, UsageError
from paceline.speculative.printable import truncated

MAX_BODY_BYTES = 8 << 20  # of an unstreamed answer, and of one message of a stream
LARGEST_STREAM = 64 << 20  # bytes of memory for a stream; 100,000 tokens with their ids take half of it
OVERHEAD = 160  # bytes of memory per piece
FIELDS = (b"data", b"", b"event", b"id", b"retry")  # of an event stream
MAX_ANSWER_TIMEOUTS = 30  # duration of a whole answer, in timeouts
Event = tuple[float, dict[str, Any]]  # seconds from the request to the arrival of a message, the message
Message = TypeVar("Message", bound=BaseModel)
Count = Annotated[int, Field(ge=0, le=10**9)]  # tokens, steps, token ids


@dataclass(frozen=True)
class Endpoint:
    """An HTTP server. timeout: seconds of silence, and for answers without decoding.
    Every method raises BaselineError if the server does not answer or answers with something unexpected."""

    name: str
    url: str
    timeout: float
    headers: Mapping[str, str]

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            raise UsageError(f"{self.name}: {self.url!r} is no address: write http://HOST:PORT")

    def fetch(
        self, path: str, body: Mapping[str, Any] | None = None, *, allowed: Sequence[int] = ()
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the answer of a GET, or of a POST of `body`, which may take decoding.
        allowed: statuses besides 200 that are no refusal."""
        seconds = self.timeout * (1 if body is None else MAX_ANSWER_TIMEOUTS)
        with self._response(path, body, seconds, allowed) as (response, _):
            return response.status, self._body(response)

    def stream(self, path: str, body: Mapping[str, Any]) -> list[Event]:
        """Post a request and read the streamed answer to its end."""
        with self._response(path, body, self.timeout * MAX_ANSWER_TIMEOUTS) as (response, start):
            pieces = self._read(response, start, LARGEST_STREAM)
        return self.events(pieces)

    def validated(self, kind: type[Message], data: Mapping[str, Any]) -> Message:
        """Return `data` as a message of the API."""
        try:
            return kind.model_validate(data)
        except ValidationError as error:
            why = f"its answer does not follow its API: {describe(error)}"
            raise BaselineError(f"{self.name}: {why}") from error

    @contextmanager
    def _response(
        self, path: str, body: Mapping[str, Any] | None, seconds: float, allowed: Sequence[int] = ()
    ) -> Iterator[tuple[http.client.HTTPResponse, float]]:
        """Yield a response and the time of its request; the connection is closed after `seconds`. Each
        request has a new one, since llama-server closes it after a stream. Connecting is not timed."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout)
        data = None if body is None else json.dumps(body).encode()
        headers = dict(self.headers) if body is None else {"Content-Type": "application/json", **self.headers}
        try:
            connection.connect()
            # Take the socket now: with "Connection: close" the connection drops it when the answer begins.
            with deadline(connection.sock, seconds):
                start, path = perf_counter(), parts.path.rstrip("/") + path
                connection.request("GET" if body is None else "POST", path, data, headers)
                with connection.getresponse() as response:
                    if response.status not in (200, *allowed):
                        message = error_message(self._body(response))
                        raise BaselineError(f"{self.name} refused: {message} (HTTP {response.status})")
                    yield response, start
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(error) from error
        finally:
            connection.close()

    def _read(self, response: http.client.HTTPResponse, began: float, most: int) -> list[tuple[float, bytes]]:
        """Return the pieces of an answer of at most `most` bytes, each with its arrival time."""
        pieces: list[tuple[float, bytes]] = []
        last_data, room = perf_counter(), most
        while piece := response.read1(65536):
            now = perf_counter()
            pieces.append((now - began, piece))
            room -= len(piece) + OVERHEAD
            if room < 0:
                raise BaselineError(f"{self.name} sends more than {most >> 20} MiB for one answer")
            # A comment is a keep-alive, not progress.
            if not piece.startswith(b":"):
                last_data = now
            elif now - last_data > self.timeout:
                raise TimeoutError
        return pieces

    def _body(self, response: http.client.HTTPResponse) -> dict[str, Any]:
        return self.parsed(b"".join(piece for _, piece in self._read(response, 0.0, MAX_BODY_BYTES)))

    def events(self, pieces: Sequence[tuple[float, bytes]]) -> list[Event]:
        """Return the messages of a stream. A message arrives with the piece that has the end of its line."""
        piece_ends, end = list(accumulate(len(piece) for _, piece in pieces)), 0
        events: list[Event] = []
        for line in b"".join(piece for _, piece in pieces).split(b"\n")[:-1]:
            end += len(line) + 1
            field, _, value = line.strip().partition(b":")
            if field not in FIELDS:
                raise BaselineError(f"{self.name} said {line[:80]!r}, which is no message of an event stream")
            if field == b"data" and value.strip() != b"[DONE]":
                seconds, _ = pieces[bisect_left(piece_ends, end)]
                events.append((seconds, self.parsed(value)))
        if broken := next((data for _, data in events if "error" in data), None):
            raise BaselineError(f"{self.name} broke off: {error_message(broken)}")
        return events

    def parsed(self, raw: bytes) -> dict[str, Any]:
        try:
            data = from_json(raw, allow_inf_nan=False) if len(raw) <= MAX_BODY_BYTES else None
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise BaselineError(f"{self.name} said {raw[:80]!r}, which is not the JSON that was expected")
        return data

    def _failed(self, error: Exception) -> BaselineError:
        if isinstance(error, OverdueError):
            return BaselineError(f"{self.name} {error}, though it was sending")
        if isinstance(error, TimeoutError):
            return BaselineError(f"{self.name} said nothing for {self.timeout:g} s")
        if isinstance(error, ConnectionRefusedError | socket.gaierror):
            return BaselineError(f"{self.name}: nobody answers at {self.url}: is the server running?")
        return BaselineError(f"{self.name} broke off: {truncated(str(error)) or type(error).__name__}")


def error_message(data: Mapping[str, Any]) -> str:
    """Return the error message of an answer, whose form differs between servers."""
    error = data.get("error", data)
    if isinstance(error, Mapping):
        error = error.get("message") or error.get("detail") or json.dumps(error)
    return truncated(str(error))


class DraftCounts(BaseModel):
    """Draft counts of a request, with the names of llama-server and of vLLM."""

    drafted: Count | None = Field(None, validation_alias=AliasChoices("draft_n", "num_draft_tokens"))
    accepted: Count = Field(0, validation_alias=AliasChoices("draft_n_accepted", "num_accepted_draft_tokens"))

    @model_validator(mode="after")
    def _check_accepted(self) -> DraftCounts:
        if self.accepted > (self.drafted or 0):
            raise ValueError(f"{self.accepted} accepted of {self.drafted or 0} drafted tokens")
        return self


class Timings(DraftCounts):
    """The `timings` at the end of an answer of llama-server, which omits zeros."""

    predicted_n: Count = 0
    predicted_ms: Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)] = 0.0


def build_answer(
    pieces: Sequence[tuple[float, str, tuple[int, ...]]],
    n_tokens: int,
    n_prompt: int,
    timings: Timings,
    counts: DraftCounts | None,
    n_first: int,
    last: float,
) -> BenchAnswer:
    """Return the answer of a stream.
    pieces: arrival, text, token ids. n_first: tokens in the first piece. last: arrival of the last token."""
    tokens = tuple(token for _, _, ids in pieces for token in ids)
    seconds, before = last - (pieces[0][0] if pieces else last), min(n_first, n_tokens)
    # On a busy machine the first tokens may arrive late. Decoding took at least the server's time, which
    # begins after one token.
    own_seconds = min(timings.predicted_ms / 1e3, last)
    if own_seconds > seconds:
        seconds, before = own_seconds, 1
    reported: dict[str, Any] = {}
    if timings.predicted_n > 1 and timings.predicted_ms > 0.0:
        # Without the first token, which builds before 2026 count in their own speed.
        reported["own_speed"] = (timings.predicted_n - 1) / timings.predicted_ms * 1e3
    if counts is not None:
        drafted, accepted = counts.drafted or 0, counts.accepted
        # The first token comes from the prefill. No server reports the number of steps with a rejection.
        reported |= {"steps": max(0, n_tokens - accepted - 1), "drafted": drafted, "accepted": accepted}
        reported["rejected"] = 0 if drafted == accepted else None
    return BenchAnswer(
        text="".join(text for _, text, _ in pieces), tokens=tokens if len(tokens) == n_tokens else None,
        n_tokens=n_tokens, n_prompt=n_prompt, first=last - seconds, seconds=last,
        decoded=n_tokens - before, decoding=seconds, **reported,
    )  # fmt: skip


class OverdueError(TimeoutError):
    """The server did not finish in time."""


@contextmanager
def deadline(line: socket.socket, seconds: float) -> Iterator[None]:
    """Shut down the connection after so many seconds, from another thread, and raise OverdueError.
    The timeout of a socket ends silence only, not a server that sends a byte now and then."""
    overdue = threading.Event()

    def end() -> None:
        overdue.set()
        with suppress(OSError):  # already closed
            # The method of a TLS socket would clear the state that the reading thread uses.
            socket.socket.shutdown(line, socket.SHUT_RDWR)

    timer, cause = threading.Timer(seconds, end), None
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
