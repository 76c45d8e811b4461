"""What all servers that stream their answers over HTTP have in common: llama-server, and OpenAI's API.

Of llama-server's `timings`, what is no time or count raises ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.core.errors import PeerError
from paceline.lab.peers.endpoint import Endpoint, Event
from paceline.lab.peers.fields import count, milliseconds
from paceline.lab.system import Answer, Ask


class StreamingServer:
    """Asks, reads streams to their ends, and explains what is wrong with them. path: of completions; hello:
    of a question that takes no decoding, to set up a connection; api: what answers should look like."""

    path = ""
    hello = ""
    api = ""

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self.name, self._endpoint = name, endpoint

    def body(self, ask: Ask) -> dict[str, Any]:
        """What is sent to `path`."""
        raise NotImplementedError

    def _answered(self, ask: Ask, events: Sequence[Event]) -> Answer:
        raise NotImplementedError

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        streams = self._endpoint.stream_all(self.path, [self.body(ask) for ask in asks], self.hello)
        try:
            return [self._answered(ask, events) for ask, events in zip(asks, streams, strict=True)]
        except ValueError as error:
            raise PeerError(f"{self.name}: its answer is not what {self.api} says: {error}") from error


def with_drafts(answer: Answer, drafted: int, accepted: int) -> Answer:
    """The first token is the prompt's own, with no draft behind it. By how many steps the rest was lost is
    not told, unless nothing was."""
    return replace(
        answer,
        steps=max(0, answer.n_tokens - accepted - 1),
        drafted=drafted,
        accepted=accepted,
        rejected=0 if drafted == accepted else None,
    )


def own_speed(timings: Mapping[str, Any]) -> float | None:
    """Tokens/s of decoding. Its clock for decoding starts when the first token is sampled, and its count of
    tokens includes that one: builds before 2026 divide the one by the other, and look too fast."""
    n, took = count(timings, "predicted_n", 0), milliseconds(timings, "predicted_ms")
    return (n - 1) / took * 1e3 if n > 1 and took > 0 else None


def decoding(timings: Mapping[str, Any], first: float, last: float, n_first: int) -> tuple[float, int]:
    """(seconds of decoding, tokens that were there when they began). first, last: when the first tokens,
    n_first together, and the last ones reached us. On a busy machine the first may come late, with others:
    the server cannot have decoded for less time than it says, and that time begins after one token."""
    own = min(milliseconds(timings, "predicted_ms") / 1e3, last)
    return (own, 1) if own > last - first else (last - first, n_first)


def drafts_of(timings: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens (drafted, accepted). A server that tells leaves out what is zero."""
    drafted = count(timings, "draft_n", 0)
    return drafted, count(timings, "draft_n_accepted", 0, most=drafted)
