"""Counts of the tokens after each n-gram, in sorted arrays: llama.cpp's lookup cache.

Files (`llama-lookup-create`, `--lookup-cache-static`) have no header, only records of little-endian 32-bit
integers in any order: the n-gram as four tokens, unused places -1; the number of continuations; for each the
token and its count. A file does not say which tokenizer its tokens belong to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.errors import ModelError
from paceline.system.atomic import atomic_write

STATIC_NGRAM_LENGTH = 2  # n-gram length of llama.cpp's static caches
NGRAM_MAX = 4
RECORD_HEADER_WORDS = NGRAM_MAX + 1  # integers of a record before its continuations
MAX_COUNT = int(np.iinfo(np.int32).max)
SORT_ROWS = 1 << 22  # rows that `build` sorts at a time

Ngram = tuple[int, ...]
Ints = NDArray[np.int32]
Keys = NDArray[np.uint64]
Rows = tuple[Ints, Ints, NDArray[np.int64]]  # n-grams [r, 4] with missing tokens -1, next tokens, counts
Continuations = tuple[Sequence[int], Sequence[int]]
NO_CONTINUATIONS: Continuations = ((), ())
NO_ROWS: Rows = (np.empty((0, NGRAM_MAX), np.int32), np.empty(0, np.int32), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class NgramCache:
    """N-grams sorted by their keys (high, low).
    The i-th n-gram's continuations are in tokens[starts[i]:starts[i + 1]], by first appearance."""

    high: Keys
    low: Keys
    starts: NDArray[np.int64]
    tokens: Ints
    counts: Ints

    @classmethod
    def read(cls, path: Path | str) -> NgramCache:
        """Read a file of llama.cpp or of `write`. Raises OSError; ModelError for another format or damage."""
        path = Path(path)
        words: Ints = np.fromfile(path, "<i4").astype(np.int32, copy=False)
        begins, at = _records(words)
        if at > len(words) and begins:
            at = begins.pop()
        if not begins or at != len(words) or path.stat().st_size != words.nbytes:
            damage = f"cut short or damaged at byte {4 * at:,}, after {len(begins):,} n-grams"
            raise ModelError(
                f"{path}: {damage if begins else 'not an n-gram cache'}; make one with llama-lookup-create "
                "or paceline corpus"
            )
        starts = np.array(begins)
        ngrams = words[starts[:, None] + np.arange(NGRAM_MAX)]
        high, low = _keys(ngrams)
        order = np.lexsort((low, high))
        high, low, many = high[order], low[order], words[starts[order] + NGRAM_MAX].astype(np.int64)
        ends = np.cumsum(many)
        first = starts[order] + RECORD_HEADER_WORDS - 2 * (ends - many)
        places = np.repeat(first, many) + 2 * np.arange(ends[-1])
        cache = cls(high, low, np.append(0, ends), words[places], words[places + 1])
        gaps = (ngrams[:, 1:] >= 0) & (ngrams[:, :-1] < 0)
        possible = (
            ngrams.min() >= -1 and ngrams[:, 0].min() >= 0 and cache.tokens.min() >= 0 and not gaps.any()
        )
        if not possible or cache.counts.min() < 1 or len(_changes(high, low)) < len(cache):
            raise ModelError(
                f"{path}: not an n-gram cache, or damaged: it holds what cannot be; make it anew"
            )
        return cache

    @classmethod
    def build(
        cls,
        streams: Iterable[Sequence[int]],
        ngram_min: int = STATIC_NGRAM_LENGTH,
        ngram_max: int = STATIC_NGRAM_LENGTH,
    ) -> NgramCache:
        """Count the n-grams of texts; none crosses from one text into the next."""
        assert 1 <= ngram_min <= ngram_max <= NGRAM_MAX
        cache, waiting, n = cls.of(NO_ROWS), [], 0
        for rows in _windows(streams, range(ngram_min, ngram_max + 1)):
            waiting.append(rows)
            n += len(rows[1])
            if n > max(SORT_ROWS, len(cache.tokens)):
                cache, waiting, n = cls.of(cache.rows(), *waiting), [], 0
        return cls.of(cache.rows(), *waiting)

    def merge(self, *others: NgramCache) -> NgramCache:
        """Return the sum of all caches."""
        return NgramCache.of(*(cache.rows() for cache in (self, *others)))

    def write(self, path: Path | str, *, private: bool = False) -> None:
        """Write the file atomically. private: readable by the user alone.
        Raises OSError if the file cannot be written."""
        assert len(self) > 0, "an empty cache is no file of llama.cpp"
        with atomic_write(Path(path), private=private) as part, part.open("wb") as file:
            file.write(self.words().data)

    @classmethod
    def of(cls, *parts: Rows) -> NgramCache:
        """Sum rows in any order. Counts are limited to the file's 32 bits."""
        ngrams, tokens, many = (np.concatenate(column) for column in zip(*parts, strict=True))
        high, low = _keys(ngrams)
        order = np.lexsort((tokens, low, high))
        runs = _changes(high[order], low[order], tokens[order])
        first = order[runs]  # the first appearance, as the sort is stable
        sums = np.add.reduceat(many[order], runs) if len(runs) else many
        back = np.lexsort((first, low[first], high[first]))
        first, sums = first[back], np.minimum(sums[back], MAX_COUNT)
        high, low = high[first], low[first]
        begin = _changes(high, low)
        starts = np.append(begin, len(first))
        return cls(high[begin], low[begin], starts, tokens[first], sums.astype(np.int32))

    def __len__(self) -> int:
        return len(self.high)

    def ngrams(self) -> Ints:
        """Return the n-grams [n, 4], missing tokens -1."""
        out = np.empty((len(self), NGRAM_MAX), np.int64)
        out[:, 0], out[:, 1] = self.high >> np.uint64(32), self.high & np.uint64(0xFFFFFFFF)
        out[:, 2], out[:, 3] = self.low >> np.uint64(32), self.low & np.uint64(0xFFFFFFFF)
        return (out - 1).astype(np.int32)

    def rows(self) -> Rows:
        ngrams = np.repeat(self.ngrams(), np.diff(self.starts), axis=0)
        return ngrams, self.tokens, self.counts.astype(np.int64)

    def continuations(self, ngram: Ngram) -> Continuations:
        """Return the tokens that followed and their counts, or NO_CONTINUATIONS."""
        if not len(self.high):
            return NO_CONTINUATIONS
        a, b, c, d = (*ngram, -1, -1, -1)[:NGRAM_MAX]
        high, low = np.uint64((a + 1) << 32 | (b + 1)), np.uint64((c + 1) << 32 | (d + 1))
        at = int(self.high.searchsorted(high))
        if low:
            end = int(self.high.searchsorted(high, "right"))
            at += int(self.low[at:end].searchsorted(low))
        if at == len(self.high) or self.high[at] != high or self.low[at] != low:
            return NO_CONTINUATIONS
        start, end = self.starts[at : at + 2].tolist()
        return self.tokens[start:end].tolist(), self.counts[start:end].tolist()

    def words(self) -> Ints:
        """Return the file's integers, sorted by n-gram."""
        many = np.diff(self.starts)
        at = RECORD_HEADER_WORDS * np.arange(len(self)) + 2 * self.starts[:-1]
        words = np.empty(RECORD_HEADER_WORDS * len(self) + 2 * len(self.tokens), "<i4")
        for i, column in enumerate([*self.ngrams().T, many]):
            words[at + i] = column
        places = RECORD_HEADER_WORDS * np.repeat(np.arange(1, len(self) + 1), many)
        places += 2 * np.arange(len(self.tokens))
        words[places], words[places + 1] = self.tokens, self.counts
        return words

    def span(self) -> int:
        """Return the least vocabulary size that holds all tokens."""
        return 1 + max(int(self.ngrams().max(initial=-1)), int(self.tokens.max(initial=-1)))


def _keys(ngrams: Ints) -> tuple[Keys, Keys]:
    """Pack n-grams [n, 4] into two integers each, in the same order; a missing token counts as 0."""
    a, b, c, d = (ngrams.astype(np.int64) + 1).astype(np.uint64).T
    shift = np.uint64(32)
    return a << shift | b, c << shift | d


def _changes(*columns: Ints | Keys) -> NDArray[np.int64]:
    """Return where runs of equal rows begin."""
    new = np.zeros(len(columns[0]), bool)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)


def _records(words: Ints) -> tuple[list[int], int]:
    """Return where each record begins, and where the last one ends."""
    begins: list[int] = []
    view, at, last = memoryview(words.data), 0, len(words) - RECORD_HEADER_WORDS
    while at < last and (many := view[at + NGRAM_MAX]) > 0:
        begins.append(at)
        at += RECORD_HEADER_WORDS + 2 * many
    return begins, at


def _windows(streams: Iterable[Sequence[int]], lengths: range) -> Iterator[Rows]:
    """Yield the n-grams of every text, each with the token after it."""
    for stream in streams:
        text = np.asarray(stream, np.int32)
        for n in lengths:
            if len(text) > n:
                ngrams = np.full((len(text) - n, NGRAM_MAX), -1, np.int32)
                ngrams[:, :n] = np.lib.stride_tricks.sliding_window_view(text[:-1], n)
                yield ngrams, text[n:], np.ones(len(text) - n, np.int64)
