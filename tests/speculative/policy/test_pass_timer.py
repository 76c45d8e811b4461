"""The pass timer: what is prefilled and timed, in which order, without leftovers."""

from __future__ import annotations

from contextlib import closing

import pytest

from paceline.backends.toy import ToyTarget
from paceline.speculative.policy.costs import MIN_SECONDS, PassTimer
from timed import TimedTarget


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


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan")])
def test_on_a_clock_that_does_not_work_everything_takes_a_moment(step: float) -> None:
    now = iter(i * step for i in range(99))
    with closing(PassTimer(ToyTarget(), lambda: next(now))) as timer:
        assert [timer.prefill(5), timer.time_pass(1), timer.time_pass(3)] == [MIN_SECONDS] * 3
