"""A history of tokens that finds earlier occurrences of a text's ending: hash chains over a ring.

As in zlib, for n-grams of a few lengths `heads` holds the last position with a hash, and `links` the position
before it. A look-up walks the most recent positions, longest n-grams first, and compares tokens, so that
collisions only cost time. A chain ends where it leaves the ring. A token takes 52 bytes.

The functions are compiled by numba if it is installed (extra "fast"). Interpreted they take 7 microseconds
per token instead of a fraction of one, and 80 per proposal instead of 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
Ints = Any  # an integer array, or a memoryview of one where nothing is compiled

NGRAM_LENGTHS = (1, 2, 4, 8, 16, 32)  # lengths between them are found by comparing tokens
N_LEVELS = len(NGRAM_LENGTHS)
MAX_MATCH_TOKENS = 64
SEPARATOR = -1  # between texts; no match or continuation crosses it
WORD_MASK = 0xFFFFFFFF
MIN_CAPACITY = 1024


def compiled(function: F) -> F:
    """Compile a function at its first call, with a cache on disk if a folder is writable."""
    try:
        from numba import njit
    except ImportError:
        return function
    try:
        return cast("F", njit(cache=True)(function))
    except RuntimeError:  # no folder for the cache
        return cast("F", njit(function))


@compiled
def hash_bucket(code: int, level: int, buckets: int) -> int:
    """Return the index in `heads` of an n-gram; levels never share an index."""
    code = ((code ^ (code >> 15)) * 0x2C1B3C6D) & WORD_MASK
    code = ((code ^ (code >> 12)) * 0x297A2D39) & WORD_MASK
    return ((code ^ (code >> 15)) & (buckets - 1)) * N_LEVELS + level


COMPILED = hasattr(hash_bucket, "py_func")


@compiled
def append_token(ring: Ints, links: Ints, heads: Ints, state: Ints, tokens: Ints) -> None:
    """Append `tokens`. state: number of tokens ever added, and of those after the last separator.
    Entries are positions of n-gram ends, counted from 1, modulo 2**32; 0 is none."""
    mask, buckets = len(ring) - 1, len(heads) // N_LEVELS
    total, run = state[0], state[1]
    for i in range(len(tokens)):
        slot = total & mask
        ring[slot] = tokens[i]
        total += 1
        run = 0 if tokens[i] == SEPARATOR else run + 1
        code, level = 0, 0
        for back in range(min(run, NGRAM_LENGTHS[-1])):
            code = (code * 0x5BD1E995 + ring[(total - 1 - back) & mask] + 1) & WORD_MASK
            if back + 1 == NGRAM_LENGTHS[level]:
                at = hash_bucket(code, level, buckets)
                links[slot * N_LEVELS + level] = heads[at]
                heads[at] = total & WORD_MASK
                level += 1
    state[0], state[1] = total, run


@compiled
def remove_last(ring: Ints, links: Ints, heads: Ints, state: Ints, n: int) -> None:
    """Remove the last `n` tokens, which must be of one text and must not have overwritten others."""
    mask, buckets = len(ring) - 1, len(heads) // N_LEVELS
    total, run = state[0], state[1]
    for _ in range(n):
        slot = (total - 1) & mask
        code, level = 0, 0
        for back in range(min(run, NGRAM_LENGTHS[-1])):
            code = (code * 0x5BD1E995 + ring[(total - 1 - back) & mask] + 1) & WORD_MASK
            if back + 1 == NGRAM_LENGTHS[level]:
                heads[hash_bucket(code, level, buckets)] = links[slot * N_LEVELS + level]
                level += 1
        total -= 1
        run -= 1
    state[0], state[1] = total, run


@compiled
def common_suffix_length(ring: Ints, total: int, end: int, text: Ints, text_total: int, most: int) -> int:
    """Return how many tokens before `end` equal the end of the text."""
    mask, text_mask = len(ring) - 1, len(text) - 1
    most = min(most, end - max(0, total - len(ring)))
    n = 0
    while n < most and ring[(end - 1 - n) & mask] == text[(text_total - 1 - n) & text_mask]:
        n += 1
    return n


@compiled
def find(
    ring: Ints,
    links: Ints,
    heads: Ints,
    total: int,
    text: Ints,
    text_total: int,
    most: int,
    ends: Ints,
    lengths: Ints,
    count: int,
) -> int:
    """Add up to `most` places that end like the text, longer n-grams first, then recent ones.
    Their continuations go into `ends[count:]`, their match lengths into `lengths`. Returns the new count."""
    mask, buckets = len(ring) - 1, len(heads) // N_LEVELS
    reach, full = min(MAX_MATCH_TOKENS, text_total), count + most
    entries = np.zeros(N_LEVELS, np.int64)
    code, levels = 0, 0
    for back in range(min(reach, NGRAM_LENGTHS[-1])):
        code = (code * 0x5BD1E995 + text[(text_total - 1 - back) & (len(text) - 1)] + 1) & WORD_MASK
        if back + 1 == NGRAM_LENGTHS[levels]:
            entries[levels] = heads[hash_bucket(code, levels, buckets)]
            levels += 1
    longer = MAX_MATCH_TOKENS + 1
    for level in range(levels - 1, -1, -1):
        entry, last = entries[level], -1
        # The limit is for rare n-grams that share the bucket of a frequent one.
        for _ in range(4 * most):
            age = (total - entry) & WORD_MASK
            if entry == 0 or count == full or age <= last or age >= len(ring):
                break
            last, end = age, total - age
            if age > 0:
                n = common_suffix_length(ring, total, end, text, text_total, reach)
                # Longer matches were found by the chains of longer n-grams.
                if NGRAM_LENGTHS[level] <= n < longer:
                    ends[count], lengths[count] = end, n
                    count += 1
            entry = links[((end - 1) & mask) * N_LEVELS + level]
        longer = NGRAM_LENGTHS[level]
    return count


class SuffixHistory:
    """A ring of tokens with its chains. It grows up to `limit` tokens; then the oldest are overwritten."""

    ring: Ints
    links: Ints
    heads: Ints
    state: Ints

    def __init__(self, size: int = 0, limit: int = 1 << 31) -> None:
        """Reserve room for `size` tokens. limit is rounded up to a power of two."""
        self._limit = _power_of_two(limit)
        self._allocate(size)

    def __len__(self) -> int:
        return min(int(self.state[0]), len(self.ring))

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Append tokens; the ring grows if they do not fit."""
        new = np.asarray(tokens, np.int32)
        total = int(self.state[0])
        if total + len(new) > len(self.ring) < self._limit:
            # Nothing was overwritten yet, so the ring holds the whole text.
            old = np.array(self.ring[:total], np.int32)
            self._allocate(total + len(new))
            self._append(old)
        self._append(new)

    @contextmanager
    def with_continuation(self, tokens: Sequence[int]) -> Iterator[None]:
        """Append tokens inside the context, and remove them after it. They must not overwrite others."""
        total = int(self.state[0])
        try:
            self.extend(tokens)
            yield
        finally:
            remove_last(self.ring, self.links, self.heads, self.state, int(self.state[0]) - total)

    def end_text(self) -> None:
        """Separate the next text from this one."""
        if self.state[1]:
            self.extend([SEPARATOR])

    def clear(self) -> None:
        self._allocate(0)

    def _append(self, tokens: NDArray[np.int32]) -> None:
        append_token(self.ring, self.links, self.heads, self.state, _view(tokens))

    def _allocate(self, size: int) -> None:
        size = min(_power_of_two(max(size, MIN_CAPACITY)), self._limit)
        self.ring = _view(np.zeros(size, np.int32))
        self.links = _view(np.zeros(size * N_LEVELS, np.uint32))
        self.heads = _view(np.zeros(size * N_LEVELS, np.uint32))
        self.state = _view(np.zeros(2, np.int64))


def _view(array: Any) -> Ints:
    # Python accesses items of a memoryview faster than those of an array.
    return array if COMPILED else memoryview(array)


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()
