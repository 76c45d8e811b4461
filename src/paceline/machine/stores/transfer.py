"""A file fetched over HTTP by a process that may end at any time, and by the next one from there on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from paceline.core.errors import PacelineError

TRIES = 5  # connections in a row that may break before they have brought a BLOCK
BLOCK = 1 << 20


class Partial:
    """What is here of a file. Nothing is held back in memory: whenever the process ends, what came is kept.
    sha256: of what there is. came: bytes that this process has added, whatever became of them."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.done, self.came = path, 0, 0
        self._digest = hashlib.sha256()

    def __enter__(self) -> Partial:
        self._file = self.path.open("a+b", buffering=0)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def read(self, tick: Callable[[int], None]) -> None:
        """What an earlier process has left."""
        self._file.seek(0)
        while block := self._file.read(BLOCK):
            self._digest.update(block)
            self.done += len(block)
            tick(self.done)

    def append(self, piece: bytes) -> None:
        left = memoryview(piece)
        while left:  # unbuffered, a disk may take less than it is given
            taken = self._file.write(left)
            self._digest.update(left[:taken])
            self.done += taken
            self.came += taken
            left = left[taken:]

    def settle(self) -> None:
        """On the disk, not only on its way: a name that says it is complete must not outlive its bytes."""
        os.fsync(self._file.fileno())

    def clear(self) -> None:
        self._file.truncate(0)
        self.done, self._digest = 0, hashlib.sha256()


def fill(partial: Partial, url: str, headers: dict[str, str], size: int, tick: Callable[[int], None]) -> None:
    """Fetch what is missing of `size` bytes, and tell how many there are. A connection that breaks is made
    again, as long as that brings something. Raises PacelineError, and what huggingface_hub raises."""
    import httpx2

    left = TRIES
    while partial.done < size:
        before, cause = partial.done, None
        try:
            _stream(partial, url, headers, size, tick)
        except (httpx2.NetworkError, httpx2.TimeoutException, httpx2.RemoteProtocolError) as error:
            cause = error
        gained = partial.done - before
        left = TRIES if gained >= BLOCK else left - 1
        if partial.done < size and (gained <= 0 or left == 0):
            raise PacelineError(
                f"the connection to {_host(url)} is lost ({cause or 'it ended early'}) after "
                f"{amount(partial.done)} of {amount(size)}: the same command goes on from there"
            ) from cause


def _stream(
    partial: Partial, url: str, headers: dict[str, str], size: int, tick: Callable[[int], None]
) -> None:
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session, hf_raise_for_status

    # Compressed on the way, a range would be one of other bytes.
    headers = headers | {"Accept-Encoding": "identity"}
    if partial.done:
        headers["Range"] = f"bytes={partial.done}-"
    # On the way to another host the client drops the token.
    with get_session().stream(
        "GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, follow_redirects=True
    ) as response:
        hf_raise_for_status(response)
        begins = f"bytes {partial.done}-"
        if partial.done and not response.headers.get("Content-Range", "").startswith(begins):
            # A server that knows no ranges begins anew; a page of somebody in between is no reason to.
            if response.headers.get("Content-Length", str(size)) != str(size):
                raise PacelineError(f"{_host(url)} answers with something else than the file; try again")
            partial.clear()
        for piece in response.iter_bytes():
            if partial.done + len(piece) > size:
                raise PacelineError(
                    f"{_host(url)} sends more than the {size:,} bytes it has promised; try again"
                )
            partial.append(piece)
            tick(partial.done)


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]


def amount(n: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n} bytes"
