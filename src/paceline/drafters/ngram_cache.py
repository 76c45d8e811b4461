"""How often each token followed each n-gram: llama.cpp's lookup cache, read, built, counted on and written.

What was read or built lies in sorted arrays (ngram_table.py), what is counted after that in a dict on top.
A file says nothing of the tokenizer that its tokens are of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from paceline.core.errors import ModelError, UsageError
from paceline.drafters.ngram_table import EMPTY, NGRAM_MAX, Continuations, Ints, Ngram, Rows, Table, read
from paceline.system.whole import whole

STATIC = 2  # the length of the n-grams in llama.cpp's static caches
ROWS = 1 << 22  # rows that `build` sorts at a time


class NgramCache:
    """Owns its counts. The tokens that followed an n-gram keep the order of their first appearance."""

    def __init__(self, table: Table = EMPTY) -> None:
        self._table = table
        # What was counted since; an n-gram of the table moves here, with all it has, when it is counted
        # again. One that was seen once, as most are, holds only its token: that takes half the memory.
        self._added: dict[Ngram, int | dict[int, int]] = {}
        self._moved = 0

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
                table, waiting, n = Table.of(table.rows(), *waiting), [], 0
        return cls(Table.of(table.rows(), *waiting))

    def merge(self, *others: NgramCache) -> NgramCache:
        """A new cache that holds the counts of all."""
        return NgramCache(Table.of(*(cache.table().rows() for cache in (self, *others))))

    def trimmed(self, least: int) -> NgramCache:
        """A new cache without the continuations that were seen fewer than `least` times."""
        ngrams, tokens, counts = self.table().rows()
        kept = counts >= least
        return NgramCache(Table.of((ngrams[kept], tokens[kept], counts[kept])))

    def write(self, path: Path | str, *, private: bool = False) -> None:
        """A file for `read` or llama.cpp. It appears whole or not at all; until then what was there stays.
        private: for the user's eyes only. Raises UsageError where there is nothing to write, OSError where it
        cannot be written."""
        path, table = Path(path), self.table()
        if len(table) == 0:
            raise UsageError(f"{path}: not written, the n-gram cache is empty")
        with whole(path, private=private) as part, part.open("wb") as file:
            file.write(table.words().data)

    def add(
        self, tokens: Sequence[int], start: int = 0, ngram_min: int = 1, ngram_max: int = NGRAM_MAX
    ) -> None:
        """Count tokens[start:], each after the n-grams before it."""
        added = self._added
        for i in range(max(start, ngram_min), len(tokens)):
            token = tokens[i]
            for n in range(ngram_min, min(ngram_max, i) + 1):
                ngram = tuple(tokens[i - n : i])
                part = added.get(ngram)
                if part is None and len(self._table):
                    part = self._move(ngram)
                if part is None:
                    added[ngram] = token
                elif not isinstance(part, int):
                    part[token] = part.get(token, 0) + 1
                else:
                    added[ngram] = {token: 2} if part == token else {part: 1, token: 1}

    def _move(self, ngram: Ngram) -> dict[int, int] | None:
        tokens, counts = self._table.find(ngram)
        if not tokens:
            return None
        self._moved += 1
        part = self._added[ngram] = dict(zip(tokens, counts, strict=True))
        return part

    def continuations(self, ngram: Ngram) -> Continuations:
        """The tokens that followed, and how often; empty where none did."""
        part = self._added.get(ngram)
        if part is None:
            return self._table.find(ngram)
        if isinstance(part, int):
            return (part,), (1,)
        return tuple(part), tuple(part.values())

    def __len__(self) -> int:
        """How many n-grams."""
        return len(self._table) + len(self._added) - self._moved

    @property
    def added(self) -> int:
        """How many n-grams were counted since the cache was read or built."""
        return len(self._added)

    def forget(self) -> None:
        """Go back to what was read or built."""
        self._added, self._moved = {}, 0

    def thin(self, least: int) -> None:
        """Forget those n-grams that were counted since and have been seen fewer than `least` times."""
        kept = {n: p for n, p in self._added.items() if least < 2 or _total(p) >= least}
        self._added, self._moved = kept, sum(bool(self._table.find(ngram)[0]) for ngram in kept)

    def lengths(self) -> frozenset[int]:
        """The lengths that its n-grams have."""
        return frozenset(np.unique((self.table().ngrams() >= 0).sum(axis=1)).tolist())

    def span(self) -> int:
        """One more than its largest token: the least size of a vocabulary that it can be of."""
        table = self.table()
        return 1 + max(int(table.ngrams().max(initial=-1)), int(table.tokens.max(initial=-1)))

    def table(self) -> Table:
        """All counts, in arrays."""
        if not self._added:
            return self._table
        heads, tokens, counts = [], [], []
        for ngram in self._added:
            for token, count in zip(*self.continuations(ngram), strict=True):
                heads.append((*ngram, -1, -1, -1)[:NGRAM_MAX])
                tokens.append(token)
                counts.append(count)
        fresh = (np.array(heads, np.int32), np.array(tokens, np.int32), np.array(counts, np.int64))
        older = self._table.rows()
        if self._moved:
            kept = ~_among(older[0], fresh[0])
            older = older[0][kept], older[1][kept], older[2][kept]
        return Table.of(older, fresh)


def _total(part: int | dict[int, int]) -> int:
    return 1 if isinstance(part, int) else sum(part.values())


def _among(ngrams: Ints, others: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of `ngrams` are in `others`."""
    same = np.unique(np.concatenate([others, ngrams]), axis=0, return_inverse=True)[1].ravel()
    return np.isin(same[len(others) :], same[: len(others)])


def _windows(streams: Iterable[Sequence[int]], lengths: range) -> Iterator[Rows]:
    """Every n-gram of every text, and the token after it."""
    for stream in streams:
        text = np.asarray(stream, np.int32)
        for n in lengths:
            if len(text) > n:
                ngrams = np.full((len(text) - n, NGRAM_MAX), -1, np.int32)
                ngrams[:, :n] = np.lib.stride_tricks.sliding_window_view(text[:-1], n)
                yield ngrams, text[n:], np.ones(len(text) - n, np.int64)
