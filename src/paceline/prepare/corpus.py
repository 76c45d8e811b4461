"""Corpora from files and logs. Documents, whole texts or the answers of a log, are tokenized into a file in a
scratch folder, from which n-gram caches and datastores are made."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import paceline
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.validation import unknown
from paceline.storage import corpora
from paceline.storage.corpora import DATASTORE, KINDS, MANIFEST, STATIC, Corpus, Manifest, SourceCounts
from paceline.system.home import make_private_folder
from paceline.system.leaving import scratch_folder
from paceline.system.whole import private_file, writing
from paceline.text.interface import Tokenizer
from paceline.text.records import ANSWERS, Content, parse_record, record_parts

MAX_TEXT_BYTES = 64 << 20  # a larger file is usually a dump; logs may be of any size
BINARY_PROBE_BYTES = 8192  # searched for zero bytes
PIECE = 1 << 16  # characters that are tokenized at once, for Ctrl-C
SPOOL = "tokens"
FINDING_FILES, READING, COUNTING, SORTING = "look for files", "tokenize", "count n-grams", "sort"
UNKNOWN_TOTAL = -1  # steps of a phase without a known total

Tick = Callable[[str], None]
Phase = Callable[[Mapping[str, int]], AbstractContextManager[Tick]]


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
        for one in _walk(path, globs, skipped) if path.is_dir() else [path]:
            try:
                is_link = one != path and one.is_symlink()
                kind = "not a file" if not one.is_file() else "link" if is_link else ""
                size = one.stat().st_size
            except OSError:
                kind, size = "unreadable", 0
            if kind:
                skipped.add(kind, one)
            else:
                log = True if is_log else None if one.suffix == ".jsonl" else False
                files.setdefault(one.resolve(), SourceFile(one, number, size, log))
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


@dataclass(frozen=True)
class Sources:
    """The sources of a corpus. paths: text files and folders. logs: JSONL files; without `prompts` only
    answers are used. globs: patterns of files in folders."""

    paths: Sequence[Path] = ()
    logs: Sequence[Path] = ()
    globs: Sequence[str] = ()
    prompts: bool = True


def build(
    name: str,
    sources: Sources,
    tokenizer: Tokenizer,
    kinds: Sequence[str] = tuple(KINDS),
    *,
    force: bool = False,
    phase: Phase = lambda _work: nullcontext(lambda _kind: None),
    check: Callable[[], None] = lambda: None,
) -> tuple[Corpus, Skipped]:
    """Build the corpus `name`, replacing an older one, and return it with what was skipped.
    force: replace a corpus of another tokenizer too. phase: shows progress. check: called regularly; both may
    raise, to stop. Raises UsageError for missing or empty sources and another tokenizer's corpus,
    MissingExtraError, and PacelineError if it cannot be written."""
    folder = corpora.corpora_folder() / corpora.check_name(name)
    if not force:
        _require_same(folder, tokenizer)
    for kind in kinds:
        if kind not in KINDS:
            raise unknown("kind", kind, KINDS)
    kinds = tuple(dict.fromkeys(kinds))
    if "datastore" in kinds:
        from paceline.drafters.suffix_sort import sorter

        sorter()  # raises MissingExtraError before an hour of tokenizing
    skipped = Skipped()
    with phase({FINDING_FILES: UNKNOWN_TOTAL}) as tick:
        looked = partial(tick, FINDING_FILES)
        files, given = find(sources.paths, sources.logs, sources.globs, skipped, looked)
    reader = DocumentReader(skipped, prompts=sources.prompts)
    with writing(folder.parent, "what was there is as it was (PACELINE_HOME names another folder)"):
        make_private_folder(folder.parent)
        with scratch_folder(folder.parent) as new, closing(TokenFile(new / SPOOL)) as spool:
            counts: dict[int, Counter[str]] = defaultdict(Counter)
            with phase({READING: len(files)}) as tick:
                for file in files:
                    counts[file.source] += _read(file, reader, tokenizer, spool, check)
                    tick(READING)
            if not spool.tokens:
                reasons = ", ".join(f"{n:,} {reason}" for reason, n in skipped.counts.items())
                raise UsageError(
                    f"the corpus would be empty: nothing to read was found ({reasons or 'no file'}); name "
                    "files or directories of text or code (--from) or logs of answers (--from-log)"
                )
            _derive(new, spool, kinds, tokenizer.vocab.size, phase, check)
            manifest = Manifest(
                name=name,
                kinds=kinds,
                tokens=spool.tokens,
                documents=len(spool),
                model=tokenizer.path.name,
                n_vocab=tokenizer.vocab.size,
                fingerprint=tokenizer.vocab.fingerprint,
                sources=tuple(
                    SourceCounts(
                        str(path), *(counts[i][what] for what in ("files", "documents", "bytes", "tokens"))
                    )
                    for i, path in enumerate(given)
                ),
                skipped=dict(skipped.counts),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                paceline=paceline.__version__,
            )
            spool.close()
            manifest.write(new / MANIFEST)
            corpora.replace(new, folder)
    return Corpus(folder, manifest), skipped


def _require_same(folder: Path, tokenizer: Tokenizer) -> None:
    with suppress(ModelError):  # an unreadable corpus may be replaced
        manifest = Manifest.read(folder)
        if not manifest.is_of(tokenizer.vocab):
            raise UsageError(
                f"the corpus {folder.name!r} was built with another tokenizer, of {manifest.model}: choose "
                "another name, or replace it with --force"
            )


class TokenFile:
    """The owner of a file with the tokens of all documents."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = private_file(path)
        self._lengths: list[int] = []
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, parts: Iterable[Sequence[int]]) -> int:
        """Add a document in parts, and return its length. An empty one is ignored."""
        length = 0
        for part in parts:
            self._file.write(np.asarray(part, np.uint32).data)
            length += len(part)
        if length:
            self._lengths.append(length)
        self.tokens += length
        return length

    def documents(self) -> Iterator[NDArray[np.uint32]]:
        self._file.flush()
        tokens = np.memmap(self._path, np.uint32, "r")
        for start, end in pairwise(accumulate(self._lengths, initial=0)):
            yield tokens[start:end]

    def close(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def _read(
    file: SourceFile,
    reader: DocumentReader,
    tokenizer: Tokenizer,
    spool: TokenFile,
    check: Callable[[], None],
) -> Counter[str]:
    """Tokenize a file into `spool`, and return its counts."""
    counts: Counter[str] = Counter()
    for content in reader.documents(file):
        length = spool.add(_tokens(content, tokenizer, check))
        n_bytes = len(content.encode()) if isinstance(content, str) else 0
        counts += Counter(documents=int(length > 0), bytes=n_bytes, tokens=length)
    counts["files"] = int(counts["tokens"] > 0)
    return counts


def _tokens(content: Content, tokenizer: Tokenizer, check: Callable[[], None]) -> Iterator[list[int]]:
    if not isinstance(content, str):
        n = tokenizer.vocab.size
        if strange := [token for token in content if not 0 <= token < n]:
            raise UsageError(
                f"a log has token {strange[0]:,}, and {tokenizer.path.name} has "
                f"{n:,}: name the model that the log is of with -m"
            )
        yield content
        return
    start = 0
    while start < len(content):
        end = _border(content, start + PIECE)
        yield tokenizer.text.encode_continuation(content[start:end])
        check()
        start = end


def _border(text: str, start: int) -> int:
    """Return a position soon after `start` where a line ends before text without leading white space, so that
    a token ends there too."""
    for end in range(start, min(start + PIECE, len(text))):
        if text[end - 1] == "\n" and not text[end].isspace():
            return end
    return min(start + PIECE, len(text))


def _derive(
    new: Path, spool: TokenFile, kinds: Sequence[str], n_vocab: int, phase: Phase, check: Callable[[], None]
) -> None:
    if "ngram" in kinds:
        from paceline.drafters.ngram_cache import NgramCache

        with phase({COUNTING: len(spool)}) as tick:
            cache = NgramCache.build(_ticking(spool, tick, COUNTING))  # type: ignore[arg-type]  # arrays
        if len(cache) == 0:
            raise UsageError("the texts are too short to count n-grams in: give more, or --kinds datastore")
        cache.write(new / STATIC, private=True)
    if "datastore" in kinds:
        import psutil

        from paceline.drafters import suffix_sort

        (new / DATASTORE).mkdir(mode=0o700)
        with phase({SORTING: len(spool)}) as tick:
            free = psutil.virtual_memory().available // suffix_sort.MEMORY_FACTOR
            most = min(suffix_sort.MAX_TEXT_BYTES, max(1 << 24, free))  # that free memory can sort
            documents = _ticking(spool, tick, SORTING)
            suffix_sort.build(new / DATASTORE, documents, n_vocab, most=most, check=check)


def _ticking(spool: TokenFile, tick: Tick, kind: str) -> Iterator[NDArray[np.uint32]]:
    for document in spool.documents():
        tick(kind)
        yield document
