"""Ratios over requests, and what is certain about them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.bench.record import Interval
from paceline.bench.replay import intervals
from paceline.bench.replay.intervals import ratios


def one(pairs: list[tuple[int, int]], groups: list[int] | None = None, seed: int = 0) -> Interval:
    columns = [[tokens for tokens, _ in pairs], [steps for _, steps in pairs]]
    return ratios(columns, list(range(len(pairs))) if groups is None else groups, [(0, 1)], seed)[0]


some = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=12)


@given(pairs=some)
@settings(max_examples=20, deadline=None)
def test_the_value_is_sum_over_sum_and_lies_in_its_interval(pairs: list[tuple[int, int]]) -> None:
    interval = one(pairs)
    assert interval.value == pytest.approx(sum(t for t, _ in pairs) / sum(s for _, s in pairs))
    each = [t / s for t, s in pairs]
    assert min(each) - 1e-9 <= interval.low <= interval.high <= max(each) + 1e-9


def test_requests_that_are_alike_leave_no_doubt_and_one_alone_tells_of_no_other() -> None:
    assert one([(20, 10)] * 9) == Interval(2.0, 2.0, 2.0)
    assert one([(30, 10)]) == Interval(3.0, 3.0, 3.0)


def test_a_conversation_is_drawn_as_a_whole() -> None:
    """Forty turns that are alike within four conversations tell as much as four requests do."""
    turns = [(10 * (1 + i // 10), 10) for i in range(40)]
    together = one(turns, [i // 10 for i in range(40)])
    assert together == one([(100 * (1 + i), 100) for i in range(4)])
    apart = one(turns)
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    inside = 0
    for seed in range(60):
        interval = one([(int(n), 10) for n in random.integers(10, 31, size=40)], seed=seed)
        inside += interval.low <= 2.0 <= interval.high
    assert 52 <= inside <= 60


def test_ratios_are_of_the_same_draws() -> None:
    """Twice as much of the same is twice the ratio, at both ends too; and a ratio to itself is certain."""
    first = [3.0, 5.0, 9.0, 2.0]
    single, double, itself = ratios(
        [first, [2 * x for x in first], [1.0] * 4], [0, 1, 2, 3], [(0, 2), (1, 2), (1, 0)]
    )
    assert (double.value, double.low, double.high) == (2 * single.value, 2 * single.low, 2 * single.high)
    assert single.low < single.high
    assert itself == Interval(2.0, 2.0, 2.0)


def test_drawing_in_pieces_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(i + 1, 2 + i % 3) for i in range(20)]
    whole = one(pairs)
    monkeypatch.setattr(intervals, "AT_ONCE", 7 * 20)
    assert one(pairs) == whole
    monkeypatch.setattr(intervals, "AT_ONCE", 1)
    assert one(pairs) == whole
