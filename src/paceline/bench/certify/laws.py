"""Outcome counts after one context, beside the distributions that an exact system obeys there.

Every emitted token has the target's distribution p, whatever is drafted. If the first draft was cut to depth
1 and its first token x sampled from q, any exact rule obeys more: "x drafted and accepted" has probability
min(p, q)(x), "x drafted and rejected" q(x) less that, and "y emitted, not the first draft" p(y) less that.
Tokens are therefore counted together with whether the draft was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from paceline.bench.certify.frequencies import RARE, OutcomeTable
from paceline.bench.certify.held import Context, SamplingSetup
from paceline.speculative.sampling import Probabilities
from paceline.speculative.stats import Step
from paceline.speculative.tree import ROOT, DraftTree

# The drafted token and its acceptance; the first token and whether it is the first draft; the second token
# after each first one.
TESTS = ("draft", "first_token", "first_pair")
MIN_EXPECTED_DRAWS = 2 * RARE  # a table with fewer shows nothing
UNKNOWN_IF_DRAFTED = -1  # for a first token whose draft probability is unknown; otherwise 0 or 1


class ContextCounts:
    """The tables of one context. planned: expected number of shallow and of deep runs."""

    def __init__(self, loop: SamplingSetup, context: Context, planned: float) -> None:
        self._loop, self._context, self._planned = loop, context, planned
        self._p = loop.target_distribution(context)
        self._tables: dict[str, dict[tuple[int, bytes], OutcomeTable]] = {test: {} for test in TESTS}
        self._accepted: dict[bytes, Probabilities] = {}  # by q: each token's chance to be an accepted draft

    def evidence(self, test: str) -> float:
        return sum(table.evidence for table in self.tables(test))

    def tables(self, test: str) -> list[OutcomeTable]:
        return list(self._tables[test].values())

    def add(self, step: Step, second: int, shallow: bool) -> None:
        """Count the first step of a run and the text's second token. shallow: the draft was cut to depth
        1."""
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
        likely = (
            self._accepted[key][first] if accepted_draft == 1 else self._p[first] - self._accepted[key][first]
        )
        if self._planned * likely >= MIN_EXPECTED_DRAWS:
            pair = (first, b"%d" % accepted_draft)
            law = (
                None
                if pair in self._tables["first_pair"]
                else self._loop.target_distribution(self._context, [first])
            )
            self._table("first_pair", pair, law, likely).add(second)

    def _table(
        self, test: str, key: tuple[int, bytes], law: Probabilities | None, share: float = 1.0
    ) -> OutcomeTable:
        """Return a table, created from `law` if it is new."""
        table = self._tables[test].get(key)
        if table is None:
            assert law is not None
            table = self._tables[test][key] = OutcomeTable(law, self._planned * share)
        return table

    def _siblings(self, tree: DraftTree, children: Sequence[int]) -> None:
        """Count siblings: each after the first is sampled from its own q, whatever happens to the earlier
        ones."""
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


def either(law: Probabilities, accepted: Probabilities) -> Probabilities:
    """Return the distribution over 2 n outcomes: each token as an accepted draft, then otherwise."""
    return np.concatenate([accepted, law - accepted])


def padded(q: Probabilities, n: int) -> Probabilities:
    return np.concatenate([q, np.zeros(n - len(q))])
