"""Past outputs of a project, kept for the drafters that learn from them (`--remember`): one small file a
project and vocabulary, in the user's own data folder, so that nothing appears in the project itself."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import RememberedError, UsageError
from paceline.core.vocab import Vocab
from paceline.machine.fingerprint import fingerprint
from paceline.machine.home import home
from paceline.machine.remembered_file import (
    ADVICE,
    RemovedError,
    connected,
    damaged,
    remove,
)

WAIT = 5.0  # seconds that a lock of another process is waited for
LIMIT = 1_000_000  # tokens
MARKS = (".git", ".paceline")  # of a project's folder


@dataclass(frozen=True)
class Kept:
    """What is remembered of one project in one vocabulary. project: None where the file does not tell.
    outputs, tokens: how many. since: when the oldest was added, in seconds of Unix time. bytes: on the disk.
    problem: why the file cannot be read; "" where it can."""

    path: Path
    bytes: int
    project: Path | None = None
    outputs: int = 0
    tokens: int = 0
    since: int | None = None
    problem: str = ""


class Remembered:
    """A project's past outputs in one vocabulary, at most `limit` tokens of them: the oldest go first.
    Several processes may use it at once; what was added is on the disk when `add` returns.

    warn: told, once, why an output could not be added, and nothing more is added then: an answer is worth
    more than its memory. Without it `add` raises RememberedError. wait: seconds to wait for another's lock.
    """

    def __init__(
        self,
        path: Path,
        project: Path,
        vocab: Vocab,
        limit: int = LIMIT,
        warn: Callable[[str], None] | None = None,
        wait: float = WAIT,
    ) -> None:
        if limit < 1:
            raise UsageError(
                f"{limit} tokens to remember: must be at least 1; leave out remember (--remember) for none"
            )
        self.path, self.project = path, project
        self._limit, self._warn, self._wait = limit, warn, wait
        self._size, self._fingerprint = vocab.size, fingerprint(vocab)
        self._kind = np.dtype("<u2" if vocab.size <= 1 << 16 else "<u4")
        self._adding = True
        with self._connected() as connection:  # what cannot be used is told before anything is decoded
            (theirs,) = connection.execute("SELECT fingerprint FROM store").fetchone()
        if theirs != self._fingerprint:
            raise RememberedError(f"{path} has tokens of another vocabulary: {ADVICE}")

    @classmethod
    def open(
        cls, vocab: Vocab, project: Path, limit: int = LIMIT, warn: Callable[[str], None] | None = None
    ) -> Self:
        """The project's store below `home()`; made where there is none. Raises RememberedError for a file
        that is damaged, another program's or a newer Paceline's, or that cannot be made."""
        project = project.resolve()
        path = _folder() / f"{_short(project)}-{fingerprint(vocab)[:16]}.sqlite"
        return cls(path, project, vocab, limit, warn)

    def outputs(self, limit: int = LIMIT) -> Iterator[list[int]]:
        """The newest ones, of together at most `limit` tokens; the oldest of those first. Raises
        RememberedError."""
        found = []
        with self._connected() as connection:
            for n, blob in connection.execute("SELECT n, tokens FROM outputs ORDER BY id DESC"):
                if (limit := limit - n) < 0:
                    break
                found.append(self._read(n, blob))
        # The lock is given back by now, however long the learning takes.
        return (tokens.tolist() for tokens in reversed(found))

    def add(self, tokens: Sequence[int]) -> None:
        """One more output; of one longer than the limit, its end."""
        if not self._adding or not tokens:
            return
        try:
            self._add(np.array(tokens[-self._limit :], self._kind))
        except RememberedError as error:
            if self._warn is None:
                raise
            self._adding = False
            self._warn(f"neither this answer nor later ones will be remembered: {error}")

    def close(self) -> None:
        """What is added after it is not remembered. No file is open between two calls."""
        self._adding = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, output: NDArray[Any]) -> None:
        end = time.monotonic() + self._wait
        while True:
            try:
                with self._connected(writing=True) as connection:
                    self._insert(connection, output)
                return
            except RemovedError:  # by `forget`: what comes after it is remembered
                if time.monotonic() > end:
                    raise

    def _insert(self, connection: sqlite3.Connection, output: NDArray[Any]) -> None:
        values = (int(time.time()), len(output), output.tobytes())
        connection.execute("INSERT INTO outputs (added, n, tokens) VALUES (?, ?, ?)", values)
        (total,) = connection.execute("SELECT tokens FROM store").fetchone()
        total += len(output)
        dropped = []
        if total > self._limit:
            for id_, n in connection.execute("SELECT id, n FROM outputs ORDER BY id"):
                dropped.append((id_,))
                total -= n
                if total <= self._limit:
                    break
        connection.executemany("DELETE FROM outputs WHERE id = ?", dropped)
        connection.execute("UPDATE store SET tokens = ?", (total,))

    def _read(self, n: int, blob: bytes) -> NDArray[Any]:
        # A token that does not exist would be drafted, and end the request.
        whole = len(blob) == n * self._kind.itemsize
        tokens = np.frombuffer(blob if whole else b"", self._kind)
        if not whole or tokens.max(initial=0) >= self._size:
            raise damaged(self.path, "it has tokens that do not exist")
        return tokens

    def _connected(self, *, writing: bool = False) -> AbstractContextManager[sqlite3.Connection]:
        # Bytes: a path need not be text.
        new = (os.fsencode(self.project), self._fingerprint)
        return connected(self.path, self._wait, new, writing=writing)


def project_of(folder: Path) -> Path:
    """The nearest folder from `folder` up with a .git or .paceline in it; `folder` itself where none has."""
    folder = folder.resolve()
    above = (folder, *folder.parents)
    return next((one for one in above if any((one / mark).exists() for mark in MARKS)), folder)


def describe(project: Path | None) -> list[Kept]:
    """All that is remembered of `project`, in whatever vocabulary; for None, of every project."""
    name = "*" if project is None else f"{_short(project.resolve())}-*"
    told = [_described(path) for path in sorted(_folder().glob(f"{name}.sqlite"))]
    return [kept for kept in told if kept is not None]


def forget(project: Path | None) -> list[Kept]:
    """Remove all that `describe` tells of, damaged files too, and say what it was. Raises RememberedError
    where a file cannot be removed; those before it are gone then."""
    gone = []
    for kept in describe(project):
        remove(kept.path, WAIT)
        gone.append(kept)
    return gone


def _folder() -> Path:
    return home() / "remembered"


def _short(project: Path) -> str:
    return sha256(os.fsencode(project)).hexdigest()[:16]


def _described(path: Path) -> Kept | None:
    """None where it is gone by now."""
    try:
        size = path.stat().st_size
        with connected(path, WAIT) as connection:
            project, tokens = connection.execute("SELECT project, tokens FROM store").fetchone()
            n, since = connection.execute("SELECT count(*), min(added) FROM outputs").fetchone()
    except (FileNotFoundError, RemovedError):
        return None
    except RememberedError as error:
        return Kept(path, size, problem=str(error))
    return Kept(path, size, Path(os.fsdecode(project)), n, tokens, since)
