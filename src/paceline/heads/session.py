"""The state of one text in a head: features that wait to be read, keys and values, and the drafted tree.

Row p of a head takes the target's hidden state of token p, and token p + 1. So the root's row, from which
the first token is drafted, needs no hidden state of the root, which the target has not computed yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.heads.arrays import array, concatenate, to_numpy, zeros
from paceline.heads.decoder import KeyValueCache, as_mask, block_mask, causal_mask
from paceline.heads.networks import BlockHead, EagleHead, MedusaHead
from paceline.speculative.sessions import TreeSession
from paceline.speculative.tree import ROOT, DraftTree

Embed = Callable[[Sequence[int]], Any]  # token ids -> [n, hidden]
Row = NDArray[np.float32]  # logits [draft_vocab]
MAX_WAITING = 4096  # hidden states that a text keeps for a head, once twice as many wait to be read


class HeadSession(TreeSession, ABC):
    """One text in a head: what it has computed, and the hidden states of the target that it has not.
    like: an array of the type and device that the head computes with."""

    def __init__(self, head: Any, like: Any, n_ctx: int) -> None:
        super().__init__(n_ctx)
        self._head, self._like = head, like
        self._shape = len(head.config.layer_ids), head.config.target.hidden  # of a token's features
        self._first = self._next = 0  # the tokens of the first row and of the next one
        self._known = 0  # hidden states were seen of the tokens before this one
        self._joined: Any = zeros(like, (0, *self._shape))
        self._pieces: list[Any] = []
        self._rows: list[Row] = []  # of the root and of the tree's nodes

    @property
    def _waiting(self) -> Any:
        """Features of the tokens from `_next` to `_known`, joined when they are read: a head that is not
        called gets one more at each step."""
        if self._pieces:
            self._joined, self._pieces = concatenate([self._joined, *self._pieces], 0), []
        return self._joined

    @_waiting.setter
    def _waiting(self, features: Any) -> None:
        self._joined, self._pieces = features, []

    @property
    def is_ready(self) -> bool:
        """True if the hidden states of all tokens before the root are known."""
        return len(self.tokens) > 1 and self._known >= len(self.tokens) - 1

    @property
    def pending_tokens(self) -> int:
        return max(0, len(self.tokens) - 2 - self._next)

    def observe(self, start: int, features: Any) -> None:
        """Take the target's hidden states [n, layers, width] of the tokens from `start` on.
        Tokens that were seen before are ignored; tokens that are left out stay out of the context."""
        if start > self._known:
            self._leave_out(start)
        if (end := start + len(features)) - self._next > 2 * MAX_WAITING:
            self._leave_out(end - MAX_WAITING)
        new = features[self._known - start :]
        if len(new):
            new = array(self._like, new[..., : self._shape[1]])
            self._pieces.append(concatenate([new, new[:0]], 0) if len(features) > MAX_WAITING else new)
            self._known += len(new)

    def _leave_out(self, start: int) -> None:
        """Leave a gap in the context: these hidden states came from another session's cache, or are too many.
        Rows keep their positions, so `_first` moves with `_next`: they count as `_next - _first`."""
        self._commit_root()
        rest = self._waiting[start - self._next :]
        self._waiting = concatenate([rest, rest[:0]], 0)  # a copy, so that the others are let go
        self._first += start - self._next
        self._next, self._known = start, max(self._known, start)

    def rewind(self, n: int) -> None:
        """Keep the rows and features of the first `n` tokens, for a longer text that begins with them."""
        self._commit_root()
        self.tokens = []
        end = min(self._next, n - 1)  # a row also takes the token behind it
        if end <= self._first:
            self._first = self._next = self._known = 0
            self._waiting = self._waiting[:0]
            return self._truncate(0)
        self._waiting = self._waiting[: n - end if end == self._next else 0]
        self._next, self._known = end, end + len(self._waiting)
        return self._truncate(end - self._first)

    def close(self) -> None:
        self._commit_root()
        super().close()

    def _features(self, n: int) -> Any:
        """Return the next `n` features; zeros for those that were never seen, as in measurements."""
        missing = n - len(self._waiting)
        if missing <= 0:
            return self._waiting[:n]
        return concatenate([self._waiting, zeros(self._like, (missing, *self._shape))], 0)

    def _commit(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Let the root's row become part of the context. Those of nodes have no features of the target."""
        self._advance(1)
        self._rewind()

    def _advance(self, n: int) -> None:
        """Count `n` further rows as computed."""
        self._waiting, self._next = self._waiting[n:], self._next + n
        self._known = max(self._known, self._next)

    def _commit_root(self) -> None:
        if self.tree is not None:
            self._commit(self.tree, ())
            self.tree = None

    def _rewind(self) -> None:
        self._rows = []
        self._truncate(self._next - self._first)

    @abstractmethod
    def _truncate(self, n: int) -> None:
        """Keep the first `n` rows of the context."""


class NetworkSession(HeadSession):
    """A text in the network `head` (networks.py).
    embed: returns embeddings of tokens, if the head reads them."""

    def __init__(self, head: Any, like: Any, n_ctx: int, embed: Embed | None = None) -> None:
        super().__init__(head, like, n_ctx)
        self._embed: Any = embed
        self._caches = [KeyValueCache() for _ in getattr(head, "layers", ())]

    def read(self, n: int) -> None:
        """Compute the next `n` rows, without logits."""
        self.require_pending(n)
        if n:
            self.discard_tree()
            self._read(self.tokens[self._next + 1 : self._next + 1 + n], self._features(n))
            self._advance(n)

    def compute(self, tree: DraftTree) -> tuple[int, list[Row]]:
        """Return the first new row, and the logits of the root and of all nodes."""
        return self.compute_tree(tree), self._rows

    def _compute(self, tree: DraftTree, first: int) -> None:
        self.read(self.pending_tokens)
        if first == 0:
            self._rows = [self._root(self.tokens[-1], self._features(1))]
        self._nodes(tree, len(self._rows) - 1)

    @abstractmethod
    def _read(self, tokens: Sequence[int], features: Any) -> None:
        """Append rows to the context."""

    @abstractmethod
    def _root(self, token: int, features: Any) -> Row:
        """Append the root's row, and return the logits behind the root."""

    @abstractmethod
    def _nodes(self, tree: DraftTree, known: int) -> None:
        """Append the logits of the nodes behind the first `known` to `_rows`."""

    def _truncate(self, n: int) -> None:
        for cache in self._caches:
            cache.truncate(n)


class EagleSession(NetworkSession):
    """A text in an autoregressive head. Nodes are computed level by level, a level in one product."""

    _head: EagleHead
    _outputs: list[Any]  # hidden states [1, hidden] fed back, of the root and of the nodes

    def _forward(self, tokens: Sequence[int], hidden: Any, positions: Sequence[int], mask: Any) -> Any:
        embeddings = array(self._like, self._embed(tokens))
        return self._head.forward(embeddings, hidden, positions, self._caches, mask)

    def _read(self, tokens: Sequence[int], features: Any) -> Any:
        n, start = len(tokens), self._next - self._first
        window = max(self._head.config.windows, default=0)
        mask = None
        if n > 1 or window:
            mask = as_mask(self._like, causal_mask(n, start + n, window))
        positions = range(self._next, self._next + n)
        return self._forward(tokens, self._head.fuse(features), positions, mask)

    def _root(self, token: int, features: Any) -> Row:
        self._outputs = []
        return self._add(self._read([token], features))[0]

    def _add(self, out: Any) -> list[Row]:
        """Record the outputs of rows, and return their logits."""
        self._outputs += [out[i : i + 1] for i in range(len(out))]
        return list(to_numpy(self._head.logits(out)))

    def _nodes(self, tree: DraftTree, known: int) -> None:
        root, window = self._next - self._first, max(self._head.config.windows, default=0)
        start = max(0, root + 1 - window) if window else 0  # where the root has it, as in training
        while known < len(tree):
            level = next_level(tree, known, len(tree))
            hidden = concatenate([self._outputs[tree.parents[node] + 1] for node in level], 0)
            tokens = [tree.tokens[node] for node in level]
            positions = [self._next + tree.depths()[known]] * len(level)
            mask = as_mask(self._like, tree_mask(tree, level, root, start))
            self._rows += self._add(self._forward(tokens, hidden, positions, mask))
            known = level.stop


def next_level(tree: DraftTree, known: int, most: int) -> range:
    """Return the next nodes of one depth, at most so many, whose parents are among the first `known`."""
    depths, end = tree.depths(), known
    while end < min(len(tree), known + most) and depths[end] == depths[known] and tree.parents[end] < known:
        end += 1
    return range(known, end)


def tree_mask(tree: DraftTree, nodes: range, root: int, start: int = 0) -> NDArray[np.bool_]:
    """Return the mask [nodes, places] of nodes: they see the places from `start` to the root's row, their
    ancestors and themselves."""
    mask = np.zeros((len(nodes), root + 1 + nodes.stop), np.bool_)
    mask[:, start : root + 1] = True
    for row, node in enumerate(nodes):
        while node != ROOT:
            mask[row, root + 1 + node] = True
            node = tree.parents[node]
    return mask


class ParallelSession(NetworkSession):
    """A text in a head that drafts all depths at once: a node's row is that of its depth."""

    def _nodes(self, tree: DraftTree, known: int) -> None:
        depths = tree.depths()
        for node in range(known, len(tree)):
            self._rows.append(self._at_depth(depths[node], tree.tokens[node], tree.parents[node] + 1))

    @abstractmethod
    def _at_depth(self, depth: int, token: int, parent: int) -> Row:
        """Return the logits behind a node, or behind the root. parent: the row above, -1 for the root."""


class MedusaSession(ParallelSession):
    """A text in Medusa heads, which read the last hidden state only."""

    _head: MedusaHead

    def _read(self, tokens: Sequence[int], features: Any) -> None: ...

    def _root(self, token: int, features: Any) -> Row:
        self._drafted: Row = to_numpy(self._head.forward(features[:, 0]))
        return self._at_depth(0, token, -1)

    def _at_depth(self, depth: int, token: int, parent: int) -> Row:
        row: Row = self._drafted[min(depth, len(self._drafted) - 1)]
        return row


class BlockSession(ParallelSession):
    """A text in a block head. The caches hold the context, and during a pass the block."""

    _head: BlockHead
    _drafted: Row  # [depth, draft_vocab]
    _outputs: Any  # [depth, hidden]
    _states: list[Any]  # of the Markov head, behind the rows

    def _read(self, tokens: Sequence[int], features: Any) -> None:
        positions = range(self._next, self._next + len(tokens))
        self._head.extend(self._caches, self._head.context(features), positions)

    def _root(self, token: int, features: Any) -> Row:
        self._read([token], features)
        head, root = self._head, self._next + 1
        embeddings = array(self._like, self._embed([token, head.config.mask_token]))
        embeddings = embeddings * head.config.embedding_scale
        x = concatenate([embeddings[:1], *[embeddings[1:]] * (head.block_tokens - 1)], 0)
        outputs = head.forward(x, self._caches, range(root, root + len(x)), self._masks(len(x)))
        self._truncate(root - self._first)
        self._outputs, self._states = outputs[-head.config.depth :], []
        self._drafted = to_numpy(head.logits(self._outputs))
        return self._at_depth(0, token, -1)

    def _masks(self, rows: int) -> list[Any]:
        config, context = self._head.config, self._next + 1 - self._first
        return [
            as_mask(self._like, block_mask(context, rows, window, causal=config.causal_windows))
            if window
            else None
            for window in config.windows or [0] * config.n_layers
        ]

    def _at_depth(self, depth: int, token: int, parent: int) -> Row:
        at = min(depth, len(self._drafted) - 1)
        row: Row = self._drafted[at]
        if self._head.markov is None:
            return row
        above = None if parent < 0 else self._states[parent]
        term, state = self._head.markov([token], self._outputs[at : at + 1], above)
        self._states.append(state)
        out: Row = row + to_numpy(term)[0]
        return out


SESSIONS: dict[type, type[NetworkSession]] = {
    EagleHead: EagleSession,
    MedusaHead: MedusaSession,
    BlockHead: BlockSession,
}
