"""The verified part of drafts is optimal among all possible choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groves import Choice, budgets, closed, fits, kept, trees
from paceline.speculative.interfaces import Budget
from paceline.speculative.policy.acceptance import AcceptanceModel
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.policy.interface import FixedPolicy, truncate_tree
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from stage import asking, decider

WIDE = 99
# No rows cost more than they do one by one, and none less than a single row.
curves = st.lists(st.floats(0.5, 4.0), min_size=16, max_size=16).map(
    lambda s: {n: max(s[0], min(seconds, n * s[0])) for n, seconds in enumerate(s, 1)}
)
groves = st.lists(st.tuples(trees(3), st.booleans()), min_size=1, max_size=3)


def drawn(tree: DraftTree) -> DraftTree:
    """Return the same tree as a sampled one."""
    q = np.full(len(tree), 1 / max(1, len(tree)))
    return DraftTree(tree.tokens, tree.parents, tree.score, tree.source, q=(q,) * len(tree))


def choices(drafts: Sequence[DraftTree], budgets: Sequence[Budget]) -> Iterator[tuple[Choice, ...]]:
    """Return all choices: sampled drafts whole, of others whatever fits."""
    each = []
    for draft, budget in zip(drafts, budgets, strict=True):
        every = frozenset(range(len(draft)))
        each.append([every] if draft.q is not None else [c for c in closed(draft) if fits(draft, c, budget)])
    return product(*each)


def value(
    rate: GoodputPolicy, curve: dict[int, float], drafts: Sequence[DraftTree], some: Sequence[Choice]
) -> float:
    """Return the expected tokens minus the price of the pass."""
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
    """Over all sets of nodes of all requests in the pass, with ample width."""
    drafts = [drawn(tree) if sampled and len(tree) else tree for tree, sampled in grove]
    requests = asking(len(drafts))
    rate = decider(curve, depth=4, nodes=4, width=WIDE)
    budgets = [budget.limited_to(depth, nodes, WIDE) for budget in rate.budget(requests)]
    rate._prices.rate = speed
    chosen = rate.select(requests, budgets, drafts)
    best = max(value(rate, curve, drafts, some) for some in choices(drafts, budgets))
    took = [kept(tree, draft) for tree, draft in zip(chosen, drafts, strict=True)]
    assert value(rate, curve, drafts, took) == pytest.approx(best, abs=1e-9)
    for tree, draft in zip(chosen, drafts, strict=True):
        assert draft.q is None or tree is draft


@given(tree=trees(), budget=budgets)
def test_the_budget_is_kept_and_no_node_without_its_parent(tree: DraftTree, budget: Budget) -> None:
    nodes = kept(truncate_tree(tree, budget), tree)
    assert nodes in set(closed(tree))
    assert fits(tree, nodes, budget)


@given(tree=trees(), depth=st.integers(0, 5), nodes=st.integers(0, 7))
def test_where_width_is_ample_nothing_else_that_fits_is_worth_more(
    tree: DraftTree, depth: int, nodes: int
) -> None:
    budget = Budget(depth, nodes, WIDE)
    best = max(
        sum(tree.reach_probability[node] for node in some)
        for some in closed(tree)
        if fits(tree, some, budget)
    )
    assert sum(truncate_tree(tree, budget).reach_probability) == pytest.approx(best, abs=1e-12)


@given(tree=trees(), budget=budgets)
def test_no_node_that_is_left_out_would_still_have_fitted(tree: DraftTree, budget: Budget) -> None:
    """The choice is greedy, likeliest first. A later, less likely node may make room for one left out."""
    nodes = kept(truncate_tree(tree, budget), tree)
    for node in range(len(tree)):
        before = frozenset(
            n for n in nodes if (-tree.reach_probability[n], n) < (-tree.reach_probability[node], node)
        )
        if node not in nodes and (tree.parents[node] == ROOT or tree.parents[node] in before):
            assert not fits(tree, before | {node}, budget)


def test_what_several_have_said_together_is_cut_to_its_budget_and_a_single_draft_is_not() -> None:
    """The loop reports a single drafter that exceeds its budget."""
    said = ((("a", 0.9),), (("b", 0.5),), (("a", 0.8),))
    union = DraftTree((1, 2, 3), (ROOT, ROOT, 0), (0.9, 0.5, 0.8), ("a", "b", "a"), votes=said)
    long = chain([1, 2, 3], "a")
    trees_ = FixedPolicy(Budget(1, 1)).select(
        [], [Budget(3, 2), Budget(1, 1), Budget(1, 1)], [union, long, EMPTY]
    )
    assert trees_[0].tokens == (1, 3)
    assert trees_[0].votes == (said[0], said[2])
    assert trees_[1] is long
    assert trees_[2] is EMPTY
