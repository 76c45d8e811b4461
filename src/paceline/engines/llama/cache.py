"""llama.cpp's KV cache, as sessions share it: each has a trunk sequence, and branches for its trees."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from paceline.core.errors import BusyError, ContractError, UsageError
from paceline.engines.alike import common_prefix
from paceline.engines.llama.binding import llama_cpp

MAX_BRANCHES = 64
MOST_MOVED = 1 << 28  # bytes of two trunks that exchange their numbers: they pass through memory


class Slot:
    """A trunk sequence and the tokens its cells hold. It outlives sessions, so that a new one
    that starts alike finds its prefix computed. prompt: how many of them a prompt of that length left.
    owner: the session that has it."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.cached: list[int] = []
        self.prompt = 0
        self.owner: weakref.ref[Any] | None = None

    @property
    def is_free(self) -> bool:
        return self.owner is None or self.owner() is None


class Cache:
    """sessions: the number of trunks. require: raises where the model is closed. apart: each trunk has cells
    of its own, and there are no branches. llama.cpp then computes trunks with consecutive numbers together,
    in a batch in that order, and others one after the other: those in use are kept beside each other."""

    def __init__(
        self,
        path: Path,
        sessions: int,
        n_ctx: int,
        require: Callable[[], None],
        *,
        apart: bool,
        windowed: bool = False,
    ) -> None:
        """windowed: llama.cpp writes out only the cells of a window, so that trunks cannot move."""
        self._path, self._sessions, self._require, self._apart = path, sessions, require, apart
        self._moves = apart and not windowed
        self.n_ctx = n_ctx  # of a session
        self._cpp = llama_cpp()
        self.reset(None)

    def reset(self, context: Any) -> None:
        """One with nothing in its memory, or None."""
        self._context = context
        self._memory = None if context is None else self._cpp.llama_get_memory(context)
        self.slots = [Slot(i) for i in range(self._sessions)]
        self.branches: list[Slot | None] = [None] * MAX_BRANCHES  # whose sequence `sessions + i` is

    def take_slot(self, owner: object, tokens: list[int]) -> Slot:
        """The free trunk that already holds most of `tokens`, without what was drafted below it; where they
        are apart, not one that would lose more than twice of what it shares, while another is empty (all
        chats begin alike). It is free again when `owner` frees it, or is gone: an interrupt may come between
        any two lines."""
        free = [slot for slot in self.slots if slot.is_free]
        if not free:
            raise BusyError(
                f"all {self._sessions} sessions of this model are in use: close a running stream first"
            )

        def worth(slot: Slot) -> int:
            shared = common_prefix(slot.cached, tokens)
            return 3 * shared - len(slot.cached) if self._apart else shared

        best = max(free, key=worth)
        if self._moves and (near := self._nearest(free, best)) is not best:
            self.trim(best, common_prefix(best.cached, tokens))  # the rest need not move
            self._exchange(near, best)
        best.owner = weakref.ref(owner)
        self.free_branches(best)
        self.trim(best, len(best.cached))
        return best

    def _nearest(self, free: list[Slot], best: Slot) -> Slot:
        """The one with most neighbours in use; `best` where it is as good."""
        busy = {slot.sequence for slot in self.slots if not slot.is_free}

        def neighbours(slot: Slot) -> int:
            return len(busy & {slot.sequence - 1, slot.sequence + 1})

        return max(free, key=lambda slot: (neighbours(slot), slot is best))

    def close_ranks(self) -> None:
        """Where sessions have left gaps, move one that has nothing drafted: of the shorter of the two outer
        groups to the one beside it."""
        if not self._moves:
            return
        busy = sorted(slot.sequence for slot in self.slots if not slot.is_free)
        ends = [at for at, (one, next_) in enumerate(pairwise(busy)) if next_ > one + 1]  # of groups, inside
        if not ends:
            return
        if ends[0] + 1 < len(busy) - 1 - ends[-1]:
            outer, to = busy[0], busy[ends[0] + 1] - 1
        else:
            outer, to = busy[-1], busy[ends[-1]] + 1
        by_number = {slot.sequence: slot for slot in self.slots}
        mover = by_number[outer]
        session = None if mover.owner is None else mover.owner()
        if session is not None and session.is_settled:
            self._exchange(mover, by_number[to])

    def _exchange(self, one: Slot, other: Slot) -> None:
        """Two trunks' numbers. What they hold stays theirs, without what was drafted below it. Nothing
        happens where that is more than should be copied, or cannot be."""
        for slot in (one, other):
            self.trim(slot, len(slot.cached))
        sizes = [self._size(slot) for slot in (one, other)]
        if sum(sizes) > MOST_MOVED:
            return
        held = [(slot, slot.cached[:], slot.prompt) for slot in (one, other)]
        states = [self._saved(slot, size) for slot, size in zip((one, other), sizes, strict=True)]
        if any((state is None) != (not cached) for (_, cached, _), state in zip(held, states, strict=True)):
            return
        try:
            for slot in (one, other):
                self.trim(slot, 0)
            one.sequence, other.sequence = other.sequence, one.sequence
            for (slot, cached, prompt), state in zip(held, states, strict=True):
                if state is None or self._restored(slot, state):
                    slot.cached, slot.prompt = cached, prompt
        except BaseException:  # Ctrl-C too: cells without the tokens that they are of
            for slot in (one, other):
                self.trim(slot, 0)
            raise

    def _size(self, slot: Slot) -> int:
        return self._cpp.llama_state_seq_get_size(self._context, slot.sequence) if slot.cached else 0

    def _saved(self, slot: Slot, size: int) -> ctypes.Array[ctypes.c_uint8] | None:
        """Its cells, as llama.cpp writes them; None where there are none, or they cannot be written."""
        state = (ctypes.c_uint8 * size)()
        written = size and self._cpp.llama_state_seq_get_data(self._context, state, size, slot.sequence)
        return state if written else None

    def _restored(self, slot: Slot, state: ctypes.Array[ctypes.c_uint8]) -> bool:
        """Whether they are in the cache again, under the number that it has now."""
        n = len(state)
        return bool(self._cpp.llama_state_seq_set_data(self._context, state, n, slot.sequence) == n)

    def forget(self) -> None:
        """Drop what closed sessions left, so that the next prompt is computed from its start."""
        for slot in self.slots:
            if slot.is_free:
                self.trim(slot, 0)

    def take_branch(self, slot: Slot) -> int:
        """A sequence for a branch of that trunk."""
        try:
            branch = self.branches.index(None)
        except ValueError:
            raise UsageError(f"more than {MAX_BRANCHES} branches in one pass: draft narrower trees") from None
        self.branches[branch] = slot
        return self._sessions + branch

    def free_branches(self, slot: Slot) -> None:
        """All that were taken for it."""
        for branch, owner in enumerate(self.branches):
            if owner is slot:
                if self._memory is not None:
                    self._cpp.llama_memory_seq_rm(self._memory, self._sessions + branch, -1, -1)
                self.branches[branch] = None

    def share(self, source: int, branch: int, end: int, start: int = 0) -> None:
        """Let `branch` own the source's cells at positions [start, end) too."""
        self._require()
        self._cpp.llama_memory_seq_cp(self._memory, source, branch, start, end)

    def cut(self, sequence: int, start: int) -> None:
        """Drop a sequence's cells from position `start` on."""
        if self._memory is not None and not self._cpp.llama_memory_seq_rm(self._memory, sequence, start, -1):
            raise ContractError(f"{self._path}: this model's state cannot be rolled back to position {start}")

    def trim(self, slot: Slot, keep: int) -> int:
        """Keep at most the first `keep` positions of a trunk; returns how many it could keep. At no moment
        does the trunk claim more than its cells hold."""
        self._require()
        del slot.cached[keep:]
        if not self._cpp.llama_memory_seq_rm(self._memory, slot.sequence, keep, -1):
            slot.cached.clear()
            self._cpp.llama_memory_seq_rm(self._memory, slot.sequence, -1, -1)
        slot.prompt = slot.prompt if slot.prompt <= len(slot.cached) else 0
        return len(slot.cached)
