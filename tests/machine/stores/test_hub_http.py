"""What a hub may send, and for how long: servers that never end, repeat themselves, or send too much."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from huggingface_hub.utils import close_session

from hostile_server import OK, UNTIL_CLOSED, Answer, endless, hostile, trickling, whole
from hub_server import COMMIT, Hub, own_cache, serving
from paceline.core.errors import PacelineError
from paceline.machine.stores.download import pull
from paceline.machine.stores.reference import Held, parse

Pieces = Callable[[], Iterable[bytes]]
DATA = bytes(range(256)) * 4000
NAME = "m-Q4_K_M.gguf"


@pytest.fixture(scope="module", autouse=True)
def one_client() -> Iterator[None]:
    """To make one, with all its certificates, takes longer than a test."""
    yield
    close_session()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_cache(monkeypatch, tmp_path / "hub")
    return tmp_path / "hub"


def pulled(monkeypatch: pytest.MonkeyPatch, url: str) -> list[Held]:
    monkeypatch.setenv("HF_ENDPOINT", url)
    return pull(parse("user/repo"), lambda *_: None)


def refusal(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> str:
    with hostile(answer) as url, pytest.raises(PacelineError) as caught:
        pulled(monkeypatch, url)
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 500
    return said


def many_headers() -> Iterator[bytes]:
    return trickling(OK, b"X-Header: more\r\n")


def many_greetings() -> Iterator[bytes]:
    return endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n")


def slow_body() -> Iterator[bytes]:
    return trickling(UNTIL_CLOSED, b" ")


def slow_chunk() -> Iterator[bytes]:
    return trickling(OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x")


@pytest.mark.parametrize("pieces", [many_headers, many_greetings, slow_body, slow_chunk])
def test_an_answer_that_never_ends_is_not_waited_for(
    cache: Path, monkeypatch: pytest.MonkeyPatch, pieces: Pieces
) -> None:
    monkeypatch.setattr("paceline.machine.stores.hub_api.LONGEST", 0.5)
    assert "did not finish within 0.5 s; try again later" in refusal(monkeypatch, lambda *_: pieces())
    assert not cache.exists()


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (lambda: endless(UNTIL_CLOSED, b"[" * 1000), "answers with more than 16 MiB"),
        (lambda: whole(b"[" * 200_000), "does not answer as a Hugging Face hub does"),
        (lambda: whole(b'{"a":' * 200_000), "does not answer as a Hugging Face hub does"),
        (lambda: whole(b'{"sha": "' + b"\xff" * 9 + b'"}'), "does not answer as a Hugging Face hub does"),
        (lambda: whole(gzip.compress(bytes(1 << 25)), "Content-Encoding: gzip"), "compresses its answers"),
        (lambda: whole(b"{}", "X-Long: " + "y" * 200_000), "no connection to"),
        (lambda: whole(b"{}", status="200 \x1b[2J"), "does not answer as"),
        (lambda: [b"\x1b[2J\xff\r\n\r\n"], "no connection to"),
        (lambda: whole(b"", "Location: /again", status="302 Found"), "leads from one address to the next"),
        (lambda: whole(b"", "Location: file:///etc/passwd", status="302 Found"), "no connection to"),
        (lambda: whole(b"", status="302 Found"), "answers with the error 302"),
        (lambda: endless(b"HTTP/1.1 500 No\r\n\r\n", b"x"), "answers with the error 500"),
        (lambda: endless(b"HTTP/1.1 404 No\r\nX-Error-Code: RepoNotFound\r\n\r\n", b"x"), "has no user/repo"),
    ],
)
def test_an_answer_of_another_kind_is_one_line(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    pieces: Pieces,
    words: str,
) -> None:
    assert words in refusal(monkeypatch, lambda *_: pieces())
    assert not cache.exists()


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub({"user/repo": {NAME: DATA}})) as served:
        yield served


def mirror(hub: Hub, storage: Pieces) -> Answer:
    """The listing of `hub`; its file is whatever `storage` sends."""
    listing = json.dumps(hub.info("user/repo")).encode()
    return lambda _, path: whole(listing) if path.startswith("/api/") else storage()


def test_the_body_of_a_redirect_is_not_read(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    to = f"HTTP/1.1 302 Found\r\nLocation: {hub.url}/user/repo/resolve/{COMMIT}/{NAME}\r\n\r\n"
    with hostile(mirror(hub, lambda: endless(to.encode(), b"x"))) as url:
        (one,) = pulled(monkeypatch, url)
    assert (one.checked, one.path.read_bytes() == DATA) == (True, True)


def test_a_file_that_trickles_is_given_up_and_what_came_is_kept(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.machine.stores.transfer.SLOWEST", 0.2)
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(DATA)}\r\n\r\n".encode()
    answer = mirror(hub, lambda: trickling(head, b"x"))
    said = refusal(monkeypatch, answer)
    assert "is lost (did not finish within 0.2 s) after " in said
    assert [path.stat().st_size < 1000 for path in cache.rglob("*.incomplete")] == [True]


def test_a_connection_that_gets_on_may_take_as_long_as_it_needs(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.machine.stores.transfer.SLOWEST", 1.5)
    monkeypatch.setattr("paceline.machine.stores.transfer.BLOCK", 1000)
    monkeypatch.setattr("paceline.machine.stores.transfer.TRIES", 1)

    def slowly() -> Iterator[bytes]:
        pieces = trickling(f"HTTP/1.1 200 OK\r\nContent-Length: {len(DATA)}\r\n\r\n".encode(), b"")
        yield next(pieces)
        step = len(DATA) // 100
        for at in range(0, len(DATA), step):
            yield DATA[at : at + step] + next(pieces)

    with hostile(mirror(hub, slowly)) as url:
        (one,) = pulled(monkeypatch, url)
    assert one.checked


def test_a_file_sent_without_end_stops_at_its_size(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal(monkeypatch, mirror(hub, lambda: endless(UNTIL_CLOSED, b"x")))
    assert "sends more than the 1,024,000 bytes it has promised" in said


def test_a_file_that_is_compressed_on_the_way_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = whole(gzip.compress(bytes(1 << 25)), "Content-Encoding: gzip")
    assert "compresses its answers" in refusal(monkeypatch, mirror(hub, lambda: bomb))
