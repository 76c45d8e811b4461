"""One sequence in llama.cpp's KV cache: a trunk of committed tokens, branches of drafted ones.

A tree is one batch: each row carries the ids of all branch sequences below it, and branches share the
trunk's cells (`seq_cp` in a unified cache copies no data). A first child continues its parent's sequence;
every further child opens a branch. Rejection is `seq_rm`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.core.errors import ContractError, UsageError
from paceline.core.tree import EMPTY, ROOT, DraftTree
from paceline.engines.llama.batch import Batch

if TYPE_CHECKING:
    from paceline.engines.llama.target import LlamaTarget


class Slot:
    """A trunk sequence and the tokens its cells hold. It outlives sessions, so that a new one
    that starts alike finds its prefix computed. prompt: how many of them a prompt of that length left.
    owner: the session that has it."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.cached: list[int] = []
        self.prompt = 0
        self.owner: weakref.ref[LlamaSession] | None = None

    @property
    def is_free(self) -> bool:
        return self.owner is None or self.owner() is None


def common_prefix(a: list[int], b: list[int]) -> int:
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


class LlamaSession:
    def __init__(self, target: LlamaTarget) -> None:
        self._target = target
        self._slot: Slot | None = None
        self.tokens: list[int] = []
        self._forget()

    def _forget(self) -> None:
        self._tree = EMPTY
        self._planned = False  # cells beyond the committed ones may be in the cache
        self._rooted = False  # the root's cell and the tree's are
        self._sequence: list[int] = []  # of each node
        self._branched = False  # sequences are to be handed back
        self._heirs: set[int] = set()  # nodes whose own sequence a child continues

    @property
    def slot(self) -> Slot:
        if self._slot is None:
            raise ContractError("forward or keep before prefill: the session has no root")
        return self._slot

    def prefill(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise UsageError("the prompt is empty: give at least one token")
        tokens = list(tokens)
        if len(tokens) > self._target.caps.n_ctx:
            raise UsageError(
                f"{len(tokens):,} tokens do not fit the context of {self._target.caps.n_ctx:,}: use -c"
            )
        committed = False
        if self._slot is None:
            self._slot = self._target.take_slot(self, tokens)
        elif self._rooted and len(tokens) > len(self.tokens) and tokens[: len(self.tokens)] == self.tokens:
            self._commit(self._matching(tokens))
            committed = True
        else:
            self.rollback()
        slot = self._slot
        # After a commit the whole cache has just been compared.
        known = len(slot.cached) if committed else common_prefix(slot.cached, tokens)
        shared = min(known, len(tokens) - 1)
        if self._target.exact_rows and not shared == len(tokens) - 1 == slot.prompt:
            shared = 0  # cells from a pass of another shape differ in the last bits
        if shared < len(slot.cached):
            shared = self._target.trim(slot, shared)
        self.tokens = tokens
        if len(tokens) - 1 - shared > self._target.caps.folded:
            self._target.compute(slot, tokens[:-1])

    def _matching(self, tokens: list[int]) -> list[int]:
        """The drafted nodes that `tokens` goes on with, short of its last one, the new root."""
        path: list[int] = []
        node = ROOT
        for token in tokens[len(self.tokens) : -1]:
            child = self._tree.child(node, token)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def plan(self, tree: DraftTree, batch: Batch) -> int:
        """Add to `batch` what the cache lacks of the sequence and the tree; returns the first row asked for:
        0 where the root is among them."""
        slot = self.slot
        grows = self._rooted and tree.starts_with(self._tree)
        if not grows:
            self.rollback()
        self._planned = True
        base = len(self.tokens) - 1
        fresh: dict[int, list[int]] = {}
        if not grows:
            stem = [slot.sequence]
            for pos in range(len(slot.cached), base):
                batch.add(self.tokens[pos], pos, stem, False)
            batch.add(self.tokens[base], base, stem, True)
            fresh[ROOT] = stem
        first = len(self._sequence)
        depths = tree.depths()
        for node in range(first, len(tree)):
            fresh[node] = self._place(tree, node, fresh, depths, base)
            batch.add(tree.tokens[node], base + depths[node], fresh[node], True)
        self._tree = tree
        return first + 1 if grows else 0

    def _place(
        self, tree: DraftTree, node: int, fresh: dict[int, list[int]], depths: list[int], base: int
    ) -> list[int]:
        """The sequences of a new node: its parent's if no sibling continues it, otherwise a new branch,
        which everything above the node joins."""
        parent = tree.parents[node]
        if parent not in self._heirs:
            self._heirs.add(parent)
            sequence = self.slot.sequence if parent == ROOT else self._sequence[parent]
        else:
            self._branched = True
            sequence = self._target.take_branch(self.slot)
            above = parent
            while above in fresh:
                fresh[above].append(sequence)
                if above == ROOT:
                    break
                above = tree.parents[above]
            if above == ROOT:
                end = len(self.slot.cached) if ROOT in fresh else base + 1
                self._target.share(self.slot.sequence, sequence, end)
            else:
                self._target.share(self._sequence[above], sequence, base + depths[above] + 1)
        self._sequence.append(sequence)
        return [sequence]

    def computed(self) -> None:
        """The planned batch is in the cache."""
        cached = self.slot.cached
        cached += self.tokens[len(cached) : -1]
        self._rooted = True

    def keep(self, path: Sequence[int], root: int) -> None:
        if not self._rooted:
            raise ContractError("keep before forward: there is nothing to commit")
        self._tree.check_path(path)
        emitted = [self._tree.tokens[node] for node in path]
        self._commit(path)
        self.tokens += [*emitted, root]

    def _commit(self, path: Sequence[int]) -> None:
        """Make the root and `path` part of the trunk and forget every other drafted cell."""
        slot, tree = self.slot, self._tree
        base = len(self.tokens)
        end = base + len(path)
        if path and self._sequence[path[-1]] != slot.sequence:
            self._target.cut(slot.sequence, base)
            self._target.share(self._sequence[path[-1]], slot.sequence, end, start=base)
        elif len(tree) > len(path):
            self._target.cut(slot.sequence, end)
        # In place: the list may be long, and this is the hot path.
        slot.cached.append(self.tokens[-1])
        slot.cached += [tree.tokens[node] for node in path]
        self._hand_back()

    def rollback(self) -> None:
        """Back to the committed tokens; the root's own cell goes too. Also undoes a forward that failed."""
        if self._slot is not None and self._planned:
            self._target.cut(self._slot.sequence, len(self._slot.cached))
            self._hand_back()

    def _hand_back(self) -> None:
        if self._branched:
            self._target.free_branches(self.slot)
        self._forget()

    def close(self) -> None:
        if self._slot is not None:
            self.rollback()
            self._slot.owner = None
            self._slot = None
        self.tokens = []
