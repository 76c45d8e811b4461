"""The paired test: few items tell nothing, and equal systems are seldom called different."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.lab.bench.measurement import Group, Measurement
from paceline.lab.bench.paired import CHANCE, chance, differ, differences
from paceline.lab.bench.summary import Row, summarize
from paceline.lab.system import Answer
from paceline.report.bench import ENOUGH


def groups(gains: list[float], rounds: int = 1) -> list[Group]:
    """Items at which `x` is so much faster than plain decoding, which takes 10 seconds for 10 tokens."""

    def took(system: str, seconds: float) -> Measurement:
        said = Answer("", None, 11, 5, first=0.5, seconds=0.5 + seconds, decoded=10, decoding=seconds)
        return Measurement.of(system, [said])

    return [
        Group(round_, str(item), "code", {"plain": took("plain", 10.0), "x": took("x", 10.0 / gain)})
        for round_ in range(rounds)
        for item, gain in enumerate(gains)
    ]


@pytest.mark.parametrize("n", range(1, 9))
def test_items_that_all_say_the_same_tell_a_difference_from_six_on(n: int) -> None:
    assert chance([0.1] * n) == pytest.approx(2 / 2**n)
    assert differ(groups([1.5] * n), "x", "plain") == (n >= ENOUGH)
    assert differ(groups([1 / 1.5] * n), "x", "plain") == (n >= ENOUGH)


def test_more_rounds_of_few_items_do_not_make_them_many() -> None:
    assert not differ(groups([1.5, 1.4, 1.6], rounds=50), "x", "plain")


def test_an_item_counts_by_all_its_rounds_and_only_where_both_answered() -> None:
    some = groups([2.0, 4.0], rounds=2)
    some.append(Group(0, "alone", "code", {"x": some[0].measurements["x"]}))
    assert differences(some, "x", "plain") == pytest.approx(np.log([2.0, 4.0]))
    assert chance([]) == 1.0


@pytest.mark.parametrize("n", [8, 40])
def test_equal_systems_are_called_different_no_more_often_than_said(n: int) -> None:
    rng = np.random.default_rng(1)
    called = np.mean([chance(list(rng.standard_normal(n))) < CHANCE for _ in range(100)])
    assert called <= 0.12
    assert chance(list(0.5 + 0.2 * rng.standard_normal(n))) < CHANCE


def test_a_result_says_whether_it_is_clear() -> None:
    rows = [Row("plain", True, "reference", None, None), Row("x", True, "identical", None, 4)]
    for gains, clear in (([1.5] * 3, False), ([1.5] * 8, True), ([1.5, 0.7] * 4, False), ([0.7] * 8, True)):
        plain, x = summarize({}, rows, groups(gains), "plain")
        assert (plain.clear, x.clear) == (None, clear)
