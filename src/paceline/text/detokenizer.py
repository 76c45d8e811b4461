"""Incremental detokenization: whole characters, and nothing that may be part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence


def visible_pieces(piece: Callable[[int], bytes], visible: Mapping[int, bytes]) -> Callable[[int], bytes]:
    """Return `piece` with the text of some control tokens."""
    return (lambda token: visible.get(token) or piece(token)) if visible else piece


def certain(text: str, literals: Sequence[str]) -> int:
    """Return the length of `text` without an end that may begin one of `literals`."""
    longest = max(map(len, literals), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(literal.startswith(text[-size:]) for literal in literals):
            return len(text) - size
    return len(text)


class Detokenizer:
    """An incremental detokenizer, and the stop check of a request. piece: returns a token's bytes.
    min_tokens: so many tokens never complete a stop string."""

    def __init__(self, piece: Callable[[int], bytes], stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        assert all(stops), "a request has no empty stop string"
        self._piece, self._min_tokens = piece, min_tokens
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending: list[tuple[str, int]] = []  # text, with the index of the token that completed it
        self._n_tokens = 0
        self.stop_string: str | None = None  # the one that ended the text

    def __call__(self, token: int) -> bool:
        """Add a token; return true if the text now ends in a stop string."""
        self._add(self._decoder.decode(self._piece(token)))
        self._n_tokens += 1
        return self.stopped

    def _add(self, text: str) -> None:
        if not text or self.stopped:
            return
        self._pending.append((text, self._n_tokens))
        pending, early = "".join(part for part, _ in self._pending), self._min_tokens
        if early:  # from tokens to their characters
            early = sum(len(part) for part, index in self._pending if index < early)
        starts = ((stop, max(0, early - len(stop) + 1) if early else 0) for stop in self._stops)
        if ends := [(at, stop) for stop, start in starts if (at := pending.find(stop, start)) >= 0]:
            at, self.stop_string = min(ends)
            self._pending = self._split(at)[0]

    @property
    def stopped(self) -> bool:
        return self.stop_string is not None

    def _split(self, length: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        before: list[tuple[str, int]] = []
        after: list[tuple[str, int]] = []
        for text, index in self._pending:
            at = min(max(length, 0), len(text))
            before.append((text[:at], index))
            after.append((text[at:], index))
            length -= len(text)
        return [part for part in before if part[0]], [part for part in after if part[0]]

    def take_text(self) -> list[tuple[str, int]]:
        """Return new text that is no part of a stop string, each with the index of its last token."""
        pending = "".join(text for text, _ in self._pending)
        taken, self._pending = self._split(len(pending) if self.stopped else certain(pending, self._stops))
        return taken

    def finish(self) -> list[tuple[str, int]]:
        """Return the remaining text after the last token."""
        if not self.stopped:
            self._add(self._decoder.decode(b"", final=True))
        taken, self._pending = self._pending, []
        return taken
