"""Chat clients of any OpenAI-compatible server: so many at once, each asking anew when it has its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter
from typing import Any

import httpx2 as httpx

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Reply:
    """seconds: to the first text, and from there to the last. tokens: as the server counts them."""

    text: str
    tokens: int
    first: float
    rest: float

    @property
    def each(self) -> float | None:
        """Seconds between two tokens, the mean (TPOT)."""
        return self.rest / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(frozen=True)
class Load:
    """What so many clients at once were given. seconds: from the first request to the last answer."""

    replies: Sequence[Reply]
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second, of all together."""
        return sum(reply.tokens for reply in self.replies) / self.seconds

    @property
    def each(self) -> float:
        return fmean(each for reply in self.replies if (each := reply.each) is not None)

    @property
    def first(self) -> float:
        return fmean(reply.first for reply in self.replies)


async def ask(client: httpx.AsyncClient, messages: Messages, **settings: Any) -> Reply:
    """One chat, streamed. Raises ValueError for an answer that is an error."""
    body = {"messages": list(messages), "stream": True, "stream_options": {"include_usage": True}, **settings}
    began = perf_counter()
    first = last = 0.0
    text, tokens = "", 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise ValueError(f"HTTP {response.status_code}: {(await response.aread())[:300]!r}")
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            data = json.loads(line.removeprefix("data: "))
            if "error" in data:
                raise ValueError(f"in the stream: {data['error']}")
            if usage := data.get("usage"):
                tokens = usage["completion_tokens"]
            for choice in data.get("choices", ()):
                if said := choice["delta"].get("content"):
                    last = perf_counter()
                    first = first or last
                    text += said
    return Reply(text, tokens, first - began, last - first)


async def load(url: str, chats: Iterable[Messages], at_once: int, **settings: Any) -> Load:
    """All chats, `at_once` at a time."""
    left: Iterator[Messages] = iter(chats)
    replies: list[Reply] = []

    async def one(client: httpx.AsyncClient) -> None:
        for messages in left:
            replies.append(await ask(client, messages, **settings))

    # A connection each: some servers close one that is kept alive just as it is used again.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=limits) as client:
        began = perf_counter()
        await asyncio.gather(*(one(client) for _ in range(at_once)))
        return Load(replies, perf_counter() - began)
