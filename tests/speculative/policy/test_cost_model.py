"""Pass costs: the steps of the curve, unmeasured contexts, and learning."""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.speculative.errors import UsageError
from paceline.speculative.policy.costs import (
    OVERDUE_PASSES,
    SEQUENTIAL_LIMIT,
    DecodingCosts,
    PassCosts,
    implausibility,
)

# Two AVX-512 cores, Q4_0 (DESIGN): three rows cost more than four.
JAGGED = {1: 1.0, 2: 1.79, 3: 2.42, 4: 1.83, 5: 2.42, 7: 3.64, 8: 2.82, 12: 4.0, 16: 4.2, 32: 8.0}
DEPTH = 256


def jagged() -> PassCosts:
    return PassCosts({DEPTH: JAGGED})


CELLS = st.dictionaries(st.integers(2, 70), st.floats(0.01, 10.0), max_size=10).flatmap(
    lambda rest: st.floats(0.01, 10.0).map(lambda one: rest | {1: one})
)


@given(CELLS, st.integers(0, 90))
def test_the_curve_is_what_its_rule_says(cells: dict[int, float], n: int) -> None:
    cost = PassCosts({DEPTH: cells})
    cells = {m: max(cells[1], min(s, SEQUENTIAL_LIMIT * m * cells[1])) for m, s in cells.items()}
    rows = sorted(cells)
    if n == 0:
        expected = 0.0
    elif n <= rows[-1]:
        expected = cells[rows[bisect_left(rows, n)]]
    else:
        last = cells[rows[-1]]
        half = max((m for m in rows if m <= rows[-1] / 2), default=0)
        slope = max((last - cells.get(half, 0.0)) / (rows[-1] - half), last / rows[-1] / 2)
        expected = last + slope * (n - rows[-1])
    assert cost.seconds(n, DEPTH) == pytest.approx(expected)


def test_between_two_measured_depths_it_lies_on_a_line_and_outside_it_is_the_nearest() -> None:
    cost = PassCosts({256: {1: 1.0, 2: 3.0}, 512: {}, 1024: {1: 4.0, 2: 3.0}})  # 512: nothing measured
    assert cost.seconds(1, 512) == pytest.approx(2.0)  # a third of the way
    assert cost.seconds(2, 512) == pytest.approx(3.0)
    assert (cost.seconds(1, 3), cost.seconds(1, 100_000)) == (1.0, 4.0)


def test_rows_that_a_depth_has_not_come_from_its_neighbour_times_how_the_two_compare() -> None:
    cost = PassCosts({256: {1: 1.0, 2: 2.0, 8: 3.0}, 1024: {1: 2.0, 2: 2.0}})
    # 2x and 1x in what is known of both: 1.41x.
    assert cost.seconds(8, 1024) == pytest.approx(3.0 * math.sqrt(2))
    assert cost.rows == (1, 2, 8)


def test_a_busy_machine_is_noticed_within_a_few_passes_for_all_rows_and_depths_alike() -> None:
    cost = PassCosts({256: JAGGED, 1024: {1: 2.0}})
    for _ in range(30):
        cost.update(1, DEPTH, 1.5)
    assert cost.seconds(1, DEPTH) == pytest.approx(1.5, rel=0.01)
    assert cost.seconds(8, DEPTH) == pytest.approx(1.5 * JAGGED[8], rel=0.01)
    assert cost.seconds(1, 1024) == pytest.approx(1.5 * 2.0, rel=0.01)


def test_a_slow_minute_that_only_one_kind_of_pass_sees_makes_no_cell_dear() -> None:
    cost = jagged()
    for _ in range(100):
        cost.update(1, DEPTH, 1.0)
        cost.update(8, DEPTH, JAGGED[8])
    for _ in range(200):
        cost.update(8, DEPTH, 2 * JAGGED[8])
    for _ in range(30):
        cost.update(1, DEPTH, 1.0)
    assert cost.seconds(8, DEPTH) / cost.seconds(1, DEPTH) == pytest.approx(JAGGED[8], rel=0.05)
    assert cost.seconds(1, DEPTH) == pytest.approx(1.0, rel=0.05)


def test_an_outlier_changes_no_known_cell() -> None:
    cost = jagged()
    for _ in range(20):
        cost.update(1, DEPTH, 1.0)
        cost.update(8, DEPTH, JAGGED[8])
    cost.update(8, DEPTH, 100 * JAGGED[8])
    for n, seconds in JAGGED.items():
        assert cost.seconds(n, DEPTH) == pytest.approx(seconds, rel=0.02)


def test_a_cell_first_measured_on_a_busy_machine_is_that_of_an_idle_machine() -> None:
    cost = jagged()
    for n, seconds, passes in ((1, 2.0, 50), (6, 5.0, 3), (1, 1.0, 50)):
        for _ in range(passes):
            cost.update(n, DEPTH, seconds)
    assert cost.seconds(6, DEPTH) == pytest.approx(2.5, rel=0.01)


def test_a_cell_that_was_measured_wrong_comes_right_beside_the_others() -> None:
    cost = PassCosts({DEPTH: JAGGED | {8: 6.0}})
    passes = random.Random(0).choices((1, 4, 8, 16), weights=(8, 2, 2, 1), k=1500)
    for n in passes:
        cost.update(n, DEPTH, JAGGED[n])
    for n in (1, 4, 8, 16):
        assert cost.seconds(n, DEPTH) == pytest.approx(JAGGED[n], rel=0.05)
    ratio = cost.seconds(2, DEPTH) / cost.seconds(1, DEPTH)  # what was not seen stays beside what was
    assert ratio == pytest.approx(JAGGED[2], rel=0.05)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_time_that_no_clock_can_tell_is_ignored(seconds: float) -> None:
    cost = jagged()
    for _ in range(10):
        cost.update(1, DEPTH, seconds)
        cost.update(6, DEPTH, seconds)
        cost.update(0, DEPTH, 1.0)
    assert cost.as_dict() == jagged().as_dict()


def test_rows_that_were_never_measured_become_a_cell_when_they_were_seen_three_times() -> None:
    cost = jagged()
    cost.update(6, DEPTH, 2.5)
    cost.update(6, DEPTH, 250.0)  # a hiccup
    assert (cost.seconds(6, DEPTH), cost.seconds(1, DEPTH)) == (3.64, 1.0)
    cost.update(6, DEPTH, 2.6)
    assert (cost.seconds(6, DEPTH), cost.seconds(1, DEPTH)) == (2.6, 1.0)
    assert 6 in cost.rows
    assert cost.seconds(7, DEPTH) == 3.64


def test_a_depth_that_is_seen_becomes_known_and_tells_of_rows_that_it_has_not_seen() -> None:
    cost = jagged()
    for _ in range(3):
        cost.update(1, 5000, 3.0)
    assert cost.depths == (256, 5000)
    assert cost.seconds(1, 5000) == 3.0
    assert cost.seconds(8, 5000) == pytest.approx(3 * JAGGED[8])
    assert cost.seconds(8, DEPTH) == JAGGED[8]


def thin(samples: dict[int, int], noise: float = 1.0, table: dict[int, float] = JAGGED) -> PassCosts:
    return PassCosts({DEPTH: table}, noise, {DEPTH: {n: samples.get(n, 20) for n in table}})


def test_a_curve_falls_only_where_that_was_measured_often_enough() -> None:
    """The winner's curse: the lowest of many single measurements are low by chance."""
    assert thin({}).seconds(4, DEPTH) == JAGGED[4]
    assert thin({4: 2}).seconds(4, DEPTH) == JAGGED[3]
    assert thin({4: 2}).seconds(8, DEPTH) == JAGGED[8]  # of which enough is known
    cost = PassCosts({DEPTH: JAGGED, 1024: {4: 2.0}}, 1.0, {DEPTH: dict.fromkeys(JAGGED, 2), 1024: {4: 1}})
    assert cost.seconds(4, DEPTH) == JAGGED[4]  # three samples in all


def test_a_cell_of_few_samples_costs_more_by_what_noise_may_have_hidden() -> None:
    once, twice, often = (thin({8: k}, noise=1.44).seconds(8, DEPTH) for k in (1, 2, 3))
    assert once == pytest.approx(max(JAGGED[7], 1.2 * JAGGED[8]))
    assert often == JAGGED[8] < twice <= once


@pytest.mark.parametrize(("samples", "read"), [(3, 2.0), (7, 2.0), (8, 4.6)])
def test_a_hiccup_in_a_few_samples_is_held_to_what_more_rows_cost(samples: int, read: float) -> None:
    """Four rows measured at 4.6, beside eight at 2.0."""
    cost = thin({4: samples, 8: 3}, table={1: 1.2, 2: 1.3, 4: 4.6, 8: 2.0})
    assert cost.seconds(4, DEPTH) == read
    assert thin({4: samples, 8: 2}, table={1: 1.2, 4: 4.6, 8: 2.0}).seconds(4, DEPTH) == 4.6  # who is right?
    assert thin({4: samples, 8: 3}, table={1: 1.0, 4: 2.9, 8: 2.0}).seconds(4, DEPTH) == 2.9  # by eights


# A bad minute: two rows stand at 300 ms, one at 0.99 and three at 1.8.
BAD = {1: 0.99, 2: 300.0, 3: 1.8, 8: 3.0}


@pytest.mark.parametrize("samples", [{2: 3}, {2: 3, 3: 2}, {2: 30}])
def test_no_rows_cost_more_than_one_by_one(samples: dict[int, int]) -> None:
    cost = thin(samples, table=BAD)
    assert cost.seconds(2, DEPTH) <= SEQUENTIAL_LIMIT * 2 * 0.99
    assert cost.seconds(3, DEPTH) <= SEQUENTIAL_LIMIT * 2 * 0.99  # the next cell is not affected
    assert cost.seconds(8, DEPTH) == 3.0
    assert cost.table == {DEPTH: BAD}


TRUE = {1: 1.0, 2: 1.9, 3: 2.8, 4: 3.4, 5: 4.1, 8: 5.5}


@pytest.mark.parametrize(
    ("samples", "table", "passes", "true"),
    [
        ({2: 30}, BAD, (1, 2) * 40, {1: 0.99, 2: 1.5}),
        ({5: 1, 8: 1}, TRUE | {5: 2.6, 8: 3.2}, (1, 5, 1, 8) * 4, TRUE),
    ],
    ids=["impossible", "timed once, too low"],
)
def test_a_wrong_cell_comes_right_within_a_few_passes(
    samples: dict[int, int], table: dict[int, float], passes: Sequence[int], true: dict[int, float]
) -> None:
    cost = thin(samples, table=table)
    for n in passes:
        cost.update(n, DEPTH, true[n])
    for n in set(passes):
        assert cost.seconds(n, DEPTH) / cost.seconds(1, DEPTH) == pytest.approx(true[n] / true[1], rel=0.2)
    assert not implausibility(cost.table)


def test_what_was_not_seen_for_long_is_replaced_where_three_passes_contradict_it() -> None:
    cost = PassCosts({DEPTH: {1: 1.0, 2: 1.9, 4: 3.8, 8: 2.0}})
    for _ in range(OVERDUE_PASSES + 1):
        assert not cost.is_overdue(1, DEPTH)
        assert not cost.is_overdue(4, DEPTH)
        cost.update(1, DEPTH, 2.0)  # a slow hour
    assert (cost.is_overdue(1, DEPTH), cost.is_overdue(4, DEPTH)) == (False, True)
    for seconds in (2.4, 240.0, 2.4):
        assert cost.seconds(4, DEPTH) == pytest.approx(7.6)
        cost.update(4, DEPTH, seconds)
    assert cost.seconds(4, DEPTH) == pytest.approx(2.4)
    assert not cost.is_overdue(4, DEPTH)
    for seconds in (3.6, 4.0, 360.0):  # which agree
        cost.update(2, DEPTH, seconds)
    assert cost.seconds(2, DEPTH) == pytest.approx(3.8)
    assert not cost.is_overdue(2, DEPTH)


@settings(max_examples=50)
@given(
    st.dictionaries(st.sampled_from([100, 512, 2000, 9000]), CELLS, min_size=1),
    st.lists(st.tuples(st.integers(1, 80), st.sampled_from([50, 600, 2000, 70_000]), st.floats(0.001, 99.0))),
    st.integers(1, 5),
    st.floats(1.0, 3.0),
)
def test_what_is_read_says_what_was_written(
    table: dict[int, dict[int, float]], passes: list[tuple[int, int, float]], samples: int, noise: float
) -> None:
    cost = PassCosts(table, noise, {depth: dict.fromkeys(cells, samples) for depth, cells in table.items()})
    for _ in range(3):
        for n, depth, seconds in passes:
            cost.update(n, depth, seconds)
    said = json.loads(json.dumps(cost.as_dict(), allow_nan=False))
    again = PassCosts.read(said)
    assert (again.rows, again.depths) == (cost.rows, cost.depths)
    for depth in (1, 600, 5000, 70_000):
        assert again.curve(90, depth) == pytest.approx(cost.curve(90, depth))
        assert min(cost.curve(90, depth)[1:]) > 0


GOOD = {"rows": [1, 2], "depths": [256, 1024], "seconds": [[1.0, 2], [None, 3.0]]}


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": [1.5, 1]},
        {"rows": [2, 3]},
        {"rows": [1, (1 << 16) + 1]},
        {"depths": [256]},
        {"depths": [-1, 256]},
        {"depths": [256, 300]},
        {"seconds": [[1.0, 0.0], [1.0, 2.0]]},
        {"seconds": [[1.0, math.nan], [1.0, 2.0]]},
        {"seconds": [[1.0, 10**400], [1.0, 2.0]]},
        {"seconds": {"256": 1}},
        {"samples": [[1, 1]]},
        {"samples": [[1, 1], [None, 0]]},
        {"noise": 0.5},
    ],
)
def test_what_is_no_cost_curve_is_refused_with_advice(changed: dict[str, Any]) -> None:
    assert PassCosts.read(GOOD).seconds(2, 1024) == 3.0
    assert PassCosts.read(GOOD | {"samples": [[1, 1], [None, 1]], "noise": 2}).seconds(2, 1024) > 3.0
    with pytest.raises(UsageError, match=r"above 0|doctor|alike"):
        PassCosts.read(GOOD | changed)


@pytest.mark.parametrize(
    "said",
    [
        *(None, 3, [1], {}, {"target": GOOD, "draft": 3}, {"target": GOOD, "draft": GOOD | {"rows": []}}),
        *({"target": GOOD, "step": step} for step in (math.nan, math.inf, True, None)),
    ],
)
def test_anything_else_is_refused_too(said: Any) -> None:
    with pytest.raises(UsageError, match="no cost curve"):
        DecodingCosts.read(said)


def test_the_costs_of_a_step_are_read_back_whatever_stands_beside_them() -> None:
    costs = DecodingCosts(jagged(), PassCosts.flat(0.1), 0.002)
    again = DecodingCosts.read(json.loads(json.dumps(costs.as_dict())) | {"format": 1, "provenance": {}})
    assert again.as_dict() == costs.as_dict()
    alone = DecodingCosts.read({"target": GOOD})
    assert (alone.draft, alone.step) == (None, 0.0)
    assert DecodingCosts(jagged()).as_dict()["draft"] is None
