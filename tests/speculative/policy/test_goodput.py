"""The goodput policy: choices are optimal, and drafts end at edges of the cost curve or do not pay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.backends.toy import ToyTarget
from paceline.drafters.compose import PortfolioDrafter
from paceline.drafters.model import ModelDrafter
from paceline.speculative.interfaces import NO_BUDGET, Budget, RequiredOutputs
from paceline.speculative.loop import advance_requests, start_request
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.policy.goodput import GOODPUT_DISCOUNT, MAX_SHARED_REQUESTS, GoodputPolicy
from paceline.speculative.policy.ledger import FREE_PASSES, MAX_LOSS_SHARE, DrafterValue
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.speculative.stats import Stats, Step, StepTimes
from paceline.speculative.tree import EMPTY, DraftTree, chain
from stage import Prompter, asking, decider, stage


def rows_of(rate: GoodputPolicy, n_requests: int, length: int, right: float = 0.8) -> list[int]:
    """Return the rows of each request in one pass."""
    requests = asking(n_requests)
    drafts = [chain([1] * length, "a", [right] * length)] * n_requests
    return [1 + len(tree) for tree in rate.select(requests, rate.budget(requests), drafts)]


def test_nothing_is_drafted_where_every_row_costs_a_pass() -> None:
    linear = {n: float(n) for n in range(1, 65)}
    for n in (1, 2, 9):
        assert rows_of(decider(linear), n, 20, right=0.99) == [1] * n
    knowing = Prompter("knowing", lambda at: 1.0, score=0.99, length=20)
    play = stage(linear, [knowing], 300)
    assert all(len(step.tree) == 0 for _, step in play.steps())
    assert play.clock.now == pytest.approx(300)  # as long as plain decoding
    assert "2 rows cost 2.0x one here; break-even acceptance 1.00" in play.policy.summary.why


def test_drafts_end_at_an_edge_of_the_curve() -> None:
    """T(4) = T(8): if a fifth row pays, so does an eighth."""
    tiles = {1: 1.0, 4: 1.2, 8: 1.2, 12: 2.4, 16: 2.4, 64: 9.6}
    assert rows_of(decider(tiles), 1, 31) == [8]
    assert rows_of(decider(tiles), 1, 5) == [6]  # there was no more
    steps = {1: 1.0, 2: 1.79, 3: 2.42, 4: 1.83, 5: 2.42, 8: 2.82, 64: 20.0}
    assert rows_of(decider(steps), 1, 31, right=0.9) == [8]
    assert rows_of(decider(steps), 1, 31, right=0.75) == [4]
    assert rows_of(decider(steps), 1, 31, right=0.4) == [1]


def test_drafting_fades_out_as_a_batch_fills_the_machine() -> None:
    """Sixteen rows cost as much as one. In a larger pass of n requests a row must bring n / 16 tokens."""
    curve = {n: max(16, n) / 16 for n in range(1, 257)}
    lengths = [sum(rows_of(decider(curve), n, 12)) / n - 1 for n in (1, 2, 4, 8, 16, 24, 64)]
    assert lengths == [12, 9, 6, 3, 0, 0, 0]


def test_many_requests_may_draw_more_than_the_curve_is_looked_at_for() -> None:
    """Beyond MAX_SHARED_REQUESTS requests, sampled drafts are still verified whatever they are worth."""
    n = 2 * MAX_SHARED_REQUESTS + 1
    target, sampling = ToyTarget(6, seed=3), Sampling(temperature=1.0)
    drafter = PortfolioDrafter([ModelDrafter(ToyTarget(6, seed=3, noise=0.2), 6, temperature=1.0)])
    rate = decider({1: 1.0}, depth=2, nodes=2, width=1)
    requests = [
        start_request(
            target, drafter, GenerationRequest(prompt=[i % 6], max_tokens=9, sampling=sampling, seed=i)
        )
        for i in range(n)
    ]
    rate.costs.target = PassCosts.flat(1.0, 0.0)
    steps = advance_requests(target, drafter, rate, requests, lambda: 0.0)
    assert sum(len(step.tree) for _, step in steps) == 2 * n


def test_the_rate_is_what_was_reached_of_late_and_at_least_that_of_plain_decoding() -> None:
    """A perfect drafter, and eight rows that cost two passes: 8 tokens in 2 seconds."""
    knowing = Prompter("knowing", lambda at: 1.0, score=0.99, length=7)
    play = stage({1: 1.0, 8: 2.0, 64: 64.0}, [knowing], 5 + 8 * 50).perform()  # the first draft is short
    assert play.policy.rate == pytest.approx(GOODPUT_DISCOUNT * 4.0, rel=0.05)
    wrong = Prompter("wrong", lambda at: 0.0, score=0.9, length=7)
    play = stage({1: 1.0, 8: 2.0, 64: 64.0}, [wrong], 400).perform()
    assert play.policy.rate == 1.0


def test_time_that_is_lost_elsewhere_says_nothing_of_what_drafting_is_worth() -> None:
    """The machine stops for a minute, in a pass and between passes."""
    play = stage({1: 1.0, 64: 1.0}, [Prompter("a", lambda at: 0.5)], 200)
    for n, _ in enumerate(play.steps()):
        if n == 20:
            play.clock.now += 60.0
            before = play.policy.rate
            play.requests[0].carried_over_seconds += 60.0
    assert before * 0.7 < play.policy.rate
    assert play.policy.costs.target.seconds(1, 1) == pytest.approx(1.0)


def troupe() -> list[Prompter]:
    return [
        Prompter("a", lambda at: 0.7 if at % 100 < 50 else 0.2, seed=1),
        Prompter("b", lambda at: 0.5, score=0.9, seed=2),
        Prompter("c", lambda at: 0.8, 0.3, score=0.6, seed=3),
    ]


def test_to_forget_brings_back_the_start() -> None:
    """The drafts equal those of a new policy, step by step."""
    curve = {1: 1.0, 4: 1.3, 8: 2.0, 64: 20.0}
    first = stage(curve, troupe(), 300, requests=2)
    fresh = [step for _, step in first.steps()]
    rate, costs = first.policy, first.policy.costs
    experienced = stage(curve, troupe(), 300, requests=2, policy=rate)
    rate._drafters.clock = experienced.clock
    taught = [step for _, step in experienced.steps()]
    rate.forget()
    again = stage(curve, troupe(), 300, requests=2, policy=rate)
    rate._drafters.clock = again.clock
    forgetful = [step for _, step in again.steps()]
    assert [step.tree for step in forgetful] == [step.tree for step in fresh]
    assert [step.tree.called for step in forgetful] == [step.tree.called for step in fresh]
    assert [step.tree for step in taught] != [step.tree for step in fresh]
    assert rate.costs is costs


def test_a_drafter_that_computes_goes_on_while_the_next_edge_is_in_reach() -> None:
    """Each level's time and rows are weighed against the tokens to gain."""

    def depth_of(curve: dict[int, float], right: float, level: float, **most: Any) -> int:
        """Return the median depth once the time of a level is known."""
        stepping = Prompter("stepping", lambda at: right, level=level, length=31, stepwise=True)
        play = stage(curve, [stepping], 400, **most)
        depths = [len(step.proposal) for _, step in play.steps()]
        return round(float(np.median(depths[len(depths) // 2 :])))

    flat = {1: 1.0, 64: 1.0}
    assert depth_of(flat, 0.99, 0.01) > depth_of(flat, 0.8, 0.01) > depth_of(flat, 0.5, 0.01) >= 1
    assert depth_of(flat, 0.8, 0.01) > depth_of(flat, 0.8, 0.2) >= 1
    assert depth_of(flat, 0.9, 0.01, depth=3) == 3
    tiles = {1: 1.0, 8: 1.6, 64: 40.0}
    assert depth_of(tiles, 0.9, 0.01) == 7


def test_it_accounts_for_the_steps_without_a_draft() -> None:
    curve = {1: 1.0, 2: 1.9, 3: 2.8, 64: 60.0}
    unsure = Prompter("unsure", lambda at: 0.5)
    account = stage(curve, [unsure], 200).perform().policy.summary
    assert (account.steps, account.silent) == (200, 1)  # the last one has no room for a draft
    assert account.declined == 199
    assert account.reason is not None
    assert account.reason.measured == pytest.approx(0.5, abs=0.1)
    silent = Prompter("silent", lambda at: 0.5, length=0)
    account = stage(curve, [silent], 200).perform().policy.summary
    assert (account.silent, account.declined) == (200, 0)
    assert account.reason is not None
    assert account.reason.measured is None
    unasked = Prompter("unasked", lambda at: 0.0, 1.0, score=0.7)
    account = stage(curve, [unasked], 200).perform().policy.summary
    assert (account.declined, account.braked) == (200, pytest.approx(195, abs=5))
    assert "looking for drafts has cost more" in account.why
    good = Prompter("good", lambda at: 0.95)
    account = stage({1: 1.0, 64: 1.0}, [good], 200).perform().policy.summary
    assert account.why == ""


def calm_until(place: int) -> Callable[[int], float]:
    return lambda at: float(at < place)


@pytest.mark.parametrize("score", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.8])
@pytest.mark.parametrize("curve", [{1: 1.0, 64: 1.3}, {1: 1.0, 2: 1.4, 64: 40.0}], ids=["flat", "steep"])
def test_a_hostile_drafter_costs_a_request_two_percent_and_a_pass(
    curve: dict[int, float], seconds: float, score: float
) -> None:
    """It is right until it is trusted. No request loses more than the limit and one step's loss."""
    for calm in (0, 20):
        hostile = Prompter("hostile", calm_until(calm), seconds, score=score, length=8)
        play = stage(curve, [hostile], 300)
        track, largest, before = play.policy.ledger(play.requests[0]), 0.0, 0.0
        for _ in play.steps():
            largest, before = max(largest, track.lost_seconds - before), track.lost_seconds
            assert track.lost_seconds <= MAX_LOSS_SHARE * track.plain_seconds + FREE_PASSES + largest
        assert play.clock.now <= 300 * (1 + MAX_LOSS_SHARE) + FREE_PASSES + largest + 1e-6
        assert largest <= 1.0 + 0.9


def test_a_loss_is_made_good_by_what_drafts_save() -> None:
    """A request beyond its limit drafts again once its drafts are accepted."""
    rate, requests = decider({1: 1.0, 8: 1.2, 64: 40.0}), asking(1)
    track = rate.ledger(requests[0])
    track.plain_seconds, track.lost_seconds = 10.0, MAX_LOSS_SHARE * 10.0 + FREE_PASSES + 0.01
    draft = chain([1], "a", [0.9])

    def verified(requests: list[Any]) -> int:
        return len(rate.select(requests, rate.budget(requests), [draft])[0])

    assert verified(requests) == 0
    assert verified(asking(1)) == 1  # another request has its own
    track.lost_seconds -= 0.5
    assert verified(requests) == 1


def test_what_takes_no_time_is_judged_while_the_brake_is_on_and_nothing_else_is_called() -> None:
    rate, requests = decider({1: 1.0, 8: 1.2, 64: 40.0}), asking(1)
    for name, seconds in (("free", 0.0), ("dear", 0.1), ("sampling", 0.0)):
        rate._drafters.values[name] = DrafterValue(calls=9, seconds=seconds)
    rate._drafters.sampling.add("sampling")  # whose drafts cannot be left out
    rate.ledger(requests[0]).lost_seconds = FREE_PASSES + 0.01
    (budget,) = rate.budget(requests)
    names = ("free", "dear", "sampling", "new")
    for should_call in (budget.is_due, budget.should_call):
        assert [name for name in names if should_call(name, lambda: EMPTY)] == ["free"]
    rate.ledger(requests[0]).lost_seconds = 2 * FREE_PASSES + 0.01
    assert rate.budget(requests) == [NO_BUDGET]


def test_a_budget_without_a_rule_calls_every_drafter() -> None:
    budget = Budget(1, 1)
    assert budget.should_call("any", lambda: EMPTY)
    assert budget.is_due("any", lambda: EMPTY)


def test_two_drafters_want_the_outputs_of_both() -> None:
    wanted = RequiredOutputs(1, (2,)) | RequiredOutputs(0, (1, 2))
    assert wanted == RequiredOutputs(1, (1, 2))


def test_the_rule_s_own_work_counts_as_a_loss() -> None:
    """Most steps are plain with a policy slower than the pass."""
    requests = asking(1)
    requests[0].stats = Stats(steps=2)  # a first pass may hold the prompt

    def decided(other: float) -> float:
        """Return the share of steps with a decision."""
        rate, n = decider({1: 1.0, 2: 1.9, 64: 64.0}), 0
        for step in range(600):
            budgets = rate.budget(requests)
            n += budgets[0].depth > 0 and step >= 200
            assert rate.select(requests, budgets, [EMPTY]) == [EMPTY]
            rate.update(requests, [spent(other if budgets[0].depth else 0.0)])
        return n / 400

    assert decided(2.0) == pytest.approx(MAX_LOSS_SHARE, abs=0.01)
    assert decided(0.2) == pytest.approx(MAX_LOSS_SHARE / 0.2, abs=0.01)
    assert decided(0.02) == 1.0


def spent(other: float, tree: DraftTree = EMPTY) -> Step:
    """Return a step with one second of the target and `other` seconds of the policy."""
    return Step(
        tokens=(5,), sources=("target",), path=(), drafted={}, accepted={}, stop_reason=None,
        times=StepTimes(forward=1.0, other=other), tree=tree, batch_tokens=1 + len(tree),
    )  # fmt: skip
