"""A local server that keeps to no protocol: it answers each request with whatever bytes it is told to, for as
long as anybody reads them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from time import monotonic, sleep

PATIENCE = 20.0  # seconds until a server that nobody hangs up on ends by itself, so that a test fails
OK = b"HTTP/1.1 200 OK\r\n"
UNTIL_CLOSED = OK + b"Connection: close\r\n\r\n"
STREAM = OK + b"Content-Type: text/event-stream\r\nConnection: close\r\n\r\n"

Answer = Callable[[bytes], Iterable[bytes]]  # of a request, the bytes to send


def whole(body: bytes, *headers: str, status: str = "200 OK") -> list[bytes]:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return ["\r\n".join(lines).encode("latin-1") + body]


def endless(head: bytes, piece: bytes) -> Iterator[bytes]:
    """`piece` again and again, as fast as it is taken."""
    yield head
    yield from repeat(piece * max(1, 65536 // len(piece)))


def trickling(head: bytes, piece: bytes) -> Iterator[bytes]:
    """`piece` again and again, often enough never to be silent for long."""
    yield head
    while True:
        sleep(0.02)
        yield piece


@contextmanager
def hostile(answer: Answer) -> Iterator[str]:
    """The address of such a server."""
    ended = threading.Event()

    def serve(line: socket.socket) -> None:
        with contextlib.closing(line), contextlib.suppress(OSError):
            request = read_request(line)
            until = monotonic() + PATIENCE
            for piece in answer(request):
                if ended.is_set() or monotonic() > until:
                    return
                line.sendall(piece)

    def accept() -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)


def read_request(line: socket.socket) -> bytes:
    said = b""
    while b"\r\n\r\n" not in said:
        if not (piece := line.recv(65536)):
            return said
        said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    lengths = [
        splitline.partition(b":")[2]
        for splitline in head.splitlines()
        if splitline.lower().startswith(b"content-length:")
    ]
    while lengths and len(body) < int(lengths[0]):
        body += line.recv(65536)
    return head + b"\r\n\r\n" + body
