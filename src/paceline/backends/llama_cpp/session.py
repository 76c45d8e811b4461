"""A session of llama.cpp: a main sequence of committed tokens, and branches of drafted tokens.

A tree is one batch: each row has the ids of all branch sequences below it, and branches share the main
sequence's cells (`seq_cp` copies no data). A first child continues its parent's sequence, every further child
opens a branch. Rejection is `seq_rm`. A recurrent model drafts chains, and rejection returns to a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.backends.common import CachedSession
from paceline.backends.llama_cpp.batch import Batch
from paceline.backends.llama_cpp.binding import helpers
from paceline.backends.llama_cpp.cache import LlamaKvCache, SequenceSlot
from paceline.backends.llama_cpp.saved_prompts import State
from paceline.speculative.tree import EMPTY, ROOT, DraftTree


class LlamaSession(CachedSession[SequenceSlot]):
    """A session in a slot of `cache`."""

    def __init__(self, cache: LlamaKvCache, piece: Callable[[int], bytes]) -> None:
        self._cache = cache
        super().__init__(cache.n_ctx, cache.slots, piece)

    def _clear_tree(self) -> None:
        super()._clear_tree()
        self._sequence: list[int] = []  # of each node
        self._branched = False  # there are branches to free
        self._inherited_sequence: set[int] = set()  # nodes whose sequence a child continues

    def _begin(self, tokens: list[int]) -> None:
        slot = self._slot = self._cache.take_slot(self, tokens)
        shared = slot.common_prefix(tokens)
        if self._cache.one_shape and not shared == len(tokens) == slot.prompt_length:
            shared = 0
        if shared < len(slot.cached):
            self._cache.trim(slot, shared)

    def _copy_state(self) -> tuple[State, int]:
        state = self._cache.read_state(self.slot.sequence)
        return state, len(state)

    def _drop_context(self) -> None:
        self.slot.cached.clear()
        self._cache.truncate(self.slot)

    @property
    def until_spread(self) -> int | None:
        """Pending tokens of a sparse prompt before its cells move to their positions.
        None once they have, and for other prompts."""
        if self._sparse is None or self.slot.spread is not None:
            return None
        return len(self._sparse.positions) - 1 - len(self.slot.cached)

    def read(self, n: int) -> None:
        super().read(n)
        if self.until_spread == 0:
            self._cache.spread(self.slot)

    def plan_prefill(self, n: int, batch: Batch) -> None:
        """Add the next `n` pending tokens to `batch`."""
        self.require_pending(n)
        self._planned = EMPTY
        slot, main = self.slot, [self.slot.sequence]
        for place in range(len(slot.cached), len(slot.cached) + n):
            batch.add(self._context[place], slot.position(place), main, False)

    def plan(self, tree: DraftTree, batch: Batch) -> int:
        """Add the tokens and nodes that are not cached to `batch`; return the first output's row."""
        first, slot = self.begin(tree), self.slot
        root = len(self._context) - 1
        base = slot.position(root)
        if (n := self._checkpoint_length(tree, first)) is not None:
            self._cache.save_checkpoint(slot, n)
        self._planned = tree
        fresh: dict[int, list[int]] = {}
        if first == 0:
            main = [slot.sequence]
            for place in range(len(slot.cached), root):
                batch.add(self._context[place], slot.position(place), main, False)
            batch.add(self._context[root], base, main, True)
            fresh[ROOT] = main
        depths = tree.depths()
        for node in range(len(self._sequence), len(tree)):
            fresh[node] = self._assign_sequence(tree, node, fresh, depths, base)
            batch.add(tree.tokens[node], base + depths[node], fresh[node], True)
        return first

    def _assign_sequence(
        self, tree: DraftTree, node: int, fresh: dict[int, list[int]], depths: list[int], base: int
    ) -> list[int]:
        """Return the sequence of a new node: its parent's for a first child, else a new branch.
        The rows above the node join the branch. base: position of the root."""
        parent = tree.parents[node]
        if parent not in self._inherited_sequence:
            self._inherited_sequence.add(parent)
            sequence = self.slot.sequence if parent == ROOT else self._sequence[parent]
        else:
            self._branched = True
            sequence = self._cache.take_branch(self.slot)
            above = parent
            while above in fresh:
                fresh[above].append(sequence)
                if above == ROOT:
                    break
                above = tree.parents[above]
            if above == ROOT:
                end = self.slot.position(len(self.slot.cached)) if ROOT in fresh else base + 1
                self._cache.share(self.slot.sequence, sequence, end)
            else:
                self._cache.share(self._sequence[above], sequence, base + depths[above] + 1)
        self._sequence.append(sequence)
        return [sequence]

    def _commit(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Move the root and `path` to the main sequence, and drop all other drafted cells."""
        slot = self.slot
        base = slot.position(len(self._context))
        if path and self._sequence[path[-1]] != slot.sequence:
            self._cache.move_branch(self._sequence[path[-1]], slot.sequence, base, base + len(path))
        # In place, since the list may be long.
        slot.cached.append(self.tokens[-1])
        slot.cached += [tree.tokens[node] for node in path]
        if len(tree) > len(path):
            self._cache.truncate(slot)
        self._free_branches()

    def rollback(self) -> None:
        if self._slot is not None and self._planned is not None:
            self._cache.truncate(self._slot)
            self._free_branches()

    def _free_branches(self) -> None:
        if self._branched:
            self._cache.free_branches(self.slot)
        self._clear_tree()

    def _release(self) -> None:
        helpers().release()
