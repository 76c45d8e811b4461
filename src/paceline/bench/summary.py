"""Results from measurements: sums, means, and intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.bench.system import ItemMeasurements, Measurement
from paceline.report.bench import MIN_ITEMS
from paceline.speculative import speedup_formulas as theory

RESAMPLES = 2000
# Not reported by every system.
FIGURES = ("steps", "drafted", "accepted", "rejected", "draft_seconds", "decode_seconds")
Floats = NDArray[np.float64]
Groups = Sequence[ItemMeasurements]


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class BenchResult:
    """A row of the results, with None for what a system does not report and for speeds of lossy output.
    category: of the items; "" for all. verdict: of the lossless gate. n_tokens: decoded in all rounds.
    speed, speed_sd: tokens/s of decoding, mean and standard deviation over the rounds. speedup: over plain
    decoding. clear: the speedup differs from 1 by more than chance. ttft, tpot: mean seconds to the first
    token and for each later one. draft_share: of decoding time. memory: bytes. acceptance: probability that a
    drafted token is accepted after its predecessors."""

    system: str
    category: str
    lossless: bool
    verdict: str
    items: int
    rounds: int
    n_tokens: int
    speed: float | None = None
    speed_sd: float | None = None
    speedup: Interval | None = None
    acceptance_rate: float | None = None
    acceptance_length: float | None = None
    acceptance: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    draft_share: float | None = None
    memory: int | None = None
    own_speed: float | None = None
    clear: bool | None = None


def bootstrap_ratios(
    columns: Sequence[Sequence[float]], groups: Sequence[object], ratios: Sequence[Callable[[Floats], Floats]]
) -> list[Interval]:
    """Return ratios of sums, each with its 95% interval.
    columns: each with a number for every answer. groups: the item or conversation of each answer. ratios: of
    the columns' sums. The percentile bootstrap resamples whole groups, whose answers are not independent."""
    numbers = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    table = np.zeros((len(numbers), len(columns)))
    np.add.at(table, [numbers[group] for group in groups], np.array(columns, dtype=np.float64).T)
    rng, n = np.random.default_rng(0), len(table)
    # In pieces: all draws at once would take gigabytes for a large trace.
    pieces = [table[rng.integers(n, size=(20, n))].sum(axis=1) for _ in range(RESAMPLES // 20)]
    sums, drawn = table.sum(axis=0), np.concatenate(pieces).T
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = [np.quantile(ratio(drawn), [0.025, 0.975]).tolist() for ratio in ratios]
        return [Interval(float(ratio(sums)), *pair) for ratio, pair in zip(ratios, bounds, strict=True)]


def speedup(
    items: Sequence[object], speeds: Sequence[tuple[float, float]], base: Sequence[tuple[float, float]]
) -> Interval | None:
    """Return the ratio of two speeds, given as (tokens, seconds) of each answer; None if it is undefined.
    items: of the answers. The interval covers other items of the kind."""
    columns = [*zip(*speeds, strict=True), *zip(*base, strict=True)]
    (gain,) = bootstrap_ratios(columns, items, [lambda sums: sums[0] * sums[3] / (sums[1] * sums[2])])
    return gain if gain.low > 0 and gain.high < math.inf else None


def summarize(rows: Sequence[Mapping[str, Any]], groups: Groups, plain: str) -> list[BenchResult]:
    """Return a result for each category and system, then one for each system over several categories.
    rows: of each system (Contestant.row). plain: the base of speedups."""
    categories = list(dict.fromkeys(group.category for group in groups))
    parts = [(category, [g for g in groups if g.category == category]) for category in categories]
    if len(categories) != 1:
        parts.append(("", list(groups)))
    return [_result(row, category, some, plain) for category, some in parts for row in rows]


def _result(row: Mapping[str, Any], category: str, groups: Groups, plain: str) -> BenchResult:
    system = row["system"]
    counts = {f"{name}s": len({getattr(group, name) for group in groups}) for name in ("item", "round")}
    measured = [(group.round, group.measurements[system]) for group in groups if system in group.measurements]
    ours = [one for _, one in measured]
    # None if one of the answers has none, or if there are no answers.
    sums = {name: _total(ours, name) for name in (*FIGURES, "n_tokens", "tokens", "seconds", "first")}
    steps, drafted, accepted, rejected = (sums[name] for name in FIGURES[:4])
    base: dict[str, Any] = {
        **row, **counts, "category": category, "n_tokens": int(sums["n_tokens"] or 0),
        "acceptance_rate": _over(accepted, drafted),
        "acceptance_length": None if accepted is None or not steps else 1 + accepted / steps,
    }  # fmt: skip
    if accepted is not None and rejected is not None and accepted + rejected > 0:
        base["acceptance"] = theory.acceptance(int(accepted), int(rejected))
    if ours and row["lossless"] and len(ours) < len(groups):  # a program failed
        base |= {"lossless": False, "verdict": f"failed: {len(groups) - len(ours)} answers are missing"}
    if not ours or not base["lossless"]:
        return BenchResult(**base)
    rounds = [[one for at, one in measured if at == round_] for round_ in dict(measured)]
    by_round = [_over(_total(some, "tokens"), _total(some, "seconds")) for some in rounds]
    speeds = [speed for speed in by_round if speed is not None]
    gain = ratio(groups, system, plain) if system != plain else None
    own_speeds = [one["own_speed"] for one in ours if one["own_speed"] is not None]
    return BenchResult(
        **base,
        speed=float(np.mean(speeds)) if speeds else None,
        speed_sd=float(np.std(speeds, ddof=1)) if len(speeds) > 1 else None,
        speedup=gain,
        ttft=_over(sums["first"], len(ours)),
        tpot=_over(sums["seconds"], sums["tokens"]),
        draft_share=_over(sums["draft_seconds"], sums["decode_seconds"]) if drafted else None,
        own_speed=float(np.mean(own_speeds)) if own_speeds else None,
        clear=None if gain is None else base["items"] >= MIN_ITEMS and (gain.low > 1 or gain.high < 1),
    )


def _total(measurements: Sequence[Measurement], name: str) -> float | None:
    values = [measurement[name] for measurement in measurements]
    return None if not values or None in values else float(sum(values))


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def ratio(groups: Groups, system: str, to: str) -> Interval | None:
    """Return the speedup of a system over another, from the groups that have both."""
    both = [group for group in groups if {system, to} <= set(group.measurements)]
    speeds, base = (
        [(m["tokens"], m["seconds"]) for m in (group.measurements[name] for group in both)]
        for name in (system, to)
    )
    return speedup([group.item for group in both], speeds, base) if both else None
