"""What a hub is asked over HTTP, by huggingface_hub's client, with limits on what it may send.

HF_ENDPOINT may name any server, and a mirror is not always a friend. Bodies are read in pieces and never
unpacked, redirects are followed here because the client reads all of their bodies, and a server that goes on
and on is hung up on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import PacelineError
from paceline.core.printable import printable
from paceline.machine.deadline import Deadline

HOPS = 10  # redirects; the hub has one or two
LONGEST = 60.0  # seconds for an answer of the hub's API
LARGEST = 16 << 20  # bytes of it; a repository of 10,000 files has 3 million


class RefusedError(Exception):
    """A status that is an error. code, why: in the hub's own words, which stand in headers."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status)
        self.status = status
        self.code, self.why = headers.get("X-Error-Code", ""), headers.get("X-Error-Message", "")


@dataclass(frozen=True)
class Stream:
    """An answer whose body is still to come. pieces: of it, as they come. deadline: to be extended by who
    wants more time for it."""

    headers: Mapping[str, str]
    pieces: Iterator[bytes]
    deadline: Deadline


def host_of(url: str) -> str:
    return printable(url.partition("://")[2].partition("/")[0])


@contextmanager
def asked(url: str, headers: Mapping[str, str], silence: float, seconds: float) -> Iterator[Stream]:
    """The answer to a GET, redirects followed. silence, seconds: that the server may say nothing, and that it
    may take in all. Raises RefusedError, PacelineError, OverdueError and what httpx2 raises."""
    from huggingface_hub.utils import get_session

    with Deadline(seconds) as deadline:
        request = get_session().build_request("GET", url, **_terms(headers, silence, deadline))
        for _ in range(HOPS):
            response = get_session().send(request, stream=True, follow_redirects=False)
            try:
                # The client has dropped the token where the way leads to another host.
                if response.next_request is None:
                    _require_plain(response)
                    yield Stream(response.headers, response.iter_raw(), deadline)
                    return
                request = response.next_request
            finally:
                response.close()
    raise PacelineError(f"{host_of(url)} leads from one address to the next without end; see HF_ENDPOINT")


def headers_of(url: str, headers: Mapping[str, str], silence: float) -> Any:
    """The answer to a HEAD: of the hub itself, whatever it points to."""
    from huggingface_hub.utils import get_session

    with Deadline(LONGEST) as deadline:
        request = get_session().build_request("HEAD", url, **_terms(headers, silence, deadline))
        response = get_session().send(request, stream=True, follow_redirects=False)
        response.close()
    if response.status_code >= 400:
        raise RefusedError(response.status_code, response.headers)
    return response


def body(stream: Stream, where: str) -> bytes:
    """All of a small body. Raises PacelineError for one of more than LARGEST bytes."""
    found = bytearray()
    for piece in stream.pieces:
        found += piece
        if len(found) > LARGEST:
            raise PacelineError(
                f"{where}: answers with more than {LARGEST >> 20} MiB, which no hub does; see HF_ENDPOINT"
            )
    return bytes(found)


def _terms(headers: Mapping[str, str], silence: float, deadline: Deadline) -> dict[str, Any]:
    def traced(_event: str, info: Mapping[str, Any]) -> None:
        # The connection, and then the encrypted one on top of it.
        if (look := getattr(info.get("return_value"), "get_extra_info", None)) is not None:
            deadline.watch(lambda: look("socket"))

    # Compressed on the way, a range would be one of other bytes, and a small body might unpack to a huge one.
    # A connection that was made for an earlier request would not be seen here.
    own = {"Accept-Encoding": "identity", "Connection": "close"}
    return {"headers": {**headers, **own}, "timeout": silence, "extensions": {"trace": traced}}


def _require_plain(response: Any) -> None:
    if not 200 <= response.status_code < 300:
        raise RefusedError(response.status_code, response.headers)
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise PacelineError(
            f"{host_of(str(response.request.url))} compresses its answers though it was asked not to; "
            "see HF_ENDPOINT"
        )
