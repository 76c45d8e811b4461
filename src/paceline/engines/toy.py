"""An exact model in numpy: a tiny recurrent network with a tiny vocabulary, for tests, docs and proofs.

Its cache is real (one state a position, computed once, lost when it is dropped), and every row is computed
by the same arithmetic whatever stands beside it, so that logits are equal to the last bit or wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ContractError, UsageError
from paceline.core.ports import Caps, Features, Want
from paceline.core.sampling import argmax, top_k
from paceline.core.tree import EMPTY, ROOT, DraftTree
from paceline.core.vocab import Vocab

Vector = NDArray[np.float64]


class ToyTarget:
    """h' = tanh(A h + E[token]), logits = sharpness * W h'; all weights from `seed`.

    A draft that resembles it: `ToyTarget(..., noise=0.3)` has the same weights plus noise on W.
    """

    def __init__(
        self,
        n_vocab: int = 8,
        *,
        seed: int = 0,
        width: int = 8,
        sharpness: float = 2.0,
        noise: float = 0.0,
        eos: frozenset[int] = frozenset(),
        n_ctx: int = 4096,
        branch: int = 64,
    ) -> None:
        random = np.random.default_rng(seed)
        self._mix = random.normal(size=(width, width)) * 0.9 / np.sqrt(width)
        self._embed = random.normal(size=(n_vocab, width))
        head = random.normal(size=(n_vocab, width)) * sharpness
        self._head = head + noise * sharpness * np.random.default_rng(seed + 1).normal(size=head.shape)
        self._start = np.zeros(width)
        spelled = b"%d".__mod__
        self.origin = "the toy model"
        self.vocab = Vocab(n_vocab, "toy", None, eos, False, False, text=spelled, piece=spelled)
        self.caps = Caps(branch=branch, rewind=True, batch=64, rows=512, n_ctx=n_ctx)

    def open(self) -> ToySession:
        return ToySession(self)

    def close(self) -> None:
        """Nothing is held."""

    def forward(self, batch: Sequence[tuple[ToySession, DraftTree]], want: Want) -> list[ToyForward]:
        return [ToyForward(self, *session.grow(tree), want) for session, tree in batch]

    def after(self, state: Vector | None, token: int) -> Vector:
        before = self._start if state is None else state
        h: Vector = np.tanh(self._mix @ before + self._embed[token])
        return h

    def logits(self, state: Vector) -> Vector:
        out: Vector = self._head @ state
        return out


class ToySession:
    """Owns one state a committed token but the root (which is computed with the tree), and the states of the
    tree last forwarded: the root's first, then the nodes'."""

    def __init__(self, target: ToyTarget) -> None:
        self._target = target
        self._states: list[Vector] = []
        self._grown: list[Vector] = []
        self._tree = EMPTY
        self.tokens: list[int] = []

    def prefill(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise UsageError("the prompt is empty: give at least one token")
        # Everything computed so far, as one path: committed tokens, root, the drafted nodes that match.
        cached, states = self.tokens[: len(self._states)], list(self._states)
        if self._grown and list(tokens[: len(self.tokens)]) == self.tokens:
            cached, states = list(self.tokens), [*states, self._grown[0]]
            node: int | None = ROOT
            while len(cached) < len(tokens) and node is not None:
                node = self._tree.child(node, tokens[len(cached)])
                if node is not None:
                    cached.append(self._tree.tokens[node])
                    states.append(self._grown[node + 1])
        shared = 0
        while shared < min(len(cached), len(tokens) - 1) and cached[shared] == tokens[shared]:
            shared += 1
        states = states[:shared]
        for token in tokens[shared:-1]:
            states.append(self._target.after(states[-1] if states else None, token))
        self._states, self.tokens = states, list(tokens)
        self._tree, self._grown = EMPTY, []

    def grow(self, tree: DraftTree) -> tuple[list[Vector], int]:
        """States of the root and every node; those before the returned row were computed earlier."""
        if not self.tokens:
            raise ContractError("forward before prefill: the session has no root")
        if not (self._grown and tree.starts_with(self._tree)):
            self._grown = []
        first = len(self._grown)
        if first == 0:
            below = self._states[-1] if self._states else None
            self._grown.append(self._target.after(below, self.tokens[-1]))
        for i in range(len(self._grown) - 1, len(tree)):
            self._grown.append(self._target.after(self._grown[tree.parents[i] + 1], tree.tokens[i]))
        self._tree = tree
        return list(self._grown), first

    def keep(self, path: Sequence[int], root: int) -> None:
        if not self._grown:
            raise ContractError("keep before forward: there is nothing to commit")
        self._tree.check_path(path)
        self._states += [self._grown[0], *(self._grown[node + 1] for node in path)]
        self.tokens += [*(self._tree.tokens[node] for node in path), root]
        self._tree, self._grown = EMPTY, []

    def close(self) -> None:
        self._states, self._grown, self.tokens = [], [], []


class ToyForward:
    def __init__(self, target: ToyTarget, states: Sequence[Vector], first: int, want: Want) -> None:
        self._target, self._states, self._first = target, states, first
        top = None
        if want.top_k:
            top = np.stack([top_k(self.logits(row), want.top_k) for row in range(first, len(states))])
        self.features = Features(top_k=top)

    def argmax(self, row: int) -> int:
        return argmax(self.logits(row))

    def logits(self, row: int) -> Vector:
        if row < self._first:
            raise ContractError(f"row {row} was computed by an earlier forward")
        return self._target.logits(self._states[row])
