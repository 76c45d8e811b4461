"""Verification: which drafted tokens are accepted, and which token follows them.

`p` is the distribution plain sampling draws from at a node. `q` is the distribution the drafted token was
drawn from, given the siblings drawn before it. All rules are lossless. As `q` is recorded per node, three
walks cover the field's rules:

    match       deterministic drafts: draw t ~ p, descend if t is among the children. Optimal for a fixed set.
    recursive   top-down: accept child x with probability min(1, p(x)/q(x)), otherwise try its sibling with
                p <- norm(relu(p - q)). On a chain this is the token rule (Leviathan et al., arXiv:2211.17192,
                Algorithm 1); with siblings drawn without replacement it is recursive rejection (Chen et al.,
                Sequoia, arXiv:2402.12374), with independent ones SpecInfer (arXiv:2305.09781).
    traversal   bottom-up: whole paths are tried first (Weng et al., arXiv:2505.12398). On a chain this is the
                block rule (Sun et al., arXiv:2403.10444).

A deterministic child among sampled ones counts as drawn from a one-hot q.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.speculative.errors import ContractError, LogitsError, UsageError
from paceline.speculative.interfaces import ForwardOutput, Grammar
from paceline.speculative.sampling import (
    Mask,
    Probabilities,
    Rng,
    Sampling,
    TokenDistribution,
    adjust_logits,
    argmax,
)
from paceline.speculative.tree import ROOT, DraftTree

ROUNDING_TOLERANCE = 1e-6  # of the sum of a q
# In larger vocabularies without top-k, traversal costs more than it gains: at 32k tokens and 7 drafted tokens
# 6 ms a step, against 1 ms (benchmarks/verification.py).
MAX_DENSE_VOCAB = 16_384


@dataclass(frozen=True, slots=True)
class Verdict:
    """The accepted path (nodes from the root down), and the correction or bonus token after it."""

    path: tuple[int, ...]
    token: int


class TargetRows:
    """The target's distributions at the nodes of a tree, computed only where a walk needs them."""

    def __init__(
        self,
        tree: DraftTree,
        out: ForwardOutput,
        sampling: Sampling,
        history: Sequence[int],
        grammar: Grammar | None,
    ) -> None:
        self.tree, self.sampling = tree, sampling
        self.n_vocab = len(out.logits(0)) if tree.q is not None else 0
        self._out, self._grammar, self._place = out, grammar, len(history)
        # Only penalties read the committed tokens, and only this far back.
        window = max(sampling.repeat_last_n, sampling.dry_penalty_last_n)
        self._history = list(history[-window:]) if sampling.penalised else []
        self._plain = not sampling.penalised and grammar is None

    def _prefix(self, node: int) -> tuple[list[int], Mask | None]:
        """Return the token history of the node's row, and the grammar's mask after it."""
        path = [] if self._plain else self.tree.path_tokens(node)
        mask = self._grammar.mask(path) if self._grammar is not None else None
        return [*self._history, *path], mask

    def place(self, node: int) -> int:
        """Return the position in the text, prompt included, of the token after `node`."""
        return self._place + (0 if node == ROOT else self.tree.depths()[node])

    def p(self, node: int) -> TokenDistribution:
        """Return the distribution of the token after `node`."""
        try:
            return self._out.target_distribution(node + 1, self.sampling, *self._prefix(node))
        except LogitsError as error:
            raise self._placed(error, node) from error

    def draw(self, node: int, rng: Rng) -> int:
        """Draw t ~ p by its position. Greedy decoding needs only the backend's argmax or edited logits."""
        if not self.sampling.greedy:
            return rng.draw_at(self.place(node), self.p(node))
        try:
            if self._plain and not self.sampling.edits_logits:
                return self._out.argmax(node + 1)
            return argmax(adjust_logits(self._out.logits(node + 1), self.sampling, *self._prefix(node)))
        except LogitsError as error:
            raise self._placed(error, node) from error

    def _placed(self, error: LogitsError, node: int) -> LogitsError:
        return LogitsError(f"{error} at position {self.place(node)}")


def verify(
    tree: DraftTree,
    out: ForwardOutput,
    sampling: Sampling,
    history: Sequence[int],
    rng: Rng,
    rule: str = "auto",
    grammar: Grammar | None = None,
) -> Verdict:
    """Return the accepted path and the token after it.
    history: the committed tokens, root included.
    rule: a name in VERIFICATION_RULES, or "auto": traversal, which accepts most but reads every row, or
        recursive where rows are long (a large vocabulary without top-k).
    Raises ContractError for a q that cannot have produced its token."""
    rows = TargetRows(tree, out, sampling, history, grammar)
    # Against a one-hot p every rule accepts exactly the argmax: q plays no part.
    if tree.q is None or sampling.greedy:
        return verify_match(rows, rng)
    if rule == "auto":
        rule = "traversal" if sampling.top_k > 0 or rows.n_vocab <= MAX_DENSE_VOCAB else "recursive"
    return VERIFICATION_RULES[rule](rows, rng)


def verify_match(rows: TargetRows, rng: Rng) -> Verdict:
    """Draw every token by its position alone, so that a seed gives the same text with and without drafts."""
    path: list[int] = []
    node = ROOT
    while True:
        token = rows.draw(node, rng)
        child = rows.tree.child(node, token)
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        node = child


def verify_recursive(rows: TargetRows, rng: Rng) -> Verdict:
    """Walk down from the root, trying the children of each node in turn."""
    tree, path, node = rows.tree, list[int](), ROOT
    while True:
        p = rows.p(node)
        for child in tree.children(node):
            q = draft_distribution(tree, child, rows.n_vocab)
            if rng.accept(acceptance_probability(p, q, tree.tokens[child])):
                break
            p, _ = residual_distribution(p, q, tree.tokens[child])
        else:
            return Verdict(tuple(path), p.draw(rng))
        path.append(child)
        node = child


@dataclass(slots=True)
class _PathNode:
    """A node on the current path."""

    node: int
    q: Probabilities | None  # the distribution the node was drawn from
    acc: float  # the probability that the path ends here or below, given the rejections so far
    waiting: list[int]  # children not rejected yet
    p: TokenDistribution | None = None  # the distribution of the next token, computed when first needed


def verify_traversal(rows: TargetRows, rng: Rng) -> Verdict:
    """Try whole paths first, from the leaves up."""
    tree = rows.tree
    stack = [_PathNode(ROOT, None, 1.0, list(tree.children(ROOT)))]
    while True:
        top = stack[-1]
        if top.waiting and top.p is None:
            try:
                top.p = rows.p(top.node)
            except (UsageError, LogitsError):  # no token can follow: an error only if the path ends here
                top.waiting = []
        if top.waiting and top.p is not None:
            child = top.waiting[0]
            q, x = draft_distribution(tree, child, rows.n_vocab), tree.tokens[child]
            acc = acceptance_probability(top.p, q, x, top.acc)
            if acc > 0.0:
                stack.append(_PathNode(child, q, acc, list(tree.children(child))))
            else:  # nothing below it can be accepted either
                _reject_first(top, top.p, q, x)
            continue
        if len(stack) == 1 or rng.accept(top.acc):
            p = rows.p(top.node) if top.p is None else top.p
            return Verdict(tuple(stop.node for stop in stack[1:]), p.draw(rng))
        stack.pop()
        parent = stack[-1]
        assert parent.p is not None  # `top` was tried with it
        _reject_first(parent, parent.p, top.q, tree.tokens[top.node])


def _reject_first(stop: _PathNode, p: TokenDistribution, q: Probabilities | None, x: int) -> None:
    """Reject the first waiting child, x ~ q, with its subtree; the parent keeps the residual distribution."""
    stop.waiting.pop(0)
    stop.p, mass = residual_distribution(p, q, x, stop.acc)
    if mass + 1.0 - stop.acc > 0.0:  # else rounding alone made a sure child fail
        stop.acc = mass / (mass + 1.0 - stop.acc)


# token and block are defined for chains only, recursive and traversal for any tree.
VERIFICATION_RULES: dict[str, Callable[[TargetRows, Rng], Verdict]] = {
    "token": verify_recursive,
    "block": verify_traversal,
    "recursive": verify_recursive,
    "traversal": verify_traversal,
}


def draft_distribution(tree: DraftTree, node: int, size: int) -> Probabilities | None:
    """Return the q [size] of a node, None if it is one-hot.
    A shorter q is padded with zeros, as the target's vocabulary may be larger than the draft's.
    Raises ContractError for a q that cannot have produced the token."""
    q = tree.q[node] if tree.q is not None else None
    if q is None:
        return None
    if len(q) > size:
        raise ContractError(f"q covers {len(q):,} tokens, the target has {size:,}")
    x = tree.tokens[node]
    if not (x < len(q) and q[x] > 0.0 and abs(q.sum() - 1.0) < ROUNDING_TOLERANCE):  # also false for NaN
        raise ContractError(f"node {node}: token {x} cannot have been drawn from its q")
    return q if len(q) == size else np.concatenate([q, np.zeros(size - len(q))])


def acceptance_probability(
    p: TokenDistribution, q: Probabilities | None, x: int, scale: float = 1.0
) -> float:
    """Return min(1, scale p(x)/q(x))."""
    return float(min(1.0, scale * p.of(x) / (1.0 if q is None else q[x])))


def residual_distribution(
    p: TokenDistribution, q: Probabilities | None, x: int, scale: float = 1.0
) -> tuple[TokenDistribution, float]:
    """Return norm(relu(scale p - q)) and its mass before normalisation; p itself if the mass is 0."""
    rest = scale * p.p
    if q is None:
        rest[p.ids == x] = 0.0
    else:
        rest -= q[p.ids]
        np.maximum(rest, 0.0, out=rest)
    mass = rest.sum()
    return TokenDistribution(p.ids, rest / mass) if mass > 0.0 else p, float(mass)
