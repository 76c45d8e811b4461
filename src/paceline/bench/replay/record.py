"""Sums over replayed requests and the uncertainty of their ratios, as `paceline replay --json` prints
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from paceline.bench.record import Interval
from paceline.bench.replay.traces import TraceRequest

FORMAT = 2  # of the JSON; raised when a key changes its meaning or is removed
RESAMPLES = 2000
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Counts of one request with one method, and the predicted seconds."""

    tokens: int
    steps: int
    drafted: int
    accepted: int
    seconds: float | None = None


class ReplayedRequest(NamedTuple):
    """A request with its result. group: number of its conversation. plain: its result without drafts."""

    request: TraceRequest
    group: int
    result: ReplayResult
    plain: ReplayResult | None = None


def sum_requests(played: Sequence[ReplayedRequest]) -> Record:
    """Return the sums over some requests as a record.

    predicted: speeds from the costs of passes, without those of prompts; the speedup is over plain decoding
    of the same requests. None without costs."""
    results = [one.result for one in played]
    tokens, steps = [one.tokens for one in results], [one.steps for one in results]
    seconds = [one.seconds for one in results if one.seconds is not None]
    plain = [one.plain.seconds for one in played if one.plain and one.plain.seconds is not None]
    columns: list[Sequence[float]] = [tokens, steps] + ([seconds, plain] if plain else [])
    pairs = [(0, 1), (0, 2), (3, 2)][: len(columns) - 1]
    per_step, *speeds = map(asdict, bootstrap_ratios(columns, [one.group for one in played], pairs))
    drafted, accepted = sum(one.drafted for one in results), sum(one.accepted for one in results)
    predicted = None
    if speeds:
        predicted = {"seconds": sum(seconds), "tokens_per_second": speeds[0], "speedup": speeds[1]}
    return {
        "requests": len(results),
        "n_prompt": sum(len(one.request.recording.prompt) for one in played),
        "n_tokens": sum(tokens),
        "steps": sum(steps),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "tokens_per_step": per_step,
        "predicted": predicted,
    }


def by_category(played: Sequence[ReplayedRequest]) -> dict[str, Record]:
    """Return the sums of each category in order of appearance; empty if no request has a category."""
    names = list(dict.fromkeys(one.request.category for one in played))
    if names == [""]:
        return {}
    return {name: sum_requests([one for one in played if one.request.category == name]) for name in names}


def check_prediction(played: Sequence[ReplayedRequest], drafting: Mapping[str, Any]) -> Record | None:
    """Compare tokens/s as predicted with those of requests recorded with the settings `drafting`.

    off: the share of the measured speed by which the prediction is too high. Returns None if no request was
    recorded with these settings."""
    times = [
        (one.request.seconds, one.result.seconds, one.result.tokens)
        for one in played
        if one.request.seconds and one.result.seconds is not None and one.request.drafting == drafting
    ]
    if not times:
        return None
    took, predicted, tokens = (sum(column) for column in zip(*times, strict=True))
    speeds = {"measured": tokens / took, "predicted": tokens / predicted}
    return {"requests": len(times), **speeds, "off": took / predicted - 1.0}


def bootstrap_ratios(
    columns: Sequence[Sequence[float]], groups: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> list[Interval]:
    """Return the ratio of two columns' sums for each of `pairs`, with its 95% interval.

    columns: one number per request. groups: the conversation of each request. The percentile bootstrap
    resamples whole conversations, since the requests of one are not independent."""
    numbers = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    table = np.zeros((len(numbers), len(columns)))
    np.add.at(table, [numbers[group] for group in groups], np.array(columns, dtype=np.float64).T)
    rng, n, sums = np.random.default_rng(0), len(table), table.sum(axis=0)
    # In pieces: all draws at once would take gigabytes for a large trace.
    pieces = [table[rng.integers(n, size=(20, n))].sum(axis=1) for _ in range(RESAMPLES // 20)]
    drawn = np.concatenate(pieces)
    out = []
    for over, under in pairs:
        low, high = np.quantile(drawn[:, over] / drawn[:, under], [0.025, 0.975])
        out.append(Interval(float(sums[over] / sums[under]), float(low), float(high)))
    return out
