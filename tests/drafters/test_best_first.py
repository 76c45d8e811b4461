"""The likeliest path goes on next."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters.parts import best_first
from paceline.speculative.interfaces import Budget
from paceline.speculative.tree import ROOT


def halves(state: str, depth: int) -> Iterator[tuple[int, float, str]]:
    """After any path token 1 with 0.6 and token 2 with 0.3."""
    assert depth == len(state)
    yield 1, 0.6, state + "1"
    yield 2, 0.3, state + "2"


def test_branches_are_as_many_as_the_width_and_paths_as_long_as_the_depth() -> None:
    tree = best_first(Budget(3, 99, width=2), "half", "", halves)
    assert len(tree) - len(set(tree.parents) - {ROOT}) == 2
    assert max(tree.depths()) == 3
    assert best_first(Budget(3, 99), "half", "", halves).tokens == (1, 1, 1)


@given(depth=st.integers(1, 4), nodes=st.integers(1, 30))
def test_no_tree_of_its_size_survives_more(depth: int, nodes: int) -> None:
    tree = best_first(Budget(depth, nodes, width=99), "half", "", halves)
    every = [1.0]
    reach_probabilities: list[float] = []
    for _ in range(depth):
        every = [above * share for above in every for share in (0.6, 0.3)]
        reach_probabilities += every
    assert abs(sum(tree.reach_probability) - sum(sorted(reach_probabilities, reverse=True)[:nodes])) < 1e-9
