"""Sums over requests: tokens, speeds, categories, and predictions beside measurements."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.bench.record import Interval
from paceline.bench.replay.record import RecordedAnswer, ReplayResult, by_category, check, figures


def played(tokens: int, steps: int, seconds: float | None = None) -> ReplayResult:
    return ReplayResult(tokens, steps, drafted=4, accepted=tokens - steps, seconds=seconds)


TWO = [RecordedAnswer(5, 0, "code"), RecordedAnswer(7, 1, "prose")]


def test_sums_are_over_all_requests() -> None:
    out = figures(TWO, [played(20, 10), played(9, 9)], None)
    assert (out.requests, out.n_prompt, out.n_tokens, out.steps) == (2, 12, 29, 19)
    assert (out.drafted, out.accepted, out.acceptance_rate) == (8, 10, 10 / 8)
    assert out.tokens_per_step.value == 29 / 19
    assert out.predicted is None
    nothing = figures(TWO[:1], [ReplayResult(3, 3, 0, 0)], None)
    assert (nothing.acceptance_rate, nothing.tokens_per_step.value) == (None, 1.0)


def test_speeds_are_all_tokens_over_all_seconds_and_speedups_over_plain_decoding() -> None:
    plain = [played(20, 20, 10.0), played(9, 9, 4.5)]
    out = figures(TWO, [played(20, 10, 4.0), played(9, 9, 6.0)], plain).predicted
    assert out is not None
    assert (out.seconds, out.tokens_per_second.value, out.speedup.value) == (10.0, 2.9, 1.45)
    assert (out.speedup.low, out.speedup.high) == pytest.approx((4.5 / 6.0, 2.5))
    itself = figures(TWO, plain, plain).predicted
    assert itself is not None
    assert itself.speedup == Interval(1.0, 1.0, 1.0)


def test_categories_come_in_their_order_and_only_where_there_are_some() -> None:
    asked = [
        RecordedAnswer(1, 0, "prose"),
        RecordedAnswer(1, 1, "code"),
        RecordedAnswer(1, 2, "prose"),
        RecordedAnswer(1, 3),
    ]
    some = [played(10 * (i + 1), 10, 1.0) for i in range(4)]
    parts = by_category(asked, some, [played(10 * (i + 1), 10, 2.0) for i in range(4)])
    assert [(name, part.requests, part.n_tokens) for name, part in parts.items()] == [
        ("prose", 2, 40), ("code", 1, 20), ("", 1, 40),
    ]  # fmt: skip
    assert [part.predicted.speedup.value for part in parts.values() if part.predicted] == [2.0, 2.0, 2.0]
    assert by_category([RecordedAnswer(1, 0), RecordedAnswer(1, 1)], some[:2], None) == {}


def test_a_prediction_is_checked_against_what_was_measured_with_the_same_settings() -> None:
    plain: dict[str, Any] = {"drafters": ["none"]}
    lookup: dict[str, Any] = {"drafters": ["lookup"], "n_draft": 4}
    asked = [
        RecordedAnswer(1, 0, measured=2.0, drafting=plain),
        RecordedAnswer(1, 1, measured=8.0, drafting=lookup),
        RecordedAnswer(1, 2, measured=None, drafting=plain),
        RecordedAnswer(1, 3, measured=2.0),
        RecordedAnswer(1, 4, measured=3.0, drafting=plain),
    ]
    some = [played(10, 10, 4.0) for _ in asked]
    found = check(asked, some, plain)
    assert found is not None
    assert (found.requests, found.measured, found.predicted) == (2, 4.0, 2.5)
    assert found.off == pytest.approx(2.5 / 4.0 - 1)
    also = check(asked, some, lookup)
    assert also is not None
    assert (also.requests, also.off) == (1, 1.0)
    assert check(asked, some, lookup | {"n_draft": 5}) is None
    assert check(asked, [played(10, 10) for _ in asked], plain) is None
