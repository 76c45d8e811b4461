"""What fits of a draft: against every set of nodes that could be kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groves import budgets, closed, fits, kept, trees
from paceline.speculative.interfaces import Budget
from paceline.speculative.policy.interface import FixedPolicy, fitted
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain

WIDE = 99


@given(tree=trees(), budget=budgets)
def test_the_budget_is_kept_and_no_node_without_its_parent(tree: DraftTree, budget: Budget) -> None:
    nodes = kept(fitted(tree, budget), tree)
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
    assert sum(fitted(tree, budget).reach_probability) == pytest.approx(best, abs=1e-12)


@given(tree=trees(), budget=budgets)
def test_no_node_that_is_left_out_would_still_have_fitted(tree: DraftTree, budget: Budget) -> None:
    """It is greedy: the likeliest first, and whatever there is room for then. A node that was left out may
    fit once what was less likely has made its parent no leaf."""
    nodes = kept(fitted(tree, budget), tree)
    for node in range(len(tree)):
        before = frozenset(
            n for n in nodes if (-tree.reach_probability[n], n) < (-tree.reach_probability[node], node)
        )
        if node not in nodes and (tree.parents[node] == ROOT or tree.parents[node] in before):
            assert not fits(tree, before | {node}, budget)


def test_what_several_have_said_together_is_cut_to_its_budget_and_a_single_draft_is_not() -> None:
    """A drafter that exceeds its budget breaks its contract: that is for the loop to notice."""
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
