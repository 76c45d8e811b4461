"""Sums, speeds and intervals of made-up measurements."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.bench.summary import Interval, speedup, summarize
from paceline.bench.system import BenchAnswer, ItemMeasurements, Measurement, measurement


def answer(n: int, seconds: float, **more: Any) -> BenchAnswer:
    return BenchAnswer(
        "", None, n, 5, first=0.5, seconds=0.5 + seconds, decoded=n - 1, decoding=seconds, **more
    )


def measured(system: str, n: int, seconds: float, **more: Any) -> Measurement:
    return measurement(system, answer(n, seconds, **more))


def rows(*lossless: tuple[str, bool]) -> list[dict[str, Any]]:
    return [
        {"system": name, "lossless": good, "verdict": "identical" if good else "NOT LOSSLESS", "memory": 100}
        for name, good in lossless
    ]


def test_speed_counts_what_came_after_the_first_tokens() -> None:
    groups = [ItemMeasurements(r, "a", "code", {"plain": measured("plain", 11, 2.0)}) for r in (0, 1)]
    (result,) = summarize(rows(("plain", True)), groups, "plain")
    assert (result.speed, result.speed_sd, result.tpot, result.ttft) == (5.0, 0.0, 0.2, 0.5)
    assert (result.items, result.rounds, result.n_tokens) == (1, 2, 22)
    assert result.speedup is None


def test_a_method_that_failed_the_gate_has_acceptance_but_no_speed() -> None:
    more = {"steps": 5, "drafted": 10, "accepted": 5, "rejected": 5}
    both = {"plain": measured("plain", 11, 2.0), "model": measured("model", 11, 1.0, **more)}
    groups = [ItemMeasurements(0, "a", "code", both)]
    _, bad = summarize(rows(("plain", True), ("model", False)), groups, "plain")
    assert (bad.speed, bad.speedup, bad.ttft, bad.own_speed) == (None,) * 4
    assert (bad.acceptance_rate, bad.acceptance_length, bad.acceptance) == (0.5, 2.0, 0.5)


def test_several_categories_are_told_one_by_one_and_together() -> None:
    groups = [
        ItemMeasurements(0, name, name, {"plain": measured("plain", 11, 2.0), "x": measured("x", 11, time)})
        for name, time in (("code", 1.0), ("prose", 4.0))
    ]
    results = summarize(rows(("plain", True), ("x", True)), groups, "plain")
    assert [(r.category, r.system) for r in results] == [
        ("code", "plain"), ("code", "x"), ("prose", "plain"), ("prose", "x"), ("", "plain"), ("", "x"),
    ]  # fmt: skip
    gains = [r.speedup.value for r in results if r.speedup is not None]
    assert gains == pytest.approx([2.0, 0.5, 0.8])


def test_equal_measurements_have_an_interval_without_width_and_none_without_tokens() -> None:
    assert speedup("aaabbbccc", [(10.0, 1.0)] * 9, [(10.0, 2.0)] * 9) == Interval(2.0, 2.0, 2.0)
    assert speedup("ab", [(0.0, 0.0)] * 2, [(10.0, 2.0)] * 2) is None


@pytest.mark.parametrize(
    ("items", "seconds", "clear"), [(6, (1.0, 1.1), True), (5, (1.0, 1.1), False), (6, (1.0, 4.0), False)]
)
def test_a_difference_is_clear_where_six_items_or_more_leave_no_doubt(
    items: int, seconds: tuple[float, float], clear: bool
) -> None:
    both = [{"plain": measured("plain", 11, 2.0), "x": measured("x", 11, one)} for one in seconds]
    groups = [ItemMeasurements(0, str(i), "code", both[i % 2]) for i in range(items)]
    plain, x = summarize(rows(("plain", True), ("x", True)), groups, "plain")
    assert (plain.clear, x.clear) == (None, clear)
