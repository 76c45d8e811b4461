"""Checks before a request is read: the API key, the host, and the size and speed of the body.

A plain ASGI middleware. It reads the whole body within the limits, and passes it on in one piece."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_network
from time import monotonic
from typing import Any

from starlette.datastructures import Headers

from paceline.server.errors import ErrorInfo
from paceline.server.metrics import Metrics
from paceline.speculative.errors import UsageError
from paceline.speculative.printable import printable

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")
MAX_TOTAL_BODIES = 8  # bodies of the largest size that may be in memory at once
SMALL_BODY_BYTES = 1 << 16  # a body of at most this size is read whatever is in memory
MIN_BYTES_PER_SECOND = 1 << 16  # the slowest body
DRAIN_SECONDS = 2.0  # for the rest of a body that was refused
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]/?#@\s]*)(?::\d{0,5})?", re.ASCII)  # with its port
ABSOLUTE_FORM = re.compile(r"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)  # as proxies get it
REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)  # that a client may choose

log = logging.getLogger("paceline.server.requests")


@dataclass(frozen=True)
class SecurityRules:
    """Rules for the requests that are read. Raises UsageError.
    keys: API keys, of which a request must have one; empty: no key is needed.
    hosts: names that a request's Host may have; empty: any. Web pages can reach a server on the loopback
    interface under names of their own choice.
    proxies: addresses or networks whose X-Forwarded-For names the client.
    cors: origins whose web pages may use this server; "*": any.
    replica: name in the header x-replica of every response, in place of x-request-id, which Ray's proxy adds.
    body_timeout: seconds for a body, beside the time that it takes at the slowest speed."""

    keys: Sequence[str] = ()
    hosts: Sequence[str] = ()
    proxies: Sequence[str] = ()
    max_body_bytes: int = 8 << 20
    body_timeout: float = 30.0
    replica: str = ""
    cors: Sequence[str] = ()

    def __post_init__(self) -> None:
        for key in self.keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise UsageError("an API key must be printable ASCII without spaces, and not empty")
        for proxy in self.proxies:
            try:
                ip_network(proxy)
            except ValueError as error:
                raise UsageError(f"the trusted proxy {proxy}: is no IP address or network") from error


class SecurityMiddleware:
    """Refuse requests that break the rules; count them, give all requests an id, and log them.
    open_to_all: paths that need no key."""

    def __init__(self, app: App, rules: SecurityRules, metrics: Metrics, open_to_all: Sequence[str]) -> None:
        self._app, self._rules, self._metrics, self._open = app, rules, metrics, frozenset(open_to_all)
        self._keys = {sha256(key.encode()).digest() for key in rules.keys}
        self._buffered_bytes = 0  # of all bodies

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no route takes WebSockets
            await self._app(scope, receive, send)
            return
        began, headers = monotonic(), Headers(scope=scope)
        given = REQUEST_ID.fullmatch(headers.get("x-request-id", ""))
        name = given[0] if given else f"req-{secrets.token_hex(8)}"
        scope.setdefault("state", {}).update(client=self._client(scope, headers), log_fields={})
        replica, status = self._rules.replica, 0
        header = (b"x-replica", replica.encode()) if replica else (b"x-request-id", name.encode())

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status >= 400:
                    self._metrics.refused(status)
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        try:
            await self._authorize(scope, headers, receive, answer)
        finally:
            state, path = scope["state"], scope["path"][:200]
            fields = {"id": name, "client": state["client"], "method": scope["method"], "path": path}
            fields |= {"status": status or 499, "seconds": round(monotonic() - began, 4)}
            fields |= state["log_fields"]
            line = " ".join(f"{key}={printable(str(value))}" for key, value in fields.items())
            log.info(line, extra={"fields": fields})

    def _client(self, scope: Message, headers: Headers) -> str:
        """Return the client's name: the beginning of its key's hash, or its address."""
        key = _key(headers)
        if self._keys and key:
            return f"key-{sha256(key.encode('utf-8', 'replace')).hexdigest()[:8]}"
        return str(scope["client"][0]) if scope.get("client") else "local"

    async def _authorize(self, scope: Message, headers: Headers, receive: Receive, send: Send) -> None:
        pieces: list[bytes] = []
        try:
            if await self._read(self._check_headers(scope, headers), receive, pieces):
                # curl's default is no JSON; web pages could send that unasked.
                if "origin" not in headers and "sec-fetch-site" not in headers:
                    others = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
                    scope["headers"] = [*others, (b"content-type", b"application/json")]
                pieces[:] = [b"".join(pieces)]
                whole: Message = {"type": "http.request", "body": pieces[0], "more_body": False}
                await self._app(scope, replayed(deque([whole]), receive), send)
        except RequestRejected as refused:
            self._buffered_bytes -= sum(map(len, pieces))
            pieces.clear()
            await send_error(send, refused, receive, scope["path"])
        finally:
            self._buffered_bytes -= sum(map(len, pieces))

    def _check_headers(self, scope: Message, headers: Headers) -> int:
        """Return the Content-Length, and make an absolute request target a path.
        Raises RequestRejected for headers that break the rules."""
        if not scope["http_version"].startswith("1."):  # the preface of HTTP/2 looks like a request
            raise RequestRejected(505, "this server speaks HTTP/1.1", "bad_version")
        hosts = headers.getlist("host") or [""]
        if absolute := ABSOLUTE_FORM.fullmatch(scope["path"]):
            scope["path"] = absolute[2] or "/"
            hosts.append(absolute[1])
        if self._rules.hosts and not {_host(host) for host in hosts}.issubset(self._rules.hosts):
            message = f"this server answers to {', '.join(self._rules.hosts)} only"
            raise RequestRejected(421, message, "bad_host")
        if self._keys and scope["path"] not in self._open and not self._has_valid_key(headers):
            message = "a key is needed here: send it as 'Authorization: Bearer KEY'"
            raise RequestRejected(401, message, "invalid_api_key")
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy may follow the other header, and take the rest for another request.
            both = "Content-Length and Transfer-Encoding are both there: send one of them"
            raise RequestRejected(400, both, "bad_header")
        return int(headers.get("content-length", "0"))  # h11 has validated it

    def _has_valid_key(self, headers: Headers) -> bool:
        """Compare with all keys in constant time."""
        sent = sha256(_key(headers).encode("utf-8", "replace")).digest()
        return sum(hmac.compare_digest(sent, key) for key in self._keys) > 0

    async def _read(self, announced: int, receive: Receive, pieces: list[bytes]) -> bool:
        """Add the body to `pieces` and its size to the buffered bytes; false if the client disconnects.
        Raises RequestRejected for a body that is too large or too slow."""
        largest, n, end = self._rules.max_body_bytes, 0, monotonic() + self._rules.body_timeout
        while announced <= largest:
            try:
                async with asyncio.timeout(end + n / MIN_BYTES_PER_SECOND - monotonic()):
                    message = await receive()
            except TimeoutError:
                raise RequestRejected(408, "the rest of the body did not come", "timeout") from None
            if message["type"] == "http.disconnect":
                return False
            pieces.append(message.get("body", b""))
            n += len(pieces[-1])
            self._buffered_bytes += len(pieces[-1])
            if n > largest:
                break
            if n > SMALL_BODY_BYTES and self._buffered_bytes > MAX_TOTAL_BODIES * largest:
                raise RequestRejected(503, "too many large requests at once: try again", "overloaded")
            if not message.get("more_body", False):
                return True
        raise RequestRejected(413, f"the body has more than {largest:,} bytes: send less", "body_too_large")


class RequestRejected(Exception):  # noqa: N818  # control flow, not a failure
    """The HTTP error for a request that is not read."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def replayed(messages: deque[Message], receive: Receive) -> Receive:
    """Return a `receive` that gives these messages, and then goes on with the given one."""

    async def receive_next() -> Message:
        return messages.popleft() if messages else await receive()

    return receive_next


async def send_error(send: Send, refused: RequestRejected, receive: Receive, path: str) -> None:
    status, kind = refused.status, "authentication_error" if refused.status == 401 else ""
    body = json.dumps(ErrorInfo(status, str(refused), refused.code, kind=kind).body(path)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (400, 408, 413, 503, 505):  # the rest of the body would be taken for the next request
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if status in (413, 503):  # a client that is still sending would miss the answer if this closed at once
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
    await send({"type": "http.response.body", "body": b""})


def _key(headers: Headers) -> str:
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else headers.get("x-api-key") or headers.get("api-key", "")


def _host(header: str) -> str:
    """Return the host without its port, in lower case; nothing for a header that is neither."""
    matched = HOST.fullmatch(header := header.lower())
    return matched[1] if matched else header if header.count(":") > 1 else ""
