"""What is learned of one scope's requests, and what another's see of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.drafters.compose import PortfolioDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.parts import Scopes
from paceline.drafters.suffix import SuffixDrafter
from paceline.speculative.interfaces import Budget
from paceline.speculative.stats import Step, StepTimes

MAKERS = {
    "suffix": SuffixDrafter,
    "ngram": NgramDrafter,
    "portfolio": lambda: PortfolioDrafter([SuffixDrafter(), NgramDrafter()]),
}
FOUR = Budget(depth=4, nodes=8)


def said(drafter: Any, prompt: list[int], tokens: list[int], scope: str) -> None:
    """A request that has ended."""
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
