"""Sessions of the transformers backend, and their KV caches, which outlive them to reuse prefixes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.backends.common import CachedSession, CacheSlot, ChangingPrompts, free_slots
from paceline.backends.transformers.loading import openmp_threads
from paceline.speculative.interfaces import Rollback
from paceline.speculative.tree import EMPTY, DraftTree


@dataclass(frozen=True)
class PassInput:
    """A session's rows in a pass: `tokens`, written to the cache from place `start` on.
    base: place of the root; node `i` of `tree` is at `base + 1 + i`.
    n_outputs: number of rows, at the end, that have logits; the first is row `first_row` of the tree."""

    tokens: list[int]
    positions: list[int]
    start: int
    base: int
    tree: DraftTree
    n_outputs: int
    first_row: int

    @property
    def places(self) -> int:
        """Length of the cache after the pass."""
        return self.start + len(self.tokens)

    def single_tokens(self) -> list[PassInput]:
        """Return a pass for each row."""
        first = len(self.tokens) - self.n_outputs
        return [
            replace(self, tokens=[token], positions=[at], start=self.start + i, n_outputs=int(i >= first))
            for i, (token, at) in enumerate(zip(self.tokens, self.positions, strict=True))
        ]


class HfSlot(CacheSlot):
    """A cache and its tokens. rollback: see Caps."""

    def __init__(self, make: Callable[[], Any], rollback: Rollback) -> None:
        super().__init__(is_stateful=rollback == "restore")
        self._make, self._rollback = make, rollback
        self.cache: Any = make()
        self.is_ahead = False  # the cache may hold more than `cached`

    def save_checkpoint(self, n: int) -> None:
        """Keep the state, which is that after `n` tokens, if the cache cannot drop tokens."""
        if self._rollback == "restore" and self.checkpoint != n:
            self._state, self.checkpoint = self.cache.state(), n

    def trim(self, n: int) -> None:
        """Keep at most the first `n` tokens. A state returns to its checkpoint, or to the start."""
        self.is_ahead = True
        if self._rollback == "free":
            del self.cached[n:]
            self.cache.truncate(len(self.cached))
        elif end := self.last_state(n):
            del self.cached[end:]
            if end != self.checkpoint:
                self._state, self.checkpoint = self.states[end], end
            self.cache.restore(self._state)
            self.drop_states()
        else:
            self.clear()
        self.is_ahead = False

    def clear(self) -> None:
        self.cached.clear()
        self.drop_states()
        self.checkpoint, self.cache = 0, self._make()


class CacheSlots:
    """The caches of a model's sessions. rollback: see Caps."""

    def __init__(self, n: int, make: Callable[[], Any], rollback: Rollback = "none") -> None:
        self.rollback, self._changing_prompts = rollback, ChangingPrompts()
        self.slots = [HfSlot(make, rollback) for _ in range(n)]

    def take(self, owner: object, tokens: list[int]) -> tuple[HfSlot, int]:
        """Return the free slot with the longest prefix of `tokens`, and its length. Raises BusyError."""
        self._changing_prompts.check(tokens, self.slots)
        best = max(free_slots(self.slots), key=lambda slot: slot.reusable_prefix(tokens))
        best.owner = weakref.ref(owner)
        if best.sparse is not None:
            best.clear()
            best.sparse = None
        return best, best.common_prefix(tokens)

    def clear_free(self) -> None:
        for slot in self.slots:
            if slot.is_free:
                slot.clear()


class HfSession(CachedSession[HfSlot]):
    """A session in one of `slots`."""

    def __init__(self, slots: CacheSlots, n_ctx: int, piece: Callable[[int], bytes] = lambda _: b".") -> None:
        self.slots = slots
        super().__init__(n_ctx, slots.slots, piece)

    def _begin(self, tokens: list[int]) -> None:
        self._slot, shared = self.slots.take(self, tokens)
        if self.slots.rollback == "free" or shared < len(self._slot.cached) or self._slot.is_ahead:
            self._slot.trim(shared)

    def _drop_context(self) -> None:
        self.slot.clear()

    def _copy_state(self) -> tuple[Any, int]:
        layers = self.slot.cache.state()
        recurrent = [value for layer in layers for value in layer.values() if isinstance(value, dict)]
        return layers, sum(getattr(state, "nbytes", 0) for layer in recurrent for state in layer.values())

    def plan_prefill(self, n: int) -> PassInput:
        """Plan to prefill the next `n` tokens."""
        self.require_pending(n)
        self.discard_tree()
        self._planned, self.slot.is_ahead = EMPTY, True
        start = len(self.slot.cached)
        end = start + n
        return PassInput(
            self._context[start:end], self._positions(start, end), start, end, EMPTY, n_outputs=0, first_row=0
        )

    def read(self, n: int) -> None:
        super().read(n)
        self._planned, self.slot.is_ahead = None, False

    def plan(self, tree: DraftTree) -> PassInput:
        """Plan the pending tokens, the root and the new nodes of `tree`."""
        first = self.begin(tree)
        if (n := self._checkpoint_length(tree, first)) is not None:
            self.slot.save_checkpoint(n)
        self._planned, self.slot.is_ahead = tree, True
        return self._rows(tree, first, len(self.slot.cached))

    def _rows(self, tree: DraftTree, first: int, cached: int) -> PassInput:
        """Return the rows of `tree` from `first` on, after those of the first `cached` tokens."""
        base, known, lead = len(self._context) - 1, max(0, first - 1), 0
        start, tokens, positions = base + first, list[int](), list[int]()
        if first == 0:
            start, lead = cached, base - cached
            tokens, positions = self._context[cached:], self._positions(cached, base + 1)
        tokens += tree.tokens[known:]
        positions += [base + self.n_skipped + depth for depth in tree.depths()[known:]]
        return PassInput(tokens, positions, start, base, tree, len(tokens) - lead, first)

    def _commit(self, tree: DraftTree, path: Sequence[int]) -> None:
        slot, base = self.slot, len(self._context)
        if list(path) != list(range(len(path))):
            slot.cache.gather([base + node for node in path], base)
        slot.cached.append(self.tokens[-1])
        slot.cached += [tree.tokens[node] for node in path]
        if len(tree) > len(path):
            slot.trim(len(slot.cached))
        slot.is_ahead = False
        self._clear_tree()

    def rollback(self) -> None:
        if self._slot is not None and self._planned is not None:
            self._slot.trim(len(self._slot.cached))
        self._clear_tree()

    def _release(self) -> None:
        openmp_threads().release()
