"""N-grams and the tokens that followed them in sorted arrays, and llama.cpp's file of them.

llama.cpp calls such files "lookup caches" (`llama-lookup-create`, `--lookup-cache-static`). They have no
header, only records in no order, of little-endian 32-bit integers: the n-gram as four tokens, unused places
-1; how many different tokens followed it; for each of these the token and how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.errors import ModelError

NGRAM_MAX = 4
HEAD = NGRAM_MAX + 1  # integers of a record before its continuations
TOP = int(np.iinfo(np.int32).max)

Ngram = tuple[int, ...]
Ints = NDArray[np.int32]
Keys = NDArray[np.uint64]
Counts = NDArray[np.int64]
Rows = tuple[Ints, Ints, Counts]  # n-grams [r, 4] with missing tokens -1, what followed [r], how often [r]
Continuations = tuple[Sequence[int], Sequence[int]]
NOTHING: Continuations = ((), ())


@dataclass(frozen=True, slots=True)
class NgramTable:
    """N-grams sorted by their `keys`. What followed the i-th is in tokens and counts from starts[i] to
    starts[i + 1], in the order of first appearance."""

    high: Keys
    low: Keys
    starts: NDArray[np.int64]
    tokens: Ints
    counts: Ints

    @classmethod
    def of(cls, *parts: Rows) -> NgramTable:
        """The sums over rows in any order. A count stops at the largest that the file can hold."""
        ngrams, tokens, many = (np.concatenate(column) for column in zip(*parts, strict=True))
        high, low = keys(ngrams)
        order = np.lexsort((tokens, low, high))
        runs = changes(high[order], low[order], tokens[order])
        first = order[runs]  # the sort is stable: a run begins with its first appearance
        sums = np.add.reduceat(many[order], runs) if len(runs) else many
        back = np.lexsort((first, low[first], high[first]))
        first, sums = first[back], np.minimum(sums[back], TOP)
        high, low = high[first], low[first]
        begin = changes(high, low)
        starts = np.append(begin, len(first))
        return cls(high[begin], low[begin], starts, tokens[first], sums.astype(np.int32))

    def __len__(self) -> int:
        return len(self.high)

    def ngrams(self) -> Ints:
        """[n, 4], missing tokens -1."""
        out = np.empty((len(self), NGRAM_MAX), np.int64)
        out[:, 0], out[:, 1] = self.high >> np.uint64(32), self.high & np.uint64(0xFFFFFFFF)
        out[:, 2], out[:, 3] = self.low >> np.uint64(32), self.low & np.uint64(0xFFFFFFFF)
        return (out - 1).astype(np.int32)

    def rows(self) -> Rows:
        ngrams = np.repeat(self.ngrams(), np.diff(self.starts), axis=0)
        return ngrams, self.tokens, self.counts.astype(np.int64)

    def find(self, ngram: Ngram) -> Continuations:
        """What followed, and how often; nothing where the n-gram is not in the table."""
        if not len(self.high):
            return NOTHING
        a, b, c, d = (*ngram, -1, -1, -1)[:NGRAM_MAX]
        high, low = np.uint64((a + 1) << 32 | (b + 1)), np.uint64((c + 1) << 32 | (d + 1))
        at = int(self.high.searchsorted(high))
        if low:
            end = int(self.high.searchsorted(high, "right"))
            at += int(self.low[at:end].searchsorted(low))
        if at == len(self.high) or self.high[at] != high or self.low[at] != low:
            return NOTHING
        start, end = self.starts[at : at + 2].tolist()
        return self.tokens[start:end].tolist(), self.counts[start:end].tolist()

    def words(self) -> Ints:
        """The file's integers, sorted by n-gram."""
        many = np.diff(self.starts)
        at = HEAD * np.arange(len(self)) + 2 * self.starts[:-1]
        words = np.empty(HEAD * len(self) + 2 * len(self.tokens), "<i4")
        for i, column in enumerate([*self.ngrams().T, many]):
            words[at + i] = column
        places = HEAD * np.repeat(np.arange(1, len(self) + 1), many) + 2 * np.arange(len(self.tokens))
        words[places], words[places + 1] = self.tokens, self.counts
        return words


def keys(ngrams: Ints) -> tuple[Keys, Keys]:
    """N-grams [n, 4] as two numbers each, that sort as the n-grams do. A missing token counts as 0."""
    a, b, c, d = (ngrams.astype(np.int64) + 1).astype(np.uint64).T
    shift = np.uint64(32)
    return a << shift | b, c << shift | d


def changes(*columns: Ints | Keys) -> NDArray[np.int64]:
    """Where a run of equal rows begins."""
    new = np.zeros(len(columns[0]), bool)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)


EMPTY = NgramTable.of((np.empty((0, NGRAM_MAX), np.int32), np.empty(0, np.int32), np.empty(0, np.int64)))


def read(path: Path) -> NgramTable:
    """The table in a file. Raises ModelError where the file holds something else, or not all of it."""
    words: Ints = np.fromfile(path, "<i4").astype(np.int32, copy=False)
    begins, at = _records(words)
    if at > len(words) and begins:
        at = begins.pop()
    if not begins:
        raise ModelError(f"{path}: not an n-gram cache; make one with llama-lookup-create or paceline corpus")
    if at != len(words) or path.stat().st_size != words.nbytes:
        raise ModelError(
            f"{path}: cut short or damaged at byte {4 * at:,}, after {len(begins):,} n-grams: make it anew"
        )
    starts = np.array(begins)
    ngrams = words[starts[:, None] + np.arange(NGRAM_MAX)]
    high, low = keys(ngrams)
    order = np.lexsort((low, high))
    high, low, many = high[order], low[order], words[starts[order] + NGRAM_MAX].astype(np.int64)
    ends = np.cumsum(many)
    places = np.repeat(starts[order] + HEAD - 2 * (ends - many), many) + 2 * np.arange(ends[-1])
    table = NgramTable(high, low, np.append(0, ends), words[places], words[places + 1])
    gaps = (ngrams[:, 1:] >= 0) & (ngrams[:, :-1] < 0)
    if ngrams.min() < -1 or ngrams[:, 0].min() < 0 or gaps.any() or table.tokens.min() < 0:
        raise ModelError(f"{path}: not an n-gram cache: it holds tokens that cannot be")
    if table.counts.min() < 1 or len(changes(high, low)) < len(table):
        raise ModelError(f"{path}: damaged: a count below 1, or an n-gram twice; to join caches, merge them")
    return table


def _records(words: Ints) -> tuple[list[int], int]:
    """Where each record begins, and where the last one ends."""
    begins: list[int] = []
    view, at, last = memoryview(words.data), 0, len(words) - HEAD
    while at < last and (many := view[at + NGRAM_MAX]) > 0:
        begins.append(at)
        at += HEAD + 2 * many
    return begins, at
