"""What is verified of what was proposed: the optimum, against everything else that could be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groves import Choice, closed, fits, kept, trees
from paceline.speculative.interfaces import Budget
from paceline.speculative.policy.acceptance_model import AcceptanceModel
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.tree import DraftTree
from stage import asking, decider

WIDE = 99
# No rows cost more than they do one by one.
curves = st.lists(st.floats(0.5, 4.0), min_size=16, max_size=16).map(
    lambda s: {n: min(seconds, n * s[0]) for n, seconds in enumerate(s, 1)}
)
groves = st.lists(st.tuples(trees(3), st.booleans()), min_size=1, max_size=3)


def drawn(tree: DraftTree) -> DraftTree:
    """The same, sampled."""
    q = np.full(len(tree), 1 / max(1, len(tree)))
    return DraftTree(tree.tokens, tree.parents, tree.score, tree.source, q=(q,) * len(tree))


def choices(drafts: Sequence[DraftTree], budgets: Sequence[Budget]) -> Iterator[tuple[Choice, ...]]:
    """All that could be verified: of what was drawn everything, of the rest whatever fits."""
    each = []
    for draft, budget in zip(drafts, budgets, strict=True):
        every = frozenset(range(len(draft)))
        each.append([every] if draft.q is not None else [c for c in closed(draft) if fits(draft, c, budget)])
    return product(*each)


def value(
    rate: GoodputPolicy, curve: dict[int, float], drafts: Sequence[DraftTree], some: Sequence[Choice]
) -> float:
    """1 a request, and the reach probabilities, less the tokens that the pass takes."""
    rows = len(drafts) + sum(map(len, some))
    gained = [
        AcceptanceModel().reach_probabilities({}, draft)[n]
        for draft, nodes in zip(drafts, some, strict=True)
        for n in nodes
    ]
    return len(drafts) + sum(gained) - rate.rate * curve[rows]


@given(
    curve=curves, grove=groves, depth=st.integers(1, 4), nodes=st.integers(1, 4), speed=st.floats(0.1, 3.0)
)
@settings(deadline=None)
def test_nothing_else_that_fits_is_worth_more(
    curve: dict[int, float], grove: list[tuple[DraftTree, bool]], depth: int, nodes: int, speed: float
) -> None:
    """Over all sets of nodes of all requests that share the pass, where width is ample. What was drawn is
    verified whole, and takes its rows from the others."""
    drafts = [drawn(tree) if sampled and len(tree) else tree for tree, sampled in grove]
    requests = asking(len(drafts))
    rate = decider(curve, depth=4, nodes=4, width=WIDE)
    budgets = [budget.capped(depth, nodes, WIDE) for budget in rate.budget(requests)]
    rate._prices.rate = speed
    chosen = rate.select(requests, budgets, drafts)
    best = max(value(rate, curve, drafts, some) for some in choices(drafts, budgets))
    took = [kept(tree, draft) for tree, draft in zip(chosen, drafts, strict=True)]
    assert value(rate, curve, drafts, took) == pytest.approx(best, abs=1e-9)
    for tree, draft in zip(chosen, drafts, strict=True):
        assert draft.q is None or tree is draft
