"""Which conversation a request belongs to, for a router that sends all its turns to the same replica.

That replica has read the conversation's beginning already, and its drafters have learned from its answers.
Ray Serve's ConsistentHashRouter goes by a header and never sees the body, so this runs before it, in Ray's
proxies: a plain ASGI middleware that gives a chat without the header one of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from contextlib import suppress
from hashlib import sha256
from typing import Any

from paceline.server.security import App, Message, Receive, Send

VARIABLE = "RAY_SERVE_SESSION_ID_HEADER_KEY"  # Ray's: the header that its router goes by
CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"  # Ray's: what its proxies ask for middlewares
IMPORT_PATH = "paceline.server.affinity:middlewares"
CHATS = "/v1/chat/completions"
MAX_BODY_BYTES = (
    4 << 20
)  # bytes of a body that is looked into: parsing holds up all that goes through the proxy
BODY_TIMEOUT_SECONDS = 30.0  # seconds for a body


class SessionAffinityMiddleware:
    """Hands everything on as it came, but for the header. Whether a request may be is the replica's matter: a
    body that is too large, too slow or no JSON goes on without one."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._header = os.environ.get(VARIABLE, "x-session-id").lower().encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        taken: deque[Message] = deque()
        if scope["type"] == "http" and self._to_name(scope):
            body = await body_of(receive, taken)
            if body is not None and (name := session_id(body, client_credential(scope))):
                scope["headers"] = [*scope["headers"], (self._header, name.encode())]

        async def again() -> Message:
            return taken.popleft() if taken else await receive()

        await self._app(scope, again, send)

    def _to_name(self, scope: Message) -> bool:
        names = {name.lower().replace(b"_", b"-") for name, _ in scope["headers"]}
        chats = scope["method"] == "POST" and scope["path"].rstrip("/").endswith(CHATS)
        return chats and self._header.replace(b"_", b"-") not in names


async def body_of(receive: Receive, taken: deque[Message]) -> bytes | None:
    """The body, whose messages are added to `taken`; None where it did not end within the limits."""
    body = bytearray()
    with suppress(TimeoutError):
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            while len(body) <= MAX_BODY_BYTES:
                taken.append(message := await receive())
                if message["type"] == "http.disconnect":
                    break
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    return bytes(body) if len(body) <= MAX_BODY_BYTES else None
    return None


def session_id(body: bytes, key: bytes) -> str:
    """The same for every turn of a chat: of its client's key and its messages up to the user's first. Empty
    where that cannot be told."""
    try:
        messages = json.loads(body)["messages"]
        first = next(at for at, message in enumerate(messages) if message["role"] == "user")
    except (ValueError, RecursionError, LookupError, TypeError, StopIteration):
        return ""
    beginning = json.dumps(messages[: first + 1], sort_keys=True).encode()
    return sha256(len(key).to_bytes(8, "big") + key + beginning).hexdigest()[:32]


def client_credential(scope: Message) -> bytes:
    """What tells one client from another; it goes into a hash and nowhere else."""
    headers = dict(scope["headers"])
    return bytes(headers.get(b"authorization") or headers.get(b"x-api-key") or b"")


def middlewares() -> list[Any]:
    """For Ray's proxies, which ask for it by IMPORT_PATH."""
    from starlette.middleware import Middleware

    return [Middleware(SessionAffinityMiddleware)]
