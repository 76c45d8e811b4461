"""Passes of several requests, with prompts, retries and rejections; the first steps of a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from paceline.backends.toy import ToyTarget
from paceline.drafters.compose import PortfolioDrafter
from paceline.drafters.model import ModelDrafter
from paceline.speculative.interfaces import Rollback
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.costs import (
    MIN_CONTEXT_BUCKET,
    OVERDUE_PASSES,
    DecodingCosts,
    PassCosts,
)
from paceline.speculative.policy.goodput import (
    FIRST_DRAFT_TOKENS,
    RETRY_TIME_SHARE,
    RETRY_TOKENS,
    GoodputPolicy,
    PassPrices,
)
from paceline.speculative.policy.ledger import FREE_PASSES, MAX_LOSS_SHARE
from paceline.speculative.request import GenerationRequest
from paceline.speculative.stats import Stats, Step, StepTimes
from paceline.speculative.tree import EMPTY, chain
from stage import Passing, Play, Prompter, asking, stage

CURVE = {1: 1.0, 8: 2.0, 64: 8.0}
FLAT = {1: 1.0, 64: 1.1}
LINE = [0.0, *(1.0 + 0.1 * (n - 1) for n in range(1, 40))]


def policy(
    curve: Mapping[int, float], clock: Callable[[], float] = lambda: 0.0, draft: PassCosts | None = None
) -> GoodputPolicy:
    return GoodputPolicy(DecodingCosts(PassCosts({MIN_CONTEXT_BUCKET: curve}), draft), clock=clock)


def reading(seconds_a_token: float) -> GoodputPolicy:
    """Return a policy with a draft model that prefills at this speed."""
    draft = PassCosts({MIN_CONTEXT_BUCKET: {n: seconds_a_token * n for n in (1, 2, 4, 8, 64, 512)}})
    return policy(FLAT, draft=draft)


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


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_the_first_draft_of_a_process_is_short_and_grows_with_what_was_accepted(right: float) -> None:
    copying = Prompter("copying", lambda at: right, score=0.99, length=31)
    play = stage(FLAT, [copying], 200)
    drafted = [len(step.tree) for _, step in play.steps()]
    assert drafted[:5] == ([4, 8, 16, 31, 31] if right else drafted[:5])
    assert drafted[0] == FIRST_DRAFT_TOKENS
    assert right or max(drafted) <= FIRST_DRAFT_TOKENS
    again = stage(FLAT, [copying], 200, policy=play.policy)
    assert next(len(step.tree) for _, step in again.steps()) in (
        (31,) if right else range(FIRST_DRAFT_TOKENS + 1)
    )
    play.policy.forget()
    assert next(iter(play.policy.budget(asking(1)))).depth == FIRST_DRAFT_TOKENS


def first_call(rate: GoodputPolicy, behind: int, steps: int = 200) -> int | None:
    """Return the step at which a drafter with `behind` pending tokens is called."""
    requests = asking(1)
    for step in range(steps):
        (budget,) = rate.budget(requests)
        if budget.should_call("model", lambda: EMPTY, behind):
            return step
    return None


def test_a_drafter_reads_a_text_once_calls_would_have_saved_what_that_takes() -> None:
    """A call is initially expected to save one token of a second."""
    assert first_call(reading(0.01), 8) == 0
    assert first_call(reading(0.01), 90) == 0  # 0.9 s
    assert first_call(reading(0.01), 500) == 4  # 5 s, made up for with the fifth
    assert first_call(reading(0.1), 500) == 49
    assert first_call(reading(0.1), 500, steps=20) is None  # a short answer does not pay for it
    assert first_call(policy(FLAT), 500) == 0  # costs unknown


def test_what_reading_took_is_not_taken_for_what_a_call_takes() -> None:
    now = 0.0
    rate = reading(0.01)
    rate._drafters.clock = lambda: now
    requests = asking(1)
    (budget,) = rate.budget(requests)
    assert budget.should_call("model", lambda: EMPTY, 90)
    now = 0.9
    rate.select(requests, [budget], [chain([1], "model", [0.9])])
    assert (rate._drafters.values["model"].seconds, rate._drafters.values["model"].calls) == (0.0, 0)
    assert rate.ledger(requests[0]).lost_seconds == pytest.approx(0.9)  # but it is lost


def test_what_a_request_may_lose_grows_with_the_time_of_its_prompt() -> None:
    for prompt, braked in ((0.0, True), (100.0, False)):
        rate, (request,) = reading(0.01), asking(1)
        request.stats = Stats(prefill_seconds=prompt)
        track = rate.ledger(request)
        track.lost_seconds = FREE_PASSES + MAX_LOSS_SHARE * 50.0
        (budget,) = rate.budget([request])
        assert budget.ledger.is_limited is braked  # type: ignore[attr-defined]


def test_the_end_of_a_prompt_in_the_first_pass_is_no_loss_of_the_draft_beside_it() -> None:
    """Only the one rejected row is lost."""
    rate, requests, tree = reading(0.01), asking(1), chain([1], "x", [0.8])
    rate.costs = DecodingCosts(PassCosts({MIN_CONTEXT_BUCKET: {n: float(n) for n in range(1, 200)}}))
    requests[0].session.pending_tokens = 30
    rate.budget(requests)
    step = Step((5,), ("target",), (), {}, {}, None, StepTimes(forward=32.0), tree, batch_tokens=32)
    rate.update(requests, [step])
    assert rate.ledger(requests[0]).lost_seconds == pytest.approx(1.0)
    assert rate.ledger(requests[0]).plain_seconds == pytest.approx(1.0)
    assert rate.costs.target.seconds(1, MIN_CONTEXT_BUCKET) == 1.0


def recomputed(reach: Sequence[float], pending: int) -> float:
    """The expected rows of a later pass: `pending + n` if node n is the first to be wrong."""
    first_wrong = -np.diff([1.0, *reach])
    return float(sum(p * (pending + n) for n, p in enumerate(first_wrong, 1)))


@pytest.mark.parametrize("pending", [0, 3])
def test_nodes_pay_for_the_rows_that_they_are_expected_to_repeat(pending: int) -> None:
    prices = PassPrices(2.0, LINE, 1, 30, rate=1.5)
    prices.charge_recomputed()
    assert prices.recompute == pytest.approx(1.5 * 2.0 * 0.1)  # tokens of a row
    reach = [0.9, 0.7, 0.6, 0.1]
    minus_reach = [-s for s in reach]
    net = prices.expected_gain(minus_reach, pending)
    for n in range(1, len(reach) + 1):
        expected = sum(reach[:n]) - prices.recompute * recomputed(reach[:n], pending)
        assert -sum(net[:n]) == pytest.approx(expected)
    free = PassPrices(2.0, LINE, 1, 30, rate=1.5)
    assert free.best_gain(minus_reach, pending) > prices.best_gain(minus_reach, pending)
    full = PassPrices(2.0, LINE, 30, 30, rate=1.5)
    full.charge_recomputed()
    assert full.recompute == 0.0


@pytest.mark.parametrize("rollback", ["free", "restore"])
def test_it_is_learned_from_the_first_rejection(rollback: Rollback) -> None:
    target = ToyTarget(6, seed=1, rollback=rollback)
    policy = GoodputPolicy(DecodingCosts(PassCosts.flat(1.0, 0.05)), clock=lambda: 0.0)
    drafter = PortfolioDrafter([ModelDrafter(ToyTarget(6, seed=1, noise=0.4), 6)])
    request = start_request(
        target, drafter, GenerationRequest(prompt=(1, 2, 3), max_tokens=60, ignore_eos=True)
    )
    steps = [step for _, step in decode(target, drafter, policy, [request])]
    request.close()
    assert any(len(step.path) < len(step.tree) for step in steps)
    assert policy._recomputes == (rollback == "restore")
    assert (policy._prices.recompute > 0) == (rollback == "restore")


def test_a_plain_request_beside_a_prompt_asks_nothing_of_the_policy() -> None:
    """The first pass decodes only the plain one; the prompt of the other is longer than one pass."""
    target, drafter = ToyTarget(6, seed=1), PortfolioDrafter([ModelDrafter(ToyTarget(6, seed=1), 6)])
    requests = [
        start_request(target, drafter, GenerationRequest(prompt=prompt, max_tokens=9, n_draft=n))
        for prompt, n in (([1], 0), ([1, 2] * 50, 8))
    ]
    rule = policy(FLAT)
    for request, step in decode(target, drafter, rule, requests, lambda: 0.0, chunk=40):
        assert request is requests[1] or len(step.tree) == 0
    assert rule.summary.steps == requests[1].stats.steps > 0
