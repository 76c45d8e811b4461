"""A suffix array: sorted suffixes of a corpus in memory-mapped files, to find where a text occurred.

The corpus is stored backwards, so that the reversed end of a text is the beginning of a suffix. One binary
search finds the longest ending that occurs, and its neighbours are all the places. Tokens are big-endian and
one larger than their ids: bytes then compare as tokens do, and 0 separates documents. suffix_sort.py builds
the files.

A folder holds index.json and two arrays. `text` has 2 or 4 bytes per token, by vocabulary size; `array` has
the token positions in the order of their suffixes, 4 bytes each, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveInt

from paceline.speculative.errors import ModelError

VERSION = 2
INDEX, TEXT, ARRAY = "index.json", "text", "array"


@dataclass(frozen=True, slots=True)
class Match:
    """The longest ending of a text that occurs in a corpus: its length in tokens, and its range of ranks
    (positions in the order of suffixes)."""

    length: int
    low: int
    high: int


NO_MATCH = Match(0, 0, 0)


class SuffixArray:
    """An opened folder of suffix_sort. It owns the two file mappings.
    Raises ModelError for a missing or damaged folder, or another version."""

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        try:
            index = DatastoreIndex.model_validate_json((folder / INDEX).read_bytes())
        except (OSError, ValueError) as error:
            reason = "is missing or damaged, or of another version; build the corpus again"
            raise ModelError(f"{folder / INDEX}: {reason}") from error
        self.n_vocab, self.tokens, self._width = index.n_vocab, index.tokens, index.width
        self._structs: dict[int, struct.Struct] = {}
        self._letter = {2: "H", 4: "I"}[self._width]
        self._top = 256**self._width - 1
        _check_size(folder / TEXT, index.length * self._width)
        _check_size(folder / ARRAY, index.length * 4)
        self._text, self._array = _mapped(folder / TEXT), _mapped(folder / ARRAY)
        self._places = memoryview(self._array).cast("I")

    def find(self, query: bytes) -> Match:
        """Return the longest match. query: the end of a text, encoded backwards (see `encode`)."""
        text, width, places, size = self._text, self._width, self._places, len(query)

        def suffix(place: int) -> bytes:
            return text[place * width : place * width + size]

        at = bisect_left(places, query, key=suffix)
        # The longest common prefix is that with one of the neighbours in the order.
        neighbours = [suffix(places[i]) for i in (at - 1, at) if 0 <= i < len(places)]
        length = max(_common_prefix_length(query, neighbour) for neighbour in neighbours) // width
        if length == 0:
            return NO_MATCH
        return Match(length, *self._range(query[: length * width], at))

    def _range(self, prefix: bytes, at: int) -> tuple[int, int]:
        """Return the ranks of the suffixes that begin with `prefix`; `at` is one of them or the next rank."""
        text, width, places, size, n = self._text, self._width, self._places, len(prefix), len(self._places)

        def start(place: int) -> bytes:
            return text[place * width : place * width + size]

        # Long endings occur a few times, so search outwards from `at`.
        step, low = 1, at
        while low > 0 and start(places[low - 1]) == prefix:
            low, step = max(0, low - step), step * 8
        low = bisect_left(places, prefix, low, at, key=start)
        step, high = 1, at
        while high < n and start(places[high]) == prefix:
            high, step = min(n, high + step), step * 8
        return low, bisect_right(places, prefix, at, high, key=start)

    def sample_continuations(self, match: Match, most: int, n: int) -> Counter[bytes]:
        """Count the continuations, of up to n tokens, at up to `most` evenly chosen places.
        They are backwards as stored, and may reach into another document."""
        text, places, width, low = self._text, self._places, self._width, match.low
        size, span = match.high - low, n * width
        chosen = range(low, match.high) if size <= most else [low + size * i // most for i in range(most)]
        ends = [places[rank] * width for rank in chosen]
        return Counter([text[end - span if end > span else 0 : end] for end in ends])

    def encode(self, context: Sequence[int]) -> bytes:
        """Return the end of a text as a query: backwards, up to the first token outside any corpus."""
        out: list[int] = []
        for token in reversed(context):
            if not 0 <= token < self._top:
                break
            out.append(token + 1)
        return self._struct(len(out)).pack(*out)

    def decode(self, data: bytes) -> tuple[int, ...]:
        """Return the tokens of a continuation in order, up to the end of the document.
        They are still one larger than their ids, as correcting the few drafted tokens later is faster."""
        tokens = self._struct(len(data) // self._width).unpack(data)[::-1]
        if 0 in tokens:
            tokens = tokens[: tokens.index(0)]
        # A damaged file must not yield tokens outside the vocabulary.
        return tokens if max(tokens, default=0) <= self.n_vocab else ()

    def _struct(self, n: int) -> struct.Struct:
        if n not in self._structs:
            self._structs[n] = struct.Struct(f">{n}{self._letter}")
        return self._structs[n]

    def close(self) -> None:
        self._places.release()
        self._array.close()
        self._text.close()


def _common_prefix_length(a: bytes, b: bytes) -> int:
    """Return the length of the common prefix."""
    n = min(len(a), len(b))
    differ = int.from_bytes(a[:n], "big") ^ int.from_bytes(b[:n], "big")
    return n - (differ.bit_length() + 7) // 8


class DatastoreIndex(BaseModel):
    """The contents of index.json."""

    model_config = ConfigDict(strict=True)

    version: Literal[2]  # VERSION
    width: Literal[2, 4]  # bytes per token
    n_vocab: PositiveInt
    tokens: PositiveInt
    documents: PositiveInt
    length: PositiveInt


def _check_size(path: Path, size: int) -> None:
    actual = path.stat().st_size if path.is_file() else 0
    if actual != size:
        raise ModelError(
            f"{path}: has {actual:,} bytes instead of {size:,}, the file is cut short or damaged; "
            "build the corpus again"
        )


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
