"""What prune takes out of a draft and what it must leave in; test_grammar.py proves that exact."""

from __future__ import annotations

import numpy as np
import pytest

from automaton import Automaton
from paceline.speculative.grammar_pruning import prune
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain

Q = np.array([0.25, 0.25, 0.25, 0.25])


def test_a_draft_that_is_allowed_throughout_is_left_as_it_is() -> None:
    tree = chain([0, 1, 2, 3, 0], "x")
    assert prune(tree, Automaton()) is tree
    assert prune(EMPTY, Automaton()) is EMPTY


def test_each_branch_is_judged_by_its_own_prefix() -> None:
    tree = DraftTree(
        tokens=(0, 1, 2, 1, 3, 0),
        parents=(ROOT, ROOT, ROOT, 0, 1, 4),
        score=(0.9, 0.8, 0.7, 0.6, 0.5, 0.4),
        source=("x",) * 6,
    )
    pruned = prune(tree, Automaton())
    assert (pruned.tokens, pruned.parents) == ((0, 1, 1, 3, 0), (ROOT, ROOT, 0, 1, 3))
    assert pruned.score == (0.9, 0.8, 0.6, 0.5, 0.4)
    assert pruned.reach_probability == pytest.approx((0.9, 0.8, 0.54, 0.4, 0.16))


def test_a_sampled_token_that_is_forbidden_stays_as_a_leaf() -> None:
    tree = DraftTree((2, 0, 1, 1), (ROOT, 0, ROOT, 2), (0.5,) * 4, ("x",) * 4, q=(Q, Q, Q, Q))
    pruned = prune(tree, Automaton())
    assert (pruned.tokens, pruned.parents) == ((2, 1, 1), (ROOT, ROOT, 1))
    assert pruned.q is not None
    assert all(q is Q for q in pruned.q)


def test_among_sampled_siblings_a_fixed_one_that_is_forbidden_goes() -> None:
    tree = DraftTree((2, 3), (ROOT, ROOT), (0.5, 0.5), ("x", "x"), q=(None, Q))
    pruned = prune(tree, Automaton())
    assert (pruned.tokens, pruned.q) == ((3,), (Q,))


def test_probes_are_never_emitted_and_stay_below_what_stays() -> None:
    tree = DraftTree(
        tokens=(3, 3, 0, 0, 2),
        parents=(ROOT, 0, ROOT, 2, 3),
        score=(0.5,) * 5,
        source=("x",) * 5,
        probe=frozenset({0, 1, 4}),
    )
    pruned = prune(tree, Automaton())
    assert (pruned.tokens, pruned.parents) == ((3, 3, 0), (ROOT, 0, ROOT))
    assert pruned.probe == {0, 1}
