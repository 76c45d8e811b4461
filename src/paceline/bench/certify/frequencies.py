"""A sequential test of counts against a distribution, which may be evaluated after every draw.

The evidence of a table is a likelihood ratio: its counts under Dirichlet-distributed probabilities around the
stated ones, over the stated ones. Several concentrations are averaged. Under the stated distribution the
evidence has mean 1 after every draw, so that it ever reaches 1 / level with probability at most `level`.
(Ville's inequality; Ramdas et al., "Game-theoretic statistics and safe anytime-valid inference",
arXiv:2210.01948.) Evidence of independent draws multiplies, so logarithms add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.bench.certify.held import Context, SamplingSetup
from paceline.speculative.stats import Step
from paceline.speculative.tree import ROOT, DraftTree

Vector = NDArray[np.float64]
RARE = 5.0  # outcomes with fewer expected counts are pooled
IMPOSSIBLE = 1e-12  # probabilities up to this count as zero
# Dirichlet concentrations: each allows the deviation that so many draws would produce.
CLOSENESS = (30.0, 300.0, 3000.0)
# The drafted token and its acceptance; the first token and whether it is the first draft; the second token
# after each first one.
TESTS = ("draft", "first_token", "first_pair")
MIN_EXPECTED_DRAWS = 2 * RARE  # a table with fewer shows nothing
log_gamma = np.vectorize(math.lgamma, otypes=[float])
UNKNOWN_IF_DRAFTED = -1  # for a first token whose draft probability is unknown; otherwise 0 or 1


class OutcomeTable:
    """Counts of the outcomes of a stated distribution.
    planned: expected number of draws, which decides in advance which outcomes are pooled as rare."""

    def __init__(self, law: Vector, planned: float) -> None:
        impossible = law <= IMPOSSIBLE
        often = ~impossible & (law * planned >= RARE)
        rare = ~impossible & ~often
        self.p: Vector = np.array([*law[often], *([law[rare].sum()] if rare.any() else []), 0.0])
        self.p /= self.p.sum()
        self.counts: NDArray[np.int64] = np.zeros(len(self.p), np.int64)
        self._cells = np.where(impossible, len(self.p) - 1, often.sum())
        self._cells[often] = np.arange(often.sum())

    def add(self, outcome: int) -> None:
        self.counts[self._cells[outcome]] += 1

    @property
    def evidence(self) -> float:
        """Logarithm of the evidence; infinite after an impossible outcome."""
        return float(evidence(self.counts, self.p))


def evidence(counts: NDArray[np.int64], p: Vector) -> Any:
    """Return the logarithm of the evidence of `counts` [..., outcomes]; the last outcome is impossible."""
    drawn, stated = counts[..., :-1], p[:-1]
    n = drawn.sum(-1)
    bets = [
        math.lgamma(c) - log_gamma(c + n) + (log_gamma(c * stated + drawn) - log_gamma(c * stated)).sum(-1)
        for c in CLOSENESS
    ]
    ratio = np.logaddexp.reduce(bets, axis=0) - math.log(len(CLOSENESS)) - drawn @ np.log(stated)
    return np.where(counts[..., -1] > 0, np.inf, ratio)


def p_value(evidence: float) -> float:
    """Return the evidence as an anytime-valid p-value."""
    return math.exp(-evidence) if evidence > 0.0 else 1.0


class ContextCounts:
    """Outcome counts after one context, beside the distributions that an exact system obeys there.
    Every emitted token has the target's distribution p, whatever is drafted. If the first draft was cut to
    depth 1 and its first token x sampled from q, any exact rule obeys more: "x drafted and accepted" has
    probability min(p, q)(x), "x drafted and rejected" q(x) less that, and "y emitted, not the first draft"
    p(y) less that. Tokens are therefore counted together with whether the draft was accepted.
    planned: expected number of shallow and of deep runs."""

    def __init__(self, loop: SamplingSetup, context: Context, planned: float) -> None:
        self._loop, self._context, self._planned = loop, context, planned
        self._p = loop.target_distribution(context)
        self._tables: dict[str, dict[tuple[int, bytes], OutcomeTable]] = {test: {} for test in TESTS}
        self._accepted: dict[bytes, Vector] = {}  # by q: each token's chance to be an accepted draft
        self._after: dict[int, Vector] = {}  # by first token

    def evidence(self, test: str) -> float:
        return sum(table.evidence for table in self.tables(test))

    def tables(self, test: str) -> list[OutcomeTable]:
        return list(self._tables[test].values())

    def add(self, step: Step, second: int, shallow: bool) -> None:
        """Count a run's first step and the text's second token. shallow: the draft was cut to depth 1."""
        tree, first = step.tree, step.tokens[0]
        children = tree.children(ROOT)
        q = None if tree.q is None or not children else tree.q[children[0]]
        accepted = bool(step.path) and step.path[0] == children[0]
        n, key, accepted_draft = len(self._p), b"", UNKNOWN_IF_DRAFTED
        if q is not None and shallow:
            key, accepted_draft = q.tobytes(), int(accepted)
            if key not in self._accepted:
                self._accepted[key] = np.minimum(self._p, padded(q, n))
            drawn = self._table("draft", (0, key), either(padded(q, n), self._accepted[key]))
            drawn.add(tree.tokens[children[0]] + n * (not accepted))
            self._siblings(tree, children)
        elif key not in self._accepted:
            self._accepted[key] = np.zeros(n)
        # After a rejection of deterministic drafts, the next token is none of them.
        wrong = tree.q is None and not step.path and first in [tree.tokens[child] for child in children]
        firsts = self._table("first_token", (0, key), either(self._p, self._accepted[key]))
        firsts.add(first + n * (not wrong and accepted_draft != 1))
        taken = self._accepted[key][first]
        likely = taken if accepted_draft == 1 else self._p[first] - taken
        if self._planned * likely >= MIN_EXPECTED_DRAWS:
            law = self._law_after(first)
            self._table("first_pair", (first, b"%d" % accepted_draft), law, likely).add(second)

    def _law_after(self, first: int) -> Vector:
        if first not in self._after:
            self._after[first] = self._loop.target_distribution(self._context, [first])
        return self._after[first]

    def _table(self, test: str, key: tuple[int, bytes], law: Vector, share: float = 1.0) -> OutcomeTable:
        """Return a table, created from `law` if it is new."""
        if key not in self._tables[test]:
            self._tables[test][key] = OutcomeTable(law, self._planned * share)
        return self._tables[test][key]

    def _siblings(self, tree: DraftTree, children: Sequence[int]) -> None:
        """Count siblings: each after the first is drawn from its own q, whatever happens to earlier ones."""
        assert tree.q is not None  # the caller's condition
        share = 1.0
        for place, (before, child) in enumerate(pairwise(children), 1):
            q_before, q = tree.q[before], tree.q[child]
            if q_before is None or q is None:
                return
            share *= float(q_before[tree.tokens[before]])
            if self._planned * share < MIN_EXPECTED_DRAWS:
                return
            self._table("draft", (place, q.tobytes()), q, share).add(tree.tokens[child])


def either(law: Vector, accepted: Vector) -> Vector:
    """Return the distribution over 2 n outcomes: each token as an accepted draft, then otherwise."""
    return np.concatenate([accepted, law - accepted])


def padded(q: Vector, n: int) -> Vector:
    return np.concatenate([q, np.zeros(n - len(q))])
