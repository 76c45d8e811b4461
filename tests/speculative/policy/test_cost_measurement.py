"""Measurement of pass costs, on a clock that advances by given costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.backends.toy import ToyTarget
from paceline.speculative.policy.costs import (
    MAX_INVERSION_FACTOR,
    MAX_SAMPLES,
    MAX_SINGLE_TOKEN_FACTOR,
    TOKEN_COUNTS,
    PassCosts,
    PassTimer,
    implausibility,
    measure,
)
from timed import TimedTarget

JAGGED = {1: 1.0, 2: 1.79, 3: 2.42, 4: 1.83, 5: 2.42, 7: 3.64, 8: 2.82, 12: 4.0, 16: 4.2, 32: 8.0, 64: 15.0}
MS = 1e-3


def costing(scale: float) -> Callable[[int, int], float]:
    cost = PassCosts({256: {n: s * scale for n, s in JAGGED.items()}})
    return lambda n, _: cost.seconds(n, 256)


def measured(target: TimedTarget, **how: Any) -> PassCosts:
    return measure(target, clock=target.clock, **how)


def test_a_jagged_curve_is_found_as_it_is_and_nothing_is_left_behind() -> None:
    target = TimedTarget(costing(MS))
    cost = measured(target, seconds=60.0, depths=(256, 1024))
    assert cost.rows == TOKEN_COUNTS
    assert cost.depths == (256, 1024)
    for n in TOKEN_COUNTS:
        for depth in (256, 1024):
            assert cost.seconds(n, depth) == pytest.approx(target.seconds(n, 0))
    assert cost.timing_jitter == pytest.approx(1.0)
    assert (target.closed, target.forgot) == (1, 1)


def test_of_a_huge_model_one_row_is_measured_three_times_and_two_once() -> None:
    target = TimedTarget(costing(10.0), fill=5.0)
    cost = measured(target, seconds=3.0)
    assert cost.rows == (1, 2)
    assert (cost.seconds(1, 256), cost.seconds(2, 256)) == pytest.approx((10.0, 17.9))
    assert target.passes == {1: 4, 2: 1}  # the first one warms up


@pytest.mark.parametrize("seconds", [3.0, 0.0, -1.0])
@pytest.mark.parametrize("scale", [0.001, 0.05, 1.0])
@pytest.mark.parametrize("fill", [0.0, 0.001, 0.1])
def test_it_ends_when_its_time_is_over(scale: float, fill: float, seconds: float) -> None:
    target = TimedTarget(costing(scale), fill)
    rows = measured(target, seconds=seconds).rows
    # What was under way, and what has to be: three first passes, twice, and a piece of the text.
    assert target.now <= max(0.0, seconds) + 8 * scale + 2 * fill + 16 * fill
    assert seconds > 0 or rows == (1, 2)


def test_time_is_shared_out_so_that_cheap_passes_are_repeated_and_dear_ones_wait() -> None:
    target = TimedTarget(costing(20 * MS))
    cost = measured(target, seconds=2.0, depths=(2,))
    assert {1, 2, 4, 8} <= set(cost.rows)
    assert 64 not in cost.rows
    assert target.passes[1] > target.passes[2] > target.passes[8] >= 1


def test_a_text_that_takes_too_long_to_read_is_read_as_far_as_a_quarter_of_the_time_goes() -> None:
    target = TimedTarget(costing(MS), fill=0.01)
    cost = measured(target, seconds=4.0, depths=(1024, 4000))
    (depth,) = cost.depths
    assert 50 < depth < 256
    assert cost.rows == TOKEN_COUNTS


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_a_hiccup_is_not_taken_for_the_cost(n: int) -> None:
    curve = costing(MS)
    target = TimedTarget(lambda rows, turn: curve(rows, 0) * (50 if rows == n and turn == 3 else 1))
    cost = measured(target, seconds=20.0, depths=(256,))
    assert cost.seconds(n, 256) == pytest.approx(curve(n, 0))


def test_a_pass_too_short_for_the_clock_is_repeated() -> None:
    target = TimedTarget(costing(1e-6))
    coarse = 2e-5  # seconds that the clock goes on by
    cost = measure(target, seconds=1.0, depths=(2,), clock=lambda: math.floor(target.now / coarse) * coarse)
    assert cost.seconds(64, 2) == pytest.approx(15e-6, rel=0.4)
    assert target.passes[64] > MAX_SAMPLES


@pytest.mark.parametrize("clock", [lambda: 5.0, lambda: math.nan])
def test_on_a_clock_that_does_not_work_it_ends_with_costs_above_0(clock: Callable[[], float]) -> None:
    cost = measure(ToyTarget(), seconds=1.0, depths=(2, 600), rows=(1, 4), clock=clock)
    assert min(cost.curve(8, 256)[1:]) > 0


@pytest.mark.parametrize("n_ctx", [1, 2, 3, 5, 16, 100, 300])
@pytest.mark.parametrize("rewind", [True, False])
def test_it_stays_within_the_context_and_the_rows_of_a_pass(n_ctx: int, rewind: bool) -> None:
    target = TimedTarget(costing(MS), n_ctx=n_ctx, max_batch_tokens=12, rollback="free" if rewind else "none")
    cost = measured(target, seconds=60.0)
    assert target.longest <= n_ctx
    assert cost.max_batch_tokens == (min(12, max(1, n_ctx // 2)) if rewind else 1)
    assert set(cost.rows) <= set(TOKEN_COUNTS)


def test_what_the_progress_raises_ends_it_and_the_session_is_given_back() -> None:
    target = TimedTarget(costing(MS))

    def stop(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(target, progress=stop)
    assert (target.closed, target.forgot) == (1, 1)


def test_the_progress_is_told_as_a_share_that_grows_to_the_whole() -> None:
    shares: list[float] = []
    target = TimedTarget(costing(5 * MS))
    measured(target, seconds=2.0, progress=shares.append)
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.1
    assert 0.9 < shares[-1] <= 1.0


def test_a_large_model_too_has_its_noise_told() -> None:
    """Jitter needs at least three passes."""
    calm = TimedTarget(costing(1.0))
    assert measured(calm, seconds=2.5, depths=(8,)).timing_jitter == pytest.approx(1.0)
    noisy = TimedTarget(lambda n, turn: 1.0 + turn)
    assert measured(noisy, seconds=2.5, depths=(8,)).timing_jitter == pytest.approx(5.0 / 3.0)


# Measured: AVX-512, where three rows cost more than four; a type that is not repacked; a draft on two cores.
TRUE = [
    {1: 1.0, 2: 1.79, 3: 2.42, 4: 1.83, 5: 2.42, 7: 3.64, 8: 2.82, 12: 4.0, 16: 4.2, 32: 8.0},
    {1: 13.2, 2: 23.1, 3: 32.0, 4: 36.5, 8: 61.6, 16: 107.1, 64: 393.0},
    {1: 1.24, 2: 1.79, 3: 1.66, 4: 1.73, 5: 1.95, 6: 2.91, 7: 1.81, 8: 2.4, 16: 3.01},
    {1: 0.3, 2: 0.9, 4: 1.0},  # a faster way for the single row alone
    {8: 3.0},
]


@pytest.mark.parametrize("cells", TRUE)
def test_what_machines_have_is_believed(cells: dict[int, float]) -> None:
    assert implausibility({256: cells}) == ""


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({1: 0.99, 2: 300.0, 3: 1.8}, "after 256 tokens 2 rows take 303 times what one row does"),
        ({1: 1.0, 2: 1.5, 4: 40.0}, "4 rows take 40 times what one row does"),
        ({1: 4.0, 2: 1.0, 8: 1.1}, "one row takes 4 times what 2 rows do"),
        ({1: 1.0, 2: 0.73, 4: 1.2}, "one row takes 1.37 times what 2 rows do"),
        ({1: 1.0, 6: 9.0, 7: 2.0, 8: 1.5}, "6 rows take 6 times what 8 rows do"),
    ],
)
def test_what_no_machine_has_is_told_in_words(cells: dict[int, float], words: str) -> None:
    assert words in implausibility({64: TRUE[0], 256: cells})


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20), st.integers(1, 64), st.floats(10.0, 1e6))
def test_rows_that_cost_up_to_a_pass_each_are_believed_and_one_that_is_far_off_never(
    steps: list[float], n: int, far: float
) -> None:
    seconds = [1.0]
    for step in steps:
        seconds.append(seconds[-1] + step)
    cells = dict(enumerate(seconds, 1))
    assert all(low <= high for low, high in pairwise(seconds))
    assert implausibility({256: cells}) == ""
    n = min(n, len(cells))
    dear = far * MAX_SINGLE_TOKEN_FACTOR * n if n > 1 else far * MAX_INVERSION_FACTOR * len(cells)
    assert implausibility({256: cells | {n: dear}}) != ""


def test_a_prompt_and_passes_are_timed_apart() -> None:
    target = TimedTarget(lambda n, _: 1.0 + n, fill=0.5)
    with closing(PassTimer(target, target.clock)) as timer:
        assert timer.prefill(10) == 2.0 + 10 * 0.5
        assert [timer.time_pass(n) for n in (1, 8, 1)] == [2.0, 9.0, 2.0]
        assert timer.prefill(14) == 2.0 + 4 * 0.5  # what it has more than before
        assert (timer.context_length, target.opened) == (14, 1)
        assert timer.prefill(4) == 2.0 + 4 * 0.5  # from the start
        assert (timer.context_length, target.opened) == (4, 2)
    assert (target.closed, target.forgot) == (2, 1)


def test_a_target_that_cannot_go_back_reads_on_and_begins_again_at_the_end_of_its_context() -> None:
    target = TimedTarget(lambda n, _: 1.0, rollback="none", n_ctx=6)
    with closing(PassTimer(target, target.clock)) as timer:
        timer.prefill(3)
        depths = []
        for _ in range(8):
            assert timer.time_pass(1) == 1.0
            depths.append(timer.context_length)
    assert depths == [5, 6, 7, 2, 3, 4, 5, 6]
    assert target.longest == 6


def test_a_target_with_checkpoints_is_filled_again_where_its_context_ends() -> None:
    """One row moves the text on; several come back to the checkpoint."""
    target = TimedTarget(lambda n, _: float(n), rollback="restore", n_ctx=8)
    with closing(PassTimer(target, target.clock)) as timer:
        timer.prefill(3)
        depths = []
        for n in (1, 3, 3, 1, 1, 3, 1):
            assert timer.time_pass(n) == float(n)
            depths.append(timer.context_length)
    assert depths == [5, 5, 5, 6, 7, 4, 5]
    assert target.longest <= 8
