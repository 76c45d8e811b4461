"""Streams over HTTP: when each message was there, and what becomes of servers that misbehave."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from paceline.core.errors import PeerError, UsageError
from paceline.lab.peers.endpoint import Endpoint, Event
from paceline.lab.peers.process import free_port

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
ENDPOINT = Endpoint("peer", "http://127.0.0.1:9", 1.0, {})


held: list[socket.socket] = []  # lines that a server keeps open, saying nothing


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server
    while held:
        held.pop().close()


def served(listener: socket.socket, *answers: bytes, hang: bool = False) -> Endpoint:
    """A server that answers whatever comes with these bytes; with `hang` it then keeps the line."""

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            asked = b""
            while not asked.endswith(b"\r\n\r\n" if asked.startswith(b"GET") else b"{}"):
                asked += connection.recv(65536)
            connection.sendall(answer)
            if hang:
                held.append(connection)
            else:
                connection.close()

    Thread(target=serve, daemon=True).start()
    return Endpoint("peer", f"http://127.0.0.1:{listener.getsockname()[1]}", 0.3, {})


def streamed(endpoint: Endpoint) -> list[Event]:
    connection = endpoint.connect()
    try:
        return endpoint.stream(connection, "/completion", b"{}")
    finally:
        connection.close()


def test_a_message_was_there_when_its_last_piece_was() -> None:
    pieces = [
        (0.1, b'data: {"a":1}\n\ndata: {"b"'),
        (0.2, b":2}"),
        (0.3, b'\r\n\r\n: ping\n\nevent: x\ndata:{"c":3}\n\n'),
        (0.4, b"data: [DONE]\n\n"),
    ]
    assert ENDPOINT.events(pieces) == [Event(0.1, {"a": 1}), Event(0.3, {"b": 2}), Event(0.3, {"c": 3})]


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"Segmentation fault\n", r"peer said b'Segmentation fault', which is no message of an event stream"),
        (b"data: {oops\n", r"peer said b' \{oops', which is not the JSON that was expected"),
        (b"data: [1]\n", r"peer said b' \[1\]', which is not the JSON"),
        (b'data: {"error":{"code":500,"message":"out of slots"}}\n', "peer broke off: out of slots"),
    ],
)
def test_garbage_in_a_stream_is_quoted(said: bytes, complaint: str) -> None:
    with pytest.raises(PeerError, match=complaint):
        ENDPOINT.events([(0.1, said)])


def test_a_stream_is_read_to_its_end(listener: socket.socket) -> None:
    events = streamed(served(listener, HEAD + b'data: {"a":1}\n\ndata: {"b":2}\n\n'))
    assert [event.data for event in events] == [{"a": 1}, {"b": 2}]


def test_a_refusal_is_told_in_the_servers_words(listener: socket.socket) -> None:
    body = b'{"error":{"code":400,"message":"too long"}}'
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with pytest.raises(PeerError, match=r"^peer refused: too long \(HTTP 400\)$"):
        streamed(served(listener, answer))


def test_silence_ends_in_an_error(listener: socket.socket) -> None:
    with pytest.raises(PeerError, match=r"^peer said nothing for 0.3 s$"):
        streamed(served(listener, HEAD + b'data: {"a":1}\n\n', hang=True))


def test_what_is_not_http_is_quoted(listener: socket.socket) -> None:
    with pytest.raises(PeerError, match=r"^peer said 'hello', which is not HTTP$"):
        streamed(served(listener, b"hello\r\n"))


def test_a_server_that_hangs_up_has_broken_off(listener: socket.socket) -> None:
    with pytest.raises(PeerError, match=r"^peer broke off: Remote end closed connection without response$"):
        streamed(served(listener, b""))


def test_one_that_breaks_off_ends_all_that_were_asked_together(listener: socket.socket) -> None:
    hello = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    endpoint = served(listener, hello, hello, b"", b"")
    with pytest.raises(PeerError, match=r"^peer broke off"):
        endpoint.stream_all("/completion", [{}, {}], "/health")


def test_where_nobody_listens_the_address_is_named() -> None:
    port = free_port()
    with pytest.raises(PeerError, match=rf"peer: nobody answers at http://127.0.0.1:{port}: is the server"):
        Endpoint("peer", f"http://127.0.0.1:{port}", 1.0, {}).get("/health")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", ""])
def test_an_address_needs_a_scheme_and_a_host(url: str) -> None:
    with pytest.raises(UsageError, match="is no address: write http://HOST:PORT"):
        Endpoint("peer", url, 1.0, {})
