"""Session ids for chats, so that a router sends all turns of a conversation to the same replica.

That replica has the conversation's prefix in its KV cache, and its drafters have learned from its answers.
Ray Serve's ConsistentHashRouter reads a header and never the body. This ASGI middleware runs before it, in
Ray's proxies, and adds the header to a chat that has none."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from contextlib import suppress
from hashlib import sha256
from typing import Any

from paceline.server.security import App, Message, Receive, Send, replayed

VARIABLE = "RAY_SERVE_SESSION_ID_HEADER_KEY"  # Ray's: the header that its router reads
CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"  # Ray's: the function that returns middlewares
IMPORT_PATH = "paceline.server.affinity:middlewares"
CHATS = "/v1/chat/completions"
MAX_BODY_BYTES = 4 << 20  # of a body that is parsed: parsing blocks the whole proxy
BODY_TIMEOUT_SECONDS = 30.0


class SessionAffinityMiddleware:
    """Pass everything on unchanged, but for the header. The replica refuses bad requests: a body that is too
    large, too slow or not JSON gets no session id here."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._header = os.environ.get(VARIABLE, "x-session-id").lower().encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        received: deque[Message] = deque()
        if scope["type"] == "http" and self._needs_session_id(scope):
            body, headers = await read_body(receive, received), dict(scope["headers"])
            key = headers.get(b"authorization") or headers.get(b"x-api-key") or b""
            if body is not None and (name := session_id(body, key)):
                scope["headers"] = [*scope["headers"], (self._header, name.encode())]

        await self._app(scope, replayed(received, receive), send)

    def _needs_session_id(self, scope: Message) -> bool:
        names = {name.lower().replace(b"_", b"-") for name, _ in scope["headers"]}
        chats = scope["method"] == "POST" and scope["path"].rstrip("/").endswith(CHATS)
        return chats and self._header.replace(b"_", b"-") not in names


async def read_body(receive: Receive, received: deque[Message]) -> bytes | None:
    """Return the body, adding its messages to `received`; None if it exceeds the limits."""
    body, is_whole = bytearray(), False
    with suppress(TimeoutError):
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            while len(body) <= MAX_BODY_BYTES and not is_whole:
                received.append(message := await receive())
                if message["type"] == "http.disconnect":
                    break
                body += message.get("body", b"")
                is_whole = not message.get("more_body", False)
    return bytes(body) if is_whole and len(body) <= MAX_BODY_BYTES else None


def session_id(body: bytes, key: bytes) -> str:
    """Return a hash of the client's key and the messages up to the user's first, which is the same for every
    turn of a chat; empty if the body is no chat."""
    try:
        messages = json.loads(body)["messages"]
        first = next(at for at, message in enumerate(messages) if message["role"] == "user")
    except (ValueError, RecursionError, LookupError, TypeError, StopIteration):
        return ""
    beginning = json.dumps(messages[: first + 1], sort_keys=True).encode()
    return sha256(len(key).to_bytes(8, "big") + key + beginning).hexdigest()[:32]


def middlewares() -> list[Any]:
    """Return the middlewares of Ray's proxies, which call this by IMPORT_PATH."""
    from starlette.middleware import Middleware

    return [Middleware(SessionAffinityMiddleware)]
