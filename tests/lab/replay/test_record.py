"""Tokens per step, and what is certain about it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.lab.replay.clock import Spent
from paceline.lab.replay.record import Played, per_step, result


def played(tokens: int, steps: int) -> Played:
    return Played(tokens, steps, drafted_steps=1, drafted=4, accepted=tokens - steps)


pairs = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=12)


@given(pairs=pairs)
@settings(max_examples=20, deadline=None)
def test_the_value_is_all_tokens_over_all_steps_and_lies_in_its_interval(
    pairs: list[tuple[int, int]],
) -> None:
    some = [played(tokens, steps) for tokens, steps in pairs]
    interval = per_step(some, range(len(some)))
    assert interval.value == pytest.approx(sum(t for t, _ in pairs) / sum(s for _, s in pairs))
    ratios = [t / s for t, s in pairs]
    assert min(ratios) - 1e-9 <= interval.low <= interval.high <= max(ratios) + 1e-9


def test_requests_that_are_alike_leave_no_doubt_and_one_alone_tells_of_no_other() -> None:
    assert (
        per_step([played(20, 10)] * 9, range(9)).low == per_step([played(20, 10)] * 9, range(9)).high == 2.0
    )
    one = per_step([played(30, 10)], [0])
    assert one.low == one.value == one.high == 3.0


def test_a_conversation_is_drawn_as_a_whole() -> None:
    """Forty turns that are alike within four conversations tell as much as four requests do."""
    turns = [played(10 * (1 + i // 10), 10) for i in range(40)]
    together = per_step(turns, [i // 10 for i in range(40)])
    four = per_step([played(100 * (1 + i), 100) for i in range(4)], range(4))
    apart = per_step(turns, range(40))
    assert together == four
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    inside = 0
    for seed in range(60):
        some = [played(int(n), 10) for n in random.integers(10, 31, size=40)]
        interval = per_step(some, range(40), seed)
        inside += interval.low <= 2.0 <= interval.high
    assert 52 <= inside <= 60


def test_sums_are_over_all_requests() -> None:
    some = [played(20, 10), played(9, 9)]
    out = result("lookup", {}, [5, 7], some, [0, 1], {}, Spent(), False)
    assert (out.requests, out.n_prompt, out.n_tokens, out.steps) == (2, 12, 29, 19)
    assert (out.drafted_steps, out.drafted, out.accepted, out.acceptance_rate) == (2, 8, 10, 10 / 8)
    nothing = result("plain", {}, [5], [Played(3, 3, 0, 0, 0)], [0], {}, Spent(), False)
    assert (nothing.acceptance_rate, nothing.tokens_per_step.value) == (None, 1.0)
    assert nothing.as_dict()["each"] == [
        {"tokens": 3, "steps": 3, "drafted_steps": 0, "drafted": 0, "accepted": 0}
    ]
