"""Sessions of the transformers backend, and their KV caches, which outlive them to reuse prefixes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.backends.common import CachedSession, CacheSlot, common_prefix, free_slots
from paceline.backends.transformers.loading import openmp_threads
from paceline.speculative.errors import ContractError
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


class HfSlot(CacheSlot):
    """A cache and its tokens. rewinds: the last tokens can be dropped; otherwise all are."""

    def __init__(self, make: Callable[[], Any], rewinds: bool) -> None:
        super().__init__()
        self._make, self._rewinds = make, rewinds
        self.cache: Any = make()

    def trim(self, n: int) -> None:
        """Keep at most the first `n` tokens."""
        if self._rewinds:
            del self.cached[n:]
            self.cache.truncate(len(self.cached))
        else:
            self.clear()

    def clear(self) -> None:
        self.cached.clear()
        self.cache = self._make()


class CacheSlots:
    """The caches of a model's sessions."""

    def __init__(self, n: int, make: Callable[[], Any], rewinds: bool) -> None:
        self._slots = [HfSlot(make, rewinds) for _ in range(n)]

    def take(self, owner: object, tokens: list[int]) -> tuple[HfSlot, int]:
        """Return the free slot with the longest prefix of `tokens`, and its length. Raises BusyError."""
        best = max(free_slots(self._slots), key=lambda slot: common_prefix(slot.cached, tokens))
        best.owner = weakref.ref(owner)
        return best, common_prefix(best.cached, tokens)

    def clear_free(self) -> None:
        for slot in self._slots:
            if slot.is_free:
                slot.clear()


class HfSession(CachedSession[HfSlot]):
    """A session in one of `slots`. rewinds: the cache can drop its last positions."""

    def __init__(self, slots: CacheSlots, n_ctx: int, rewinds: bool) -> None:
        self.slots, self._rewinds = slots, rewinds
        super().__init__(n_ctx)

    def _begin(self, tokens: list[int]) -> None:
        self._slot, shared = self.slots.take(self, tokens)
        shared = min(shared, len(tokens) - 1)
        if self._rewinds or shared < len(self._slot.cached):
            self._slot.trim(shared)

    def plan_prefill(self, n: int) -> PassInput:
        """Plan to prefill the next `n` tokens. Raises ContractError if fewer are pending."""
        if not 0 <= n <= self.pending_tokens:
            raise ContractError(f"{n} tokens to prefill, of {self.pending_tokens} pending ones")
        if self._tree_is_cached:
            self.rollback()
        self._planned = True
        start = len(self.slot.cached)
        end = start + n
        return PassInput(
            self.tokens[start:end], list(range(start, end)), start, end, EMPTY, n_outputs=0, first_row=0
        )

    def read(self, n: int) -> None:
        super().read(n)
        self._planned = False

    def plan(self, tree: DraftTree) -> PassInput:
        """Plan the pending tokens, the root and the new nodes of `tree`."""
        if not (self._tree_is_cached and tree.starts_with(self._tree)):
            self.rollback()
        self._planned = True
        return self._rows(tree, len(self.slot.cached))

    def _rows(self, tree: DraftTree, cached: int) -> PassInput:
        """Return the rows behind the first `cached` tokens."""
        grows, base = self._tree_is_cached and tree.starts_with(self._tree), len(self.tokens) - 1
        if not grows:
            self._tree = EMPTY
        known = len(self._tree)
        start = base + 1 + known if grows else cached
        tokens = [] if grows else self.tokens[cached:]
        positions = [] if grows else list(range(cached, base + 1))
        depths = tree.depths()
        tokens += tree.tokens[known:]
        positions += [base + depth for depth in depths[known:]]
        self._tree = tree
        lead = 0 if grows else base - cached
        return PassInput(tokens, positions, start, base, tree, len(tokens) - lead, known + 1 if grows else 0)

    def _commit(self, path: Sequence[int]) -> None:
        slot, tree, base = self.slot, self._tree, len(self.tokens)
        if list(path) != list(range(len(path))):
            slot.cache.gather([base + node for node in path], base)
        elif len(tree) > len(path):
            slot.cache.truncate(base + len(path))
        slot.cached.append(self.tokens[-1])
        slot.cached += [tree.tokens[node] for node in path]
        self._clear_tree()

    def rollback(self) -> None:
        if self._slot is not None and self._planned:
            self._slot.trim(len(self._slot.cached))
        self._clear_tree()

    def _release(self) -> None:
        openmp_threads().release()
