"""Costs learned in shared passes hold for each request alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from paceline.speculative.policy.costs import (
    MIN_CONTEXT_BUCKET,
    OVERDUE_PASSES,
    DecodingCosts,
    PassCosts,
)
from paceline.speculative.policy.goodput import RETRY_TIME_SHARE, RETRY_TOKENS, GoodputPolicy
from paceline.speculative.stats import Stats, Step, StepTimes
from paceline.speculative.tree import EMPTY, chain
from stage import Passing, Play, Prompter, asking, stage

CURVE = {1: 1.0, 8: 2.0, 64: 8.0}


def policy(curve: Mapping[int, float], clock: Passing | None = None) -> GoodputPolicy:
    return GoodputPolicy(DecodingCosts(PassCosts({MIN_CONTEXT_BUCKET: curve})), clock=clock or Passing())


def going_on(n: int) -> list[Any]:
    """Return requests past their first step."""
    requests = asking(n)
    for request in requests:
        request.session.tokens, request.stats = [0] * 9, Stats(steps=5)
    return requests


@pytest.mark.parametrize("n", [1, 8])
def test_what_a_step_takes_beside_its_pass_is_kept_of_one_request(n: int) -> None:
    rate = policy(CURVE)
    requests = going_on(n)
    times = StepTimes(forward=2.0 / n, verify=0.004, commit=0.001, other=0.005)
    step = Step((1,), ("target",), (), Counter(), Counter(), None, times)
    for _ in range(3):
        rate.budget(requests)
        rate.update(requests, [step] * n)
    assert rate.costs.step == pytest.approx(0.010)


def test_beside_a_prompt_a_row_costs_what_it_costs_there() -> None:
    """A row beside prefill may cost a whole pass. The prefill's time does not count against drafting."""
    rate = policy({1: 1.0, 8: 1.1, 64: 64.0})
    requests, guess = going_on(1), chain([1], "x", [0.8])
    for reading, n in ((0, 1), (64, 0), (0, 1)):
        budgets = rate.budget(requests, reading)
        (tree,) = rate.select(requests, budgets, [guess])
        assert len(tree) == n
        forward = 1.0 if reading == 0 else 65.0
        step = Step(
            (1,), ("target",), (), {}, {}, None, StepTimes(forward=forward), tree, batch_tokens=1 + len(tree)
        )
        rate.update(requests, [step])
    assert rate.costs.target.seconds(1, MIN_CONTEXT_BUCKET) == pytest.approx(1.0, rel=0.2)


def test_beside_a_prompt_drafts_save_and_lose_what_they_would_alone() -> None:
    """A row costs as much as in a prefill pass, and an accepted token saves one."""
    right, wrong = going_on(2)
    rate = policy({n: float(n) for n in range(1, 200)})
    tree = chain([1], "x", [0.8])
    for request, tokens in ((right, (1, 5)), (wrong, (5,))):
        rate.budget([request], 64)
        step = Step(
            tokens, ("x",) * len(tokens), (), {}, {}, None, StepTimes(forward=99.0), tree, batch_tokens=2
        )
        rate.update([request], [step])
        assert rate.ledger(request).plain_seconds == 65.0 * len(tokens)
    assert rate.ledger(right).lost_seconds == 1.0 - 65.0
    assert rate.ledger(wrong).lost_seconds == 1.0
    assert (
        rate.costs.target.seconds(1, MIN_CONTEXT_BUCKET) == 1.0
    )  # what the pass took is the prompt's matter


@pytest.mark.parametrize(("n", "asked"), [(1, 1), (4, 1), (4, 3), (4, 4)])
def test_what_calling_a_drafter_takes_is_shared_by_those_it_was_called_for(n: int, asked: int) -> None:
    clock = Passing()
    rate = policy(CURVE, clock)
    requests = asking(n)
    for _ in range(2):
        budgets = rate.budget(requests)
        for budget in budgets[:asked]:
            assert budget.should_call("slow", lambda: EMPTY)
        clock.now += 0.06 * asked  # it takes so long for each
        rate.select(requests, budgets, [EMPTY] * n)
    assert rate._drafters.values["slow"].seconds == pytest.approx(0.06)


def test_more_requests_bring_no_less_than_fewer_would() -> None:
    """Three rows are badly measured and five unmeasured; two and four rows give a lower limit."""
    rate = policy({1: 1.0, 2: 1.0, 3: 4.0, 4: 1.0, 16: 4.0})
    for n, at_least in ((1, 1.0), (2, 2.0), (3, 2.0), (4, 4.0), (5, 4.0), (16, 4.0)):
        rate.budget(going_on(n))
        assert rate.rate == pytest.approx(at_least)


TRUE = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.2, 8: 1.6, 64: 20.0}


def play(kept: dict[int, float], true: dict[int, float], tokens: int, right: float = 0.95) -> Play:
    """Play the true costs with the policy's `kept` ones."""
    knowing = Prompter("knowing", lambda at: right, score=right, length=7)
    clock = Passing()
    out = stage(true, [knowing], tokens, policy=policy(kept, clock))
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
    assert sum(drafted[: OVERDUE_PASSES // 2]) < OVERDUE_PASSES // 4
    assert sum(drafted[-200:]) > 190


@pytest.mark.parametrize("right", [0.5, 0.95])
def test_to_try_costs_no_more_than_its_share_where_it_was_measured_right(right: float) -> None:
    linear = {n: float(n) for n in range(1, 65)}
    tried = play(linear, linear, 6000, right).perform()
    assert tried.clock.now <= 6000 * (1 + RETRY_TIME_SHARE) + RETRY_TOKENS
    drafted = play(linear, linear, 6000, right)
    assert 0 < sum(len(step.tree) > 0 for _, step in drafted.steps()) < 6000 * RETRY_TIME_SHARE


def test_what_is_not_likely_to_pay_at_half_the_price_is_not_tried() -> None:
    linear = {n: float(n) for n in range(1, 65)}
    assert not any(len(step.tree) for _, step in play(linear, linear, 3000, right=0.3).steps())
