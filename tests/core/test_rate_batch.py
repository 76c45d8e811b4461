"""What is learned of requests that share a pass holds for each of them alone."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.cost import SHALLOW, Cost, Costs
from paceline.core.rate import Rate
from paceline.core.record import Step, Times
from paceline.core.tree import EMPTY
from stage import Passing, asking

CURVE = {1: 1.0, 8: 2.0, 64: 8.0}


def going_on(n: int) -> list[Any]:
    """Requests that are past their first step."""
    requests = asking(n)
    for request in requests:
        request.session.tokens, request.stats = [0] * 9, SimpleNamespace(steps=5)
    return requests


@pytest.mark.parametrize("n", [1, 8])
def test_what_a_step_takes_beside_its_pass_is_kept_of_one_request(n: int) -> None:
    rate = Rate(Costs(Cost({SHALLOW: CURVE})), clock=Passing())
    requests = going_on(n)
    times = Times(forward=2.0 / n, verify=0.004, keep=0.001, other=0.005)
    step = Step((1,), ("target",), (), Counter(), Counter(), None, times)
    for _ in range(3):
        rate.budgets(requests)
        rate.observe(requests, [step] * n)
    assert rate.costs.step == pytest.approx(0.010)


@pytest.mark.parametrize(("n", "asked"), [(1, 1), (4, 1), (4, 3), (4, 4)])
def test_what_asking_a_drafter_takes_is_shared_by_those_it_was_asked_for(n: int, asked: int) -> None:
    clock = Passing()
    rate = Rate(Costs(Cost({SHALLOW: CURVE})), clock=clock)
    requests = asking(n)
    for _ in range(2):
        budgets = rate.budgets(requests)
        for budget in budgets[:asked]:
            assert budget.asks("slow", lambda: EMPTY)
        clock.now += 0.06 * asked  # it takes so long for each
        rate.choose(requests, budgets, [EMPTY] * n)
    assert rate._worth["slow"].seconds == pytest.approx(0.06)
