"""Dozens of clients that stall, disconnect and send invalid bytes, beside valid ones: those get their texts,
and in the end nothing is left."""

from __future__ import annotations

import gc
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import psutil
import pytest

import paceline
from paceline.request_handle import RequestHandle
from paceline.server.connection import GuardedConnection
from paceline.server.security import SecurityRules
from paceline.server.settings import ServerLimits
from paceline.server.streams import CompletionOutputs
from serving import LONG, Served, serving, until

pytestmark = pytest.mark.slow

KEPT = (RequestHandle, CompletionOutputs, GuardedConnection)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


ASKED = {"prompt": "12", "max_tokens": 90, "ignore_eos": True, "temperature": 0}


def with_body(head: bytes, said: dict[str, Any]) -> bytes:
    body = json.dumps(said).encode()
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def asked(**more: Any) -> bytes:
    return with_body(HEAD, ASKED | more)


LARGE = with_body(HEAD.replace(b"/v1/completions", b"/tokenize"), {"content": "1" * 200_000})
STALL, GO, GO_IN_THE_STREAM, RESET, DEAF = range(5)
# The bytes to send, and the client's behaviour afterwards.
BAD: list[tuple[bytes, int]] = [
    (b"", STALL), (HEAD[:40], STALL), (asked()[:-20], STALL), (asked()[:-20], GO), (asked(n=3), GO),
    (HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"pro\r\n', STALL),
    (asked(stream=True), GO_IN_THE_STREAM), (asked(stream=True, n=2), RESET),
    (LARGE, DEAF),  # more comes back than the system holds for who reads nothing
    (asked(stream=True, logprobs=8) * 8, DEAF), (b"\0\1\2 GET me out of here\r\n\r\n" * 10, STALL),
    (asked(max_tokens=1) + b"nonsense\r\n\r\n", STALL), (asked(max_tokens=1), STALL),
]  # fmt: skip
EACH = 4


def be_bad(served: Served, sent: bytes, then: int) -> None:
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    with line, suppress(ConnectionError):  # it was dropped, as it should be
        line.connect(("127.0.0.1", served.port))
        line.sendall(sent)
        line.settimeout(LONG)
        if then == DEAF:
            threading.Event().wait(4.0)
        elif then in (GO_IN_THE_STREAM, RESET):
            line.recv(400)
        while then == STALL and line.recv(65536):
            pass
        if then == RESET:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def be_good(served: Served, client: int, wanted: dict[str, str]) -> int:
    """Send valid requests, some streamed; return the number of right answers."""
    random, right = Random(client), 0
    with httpx2.Client(base_url=served.url, timeout=LONG) as http:
        for prompt in random.sample(sorted(wanted), 4):
            body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
            if random.random() < 0.5:
                answer = http.post("/v1/completions", json=body)
                said = answer.json()["choices"][0]["text"]
            else:
                said = ""
                with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
                    for line in stream.iter_lines():
                        if line.startswith("data: {"):
                            said += json.loads(line[6:])["choices"][0]["text"]
            right += said == wanted[prompt]
            threading.Event().wait(random.random() * 0.3)
    return right


def storm(served: Served, wanted: dict[str, str]) -> None:
    bad = BAD * EACH
    Random(1).shuffle(bad)
    with ThreadPoolExecutor(len(bad) + 10) as pool:
        bads = [pool.submit(be_bad, served, *how) for how in bad]
        goods = [pool.submit(be_good, served, client, wanted) for client in range(10)]
        assert [good.result(LONG) for good in goods] == [4] * 10
        for one in bads:
            one.result(LONG)
    until(lambda: served.connections == 0)
    served.rest()
    until(lambda: not served.server.server_state.tasks)


def threads() -> set[threading.Thread]:
    """Return the threads outside of the pools of asyncio and anyio, which grow up to a bound."""
    pools = [one for one in threading.enumerate() if one.name.startswith(("asyncio", "AnyIO worker"))]
    assert len(pools) <= 40 + 32  # their bounds
    return set(threading.enumerate()) - set(pools)


def left() -> Counter[str]:
    """Count live objects by type. (`isinstance` would trigger lazy imports of other libraries.)"""
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects() if issubclass(type(one), KEPT))


@pytest.fixture(scope="module")
def served(models: Path) -> Iterator[Served]:
    paths = models / "target.gguf", models / "draft.gguf"
    how: dict[str, Any] = {"threads": 1, "flash_attention": False, "cache_type": "f32", "n_ctx": 128}
    with (
        paceline.load(*paths, "lookup,model", sessions=3, **how) as llm,
        serving(llm, ServerLimits(queue=500), SecurityRules(body_timeout=1.0), patience=1.0) as up,
    ):
        yield up


def test_a_storm_leaves_nothing_behind(served: Served) -> None:
    prompts = [f"{n} and {n * n}" for n in range(12)]
    wanted = {prompt: served.text(prompt, max_tokens=24, ignore_eos=True) for prompt in prompts}
    assert len(set(wanted.values())) > 6
    before = left()  # of other tests
    storm(served, wanted)  # the first one fills caches and pools
    until(lambda: not left() - before, left)
    process = psutil.Process()
    files, memory = process.num_fds(), process.memory_info().rss
    threads_before = threads()
    storm(served, wanted)
    until(lambda: not left() - before, left)
    assert process.num_fds() == files
    assert threads() == threads_before
    assert process.memory_info().rss - memory < 100e6  # roughly: the system gives it back as it likes
    assert served.guard._buffered_bytes == 0
    assert served.service.problem == ""
    assert {prompt: served.text(prompt, max_tokens=24, ignore_eos=True) for prompt in prompts} == wanted


def test_bodies_that_never_end_keep_no_small_one_out(served: Served) -> None:
    """The memory for large bodies is bounded, and small bodies are still read."""
    limit = 100_000
    with serving(served.service.llm, rules=SecurityRules(max_body_bytes=limit), patience=LONG) as up:
        assert up.get("/health").status_code == 200
        head = HEAD + b"Content-Length: %d\r\n\r\n" % limit
        lines = [socket.create_connection(("127.0.0.1", up.port), LONG) for _ in range(12)]
        for line in lines:
            line.sendall(head + b" " * (limit - 1))
        until(lambda: up.guard._buffered_bytes >= 7 * limit)
        assert up.text("12", max_tokens=1)
        refused = [line for line in lines if b"503" in received(line)]
        assert 0 < len(refused) < len(lines)
        assert up.guard._buffered_bytes <= 9 * limit
        for line in lines:
            line.close()
        until(lambda: up.guard._buffered_bytes == 0)
        up.rest()


def received(line: socket.socket) -> bytes:
    """Return the bytes so far, which may be none."""
    line.settimeout(0.2)
    try:
        return line.recv(1000)
    except TimeoutError:
        return b""
