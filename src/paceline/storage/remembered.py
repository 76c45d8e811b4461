"""Past outputs of a project, kept for the drafters that learn from them (`--remember`).

One file of JSON lines a project and vocabulary, in the user's own data folder, so that nothing appears in the
project itself. The first line names the project, each other one is an output. A line that is no output, as a
process that was killed may leave one, is passed over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from paceline.models.fingerprint import vocab_fingerprint
from paceline.speculative.errors import RememberedError
from paceline.speculative.vocabulary import Vocab
from paceline.system.home import home, make_private_folder
from paceline.system.locks import folder_lock
from paceline.system.whole import atomic_write

MAX_LEARNED_TOKENS = 1_000_000  # tokens that are learned from
MAX_BYTES = 8 << 20  # of a file: of a longer one the older half goes
PROJECT_MARKERS = (".git", ".paceline")  # of a project's folder


@dataclass(frozen=True)
class HistoryInfo:
    """What is remembered of one project in one vocabulary.

    project: None where the file does not tell.
    outputs, tokens: how many.
    bytes: on the disk.
    """

    path: Path
    bytes: int
    project: Path | None
    outputs: int
    tokens: int


class AnswerHistory:
    """A project's past outputs in one vocabulary.

    Several processes may use it at once; what was added is on the disk when `add` returns.
    warn: told, once, why an output could not be added, and nothing more is added then: an answer is worth
    more than its memory. Without it `add` raises RememberedError.
    """

    def __init__(
        self, path: Path, project: Path, vocab: Vocab, warn: Callable[[str], None] | None = None
    ) -> None:
        self.path, self.project = path, project
        self._size, self._warn, self._adding = vocab.size, warn, True
        with self._alone():  # what cannot be used is told before anything is decoded
            os.close(_private(str(path), os.O_CREAT | os.O_APPEND | os.O_WRONLY))

    @classmethod
    def open(cls, vocab: Vocab, project: Path, warn: Callable[[str], None] | None = None) -> Self:
        """The project's store below `home()`; made where there is none. Raises RememberedError."""
        project = project.resolve()
        return cls(
            _folder() / f"{_short(project)}-{vocab_fingerprint(vocab)[:16]}.jsonl", project, vocab, warn
        )

    def outputs(self, limit: int = MAX_LEARNED_TOKENS) -> Iterator[list[int]]:
        """The newest ones, of together at most `limit` tokens; the oldest of those first."""
        with self._alone():
            lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        found: list[list[int]] = []
        for line in reversed(lines):
            tokens = _tokens(line)
            # A token that does not exist would be drafted, and end the request.
            if tokens and max(tokens) < self._size:
                if (limit := limit - len(tokens)) < 0:
                    break
                found.append(tokens)
        return reversed(found)

    def add(self, tokens: Sequence[int]) -> None:
        """One more output."""
        if not self._adding or not tokens:
            return
        try:
            self._add(json.dumps(list(map(int, tokens)), separators=(",", ":")).encode() + b"\n")
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

    def _add(self, line: bytes) -> None:
        with self._alone():
            with open(self.path, "a+b", opener=_private) as file:
                if not (size := file.seek(0, os.SEEK_END)):
                    file.write(self._head())
                elif file.seek(size - 1) and file.read(1) != b"\n":  # its writer was killed
                    file.write(b"\n")
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            if size > MAX_BYTES:
                self._drop_older()

    def _drop_older(self) -> None:
        lines, left = self.path.read_bytes().splitlines(keepends=True)[1:], MAX_BYTES // 2
        newest = []
        for line in reversed(lines):
            if (left := left - len(line)) < 0:
                break
            newest.append(line)
        with atomic_write(self.path, private=True) as part:
            part.write_bytes(b"".join((self._head(), *reversed(newest))))

    def _head(self) -> bytes:
        return json.dumps({"project": str(self.project)}).encode() + b"\n"  # a path need not be text

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            make_private_folder(self.path.parent)
            with folder_lock(self.path.parent):
                yield
        except OSError as error:
            raise RememberedError(
                f"{self.path}, where past outputs are kept, cannot be opened or written "
                f"({error.strerror or error}): name another folder with PACELINE_HOME, or leave out remember "
                "(--remember)"
            ) from error


def project_of(folder: Path) -> Path:
    """The nearest folder from `folder` up with a .git or .paceline in it; `folder` itself where none has."""
    folder = folder.resolve()
    above = (folder, *folder.parents)
    return next((one for one in above if any((one / mark).exists() for mark in PROJECT_MARKERS)), folder)


def describe(project: Path | None) -> list[HistoryInfo]:
    """All that is remembered of `project`, in whatever vocabulary; for None, of every project."""
    name = "*" if project is None else f"{_short(project.resolve())}-*"
    return [_described(path) for path in sorted(_folder().glob(f"{name}.jsonl")) if path.is_file()]


def forget(project: Path | None) -> list[HistoryInfo]:
    """Remove all that `describe` tells of, and say what it was. Raises RememberedError."""
    gone = describe(project)
    for value in gone:
        try:
            with folder_lock(_folder()):
                value.path.unlink(missing_ok=True)
        except OSError as error:
            raise RememberedError(f"{value.path}: cannot be removed ({error.strerror})") from error
    return gone


def _folder() -> Path:
    return home() / "remembered"


def _short(project: Path) -> str:
    return sha256(os.fsencode(project)).hexdigest()[:16]


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _tokens(line: bytes) -> list[int]:
    """Of one line; empty where it is no output."""
    found = _value(line)
    whole_numbers = isinstance(found, list) and all(type(one) is int and one >= 0 for one in found)
    return found if whole_numbers else []


def _value(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _described(path: Path) -> HistoryInfo:
    try:
        content = path.read_bytes()
    except OSError:  # gone by now, or not ours to read
        return HistoryInfo(path, 0, None, 0, 0)
    head, *rest = content.splitlines() or [b""]
    value = _value(head)
    project = value.get("project") if isinstance(value, dict) else None
    outputs = [tokens for tokens in map(_tokens, rest) if tokens]
    return HistoryInfo(
        path,
        len(content),
        Path(project) if isinstance(project, str) else None,
        len(outputs),
        sum(map(len, outputs)),
    )
