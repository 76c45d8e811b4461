"""Sums over requests: tokens, speeds, categories, intervals, and checks of predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.backends.recorded import Recording
from paceline.bench.replay.replay import ReplayedRequest, sum_requests
from paceline.bench.replay.traces import TraceRequest
from paceline.bench.summary import Interval, bootstrap_ratios
from paceline.speculative.stats import Stats


def result(tokens: int, steps: int, seconds: float = 0.0) -> Stats:
    return Stats(steps, tokens, drafted=4, accepted=tokens - steps, forward_seconds=seconds)


def played(group: int, played: Stats, plain: Stats | None = None, **known: Any) -> ReplayedRequest:
    request = TraceRequest("x", group, Recording((1,) * 6, (2,)), **known)
    return ReplayedRequest(request, group, played, plain)


def test_sums_are_over_all_requests_and_speeds_over_plain_decoding() -> None:
    plain = [result(20, 20, 10.0), result(9, 9, 4.5)]
    out = sum_requests([played(0, result(20, 10, 4.0), plain[0]), played(1, result(9, 9, 6.0), plain[1])])
    assert (out["requests"], out["n_prompt"], out["n_tokens"], out["steps"]) == (2, 12, 29, 19)
    assert (out["drafted"], out["accepted"], out["acceptance_rate"]) == (8, 10, 10 / 8)
    assert out["tokens_per_step"]["value"] == 29 / 19
    speeds = out["predicted"]
    values = (speeds["seconds"], speeds["tokens_per_second"]["value"], speeds["speedup"]["value"])
    assert values == (10.0, 2.9, 1.45)
    assert (speeds["speedup"]["low"], speeds["speedup"]["high"]) == pytest.approx((4.5 / 6.0, 2.5))
    itself = sum_requests([played(i, one, one) for i, one in enumerate(plain)])["predicted"]
    assert itself["speedup"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    nothing = sum_requests([played(0, Stats(3, 3))])
    assert (nothing["acceptance_rate"], nothing["predicted"]) == (None, None)


def one(pairs: list[tuple[int, int]], groups: list[int] | None = None) -> Interval:
    columns = [[tokens for tokens, _ in pairs], [steps for _, steps in pairs]]
    return bootstrap_ratios(columns, groups or [*range(len(pairs))], [lambda sums: sums[0] / sums[1]])[0]


def test_a_conversation_is_drawn_as_a_whole() -> None:
    """Forty equal turns in four conversations have the information of four requests."""
    turns = [(10 * (1 + i // 10), 10) for i in range(40)]
    together = one(turns, [i // 10 for i in range(40)])
    assert together == one([(100 * (1 + i), 100) for i in range(4)])
    apart = one(turns)
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    intervals = [one([(int(n), 10) for n in random.integers(10, 31, size=40)]) for _ in range(60)]
    assert 52 <= sum(interval.low <= 2.0 <= interval.high for interval in intervals) <= 60
