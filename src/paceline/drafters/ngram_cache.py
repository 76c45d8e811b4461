"""How often each token followed each n-gram: llama.cpp's lookup cache, read, built and written.

Beside it counts of what is being decoded. What was read or built lies in sorted arrays (ngram_table.py), what
is counted while decoding in a dict. A file says nothing of the tokenizer that its tokens are of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from paceline.drafters.ngram_table import (
    EMPTY,
    NGRAM_MAX,
    NOTHING,
    Continuations,
    Ngram,
    NgramTable,
    Rows,
    read,
)
from paceline.speculative.errors import ModelError, UsageError
from paceline.system.whole import whole

STATIC = 2  # the length of the n-grams in llama.cpp's static caches
ROWS = 1 << 22  # rows that `build` sorts at a time


class NgramCache:
    """Counts that do not change. The tokens that followed an n-gram are in the order of their appearance."""

    def __init__(self, table: NgramTable = EMPTY) -> None:
        self._table = table

    @classmethod
    def read(cls, path: Path | str) -> NgramCache:
        """A file of llama.cpp's or of `write`. Raises UsageError where there is none, ModelError where it is
        something else or damaged."""
        path = Path(path)
        if not path.is_file():
            raise UsageError(
                f"{path}: no such file; make an n-gram cache with llama-lookup-create or paceline corpus"
            )
        if path.stat().st_size == 0:
            raise ModelError(f"{path}: an empty file, not an n-gram cache: delete it, or give another")
        return cls(read(path))

    @classmethod
    def build(
        cls, streams: Iterable[Sequence[int]], ngram_min: int = STATIC, ngram_max: int = STATIC
    ) -> NgramCache:
        """The counts of texts; no n-gram reaches from one into the next."""
        if not 1 <= ngram_min <= ngram_max <= NGRAM_MAX:
            raise UsageError(f"n-grams of {ngram_min} to {ngram_max} tokens: 1 to {NGRAM_MAX} are possible")
        table, waiting, n = EMPTY, [], 0
        for rows in _windows(streams, range(ngram_min, ngram_max + 1)):
            waiting.append(rows)
            n += len(rows[1])
            if n > max(ROWS, len(table.tokens)):
                table, waiting, n = NgramTable.of(table.rows(), *waiting), [], 0
        return cls(NgramTable.of(table.rows(), *waiting))

    def merge(self, *others: NgramCache) -> NgramCache:
        """A new cache that holds the counts of all."""
        return NgramCache(NgramTable.of(*(cache._table.rows() for cache in (self, *others))))

    def trimmed(self, least: int) -> NgramCache:
        """A new cache without the continuations that were seen fewer than `least` times."""
        ngrams, tokens, counts = self._table.rows()
        kept = counts >= least
        return NgramCache(NgramTable.of((ngrams[kept], tokens[kept], counts[kept])))

    def write(self, path: Path | str, *, private: bool = False) -> None:
        """A file for `read` or llama.cpp. It appears whole or not at all; until then what was there stays.
        private: for the user's eyes only. Raises UsageError where there is nothing to write, OSError where it
        cannot be written."""
        path = Path(path)
        if len(self) == 0:
            raise UsageError(f"{path}: not written, the n-gram cache is empty")
        with whole(path, private=private) as part, part.open("wb") as file:
            file.write(self._table.words().data)

    @property
    def size(self) -> int:
        """Bytes of its file."""
        return int(self._table.words().nbytes)

    def continuations(self, ngram: Ngram) -> Continuations:
        """The tokens that followed, and how often; empty where none did."""
        return self._table.find(ngram)

    def __len__(self) -> int:
        """How many n-grams."""
        return len(self._table)

    def lengths(self) -> frozenset[int]:
        """The lengths that its n-grams have."""
        return frozenset(np.unique((self._table.ngrams() >= 0).sum(axis=1)).tolist())

    def span(self) -> int:
        """One more than its largest token: the least size of a vocabulary that it can be of."""
        table = self._table
        return 1 + max(int(table.ngrams().max(initial=-1)), int(table.tokens.max(initial=-1)))


class Counts:
    """Counts that grow, of n-grams of 1 to NGRAM_MAX tokens."""

    def __init__(self) -> None:
        # An n-gram that was seen once, as most are, holds only its token: that takes half the memory.
        self._seen: dict[Ngram, int | dict[int, int]] = {}

    def add(self, tokens: Sequence[int], start: int = 0) -> None:
        """Count tokens[start:], each after the n-grams before it."""
        seen = self._seen
        for i in range(max(start, 1), len(tokens)):
            token = tokens[i]
            for n in range(1, min(NGRAM_MAX, i) + 1):
                ngram = tuple(tokens[i - n : i])
                part = seen.get(ngram)
                if part is None:
                    seen[ngram] = token
                elif not isinstance(part, int):
                    part[token] = part.get(token, 0) + 1
                else:
                    seen[ngram] = {token: 2} if part == token else {part: 1, token: 1}

    def continuations(self, ngram: Ngram) -> Continuations:
        """The tokens that followed, and how often; empty where none did."""
        part = self._seen.get(ngram)
        if part is None:
            return NOTHING
        if isinstance(part, int):
            return (part,), (1,)
        return tuple(part), tuple(part.values())

    def __len__(self) -> int:
        """How many n-grams."""
        return len(self._seen)

    def forget(self) -> None:
        self._seen = {}

    def thin(self, least: int) -> None:
        """Forget the n-grams that have been seen fewer than `least` times."""
        self._seen = {n: part for n, part in self._seen.items() if _total(part) >= least}


def _total(part: int | dict[int, int]) -> int:
    return 1 if isinstance(part, int) else sum(part.values())


def _windows(streams: Iterable[Sequence[int]], lengths: range) -> Iterator[Rows]:
    """Every n-gram of every text, and the token after it."""
    for stream in streams:
        text = np.asarray(stream, np.int32)
        for n in lengths:
            if len(text) > n:
                ngrams = np.full((len(text) - n, NGRAM_MAX), -1, np.int32)
                ngrams[:, :n] = np.lib.stride_tricks.sliding_window_view(text[:-1], n)
                yield ngrams, text[n:], np.ones(len(text) - n, np.int64)
