"""Sessions and text that both engines of real models have in common."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Generic, TypeVar

from paceline.speculative.errors import BusyError, ContractError, UsageError
from paceline.speculative.tree import EMPTY, DraftTree
from paceline.speculative.vocabulary import Vocab
from paceline.text.grammar import TokenTrie


def make_token_trie(vocab: Vocab, silent: Collection[int]) -> TokenTrie:
    """Return the tokens that grammars are matched with; those that look like control tokens (`silent`) are no
    text."""
    return TokenTrie(
        [b"" if token in silent else vocab.piece(token) for token in range(vocab.size)], vocab.eos
    )


def parameters(n: int) -> str:
    """Return a number of parameters as sizes of models are written: 1.5B, 135M."""
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.{1 if n < 99.5e6 else 0}f}M"


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


class CacheSlot:
    """A place in a cache, and the tokens that it holds. It outlives sessions, whose prefixes are reused. It
    is free when `owner` frees it, or is gone: an interrupt may come between any two lines."""

    def __init__(self) -> None:
        self.cached: list[int] = []
        self.owner: weakref.ref[Any] | None = None

    @property
    def is_free(self) -> bool:
        return self.owner is None or self.owner() is None


S = TypeVar("S", bound=CacheSlot)


def free_slots(slots: Sequence[S]) -> list[S]:
    """Return the free slots. Raises BusyError where there is none."""
    free = [slot for slot in slots if slot.is_free]
    if not free:
        raise BusyError(f"all {len(slots)} sessions of this model are in use: close a running stream first")
    return free


class CachedSession(Generic[S]):
    """One sequence in its slot: the committed tokens, then the root and the nodes of the last tree."""

    def __init__(self, n_ctx: int) -> None:
        self._n_ctx = n_ctx
        self._slot: S | None = None
        self.tokens: list[int] = []
        self._clear_tree()

    def _clear_tree(self) -> None:
        self._tree: DraftTree = EMPTY
        self._planned = False  # the cache may hold more than the committed tokens
        self._tree_is_cached = False  # the cache holds the root and the tree

    @property
    def slot(self) -> S:
        if self._slot is None:
            raise ContractError("forward or keep before extend: the session has no root")
        return self._slot

    @property
    def pending_tokens(self) -> int:
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
            self._begin(list(tokens))
        elif self._tree_is_cached and tokens:
            self._commit(self._tree.path_of(tokens[:-1]))  # the last one is the new root
        else:
            self.rollback()
        self.tokens += tokens

    def read(self, n: int) -> None:
        """Note that the next `n` tokens are in the cache."""
        cached = self.slot.cached
        cached += self.tokens[len(cached) : len(cached) + n]

    def mark_computed(self) -> None:
        """Note that the cache holds what was planned."""
        cached = self.slot.cached
        cached += self.tokens[len(cached) : -1]
        self._tree_is_cached = True

    def commit(self, path: Sequence[int], root: int) -> None:
        if not self._tree_is_cached:
            raise ContractError("keep before forward: there is nothing to commit")
        self._tree.check_path(path)
        emitted = [self._tree.tokens[node] for node in path]
        self._commit(path)
        self.tokens += [*emitted, root]

    def close(self) -> None:
        if self._slot is not None:
            self.rollback()
            self._slot.owner = None
            self._slot = None
            self._release()
        self.tokens = []

    @abstractmethod
    def _begin(self, tokens: list[int]) -> None:
        """Take a slot, and keep what it holds of `tokens`."""

    @abstractmethod
    def _commit(self, path: Sequence[int]) -> None:
        """Make the root and `path` text; drop what else was drafted."""

    @abstractmethod
    def rollback(self) -> None:
        """Go back to the committed tokens without the root. Also undoes a pass that failed."""

    @abstractmethod
    def _release(self) -> None:
        """Let the engine's threads sleep."""
