"""Figures of a replay: sums over requests, with the uncertainty of their ratios.

`as_dict` is what `paceline replay --json` prints; FORMAT goes up when a name changes its meaning or goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from paceline.bench.record import Interval
from paceline.bench.replay.traces import TraceRequest
from paceline.speculative.policy.drafting_summary import DraftingSummary
from paceline.speculative.stats import SourceStats

FORMAT = 2
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One request with one method. tokens: as recorded. seconds: as predicted."""

    tokens: int
    steps: int
    drafted: int
    accepted: int
    seconds: float | None = None


class ReplayedRequest(NamedTuple):
    """group: the number of its conversation. plain: its result without drafts, where costs are known."""

    request: TraceRequest
    group: int
    result: ReplayResult
    plain: ReplayResult | None = None


@dataclass(frozen=True, slots=True)
class SpeedPrediction:
    """Predicted from the costs of passes, without those of prompts. speedup: over plain decoding of the same
    requests."""

    seconds: float
    tokens_per_second: Interval
    speedup: Interval


@dataclass(frozen=True, slots=True)
class PredictionCheck:
    """Tokens/s as measured and as predicted, of the requests that were recorded with a method's settings.

    off: by what share of the measured speed the prediction is too high."""

    requests: int
    measured: float
    predicted: float
    off: float


@dataclass(frozen=True, kw_only=True)
class ReplaySums:
    """Sums over some requests. acceptance_rate: None where nothing was drafted."""

    requests: int
    n_prompt: int
    n_tokens: int
    steps: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    tokens_per_step: Interval
    predicted: SpeedPrediction | None


@dataclass(frozen=True, kw_only=True)
class MethodResult(ReplaySums):
    """One method over all requests.

    partial: it reads the target's likeliest tokens at every node, and had them along the record only.
    account: the policy's report of its choices since it last forgot.
    each: by request, in their order."""

    method: str
    drafting: dict[str, Any]
    by_source: dict[str, SourceStats]
    by_category: dict[str, ReplaySums]
    partial: bool
    measured: PredictionCheck | None
    account: DraftingSummary | None
    each: tuple[ReplayResult, ...] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        out = asdict(self)
        del out["account"]
        return out | {"policy": None if self.account is None else self.account.as_dict()}


def sum_requests(played: Sequence[ReplayedRequest]) -> ReplaySums:
    results = [one.result for one in played]
    tokens, steps = [one.tokens for one in results], [one.steps for one in results]
    seconds = [one.seconds for one in results if one.seconds is not None]
    plain = [one.plain.seconds for one in played if one.plain and one.plain.seconds is not None]
    columns: list[Sequence[float]] = [tokens, steps] + ([seconds, plain] if plain else [])
    pairs = [(0, 1), (0, 2), (3, 2)][: len(columns) - 1]
    per_step, *speeds = bootstrap_ratios(columns, [one.group for one in played], pairs)
    drafted, accepted = sum(one.drafted for one in results), sum(one.accepted for one in results)
    return ReplaySums(
        requests=len(results),
        n_prompt=sum(len(one.request.recording.prompt) for one in played),
        n_tokens=sum(tokens),
        steps=sum(steps),
        drafted=drafted,
        accepted=accepted,
        acceptance_rate=accepted / drafted if drafted else None,
        tokens_per_step=per_step,
        predicted=SpeedPrediction(sum(seconds), *speeds) if speeds else None,
    )


def by_category(played: Sequence[ReplayedRequest]) -> dict[str, ReplaySums]:
    """By name, in the order they first came; nothing where no request has one."""
    names = list(dict.fromkeys(one.request.category for one in played))
    if names == [""]:
        return {}
    return {name: sum_requests([one for one in played if one.request.category == name]) for name in names}


def check_prediction(
    played: Sequence[ReplayedRequest], drafting: Mapping[str, Any]
) -> PredictionCheck | None:
    """drafting: the method's settings, as they are recorded. None where nothing was measured with them."""
    known = [
        (one.request.seconds, one.result.seconds, one.result.tokens)
        for one in played
        if one.request.seconds and one.result.seconds is not None and one.request.drafting == drafting
    ]
    if not known:
        return None
    took, predicted, tokens = (sum(column) for column in zip(*known, strict=True))
    return PredictionCheck(len(known), tokens / took, tokens / predicted, took / predicted - 1.0)


def bootstrap_ratios(
    columns: Sequence[Sequence[float]], groups: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> list[Interval]:
    """For each of `pairs` the sum of one column over that of another, with its 95% interval.

    columns: each with one number a request. groups: which requests belong together. A percentile bootstrap
    that draws requests anew, those of a conversation together: they are about one text. All ratios are of the
    same draws."""
    numbers = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    table = np.zeros((len(numbers), len(columns)))
    np.add.at(table, [numbers[group] for group in groups], np.array(columns, dtype=np.float64).T)
    rng, n, sums = np.random.default_rng(0), len(table), table.sum(axis=0)
    # In pieces: all draws at once would take gigabytes for a day's traffic.
    pieces = [table[rng.integers(n, size=(20, n))].sum(axis=1) for _ in range(RESAMPLES // 20)]
    drawn = np.concatenate(pieces)
    out = []
    for over, under in pairs:
        low, high = np.quantile(drawn[:, over] / drawn[:, under], [0.025, 0.975])
        out.append(Interval(float(sums[over] / sums[under]), float(low), float(high)))
    return out
