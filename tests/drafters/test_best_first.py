"""The likeliest path goes on next."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters.best_first import best_first
from paceline.speculative.interfaces import Budget
from paceline.speculative.tree import EMPTY, ROOT


def halves(state: str, depth: int) -> Iterator[tuple[int, float, str]]:
    """After any path token 1 with 0.6 and token 2 with 0.3."""
    assert depth == len(state)
    yield 1, 0.6, state + "1"
    yield 2, 0.3, state + "2"


def test_the_path_that_is_likeliest_goes_on() -> None:
    """0.6, 0.36, then 0.3 before 0.216."""
    tree = best_first(Budget(9, 4, width=9), "half", "", halves)
    assert tree.tokens == (1, 1, 2, 1)
    assert tree.parents == (ROOT, 0, ROOT, 1)
    assert (tree.score, tree.source) == ((0.6, 0.6, 0.3, 0.6), ("half",) * 4)


def test_branches_are_as_many_as_the_width_and_paths_as_long_as_the_depth() -> None:
    tree = best_first(Budget(3, 99, width=2), "half", "", halves)
    assert len(tree) - len(set(tree.parents) - {ROOT}) == 2
    assert max(tree.depths()) == 3
    assert best_first(Budget(3, 99), "half", "", halves).tokens == (1, 1, 1)


def test_of_equals_the_one_that_came_first_is_taken() -> None:
    tree = best_first(Budget(1, 2, width=3), "equal", (), lambda _, __: [(t, 0.5, ()) for t in (7, 3, 5)])
    assert tree.tokens == (7, 3)


def test_where_nothing_may_follow_there_is_no_draft() -> None:
    assert best_first(Budget(4, 4), "none", (), lambda _, __: []) is EMPTY


@given(depth=st.integers(1, 4), nodes=st.integers(1, 30))
def test_no_tree_of_its_size_survives_more(depth: int, nodes: int) -> None:
    tree = best_first(Budget(depth, nodes, width=99), "half", "", halves)
    every = [1.0]
    reach_probabilities: list[float] = []
    for _ in range(depth):
        every = [above * share for above in every for share in (0.6, 0.3)]
        reach_probabilities += every
    assert abs(sum(tree.reach_probability) - sum(sorted(reach_probabilities, reverse=True)[:nodes])) < 1e-9
