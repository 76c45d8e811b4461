"""Documents of files and logs: whole texts, or the messages of a log."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from paceline.speculative.errors import UsageError
from paceline.text.records import ANSWERS, Content, parse_record, record_parts

MAX_TEXT_BYTES = 64 << 20  # a larger file is usually a dump; logs may be of any size
BINARY_PROBE_BYTES = 8192  # searched for zero bytes


@dataclass(frozen=True)
class SourceFile:
    """A file to read. source: number of its path argument. log: a record per line; None is detected."""

    path: Path
    source: int
    size: int
    log: bool | None


@dataclass
class Skipped:
    """Counts of skipped files and lines by reason, with an example of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, where: Path | str) -> None:
        self.counts[reason] += 1
        self.examples.setdefault(reason, str(where))


def find(
    paths: Sequence[Path],
    logs: Sequence[Path],
    globs: Sequence[str],
    skipped: Skipped,
    tick: Callable[[], None] = lambda: None,
) -> tuple[list[SourceFile], list[Path]]:
    """Return the files to read, each once, and the path arguments in the order of their numbers.
    globs: patterns of files in folders; none matches all. Raises UsageError for a missing path."""
    given = [*paths, *logs]
    files: dict[Path, SourceFile] = {}
    for number, path in enumerate(given):
        is_log = number >= len(paths)
        if (missing := not path.exists()) or (is_log and path.is_dir()):
            directory = "is a directory; give the log's own file, or --from"
            why = "no such file or directory; name one that exists" if missing else directory
            raise UsageError(f"{path}: {why}")
        # A file that is named itself is read even if hidden.
        for found in _walk(path, globs, skipped) if path.is_dir() else [path]:
            try:
                is_link = found != path and found.is_symlink()
                kind = "not a file" if not found.is_file() else "link" if is_link else ""
                size = found.stat().st_size
            except OSError:
                kind, size = "unreadable", 0
            if kind:
                skipped.add(kind, found)
            else:
                log = True if is_log else None if found.suffix == ".jsonl" else False
                files.setdefault(found.resolve(), SourceFile(found, number, size, log))
            tick()
    return list(files.values()), given


def _walk(folder: Path, globs: Sequence[str], skipped: Skipped) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        skipped.add("unreadable", error.filename)

    for where, folders, names in os.walk(folder, onerror=unreadable):
        for name in [name for name in folders if name.startswith(".")]:
            skipped.add("hidden", Path(where) / name)
            folders.remove(name)
        folders.sort()
        for name in sorted(names):
            path = Path(where) / name
            inside = path.relative_to(folder).as_posix()
            if name.startswith("."):
                skipped.add("hidden", path)
            elif not globs or any(fnmatch(name, glob) or fnmatch(inside, glob) for glob in globs):
                yield path


class DocumentReader:
    """A reader that skips duplicate texts. prompts: include the prompts of logs."""

    def __init__(self, skipped: Skipped, *, prompts: bool = True) -> None:
        self._skipped, self._prompts = skipped, prompts
        self._seen: set[bytes] = set()

    def documents(self, file: SourceFile) -> Iterator[Content]:
        """Yield the documents of a file. Unusable data is counted and skipped. Raises UsageError for a log
        without a record."""
        try:
            if file.log or (file.log is None and _is_log(file.path)):
                yield from self._records(file)
            elif (text := self._text(file)) is not None:
                yield text
        except OSError:
            self._skipped.add("unreadable", file.path)

    def _text(self, file: SourceFile) -> str | None:
        data = b"" if file.size > MAX_TEXT_BYTES else file.path.read_bytes()
        text = None
        with suppress(UnicodeDecodeError):
            text = data.decode("utf-8-sig")
        if file.size > MAX_TEXT_BYTES:
            reason = "too large"
        elif b"\0" in data[:BINARY_PROBE_BYTES]:
            reason = "binary"
        elif text is None:
            reason = "not UTF-8"
        elif not text.strip():
            reason = "empty"
        elif not self._add(hashlib.blake2b(data, digest_size=16).digest()):
            reason = "duplicate"
        else:
            return text
        self._skipped.add(reason, file.path)
        return None

    def _records(self, file: SourceFile) -> Iterator[Content]:
        """Yield each message of a log as a document."""
        if file.size == 0:
            self._skipped.add("empty", file.path)
            return
        n_records = 0
        with file.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                record = parse_record(line)
                parts = [] if record is None else list(record_parts(record))
                if not any(role in ANSWERS or self._prompts for role, _ in parts):
                    reason = "line that is no record" if record is None else "record without a text"
                    self._skipped.add(reason, f"{file.path}, line {number}")
                    continue
                n_records += 1
                yield from self._new_contents(parts)
        if not n_records and file.log:
            raise UsageError(
                f"{file.path}: no line of it is a JSON object with messages, a text, a completion or tokens; "
                "give a log as JSONL, or other text with --from"
            )

    def _new_contents(self, parts: list[tuple[str, Content]]) -> Iterator[Content]:
        """Yield contents whose whole history is new, since logs often repeat a conversation with every turn.
        The same answer to other messages counts again."""
        before = hashlib.blake2b(digest_size=16)
        for role, content in parts:
            before.update(repr(content).encode())
            if (role in ANSWERS or self._prompts) and self._add(before.digest()):
                yield content

    def _add(self, digest: bytes) -> bool:
        if digest in self._seen:
            return False
        self._seen.add(digest)
        return True


def _is_log(path: Path) -> bool:
    """True if the first non-blank line is a record with an answer."""
    with path.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"")
    return any(role in ANSWERS for role, _ in record_parts(parse_record(first) or {}))
