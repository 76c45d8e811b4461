"""Corpora from files and logs. Documents, whole texts or the answers of a log, are tokenized into a file in a
scratch folder, from which n-gram caches and datastores are made."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import paceline
from paceline.prepare.documents import DocumentReader, Skipped, SourceFile, find
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.validation import unknown
from paceline.storage import corpora
from paceline.storage.corpora import DATASTORE, KINDS, MANIFEST, STATIC, Corpus, Manifest, SourceCounts
from paceline.system.atomic import private_file, writing
from paceline.system.home import make_private_folder
from paceline.system.shutdown import scratch_folder
from paceline.text.interface import Tokenizer
from paceline.text.records import Content

COUNTED = ("files", "documents", "bytes", "tokens")  # of a source
PIECE = 1 << 16  # characters that are tokenized at once, for Ctrl-C
SPOOL = "tokens"
FINDING_FILES, READING, COUNTING, SORTING = "look for files", "tokenize", "count n-grams", "sort"
UNKNOWN_TOTAL = -1  # steps of a phase without a known total

Tick = Callable[[str], None]
Phase = Callable[[Mapping[str, int]], AbstractContextManager[Tick]]


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
    if "datastore" in kinds:
        from paceline.drafters.suffix_sort import sorter

        sorter()  # raises MissingExtraError before an hour of tokenizing
    skipped = Skipped()
    with phase({FINDING_FILES: UNKNOWN_TOTAL}) as tick:
        files, given = find(sources.paths, sources.logs, sources.globs, skipped, partial(tick, FINDING_FILES))
    reader = DocumentReader(skipped, prompts=sources.prompts)
    with writing(folder.parent, "what was there is as it was (PACELINE_HOME names another folder)"):
        make_private_folder(folder.parent)
        with scratch_folder(folder.parent) as new, closing(TokenFile(new / SPOOL)) as spool:
            with phase({READING: len(files)}) as tick:
                counts = _read(files, reader, tokenizer, spool, partial(tick, READING), check)
            if not spool.tokens:
                reasons = ", ".join(f"{n:,} {reason}" for reason, n in skipped.counts.items())
                raise UsageError(
                    f"the corpus would be empty: nothing to read was found ({reasons or 'no file'}); name "
                    "files or directories of text or code (--from) or logs of answers (--from-log)"
                )
            _derive(new, spool, kinds, tokenizer.vocab.size, phase, check)
            manifest = Manifest(
                name=name,
                kinds=tuple(dict.fromkeys(kinds)),
                tokens=spool.tokens,
                documents=len(spool),
                model=tokenizer.path.name,
                n_vocab=tokenizer.vocab.size,
                fingerprint=tokenizer.vocab.fingerprint,
                sources=tuple(
                    SourceCounts(str(path), **{name: counts[i][name] for name in COUNTED})
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
    files: Iterable[SourceFile],
    reader: DocumentReader,
    tokenizer: Tokenizer,
    spool: TokenFile,
    tick: Callable[[], None],
    check: Callable[[], None],
) -> Mapping[int, Counter[str]]:
    """Tokenize files into `spool`, and return the counts of each source."""
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for file in files:
        found = Counter[str]()
        for content in reader.documents(file):
            length = spool.add(_tokens(content, tokenizer, check))
            n_bytes = len(content.encode()) if isinstance(content, str) else 0
            found += Counter(documents=int(length > 0), bytes=n_bytes, tokens=length)
        counts[file.source] += found + Counter(files=int(found["tokens"] > 0))
        tick()
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
            limit = min(suffix_sort.MAX_TEXT_BYTES, max(1 << 24, free))  # that free memory can sort
            documents = _ticking(spool, tick, SORTING)
            suffix_sort.build(new / DATASTORE, documents, n_vocab, most=limit, check=check)


def _ticking(spool: TokenFile, tick: Tick, kind: str) -> Iterator[NDArray[np.uint32]]:
    for document in spool.documents():
        tick(kind)
        yield document
