"""HTTP streams: arrival times of messages, and misbehaving servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import sleep

import pytest

from hostile_server import OK, STREAM, UNTIL_CLOSED, endless, hostile, trickling, whole
from paceline.bench.baselines import openai as module
from paceline.bench.baselines.openai import Endpoint
from paceline.bench.baselines.process import free_port
from paceline.speculative.errors import BaselineError, UsageError

ENDPOINT = Endpoint("baseline", "http://127.0.0.1:9", 1.0, {})


def streamed(endpoint: Endpoint) -> object:
    return endpoint.answer("/completion", {})


def test_message_arrives_with_its_last_piece() -> None:
    pieces = [
        (0.1, b'data: {"a":1}\n\ndata: {"b"'),
        (0.2, b":2}"),
        (0.3, b'\r\n\r\n: ping\n\nevent: x\ndata:{"c":3}\n\n'),
        (0.4, b"data: [DONE]\n\n"),
    ]
    assert ENDPOINT.messages(pieces) == [(0.1, b' {"a":1}'), (0.3, b' {"b":2}'), (0.3, b'{"c":3}')]


def test_address_without_a_server_or_a_host_is_refused() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(BaselineError, match=f"baseline at {url} broke off: .*refused"):
        Endpoint("baseline", url, 1.0, {}).fetch("/health")
    for url in (
        "localhost:8000",
        "ftp://host",
        "http://",
        "",
        "http://host:99999",
        "http://host:a",
        "http://[::1",
    ):
        with pytest.raises(UsageError, match="is no address"):
            Endpoint("baseline", url, 1.0, {})


Pieces = Callable[[], Iterable[bytes]]
EVENT = b'data: {"choices": []}\n\n'
NO_JSON, TOO_MUCH = "its answer does not follow its API: it is ", "more than 2 MiB for one answer"


def refusal(pieces: Pieces, ask: Callable[[Endpoint], object]) -> str:
    with hostile(lambda *_: pieces()) as url, pytest.raises(BaselineError) as caught:
        ask(Endpoint("baseline", url, 5.0, {}))
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 500
    return said


def posted(endpoint: Endpoint) -> object:
    return endpoint.fetch("/v1/completions", {})


@pytest.mark.parametrize("ask", [streamed, posted])
@pytest.mark.parametrize(
    "pieces",
    [
        lambda: trickling(OK, b"X-Header: more\r\n"),
        lambda: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        lambda: trickling(OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x"),
        lambda: endless(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: more\r\n"),
        lambda: trickling(STREAM, EVENT),
        lambda: trickling(STREAM, b"\n"),
        lambda: trickling(STREAM, b" : "),
    ],
    ids=["headers", "greetings", "chunk", "trailers", "events", "lines", "no line"],
)
def test_an_answer_that_never_ends_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, pieces: Pieces, ask: Callable[[Endpoint], object]
) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_TIMEOUTS", 0.02)
    assert refusal(pieces, ask) == "baseline did not finish within 0.1 s, though it was sending"


def test_a_question_that_takes_no_decoding_has_to_be_answered_soon() -> None:
    slow = hostile(lambda *_: trickling(UNTIL_CLOSED, b" "))
    with slow as url, pytest.raises(BaselineError, match=r"did not finish within 0\.4 s"):
        Endpoint("baseline", url, 0.4, {}).fetch("/health")


def test_a_stream_that_falls_silent_is_reported() -> None:
    def silent(*_: object) -> Iterator[bytes]:
        yield STREAM + EVENT
        sleep(2)

    with hostile(silent) as url, pytest.raises(BaselineError, match=r"^baseline gave no response for 0.3 s$"):
        streamed(Endpoint("baseline", url, 0.3, {}))


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (lambda: endless(STREAM, EVENT), TOO_MUCH),
        (lambda: endless(STREAM, b"x"), TOO_MUCH),
        (lambda: endless(STREAM, b"data: " + b"[" * 1000), TOO_MUCH),
        (lambda: [STREAM, b"Segmentation fault\n"], "'Segmentation fault', which is no message"),
        (lambda: [STREAM, b"data: {oops\n"], NO_JSON),
        (lambda: [STREAM, b"data: [1]\n"], NO_JSON),
        (lambda: [STREAM, b"data: " + b"[" * 200_000 + b"\n"], NO_JSON),
        (
            lambda: [STREAM, b'data: {"error": {"message": "out of slots"}}\n'],
            "baseline broke off: out of slots",
        ),
        (lambda: [STREAM, b'data: {"error": "\\u001b[2J' + b"x" * 1000 + b'"}\n'], "baseline broke off: "),
        (lambda: [STREAM, b'data: {"error": ' + b"[" * 90 + b"]" * 90 + b"}\n"], "baseline broke off: [[["),
        (lambda: endless(b"HTTP/1.1 500 No\r\n\r\n", b"x"), "more than 1 MiB for one answer"),
        (
            lambda: whole(b'{"error":{"message":"long"}}', status="400 No"),
            "baseline refused: long (HTTP 400)",
        ),
        (lambda: [b""], " broke off: Remote end closed connection without response"),
        (lambda: endless(OK, b"X-Header: more\r\n"), " broke off: got more than 100 headers"),
        (lambda: whole(b"", "Location: /again", status="302 Found"), "baseline refused:  (HTTP 302)"),
        (lambda: [b"\x1b[2J\xff\r\n\r\n"], "broke off: \\x1b[2J"),
    ],
)
def test_a_stream_of_another_kind_is_one_line(
    monkeypatch: pytest.MonkeyPatch, pieces: Pieces, words: str
) -> None:
    monkeypatch.setattr(module, "LARGEST_STREAM", 2 << 20)
    monkeypatch.setattr(module, "MAX_BODY_BYTES", 1 << 20)
    assert words in refusal(pieces, streamed)
