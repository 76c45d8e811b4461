"""Costs that were measured in a bad minute: the rule comes to draft all the same, and looks for it at a
bounded price."""

from __future__ import annotations

import pytest

from paceline.speculative.policy.cost_model import OVERDUE, SHALLOW, DecodingCosts, PassCosts
from paceline.speculative.policy.goodput import RETRIED, RETRYING, GoodputPolicy
from stage import Passing, Play, Prompter, stage

TRUE = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.2, 8: 1.6, 64: 20.0}


def play(kept: dict[int, float], true: dict[int, float], tokens: int, right: float = 0.95) -> Play:
    """kept: what passes are believed to cost; true: what they do."""
    knowing = Prompter("knowing", lambda at: right, score=right, length=7)
    clock = Passing()
    out = stage(
        true, [knowing], tokens, policy=GoodputPolicy(DecodingCosts(PassCosts({SHALLOW: kept})), clock=clock)
    )
    knowing.clock = out.target._clock = out.clock = clock
    return out


@pytest.mark.parametrize(
    "kept",
    [
        {1: 1.0, 2: 351.0, 3: 351.0, 4: 351.0, 8: 351.0, 64: 2000.0},  # measured beside a compiler
        {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 8: 8.0, 64: 64.0},
        {1: 0.1, 2: 1.1, 3: 1.2, 4: 1.2, 8: 1.6, 64: 20.0},  # the single row alone was too quick
    ],
)
def test_what_was_measured_too_dear_is_tried_again_and_drafted_for(kept: dict[int, float]) -> None:
    steps = play(kept, TRUE, 6000).steps()
    drafted = [len(step.tree) > 0 for _, step in steps]
    assert sum(drafted[: OVERDUE // 2]) < OVERDUE // 4
    assert sum(drafted[-200:]) > 190


@pytest.mark.parametrize("right", [0.5, 0.95])
def test_to_try_costs_no_more_than_its_share_where_it_was_measured_right(right: float) -> None:
    linear = {n: float(n) for n in range(1, 65)}
    tried = play(linear, linear, 6000, right).perform()
    assert tried.clock.now <= 6000 * (1 + RETRYING) + RETRIED
    drafted = play(linear, linear, 6000, right)
    assert 0 < sum(len(step.tree) > 0 for _, step in drafted.steps()) < 6000 * RETRYING


def test_what_is_not_likely_to_pay_at_half_the_price_is_not_tried() -> None:
    linear = {n: float(n) for n in range(1, 65)}
    assert not any(len(step.tree) for _, step in play(linear, linear, 3000, right=0.3).steps())
