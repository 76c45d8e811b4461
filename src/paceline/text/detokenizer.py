"""Tokens to text as they arrive: whole characters only, and never past the start of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence

from paceline.speculative.errors import UsageError


def visible_pieces(piece: Callable[[int], bytes], spelled: Mapping[int, bytes]) -> Callable[[int], bytes]:
    """`piece`, where some control tokens are text all the same, as `spelled` has them."""
    return (lambda token: spelled.get(token) or piece(token)) if spelled else piece


def certain(text: str, literals: Sequence[str]) -> int:
    """Return the position where one of `literals` may begin at the end of `text`."""
    longest = max(map(len, literals), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(one.startswith(text[-size:]) for one in literals):
            return len(text) - size
    return len(text)


class Detokenizer:
    """The stop check of a request's loop. What `take` returns never includes a stop string, or a part of one
    that may still be completed. piece: returns the bytes of a token."""

    def __init__(self, piece: Callable[[int], bytes], stops: Sequence[str] = ()) -> None:
        if any(not stop for stop in stops):
            raise UsageError("an empty stop string would stop at once: leave it out")
        self._piece = piece
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._waiting: list[tuple[str, int]] = []  # text not taken yet, with the token it came with
        self._n_tokens = 0
        self.stopped = False

    def __call__(self, token: int) -> bool:
        """Take in the next token; true where the text now ends in a stop string."""
        self._add(self._decoder.decode(self._piece(token)))
        self._n_tokens += 1
        return self.stopped

    def _add(self, text: str) -> None:
        if not text or self.stopped:
            return
        self._waiting.append((text, self._n_tokens))
        if self._stops:
            cached = "".join(part for part, _ in self._waiting)
            ends = [at for stop in self._stops if (at := cached.find(stop)) >= 0]
            if ends:
                self._waiting = self._split(min(ends))[0]
                self.stopped = True

    def _split(self, length: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        before: list[tuple[str, int]] = []
        after: list[tuple[str, int]] = []
        for text, index in self._waiting:
            if length >= len(text):
                before.append((text, index))
            else:
                if length > 0:
                    before.append((text[:length], index))
                after.append((text[max(length, 0) :], index))
            length -= len(text)
        return before, after

    def take_text(self) -> list[tuple[str, int]]:
        """New text that is certain, in parts, each with the index of the token that completed it."""
        cached = "".join(text for text, _ in self._waiting)
        taken, self._waiting = self._split(len(cached) if self.stopped else certain(cached, self._stops))
        return taken

    def finish(self) -> list[tuple[str, int]]:
        """Everything left: generation is over, so nothing can be completed any more."""
        if not self.stopped:
            self._add(self._decoder.decode(b"", final=True))
        taken, self._waiting = self._waiting, []
        return taken
