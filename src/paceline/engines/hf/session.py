"""One sequence in its cache: the committed tokens in order, then the root and the nodes of the last tree in
theirs. Who attends to whom is the mask's matter (masks.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.errors import ContractError, UsageError
from paceline.core.tree import EMPTY, DraftTree
from paceline.engines.hf.cache import Slot, Slots
from paceline.engines.hf.loading import helpers


@dataclass(frozen=True)
class Rows:
    """What a pass is to compute of a session: `tokens`, which come into the cache from place `start` on.
    Places up to `base` are text, the root's last; node `i` of `tree` is at `base + 1 + i`. told: how many of
    the rows, the last ones, have answers; first: which row of the tree (0: the root's) the first of these
    is."""

    tokens: list[int]
    positions: list[int]
    start: int
    base: int
    tree: DraftTree
    told: int
    first: int

    @property
    def places(self) -> int:
        """Of the cache after the pass."""
        return self.start + len(self.tokens)


class HfSession:
    def __init__(self, slots: Slots, n_ctx: int, rewinds: bool) -> None:
        self.slots, self._n_ctx, self._rewinds = slots, n_ctx, rewinds
        self._slot: Slot | None = None
        self.tokens: list[int] = []
        self._forget()

    def _forget(self) -> None:
        self._tree = EMPTY
        self._planned = False  # there may be more in the cache than what is committed
        self._rooted = False  # the root and the tree are

    @property
    def slot(self) -> Slot:
        if self._slot is None:
            raise ContractError("forward or keep before extend: the session has no root")
        return self._slot

    @property
    def unread(self) -> int:
        return 0 if self._slot is None else max(0, len(self.tokens) - 1 - len(self._slot.cached))

    def extend(self, tokens: Sequence[int]) -> None:
        n = len(self.tokens) + len(tokens)
        if n == 0:
            raise UsageError("the prompt is empty: give at least one token")
        if n > self._n_ctx:
            raise UsageError(
                f"{n:,} tokens do not fit the context of {self._n_ctx:,}: take a larger one (n_ctx, -c)"
            )
        if self._slot is None:
            self._slot, shared = self.slots.take(self, list(tokens))
            shared = min(shared, len(tokens) - 1)
            if self._rewinds or shared < len(self._slot.cached):
                self._slot.trim(shared)
        elif self._rooted and tokens:
            self._commit(self._tree.along(tokens[:-1]))  # the last one is the new root
        else:
            self.rollback()
        self.tokens += tokens

    def plan_reading(self, n: int) -> Rows:
        """The next `n` unread tokens."""
        if not 0 <= n <= self.unread:
            raise ContractError(f"{n} tokens to be read, of {self.unread} that are unread")
        if self._rooted:
            self.rollback()
        self._planned = True
        start = len(self.slot.cached)
        end = start + n
        return Rows(self.tokens[start:end], list(range(start, end)), start, end, EMPTY, told=0, first=0)

    def read(self, n: int) -> None:
        """They are in the cache, and nothing else."""
        cached = self.slot.cached
        cached += self.tokens[len(cached) : len(cached) + n]
        self._planned = False

    def plan(self, tree: DraftTree) -> Rows:
        """What the cache lacks of the sequence and the tree."""
        if not (self._rooted and tree.starts_with(self._tree)):
            self.rollback()
        self._planned = True
        return self._rows(tree, len(self.slot.cached))

    def _rows(self, tree: DraftTree, cached: int) -> Rows:
        """cached: tokens of the text that need not be computed."""
        grows, base = self._rooted and tree.starts_with(self._tree), len(self.tokens) - 1
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
        return Rows(tokens, positions, start, base, tree, len(tokens) - lead, known + 1 if grows else 0)

    def computed(self) -> None:
        """What was planned is in the cache."""
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
        """The root and `path` become text; what else was drafted is dropped."""
        slot, tree, base = self.slot, self._tree, len(self.tokens)
        if list(path) != list(range(len(path))):
            slot.cache.gather([base + node for node in path], base)
        elif len(tree) > len(path):
            slot.cache.cut(base + len(path))
        slot.cached.append(self.tokens[-1])
        slot.cached += [tree.tokens[node] for node in path]
        self._forget()

    def rollback(self) -> None:
        """Back to the committed tokens; the root's own place goes too. Also undoes a pass that failed."""
        if self._slot is not None and self._planned:
            self._slot.trim(len(self._slot.cached))
        self._forget()

    def close(self) -> None:
        if self._slot is not None:
            self.rollback()
            self._slot.owner = None
            self._slot = None
            helpers().release()
        self.tokens = []
