"""llama.cpp's memory, shared by sessions: a main sequence each, and branches for trees.

Recurrent state cannot drop its last tokens. Such a model has a checkpoint sequence for each session instead
of branches: `seq_cp` shares the state, which llama.cpp copies when the main sequence is computed again.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from paceline.backends.common import CacheSlot, ChangingPrompts, SparsePrompt, free_slots
from paceline.backends.llama_cpp.binding import MAX_SEQUENCES, llama_cpp
from paceline.backends.llama_cpp.saved_prompts import MIN_SAVED_TOKENS, SavedPrompts, State
from paceline.speculative.errors import UsageError

MAX_BRANCHES = 64
BYTES = ctypes.POINTER(ctypes.c_uint8)
STATE_ONLY = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class SequenceSlot(CacheSlot):
    """A main sequence and the tokens of its cells.
    prompt_length: tokens that a prefill of this length computed. last_used: grows with every session.
    checkpoint: that of the checkpoint sequence.
    spread: the sparse prompt whose cells have moved to their positions, which were their places before."""

    spread: SparsePrompt | None = None

    def __init__(self, sequence: int, *, is_stateful: bool = False) -> None:
        super().__init__(is_stateful=is_stateful)
        self.sequence = sequence
        self.prompt_length = self.last_used = 0

    def position(self, place: int) -> int:
        """Return the position of the cell at a place."""
        return place if self.spread is None else self.spread.position(place)


class LlamaKvCache:
    """The sequences of a context.
    sessions: number of main sequences, which share one pool of cells. require: raises if the model is closed.
    stateful: the model is recurrent or hybrid.
    windowed: cells outside an attention window may have been reused, which llama.cpp does not report.
    one_shape: a prefix has the bits of a prompt only if a prefill of its length computed it (PassExtra)."""

    def __init__(
        self,
        path: Path,
        sessions: int,
        n_ctx: int,
        require: Callable[[], None],
        *,
        stateful: bool = False,
        windowed: bool = False,
        one_shape: bool = False,
    ) -> None:
        if stateful and 2 * sessions > MAX_SEQUENCES:
            raise UsageError(
                f"{sessions} sessions of a recurrent model: must be at most {MAX_SEQUENCES // 2}"
            )
        self._path, self._sessions, self._require = path, sessions, require
        self.saved_prompts: SavedPrompts | None = None
        self._changing_prompts = ChangingPrompts()
        self.stateful, self._windowed, self.one_shape = stateful, windowed, one_shape
        # Prefixes are shared with `seq_cp`, which copies no data.
        self._shares = not (stateful or windowed or one_shape)
        self.n_sequences = sessions + (sessions if stateful else MAX_BRANCHES)
        self.n_ctx = n_ctx  # of a session
        self._cpp = llama_cpp()
        self.slots = [SequenceSlot(i, is_stateful=stateful) for i in range(sessions)]
        self.reset(None)

    def reset(self, context: Any) -> None:
        """Use the empty memory of a context; None detaches the cache.
        Open sessions lose their cells: their next pass computes all their tokens."""
        self._context = context
        self._memory = None if context is None else self._cpp.llama_get_memory(context)
        # The owner of each sequence from `sessions` on.
        self.branches: list[SequenceSlot | None] = [None] * MAX_BRANCHES
        for slot in self.slots:
            slot.cached.clear()
            slot.drop_states()
            slot.prompt_length = slot.last_used = slot.checkpoint = 0
            slot.spread = None
            if slot.owner is not None and (session := slot.owner()) is not None:
                session._clear_tree()  # its cells are gone

    @property
    def can_spread(self) -> bool:
        """Whether cells can move to other positions."""
        movable = not (self.stateful or self._windowed)
        return movable and bool(self._cpp.llama_memory_can_shift(self._memory))

    def take_slot(self, owner: object, tokens: list[int]) -> SequenceSlot:
        """Return a free slot with the longest cached prefix of `tokens`, copied from another slot if needed.
        Raises BusyError if no slot is free."""
        free = free_slots(self.slots)
        self._changing_prompts.check(tokens, self.slots)
        cached = {slot.sequence: slot.reusable_prefix(tokens) for slot in self.slots}
        # A cached token saves its prefill now; a dropped token may need it again later.
        best = max(free, key=lambda slot: (3 * cached[slot.sequence] - len(slot.cached), -slot.last_used))
        donor = max(self.slots, key=lambda slot: cached[slot.sequence])
        own, more = cached[best.sequence], cached[donor.sequence]
        self.save_prompt(donor, more)
        best.last_used = 1 + max(slot.last_used for slot in self.slots)
        best.owner = weakref.ref(owner)
        self.free_branches(best)
        if best.sparse is not None:
            self.trim(best, 0)
            best.sparse = best.spread = None
        if self._load_prompt(best, tokens, more + MIN_SAVED_TOKENS):
            return best
        if self._shares and more > own:
            self.trim(best, 0)  # all cells from one sequence: their order is that of the text
            self.share(donor.sequence, best.sequence, more)
            best.cached += tokens[:more]
        else:
            self.trim(best, len(best.cached))
        return best

    def _load_prompt(self, slot: SequenceSlot, tokens: list[int], least: int) -> bool:
        """Fill the slot with a saved prompt that has at least so many of the tokens, if there is one."""
        prompt = self.saved_prompts and self.saved_prompts.longest(tokens, least)
        if not prompt or not (states := prompt.read()):
            return False
        self.trim(slot, 0)
        n, state = states.popitem()
        end = self._cpp.llama_memory_seq_pos_max
        if not self._write_state(slot.sequence, state, 0) or end(self._memory, slot.sequence) != n - 1:
            self._remove(slot.sequence, 0)
            prompt.discard()
            return False
        slot.cached, slot.states = [*prompt.cached], states
        return True

    def save_prompt(self, slot: SequenceSlot, n: int) -> None:
        """Save what a free slot has if its first `n` tokens are worth it."""
        store, tokens = self.saved_prompts, slot.cached
        if store is not None and slot.is_free and store.lacks(tokens[:n]):
            store.save(tokens, {**slot.states, len(tokens): self.read_state(slot.sequence, 0)})

    def clear_free(self) -> None:
        """Drop the prefixes of free slots."""
        for slot in self.slots:
            if slot.is_free:
                self.trim(slot, 0)
                slot.last_used = 0

    def take_branch(self, slot: SequenceSlot) -> int:
        """Return a branch sequence; `Caps.max_branches` leaves enough of them for all sessions."""
        branch = self.branches.index(None)
        self.branches[branch] = slot
        return self._sessions + branch

    def free_branches(self, slot: SequenceSlot) -> None:
        for branch, owner in enumerate(self.branches):
            if owner is slot:
                if self._memory is not None:
                    self._cpp.llama_memory_seq_rm(self._memory, self._sessions + branch, -1, -1)
                self.branches[branch] = None

    def share(self, source: int, branch: int, end: int, start: int = 0) -> None:
        """Let `branch` share the source's cells at positions [start, end)."""
        self._require()
        self._cpp.llama_memory_seq_cp(self._memory, source, branch, start, end)

    def save_checkpoint(self, slot: SequenceSlot, n: int) -> None:
        """Keep the state, which is that after `n` tokens, if the model cannot drop tokens from it."""
        if self.stateful and slot.checkpoint != n:
            self._drop_checkpoint(slot)
            self.share(slot.sequence, self._sessions + slot.sequence, -1)
            slot.checkpoint = n

    def read_state(self, sequence: int, flags: int = STATE_ONLY) -> State:
        """Return a copy of a sequence's memory, by default without keys and values."""
        size, read = self._cpp.llama_state_seq_get_size_ext, self._cpp.llama_state_seq_get_data_ext
        state = np.empty(size(self._context, sequence, flags), np.uint8)
        read(self._context, state.ctypes.data_as(BYTES), len(state), sequence, flags)
        return state

    def _write_state(self, sequence: int, state: State, flags: int = STATE_ONLY) -> bool:
        """Give a sequence such a memory; return whether that was possible."""
        write = self._cpp.llama_state_seq_set_data_ext
        return bool(write(self._context, state.ctypes.data_as(BYTES), len(state), sequence, flags))

    def _drop_checkpoint(self, slot: SequenceSlot) -> None:
        if slot.checkpoint:
            slot.checkpoint = 0  # first, in case of an interrupt
            self._remove(self._sessions + slot.sequence, 0)

    def move_branch(self, branch: int, main: int, start: int, end: int) -> None:
        """Let a main sequence have the branch's cells from `start` on."""
        self._remove(main, start)
        self.share(branch, main, end, start=start)

    def spread(self, slot: SequenceSlot) -> None:
        """Move the cells of a sparse prompt to their positions. llama.cpp decodes no position after a gap:
        the prompt is computed without gaps, and its keys are rotated once afterwards."""
        assert slot.sparse is not None
        slot.spread = slot.sparse
        for start, end, distance in slot.sparse.moves(len(slot.cached)):
            self._cpp.llama_memory_seq_add(self._memory, slot.sequence, start, end, distance)

    def truncate(self, slot: SequenceSlot) -> None:
        """Drop all cells after the cached tokens. A state returns to its checkpoint instead, or to the start
        without one; `cached` becomes shorter then."""
        end = slot.position(len(slot.cached)) if slot.cached else 0
        if self._memory is None:
            return
        if not self._remove(slot.sequence, end):
            self._restore_state(slot)
        slot.drop_states()
        if slot.checkpoint > len(slot.cached):  # of another text
            self._drop_checkpoint(slot)

    def _restore_state(self, slot: SequenceSlot) -> None:
        n = slot.last_state(len(slot.cached))
        tokens = slot.cached[:n]
        slot.cached.clear()  # first, in case of an interrupt
        if n != slot.checkpoint and n and self._write_state(slot.sequence, slot.states[n]):
            self._remove(slot.sequence, n)  # keys and values
        else:
            self._remove(slot.sequence, 0)
            tokens = tokens if n == slot.checkpoint else []
            if tokens:
                self.share(self._sessions + slot.sequence, slot.sequence, -1)
        slot.cached += tokens

    def trim(self, slot: SequenceSlot, keep: int) -> None:
        """Keep at most the first `keep` positions. `cached` shrinks first, in case of an interrupt."""
        self._require()
        del slot.cached[keep:]
        self.truncate(slot)
        first = self._cpp.llama_memory_seq_pos_min
        if self._windowed and slot.cached and first(self._memory, slot.sequence) != 0:  # not in all layers
            slot.cached.clear()
            self.truncate(slot)
        slot.prompt_length = slot.prompt_length if slot.prompt_length <= len(slot.cached) else 0

    def _remove(self, sequence: int, start: int) -> bool:
        """Drop a sequence's cells from `start` on; return whether that was possible."""
        return bool(self._cpp.llama_memory_seq_rm(self._memory, sequence, start, -1))
