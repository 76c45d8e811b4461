"""Past outputs of a project, stored for the drafters that learn from them (`--remember`).

There is one file of JSON lines per project and vocabulary, in the user's data folder. The first line names
the project, all others are outputs. Incomplete lines of killed processes are skipped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from paceline.speculative.errors import RememberedError
from paceline.speculative.vocabulary import Vocab
from paceline.system.atomic import atomic_write
from paceline.system.home import Warn, home, make_private_folder, to_stderr
from paceline.system.locks import folder_lock

MAX_LEARNED_TOKENS = 1_000_000
MAX_BYTES = 8 << 20  # of a file; the older half of a longer one is dropped
PROJECT_MARKERS = (".git", ".paceline")


@dataclass(frozen=True)
class HistoryInfo:
    """Counts of one project's history in one vocabulary. bytes: on disk. project: None if unknown."""

    path: Path
    bytes: int
    project: Path | None
    outputs: int
    tokens: int


class AnswerHistory:
    """A project's past outputs in one vocabulary; several processes may use it at once.
    warn: called once if an output cannot be written; later outputs are dropped then."""

    def __init__(self, path: Path, project: Path, vocab: Vocab, warn: Warn) -> None:
        self.path, self.project = path, project
        self._size, self._warn, self._adding = vocab.size, warn, True
        with _alone(self.path):  # fail before anything is decoded
            os.close(_private(str(path), os.O_CREAT | os.O_APPEND | os.O_WRONLY))

    @classmethod
    def open(cls, vocab: Vocab, project: Path, warn: Warn = to_stderr) -> Self:
        """Open or create the project's history below `home()`. Raises RememberedError."""
        project = project.resolve()
        name = f"{_short(project)}-{vocab.fingerprint[:16]}.jsonl"
        return cls(_folder() / name, project, vocab, warn)

    def outputs(self, limit: int = MAX_LEARNED_TOKENS) -> Iterator[list[int]]:
        """Return the newest outputs of at most `limit` tokens in all, the oldest first."""
        with _alone(self.path):
            lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        outputs: list[list[int]] = []
        for line in reversed(lines):
            tokens = _tokens(line)
            # Drafting a token outside the vocabulary would end the request.
            if tokens and max(tokens) < self._size:
                if (limit := limit - len(tokens)) < 0:
                    break
                outputs.append(tokens)
        return reversed(outputs)

    def add(self, tokens: Sequence[int]) -> None:
        """Append an output; it is on disk when this returns."""
        if not self._adding or not tokens:
            return
        try:
            self._append(json.dumps(list(map(int, tokens)), separators=(",", ":")).encode() + b"\n")
        except RememberedError as error:
            self._adding = False
            self._warn(f"neither this answer nor later ones will be remembered: {error}")

    def _append(self, line: bytes) -> None:
        with _alone(self.path):
            with open(self.path, "a+b", opener=_private) as file:
                if not (size := file.seek(0, os.SEEK_END)):
                    file.write(self._head())
                elif file.seek(size - 1) and file.read(1) != b"\n":  # left by a killed process
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
        return json.dumps({"project": str(self.project)}).encode() + b"\n"


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes out of a history's folder. Raises RememberedError for any OSError."""
    try:
        make_private_folder(path.parent)
        with folder_lock(path.parent):
            yield
    except OSError as error:
        why = f"{path}, where past outputs are kept, cannot be opened or written ({error.strerror or error})"
        advice = "name another folder with PACELINE_HOME, or leave out remember (--remember)"
        raise RememberedError(f"{why}: {advice}") from error


def project_of(folder: Path) -> Path:
    """Return the nearest folder upwards with .git or .paceline in it; else `folder`."""
    folder = folder.resolve()
    above = (folder, *folder.parents)
    return next(
        (parent for parent in above if any((parent / mark).exists() for mark in PROJECT_MARKERS)), folder
    )


def describe(project: Path | None) -> list[HistoryInfo]:
    """Describe the histories of `project`, or of all projects, in every vocabulary."""
    name = "*" if project is None else f"{_short(project.resolve())}-*"
    return [_described(path) for path in sorted(_folder().glob(f"{name}.jsonl")) if path.is_file()]


def forget(project: Path | None) -> list[HistoryInfo]:
    """Remove the histories of `project`, or of all projects, and describe them. Raises RememberedError."""
    histories = describe(project)
    for history in histories:
        with _alone(history.path):
            history.path.unlink(missing_ok=True)
    return histories


def _folder() -> Path:
    return home() / "remembered"


def _short(project: Path) -> str:
    return sha256(os.fsencode(project)).hexdigest()[:16]


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _tokens(line: bytes) -> list[int]:
    """Return the tokens of a line; empty for a line that is no output."""
    tokens = _parse(line)
    valid = isinstance(tokens, list) and all(type(token) is int and token >= 0 for token in tokens)
    return tokens if valid else []


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _described(path: Path) -> HistoryInfo:
    try:
        content = path.read_bytes()
    except OSError:  # removed meanwhile, or not readable
        return HistoryInfo(path, 0, None, 0, 0)
    first, *rest = content.splitlines() or [b""]
    head = _parse(first)
    name = head.get("project") if isinstance(head, dict) else None
    project = Path(name) if isinstance(name, str) else None
    outputs = [tokens for tokens in map(_tokens, rest) if tokens]
    return HistoryInfo(path, len(content), project, len(outputs), sum(map(len, outputs)))
