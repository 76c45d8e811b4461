"""Session ids of chats, and the requests that the server behind receives."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

import pytest

from paceline.server import affinity
from paceline.server.affinity import CHATS, MAX_BODY_BYTES, SessionAffinityMiddleware
from paceline.server.security import Message, Receive, Send

SAID = {"system": "be short", "user": "hello", "assistant": "hi"}
TURNS = [{"role": role, "content": content} for role, content in (*SAID.items(), ("user", "and now?"))]


def through(body: bytes, *, path: str = CHATS, pieces: int = 1, **headers: str) -> tuple[list[str], bytes]:
    """Return the session ids and the body that the app behind receives."""
    size = -(-len(body) // pieces) or 1
    cut = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": at + 1 < len(cut)}
        for at, piece in enumerate(cut)
    ]
    received: list[Message] = []
    scopes: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(_: Message) -> None: ...

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        while (message := await receive())["type"] == "http.request":
            received.append(message)

    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": given}
    asyncio.run(SessionAffinityMiddleware(app)(scope, receive, send))
    ids = [value.decode() for name, value in scopes[0]["headers"] if name == b"x-session-id"]
    return ids, b"".join(message["body"] for message in received)


def chat(messages: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def test_every_turn_of_a_chat_has_the_session_of_its_first_in_however_many_pieces_it_comes() -> None:
    first, body = through(chat(TURNS[:2]))
    later, whole = through(chat(TURNS, temperature=0.5), pieces=7)
    assert len(first) == 1
    assert first == later
    assert body == chat(TURNS[:2])
    assert whole == chat(TURNS, temperature=0.5)
    assert through(chat(TURNS), x_session_id="mine")[0] == ["mine"]  # the client's own


def test_another_beginning_or_another_key_is_another_session() -> None:
    other = [TURNS[0], {"role": "user", "content": "good morning"}]
    keys: list[dict[str, Any]] = [{}, {"x_api_key": "b"}, *({"authorization": f"Bearer {c}"} for c in "ab")]
    ids = [through(chat(other))[0], *(through(chat(TURNS), **key)[0] for key in keys)]
    assert len({tuple(one) for one in ids}) == len(ids)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"\xff\xfe", b"[" * 100_000, chat(None), chat("text"), chat([1])),
        *(chat([{"content": "nobody"}]), chat([{"role": "system", "content": "nobody asks"}])),
        chat([{"role": "user", "content": "x" * (MAX_BODY_BYTES + 1)}]),
    ],
    ids=lambda body: repr(body[:40]),
)
def test_body_that_is_no_chat_or_too_large_goes_on_unchanged_without_a_session(body: bytes) -> None:
    assert through(body) == through(body, pieces=9) == ([], body)


def test_a_body_that_stalls_does_not_delay_a_request_beyond_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(affinity, "BODY_TIMEOUT_SECONDS", 0.01)
    first: Message = {"type": "http.request", "body": b"{", "more_body": True}
    sent, received = [first], deque[Message]()

    async def receive() -> Message:
        return sent.pop() if sent else await asyncio.Future()

    assert asyncio.run(asyncio.wait_for(affinity.read_body(receive, received), 60)) is None
    assert list(received) == [first]
