"""Sessions for backends: the base of those that compute draft trees, and of those around another session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import UNLIMITED
from paceline.speculative.tree import DraftTree


class TreeSession:
    """The tokens of a session, its last tree, and the order of extend, forward and commit.

    A backend overrides `_append`, `_compute`, `_commit` and `_rewind`, as far as it has a state to keep, and
    `pending_tokens`. Its target calls `compute_tree` in a forward; one that computes all sessions in
    one pass calls `begin` before the pass and sets `tree` after it.
    tree: the tree whose root and nodes are computed; None after `extend` and `commit`."""

    def __init__(self, n_ctx: int = UNLIMITED) -> None:
        self._n_ctx = n_ctx
        self.tokens: list[int] = []
        self.tree: DraftTree | None = None

    @property
    def pending_tokens(self) -> int:
        """See Session."""
        return 0

    def extend(self, tokens: Sequence[int]) -> None:
        """See Session."""
        self._require_room(len(self.tokens) + len(tokens))
        if not tokens:
            self.discard_tree()
            return
        if self.tree is not None:
            self._commit(self.tree, self.tree.path_of(tokens[:-1]))  # the last token is the new root
            self.tree = None
        self._append(tokens)
        self.tokens += tokens

    def _require_room(self, n: int) -> None:
        """Raise UsageError for a session of `n` tokens that is empty or longer than the context."""
        if n == 0:
            raise UsageError("the prompt is empty: give at least one token")
        if n > self._n_ctx:
            raise UsageError(
                f"{n:,} tokens do not fit the context of {self._n_ctx:,}: take a larger one (n_ctx, -c)"
            )

    def begin(self, tree: DraftTree) -> int:
        """Return the first row of `tree` to compute. Its leading nodes are reused if they are the last tree;
        any other tree is discarded."""
        assert self.tokens, "forward before extend: the session has no root"
        if self.tree is not None and tree.starts_with(self.tree):
            return len(self.tree) + 1
        self.discard_tree()
        return 0

    def compute_tree(self, tree: DraftTree) -> int:
        """Compute the root and the nodes of `tree`; return the first new row."""
        first = self.begin(tree)
        self._compute(tree, first)
        self.tree = tree
        return first

    def require_pending(self, n: int) -> None:
        """Fail unless at least `n` tokens are pending."""
        pending = self.pending_tokens
        assert 0 <= n <= pending, f"{n} tokens to prefill, of {pending} pending ones"

    def commit(self, path: Sequence[int], root: int) -> None:
        """See Session."""
        tree = self.tree
        assert tree is not None, "commit before forward: there is nothing to commit"
        tree.check_path(path)
        tokens = [*(tree.tokens[node] for node in path), root]
        self._commit(tree, path)
        self.tree = None
        self._append(tokens)
        self.tokens += tokens

    def discard_tree(self) -> None:
        """Return to the committed tokens."""
        if self.tree is not None:
            self._rewind()
            self.tree = None

    def close(self) -> None:
        self.tokens, self.tree = [], None

    def _append(self, tokens: Sequence[int]) -> None:
        """Note the tokens that follow `self.tokens`, at first the prompt. The last one is the root."""

    def _compute(self, tree: DraftTree, first: int) -> None:
        """Compute the rows of `tree` from `first` on: row 0 is the root's, row `i + 1` that of node `i`."""

    def _commit(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Keep the root and the nodes on `path` of the last tree, as far as the cache can; drop the others.
        `_append` is called next."""
        self._rewind()

    def _rewind(self) -> None:
        """Drop the root and the nodes of the last tree."""


class DelegatingSession:
    """A session that forwards to the session `inner`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def tokens(self) -> Sequence[int]:
        tokens: Sequence[int] = self.inner.tokens
        return tokens

    @property
    def pending_tokens(self) -> int:
        return int(self.inner.pending_tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self.inner.extend(tokens)

    def commit(self, path: Sequence[int], root: int) -> None:
        self.inner.commit(path, root)

    def close(self) -> None:
        self.inner.close()
