"""A record as a server's target: prompts take time to read, and what sessions leave behind saves some of it.

In a replay of one request after another prompts are free (backends/recorded.py). Where requests wait for each
other they are not: a pass reads a chunk of a prompt beside those that decode. A slot is what one session held
when it closed; the next request takes the free slot whose text agrees longest with its prompt, and reads the
rest, as llama.cpp's server does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from paceline.backends.recorded import RecordedForward, RecordedSession, Recording, ReplayTarget
from paceline.speculative.errors import BusyError
from paceline.speculative.interfaces import RequiredOutputs, Session
from paceline.speculative.tree import EMPTY, DraftTree
from paceline.speculative.vocabulary import Vocab


class ReadingTarget(ReplayTarget):
    """sessions: how many at once. chunk: the most tokens of prompts in one pass."""

    def __init__(
        self, vocab: Vocab, recordings: Sequence[Recording], text: Any = None, *, sessions: int, chunk: int
    ) -> None:
        super().__init__(vocab, recordings, text)
        self.caps = replace(self.caps, max_sessions=sessions, max_prefill_tokens=chunk)
        self.slots: list[list[int]] = [[] for _ in range(sessions)]  # the free ones, the last used at the end

    def open(self, beside: Session | None = None) -> ReadingSession:
        return ReadingSession(self)

    def take(self, prompt: Sequence[int]) -> int:
        """A free slot; how many of the prompt's tokens before the root need not be read. Raises BusyError."""
        if not self.slots:
            raise BusyError("all sessions are taken")
        known = [agreeing(slot, prompt) for slot in self.slots]
        best = known.index(max(known))
        del self.slots[best]
        return min(known[best], len(prompt) - 1)

    def forward(
        self, batch: Sequence[tuple[RecordedSession, DraftTree | int]], want: RequiredOutputs
    ) -> list[RecordedForward]:
        outs = []
        for session, tree in batch:
            assert isinstance(session, ReadingSession)  # `open` makes no others
            recording, asked = session.recording, EMPTY if isinstance(tree, int) else tree
            rows = session.read(tree if isinstance(tree, int) else session.pending_tokens)
            if not isinstance(tree, int):
                rows += len(tree) + 1 - session.compute_tree(tree)
            outs.append(RecordedForward(self.vocab.size, recording, asked, session.places, rows))
        return outs

    def forget(self) -> None:
        for slot in self.slots:
            slot.clear()


class ReadingSession(RecordedSession):
    """Owns one of the target's slots, from its prompt to its end."""

    def __init__(self, target: ReadingTarget) -> None:
        super().__init__(target)
        self._slots, self._take = target.slots, target.take
        self._pending = 0

    @property
    def pending_tokens(self) -> int:
        return self._pending

    def extend(self, tokens: Sequence[int]) -> None:
        first = not self.tokens
        super().extend(tokens)
        self._pending += len(tokens) - 1 - self._take(tokens) if first else len(tokens)

    def read(self, tokens: int) -> int:
        self._pending -= tokens
        return tokens

    def close(self) -> None:
        if self.tokens:
            self._slots.append(self.tokens[: len(self.tokens) - 1 - self._pending])
        super().close()


def agreeing(slot: Sequence[int], prompt: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(slot, prompt, strict=False)))
