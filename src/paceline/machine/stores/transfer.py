"""A file fetched over HTTP by a process that may end at any time, and by the next one from there on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.core.errors import PacelineError
from paceline.core.printable import amount
from paceline.machine.deadline import OverdueError
from paceline.machine.stores.hub_api import reason
from paceline.machine.stores.hub_http import asked, host_of

TRIES = 5  # connections in a row that may break before they have brought a BLOCK
BLOCK = 1 << 20
SLOWEST = 300.0  # seconds that a BLOCK may take: a slower connection is made anew


class Partial:
    """What is here of a file. Nothing is held back in memory: whenever the process ends, what came is kept.
    hashing: makes a new hash. came: bytes that this process has added, whatever became of them."""

    def __init__(self, path: Path, hashing: Callable[[], Any] = hashlib.sha256) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.done, self.came = path, 0, 0
        self._hashing, self._hash = hashing, hashing()

    def __enter__(self) -> Partial:
        self._file = self.path.open("a+b", buffering=0)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def hash(self) -> str:
        """Of what there is."""
        return str(self._hash.hexdigest())

    def read(self, tick: Callable[[int], None]) -> None:
        """What an earlier process has left."""
        self._file.seek(0)
        while block := self._file.read(BLOCK):
            self._hash.update(block)
            self.done += len(block)
            tick(self.done)

    def append(self, piece: bytes) -> None:
        left = memoryview(piece)
        while left:  # unbuffered, a disk may take less than it is given
            taken = self._file.write(left)
            self._hash.update(left[:taken])
            self.done += taken
            self.came += taken
            left = left[taken:]

    def settle(self) -> None:
        """On the disk, not only on its way: a name that says it is complete must not outlive its bytes."""
        os.fsync(self._file.fileno())

    def clear(self) -> None:
        self._file.truncate(0)
        self.done, self._hash = 0, self._hashing()


def fill(
    partial: Partial, url: str, headers: Mapping[str, str], size: int, tick: Callable[[int], None]
) -> None:
    """Fetch what is missing of `size` bytes, and tell how many there are. A connection that breaks is made
    again, as long as that brings something. Raises PacelineError, and what `asked` raises."""
    import httpx2

    left = TRIES
    while partial.done < size:
        before, cause = partial.done, None
        try:
            _stream(partial, url, headers, size, tick)
        except (
            httpx2.NetworkError,
            httpx2.TimeoutException,
            httpx2.RemoteProtocolError,
            OverdueError,
        ) as error:
            cause = error
        gained = partial.done - before
        left = TRIES if gained >= BLOCK else left - 1
        if partial.done < size and (gained <= 0 or left == 0):
            raise PacelineError(
                f"the connection to {host_of(url)} is lost ({reason(cause) if cause else 'it ended early'}) "
                f"after {amount(partial.done)} of {amount(size)}: the same command goes on from there"
            ) from cause


def _stream(
    partial: Partial, url: str, headers: Mapping[str, str], size: int, tick: Callable[[int], None]
) -> None:
    from huggingface_hub import constants

    if partial.done:
        headers = {**headers, "Range": f"bytes={partial.done}-"}
    with asked(url, headers, constants.HF_HUB_DOWNLOAD_TIMEOUT, SLOWEST) as stream:
        begins = f"bytes {partial.done}-"
        if partial.done and not stream.headers.get("Content-Range", "").startswith(begins):
            # A server that knows no ranges begins anew; a page of somebody in between is no reason to.
            if stream.headers.get("Content-Length", str(size)) != str(size):
                raise PacelineError(f"{host_of(url)} answers with something else than the file; try again")
            partial.clear()
        enough = partial.done + BLOCK
        for piece in stream.pieces:
            if partial.done + len(piece) > size:
                raise PacelineError(
                    f"{host_of(url)} sends more than the {size:,} bytes it has promised; try again"
                )
            partial.append(piece)
            tick(partial.done)
            if partial.done >= enough:
                stream.deadline.extend()
                enough = partial.done + BLOCK
