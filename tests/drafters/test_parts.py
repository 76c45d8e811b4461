"""Scopes of learned data, and best-first search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters.compose import PortfolioDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.parts import Scopes, best_first
from paceline.drafters.suffix import SuffixDrafter
from paceline.speculative.interfaces import Budget
from paceline.speculative.stats import Step, StepTimes
from paceline.speculative.tree import ROOT

MAKERS = {
    "suffix": SuffixDrafter,
    "ngram": NgramDrafter,
    "portfolio": lambda: PortfolioDrafter([SuffixDrafter(), NgramDrafter()]),
}
FOUR = Budget(depth=4, nodes=8)


def said(drafter: Any, prompt: list[int], tokens: list[int], scope: str) -> None:
    """Run a request to its end."""
    memory = drafter.open(prompt, 0, None, scope)
    memory.update(Step(tuple(tokens), (), (), {}, {}, None, StepTimes()), None)
    memory.close()


def drafted(drafter: Any, prompt: list[int], scope: str) -> tuple[int, ...]:
    (tree,) = drafter.propose([(drafter.open(prompt, 0, None, scope), FOUR)])
    return tuple(tree.tokens)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_one_scope_was_told_is_no_draft_for_another(make: Callable[[], Any]) -> None:
    drafter = make()
    for _ in range(3):  # the n-gram counts ask for several
        said(drafter, [1], [2, 3, 4, 5, 6, 7, 8], "anna")
    assert drafted(drafter, [9, 2, 3, 4, 5], "anna")[:2] == (6, 7)
    assert drafted(drafter, [9, 2, 3, 4, 5], "ben") == ()
    assert drafted(drafter, [9, 2, 3, 4, 5], "") == ()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_forgetting_is_for_all_scopes(make: Callable[[], Any]) -> None:
    drafter = make()
    for scope in ("", "anna"):
        for _ in range(3):
            said(drafter, [1], [2, 3, 4, 5, 6, 7, 8], scope)
    drafter.forget()
    assert drafted(drafter, [9, 2, 3, 4, 5], "") == drafted(drafter, [9, 2, 3, 4, 5], "anna") == ()


def test_the_scope_that_was_asked_for_longest_ago_is_forgotten_first() -> None:
    scopes: Scopes[list[int]] = Scopes([], list, most=2)
    a, b = scopes.of("a"), scopes.of("b")
    assert scopes.of("a") is a
    scopes.of("c")
    assert scopes.of("a") is a
    assert scopes.of("b") is not b
    assert scopes.of("") is scopes.common
    assert len(list(scopes)) == 3


def halves(state: str, depth: int) -> Iterator[tuple[int, float, str]]:
    """Follow every path by token 1 with 0.6 and token 2 with 0.3."""
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
