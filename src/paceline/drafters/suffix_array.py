"""Where in a corpus a text has occurred: sorted suffixes in memory-mapped files.

The corpus is stored backwards, so that a text's end, read backwards, is the beginning of a suffix: one binary
search finds the longest ending that occurs, and its neighbours all the places. Tokens are big-endian and one
larger than their ids, so that bytes compare as tokens do and 0 stands between documents. suffix_sort.py
builds the files.

A folder holds index.json, `text` (2 or 4 bytes a token, as the vocabulary needs) and `array` (the tokens'
places in order of their suffixes, 4 bytes each, little-endian).
"""

from __future__ import annotations

import json
import mmap
import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.speculative.errors import ModelError, UsageError

VERSION = 2
INDEX, TEXT, ARRAY = "index.json", "text", "array"


@dataclass(frozen=True, slots=True)
class Match:
    """The longest ending of a text that occurs in a corpus: its length in tokens, and the range of ranks
    (places in the order of suffixes) whose suffixes begin with it."""

    length: int
    low: int
    high: int


NO_MATCH = Match(0, 0, 0)


class SuffixArray:
    """A folder that suffix_sort wrote. Owns the two files' mappings. Raises UsageError where there is none,
    ModelError where it is damaged or of another version."""

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        about = read_index(folder)
        self.n_vocab: int = about["n_vocab"]
        self.tokens: int = about["tokens"]
        self._width: int = about["width"]
        self._structs: dict[int, struct.Struct] = {}
        self._letter = {2: "H", 4: "I"}[self._width]
        self._top = 256**self._width - 1
        length = about["length"]
        _check_size(folder / TEXT, length * self._width)
        _check_size(folder / ARRAY, length * 4)
        self._text = _mapped(folder / TEXT)
        try:
            self._array = _mapped(folder / ARRAY)
        except BaseException:
            self._text.close()
            raise
        self._places = memoryview(self._array).cast("I")

    def find(self, query: bytes) -> Match:
        """query: the end of a text, backwards, as the corpus stores it."""
        text, width, places, size = self._text, self._width, self._places, len(query)

        def suffix(place: int) -> bytes:
            return text[place * width : place * width + size]

        at = bisect_left(places, query, key=suffix)
        # The suffixes that have most in common with the query are those it would stand between.
        near = [suffix(places[i]) for i in (at - 1, at) if 0 <= i < len(places)]
        length = max(_common_prefix_length(query, one) for one in near) // width
        if length == 0:
            return NO_MATCH
        return Match(length, *self._range(query[: length * width], at))

    def _range(self, prefix: bytes, at: int) -> tuple[int, int]:
        """The ranks of the suffixes that begin with `prefix`; `at` is one of them, or follows the last."""
        text, width, places, size, n = self._text, self._width, self._places, len(prefix), len(self._places)

        def start(place: int) -> bytes:
            return text[place * width : place * width + size]

        # Long endings occur a few times: the range's ends are looked for from near to far.
        step, low = 1, at
        while low > 0 and start(places[low - 1]) == prefix:
            low, step = max(0, low - step), step * 8
        low = bisect_left(places, prefix, low, at, key=start)
        step, high = 1, at
        while high < n and start(places[high]) == prefix:
            high, step = min(n, high + step), step * 8
        return low, bisect_right(places, prefix, at, high, key=start)

    def sample_continuations(self, match: Match, most: int, n: int) -> Counter[bytes]:
        """What followed at up to `most` of the match's places, evenly chosen: up to n tokens, last one first,
        as the corpus stores them; they may reach into another document."""
        text, places, width, low = self._text, self._places, self._width, match.low
        size, span = match.high - low, n * width
        chosen = range(low, match.high) if size <= most else [low + size * i // most for i in range(most)]
        ends = [places[rank] * width for rank in chosen]
        return Counter([text[end - span if end > span else 0 : end] for end in ends])

    def encode(self, context: Sequence[int]) -> bytes:
        """The end of a text as a query: backwards, up to the first token that no corpus has."""
        out: list[int] = []
        for token in reversed(context):
            if not 0 <= token < self._top:
                break
            out.append(token + 1)
        return self._struct(len(out)).pack(*out)

    def decode(self, data: bytes) -> tuple[int, ...]:
        """The tokens of a continuation in their order, up to the end of the document. Each is still one
        larger than its id, which for the few that are drafted is quicker to put right later."""
        tokens = self._struct(len(data) // self._width).unpack(data)[::-1]
        if 0 in tokens:
            tokens = tokens[: tokens.index(0)]
        # Damaged text must not become a draft that no target can read.
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
    """The length of their common beginning."""
    n = min(len(a), len(b))
    differ = int.from_bytes(a[:n], "big") ^ int.from_bytes(b[:n], "big")
    return n - (differ.bit_length() + 7) // 8


def read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        about = json.loads(path.read_bytes())
        whole = [about[name] for name in ("n_vocab", "tokens", "documents", "length")]
        sound = about["version"] == VERSION and about["width"] in (2, 4)
        if not sound or not all(isinstance(n, int) and n > 0 for n in whole):
            raise ValueError("not a datastore's index")
    except FileNotFoundError as error:
        raise UsageError(f"{folder}: holds no datastore; make one with paceline corpus build") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ModelError(f"{path}: is damaged, or of another version; build the corpus again") from error
    return dict(about)


def _check_size(path: Path, size: int) -> None:
    found = path.stat().st_size if path.is_file() else 0
    if found != size:
        raise ModelError(
            f"{path}: has {found:,} bytes instead of {size:,}, the file is cut short or damaged; "
            "build the corpus again"
        )


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
