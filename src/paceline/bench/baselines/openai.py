"""Any server with OpenAI's completions API as a System (vLLM, SGLang, llama-server and others), and the HTTP
client of streamed answers, which records the arrival time of each piece.

The client runs on the server's cores, so reading has to be cheap: the standard library takes 15 us per piece,
httpx 40 and httpx2 50, which parse chunks in Python. Pieces are parsed after the measurement. The server is
not trusted: its answers are limited in bytes and time, and pydantic rejects fields that are wrong."""

from __future__ import annotations

import http.client
import io
import json
import os
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AliasChoices, AliasPath, BaseModel, Field, ValidationError, model_validator
from pydantic_core import from_json

from paceline.bench.jsonl import describe
from paceline.bench.system import BenchAnswer, BenchRequest, System
from paceline.speculative.errors import BaselineError, UsageError
from paceline.speculative.printable import truncated

COMPLETIONS, MODELS = "/v1/completions", "/v1/models"
MAX_BODY_BYTES = 8 << 20  # of an unstreamed answer
LARGEST_STREAM = 64 << 20  # bytes of memory for a stream; 100,000 tokens with their ids take half of it
OVERHEAD = 160  # bytes of memory per piece
FIELDS = (b"data", b"", b"event", b"id", b"retry")  # of an event stream
MAX_ANSWER_TIMEOUTS = 30  # duration of a whole answer, in timeouts
Message = TypeVar("Message", bound=BaseModel)
Count = Annotated[int, Field(ge=0, le=10**9)]  # tokens, steps, token ids


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


def either(own: str, first: str, *path: str | int) -> Any:
    """Return a field of a reply, by llama-server's name or at OpenAI's place."""
    return Field(None, validation_alias=AliasChoices(own, AliasPath(first, *path)))


class Reply(BaseModel):
    """A message of a stream of llama-server's /completion, or of OpenAI's /v1/completions with additions.
    counts: vLLM's, with --per-request-spec-decode-metrics. n_tokens: so far."""

    text: str | None = either("content", "choices", 0, "text")
    tokens: tuple[Count, ...] | None = either("tokens", "choices", 0, "token_ids")
    n_tokens: Count | None = either("tokens_predicted", "usage", "completion_tokens")
    n_prompt: Count | None = either("tokens_evaluated", "usage", "prompt_tokens")
    timings: Timings | None = None
    counts: DraftCounts | None = Field(None, validation_alias=AliasPath("metrics", "speculative_decoding"))
    error: Any = None


@dataclass(frozen=True)
class Endpoint:
    """An HTTP server. timeout: seconds of silence, and for answers without decoding.
    Every method raises BaselineError if the server does not answer or answers with something unexpected."""

    name: str
    url: str
    timeout: float
    headers: Mapping[str, str]

    def __post_init__(self) -> None:
        with suppress(ValueError):  # of urlsplit
            parts = urlsplit(self.url)
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                return
        raise UsageError(f"{self.name}: {self.url!r} is no address: write http://HOST:PORT")

    def fetch(
        self, path: str, body: Mapping[str, Any] | None = None, *, allowed: Sequence[int] = ()
    ) -> tuple[int, bytes]:
        """Return the status and the answer of a GET, or of a POST of `body`, which may take decoding.
        allowed: statuses besides 200 that are no refusal."""
        seconds = self.timeout * (1 if body is None else MAX_ANSWER_TIMEOUTS)
        with self._response(path, body, seconds, allowed) as (response, begin):
            pieces = self._read(response, begin, MAX_BODY_BYTES)
            return response.status, b"".join(piece for _, piece in pieces)

    def answer(self, path: str, body: Mapping[str, Any]) -> BenchAnswer:
        """Post a request, read the streamed answer to its end, and return it with its times."""
        with self._response(path, body, self.timeout * MAX_ANSWER_TIMEOUTS) as (response, start):
            pieces = self._read(response, start, LARGEST_STREAM)
        replies = [(at, self.validated(Reply, data)) for at, data in self.messages(pieces)]
        for _, reply in replies:
            if reply.error is not None:
                raise BaselineError(f"{self.name} broke off: {error_message(reply.error)}")
        return self.measured(replies)

    def validated(self, kind: type[Message], data: bytes) -> Message:
        """Return `data` as a message of the API."""
        try:
            return kind.model_validate_json(data)
        except ValidationError as error:
            raise BaselineError(
                f"{self.name}: its answer does not follow its API: {describe(error)}"
            ) from error

    @contextmanager
    def _response(
        self, path: str, body: Mapping[str, Any] | None, seconds: float, allowed: Sequence[int] = ()
    ) -> Iterator[tuple[http.client.HTTPResponse, float]]:
        """Yield a response and the time of its request; the connection is closed after `seconds`. Each
        request has a new one, since llama-server closes it after a stream. Connecting is not timed."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout)
        method, data, headers = "GET", None, dict(self.headers)
        if body is not None:
            method, data, headers["Content-Type"] = "POST", json.dumps(body).encode(), "application/json"
        try:
            connection.connect()
            start = perf_counter()
            connection.response_class = partial(TimedResponse, end=start + seconds)  # type: ignore[assignment]
            connection.request(method, parts.path.rstrip("/") + path, data, headers)
            with connection.getresponse() as response:
                if response.status not in (200, *allowed):
                    pieces = self._read(response, start, MAX_BODY_BYTES)
                    message = error_message(b"".join(piece for _, piece in pieces))
                    raise BaselineError(f"{self.name} refused: {message} (HTTP {response.status})")
                yield response, start
        except OverdueError as error:
            why = f"did not finish within {seconds:g} s, though it was sending"
            raise BaselineError(f"{self.name} {why}") from error
        except TimeoutError as error:
            raise BaselineError(f"{self.name} gave no response for {self.timeout:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            why = truncated(str(error)) or type(error).__name__
            raise BaselineError(f"{self.name} at {self.url} broke off: {why}") from error
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

    def messages(self, pieces: Sequence[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
        """Return the messages of a stream. A message arrives with the piece that has the end of its line."""
        piece_ends, end = list(accumulate(len(piece) for _, piece in pieces)), 0
        messages: list[tuple[float, bytes]] = []
        for line in b"".join(piece for _, piece in pieces).split(b"\n")[:-1]:
            end += len(line) + 1
            field, _, value = line.strip().partition(b":")
            if field not in FIELDS:
                raise BaselineError(f"{self.name} said {line[:80]!r}, which is no message of an event stream")
            if field == b"data" and value.strip() != b"[DONE]":
                messages.append((pieces[bisect_left(piece_ends, end)][0], value))
        return messages

    def measured(self, replies: Sequence[tuple[float, Reply]]) -> BenchAnswer:
        """Return the answer of a stream, from the arrival and the contents of its messages."""
        n_tokens, n_prompt, timings = (
            next((v for _, reply in reversed(replies) if (v := getattr(reply, name)) is not None), None)
            for name in ("n_tokens", "n_prompt", "timings")
        )
        if n_tokens is None or n_prompt is None:
            raise BaselineError(f"{self.name} ended its answer without saying how many tokens it has")
        pieces = [(at, reply) for at, reply in replies if reply.tokens or reply.text]
        last = replies[-1][0]
        # llama-server holds back incomplete characters: the last tokens may arrive without text.
        if pieces and pieces[-1][1].n_tokens in (None, n_tokens):
            last = pieces[-1][0]
        seconds, before = last - (pieces[0][0] if pieces else last), n_tokens
        if at_once := [reply for at, reply in pieces if at == pieces[0][0]]:
            # A message of a server that sends neither a count nor token ids counts as one token.
            before = min(before, at_once[-1].n_tokens or sum(len(one.tokens or "1") for one in at_once))
        reported: dict[str, Any] = {}
        if timings is not None and timings.predicted_ms > 0.0:
            # On a busy machine the first tokens may arrive late. Decoding took at least the server's time,
            # which begins after one token.
            own_seconds = timings.predicted_ms / 1e3
            if min(own_seconds, last) > seconds:
                seconds, before = min(own_seconds, last), 1
            # Without the first token, which builds before 2026 count in their own speed.
            if timings.predicted_n > 1:
                reported["own_speed"] = (timings.predicted_n - 1) / own_seconds
        counts = [one for _, reply in reversed(replies) for one in (reply.timings, reply.counts) if one]
        if one := next((one for one in counts if one.drafted is not None), timings):
            drafted, accepted = one.drafted or 0, one.accepted
            # The first token comes from the prefill. No server reports the number of steps with a rejection.
            reported |= {"steps": max(0, n_tokens - accepted - 1), "drafted": drafted, "accepted": accepted}
            reported["rejected"] = 0 if drafted == accepted else None
        tokens = tuple(token for _, reply in pieces for token in reply.tokens or ())
        return BenchAnswer(
            text="".join(reply.text or "" for _, reply in pieces), n_tokens=n_tokens, n_prompt=n_prompt,
            tokens=tokens if len(tokens) == n_tokens else None, first=last - seconds, seconds=last,
            decoded=n_tokens - before, decoding=seconds, **reported,
        )  # fmt: skip


def error_message(error: Any) -> str:
    """Return the message of an error, whose form differs between servers."""
    if isinstance(error, bytes):
        with suppress(ValueError):
            error = from_json(error)
    if isinstance(error, Mapping):
        error = error.get("error", error)
    if isinstance(error, Mapping):
        error = error.get("message") or error.get("detail") or error
    return truncated(error.decode(errors="replace") if isinstance(error, bytes) else str(error))


class OverdueError(TimeoutError):
    """The server did not finish in time."""


class TimedResponse(http.client.HTTPResponse):
    """A response of which every read raises OverdueError after `end` (by perf_counter).
    The timeout of a socket ends silence only, not a server that sends a byte now and then."""

    def __init__(self, *args: Any, end: float, **more: Any) -> None:
        super().__init__(*args, **more)
        self.fp = io.BufferedReader(TimedReader(self.fp.detach(), end))


class TimedReader(io.RawIOBase):
    def __init__(self, line: io.RawIOBase, end: float) -> None:
        self._line, self._end = line, end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if perf_counter() > self._end:
            raise OverdueError
        return self._line.readinto(buffer)

    def close(self) -> None:
        self._line.close()
        super().close()


class Model(BaseModel):
    id: Annotated[str, Field(min_length=1)]


class ModelList(BaseModel):
    """The answer of /v1/models."""

    data: Annotated[tuple[Model, ...], Field(min_length=1)]


class OpenAIServer(System):
    """A running server, which should have no other load meanwhile and keeps running.
    url: http://HOST:PORT, with or without /v1, and `#MODEL` if there are several. timeout: seconds of
    silence. The key is OPENAI_API_KEY of the environment. Prompts are text, to which the server adds BOS.
    Raises BaselineError if the server does not answer, UsageError for an unusable address or model."""

    def __init__(self, url: str, *, name: str, timeout: float = 120.0) -> None:
        self.name = name
        address, _, model = url.partition("#")
        key = os.environ.get("OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._endpoint = Endpoint(name, address.rstrip("/").removesuffix("/v1"), timeout, headers)
        self.model = model or self._only_model()
        self._extended = self._takes_extensions()

    def _only_model(self) -> str:
        _, data = self._endpoint.fetch(MODELS)
        models = [model.id for model in self._endpoint.validated(ModelList, data).data]
        if len(models) > 1:
            raise UsageError(f"{self.name} serves {truncated(', '.join(models))}: choose one with URL#MODEL")
        return models[0]

    def _takes_extensions(self) -> bool:
        """True if it accepts settings beyond OpenAI's API. It also tests the server before the bench."""
        probe = BenchRequest("a", (), 1)
        status, _ = self._endpoint.fetch(COMPLETIONS, self._body(probe, True), allowed=(400, 422))
        if status != 200:
            self._endpoint.fetch(COMPLETIONS, self._body(probe, False))
        return status == 200

    def _body(self, request: BenchRequest, extended: bool) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "temperature": 0.0,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            # Between -100, which forbids a token, and 100.
            "logit_bias": {str(t): max(-100.0, min(b, 100.0)) for t, b in sampling.logit_bias.items()},
        }
        if not extended:
            return body
        return body | {
            "ignore_eos": True,
            "repetition_penalty": sampling.repeat_penalty,  # vLLM's and SGLang's word
            "repeat_penalty": sampling.repeat_penalty,  # llama-server's
            "return_token_ids": True,
            # For an empty cache: llama-server's field and vLLM's.
            "cache_prompt": False,
            "cache_salt": uuid.uuid4().hex,
        }

    def answer(self, request: BenchRequest) -> BenchAnswer:
        """Answer with an empty cache if the server supports that per request: SGLang needs
        --disable-radix-cache. vLLM reports draft counts with --per-request-spec-decode-metrics."""
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        return self._endpoint.answer(COMPLETIONS, self._body(request, self._extended) | streamed)
