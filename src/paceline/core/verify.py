"""Acceptance: which drafted tokens are kept, and which token follows them.

`p` is what plain sampling would draw from at a node with that node's own prefix; `q` what the drafted token
was really drawn from. No knob here trades exactness for speed, and a bad draft only costs time.

    walk        node by node from the root; each node's rule is chosen by how its children were drafted
    match       deterministic children: draw t ~ p, descend if t is among them      (optimal for a fixed set)
    token_rule  one sampled child x ~ q: accept with min(1, p(x)/q(x)), otherwise draw from
                norm(relu(p - q))       (Leviathan et al., arXiv:2211.17192, Algorithm 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.errors import ContractError
from paceline.core.ports import Forward
from paceline.core.sampling import Rng, Sampling, adjust, argmax, probabilities
from paceline.core.tree import ROOT, DraftTree, Probabilities


@dataclass(frozen=True, slots=True)
class Verdict:
    """path: accepted nodes from the root down. token: the one drawn after them (correction or bonus)."""

    path: tuple[int, ...]
    token: int


class Rows:
    """Target rows as distributions, computed only where the walk comes by."""

    def __init__(self, tree: DraftTree, out: Forward, sampling: Sampling, history: Sequence[int]) -> None:
        self._tree, self._out, self._sampling = tree, out, sampling
        # Only penalties read the prefix, and only this far back.
        self._history = list(history[-sampling.repeat_last_n :]) if sampling.penalised else []

    def enter(self, node: int) -> None:
        """The walk descends: the rows below see `node` in their prefix."""
        if self._sampling.penalised:
            self._history.append(self._tree.tokens[node])

    def p(self, node: int) -> Probabilities:
        return probabilities(self._out.logits(node + 1), self._sampling, self._history)

    def draw(self, node: int, rng: Rng) -> int:
        """t ~ p. Greedy needs no distribution, and no row leaves the engine unless it must be edited."""
        if not self._sampling.greedy:
            return rng.draw(self.p(node))
        if not self._sampling.edits_logits:
            return self._out.argmax(node + 1)
        return argmax(adjust(self._out.logits(node + 1), self._sampling, self._history))


def verify(tree: DraftTree, out: Forward, sampling: Sampling, history: Sequence[int], rng: Rng) -> Verdict:
    """Pure but for the numbers taken from `rng`. `history` is the committed sequence, root included."""
    rows = Rows(tree, out, sampling, history)
    path: list[int] = []
    node = ROOT
    while True:
        children = tree.children(node)
        # Against a one-hot p the token rule accepts exactly the argmax: q plays no part.
        if tree.q is None or sampling.greedy or all(tree.q[c] is None for c in children):
            child, token = match(tree, node, rows, rng)
        else:
            child, token = token_rule(tree, node, children, rows, rng)
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        rows.enter(child)
        node = child


def match(tree: DraftTree, node: int, rows: Rows, rng: Rng) -> tuple[int | None, int]:
    token = rows.draw(node, rng)
    return tree.child(node, token), token


def token_rule(
    tree: DraftTree, node: int, children: list[int], rows: Rows, rng: Rng
) -> tuple[int | None, int]:
    if len(children) != 1:
        raise ContractError(f"node {node}: sampled siblings need a tree rule; draft a chain")
    child = children[0]
    x = tree.tokens[child]
    q = tree.q[child] if tree.q is not None else None
    assert q is not None  # the caller's condition
    p = rows.p(node)
    q = fit(q, len(p))
    if not (q[x] > 0.0 and abs(q.sum() - 1.0) < 1e-6):  # NaN is neither
        raise ContractError(f"node {child}: token {x} cannot have been drawn from its q")
    if rng.accept(1.0 if p[x] >= q[x] else p[x] / q[x]):
        return child, x
    return None, rng.draw(residual(p, q))


def residual(p: Probabilities, q: Probabilities) -> Probabilities:
    """norm(relu(p - q)); p itself where nothing is left, which only rounding can cause."""
    rest = np.maximum(p - q, 0.0)
    mass = rest.sum()
    return rest / mass if mass > 0.0 else p


def fit(q: Probabilities, size: int) -> Probabilities:
    """Pad with zeros: the target's vocabulary may end in tokens the draft does not have."""
    if len(q) == size:
        return q
    if len(q) > size:
        raise ContractError(f"q covers {len(q):,} tokens, the target has {size:,}")
    return np.concatenate([q, np.zeros(size - len(q))])
