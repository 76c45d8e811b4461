"""Results from measurements: sums, means, and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.bench.record import BenchResult, Interval, ItemMeasurements, Measurement
from paceline.report.bench import MIN_ITEMS
from paceline.speculative.policy import speedup_formulas as theory

RESAMPLES = 2000
Floats = NDArray[np.float64]


def speedup(method: Sequence[Sequence[tuple[float, float]]], plain: Sequence[Sequence[tuple[float, float]]],
            seed: int = 0) -> Interval | None:  # fmt: skip
    """Return the ratio of two speeds, given as (tokens, seconds) by item and round; None if one is undefined.

    The interval is a percentile bootstrap that resamples items, and rounds within each item, so that it
    covers other texts of the kind and other measurements."""
    n = np.array([len(rounds) for rounds in method])
    widest = int(n.max(initial=0))
    table = np.zeros((4, len(n), widest))
    for i, (rounds, base) in enumerate(zip(method, plain, strict=True)):
        table[:2, i, : len(rounds)] = np.array(rounds).T
        table[2:, i, : len(base)] = np.array(base).T
    value = _ratio(table.sum(axis=(1, 2))[:, None])
    if value is None:
        return None
    if len(n) * widest < 2:
        return Interval(float(value[0]), float(value[0]), float(value[0]))
    rng = np.random.default_rng(seed)
    items = rng.integers(len(n), size=(RESAMPLES, len(n)))
    draws = (rng.random((RESAMPLES, len(n), widest)) * n[items][:, :, None]).astype(np.int64)
    # An item with fewer rounds (an interrupted run) contributes as many rounds as it has.
    real = np.arange(widest)[None, None, :] < n[items][:, :, None]
    drawn = np.stack([(part[items[:, :, None], draws] * real).sum(axis=(1, 2)) for part in table])
    ratios = _ratio(drawn)
    if ratios is None:
        return None
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(float(value[0]), float(low), float(high))


def _ratio(sums: Floats) -> Floats | None:
    tokens, seconds, plain_tokens, plain_seconds = sums
    if min(tokens.min(), seconds.min(), plain_tokens.min(), plain_seconds.min()) <= 0:
        return None
    out: Floats = (tokens / seconds) / (plain_tokens / plain_seconds)
    return out


@dataclass(frozen=True)
class SystemSummary:
    """A system with its verdict and memory, before its measurements are summed."""

    system: str
    lossless: bool
    verdict: str
    memory: int | None


def summarize(
    rows: Sequence[SystemSummary], groups: Sequence[ItemMeasurements], plain: str
) -> list[BenchResult]:
    """Return a result for each category and system, then one for each system over several categories.

    plain: the system that is the base of speedups."""
    categories = list(dict.fromkeys(group.category for group in groups))
    parts = [(category, [g for g in groups if g.category == category]) for category in categories]
    if len(categories) != 1:
        parts.append(("", list(groups)))
    return [_result(row, category, some, plain) for category, some in parts for row in rows]


def _result(row: SystemSummary, category: str, groups: Sequence[ItemMeasurements], plain: str) -> BenchResult:
    base: dict[str, Any] = {
        "system": row.system,
        "category": category,
        "lossless": row.lossless,
        "verdict": row.verdict,
        "items": len({group.item for group in groups}),
        "rounds": len({group.round for group in groups}),
        "memory": row.memory,
    }
    ours = [group.measurements[row.system] for group in groups if row.system in group.measurements]
    base["n_tokens"] = sum(m["n_tokens"] for m in ours)
    if not ours:
        return BenchResult(**base)
    base |= _acceptance(ours)
    if row.lossless and len(ours) < len(groups):  # a program failed
        base |= {"lossless": False, "verdict": f"failed: {len(groups) - len(ours)} answers are missing"}
    if not base["lossless"]:
        return BenchResult(**base)
    tokens, seconds = sum(m["tokens"] for m in ours), sum(m["seconds"] for m in ours)
    speeds = _speeds(groups, row.system)
    gain = ratio(groups, row.system, plain) if row.system != plain else None
    own_speeds = [m["own_speed"] for m in ours if m["own_speed"] is not None]
    decode = _total(ours, "decode_seconds")
    return BenchResult(
        **base,
        speed=float(np.mean(speeds)) if speeds else None,
        speed_sd=float(np.std(speeds, ddof=1)) if len(speeds) > 1 else None,
        speedup=gain,
        ttft=sum(m["first"] for m in ours) / len(ours),
        tpot=seconds / tokens if tokens else None,
        draft_share=_over(_total(ours, "draft_seconds"), decode) if _total(ours, "drafted") else None,
        own_speed=float(np.mean(own_speeds)) if own_speeds else None,
        clear=None if gain is None else base["items"] >= MIN_ITEMS and (gain.low > 1 or gain.high < 1),
    )


def _acceptance(ours: Sequence[Measurement]) -> dict[str, float | None]:
    drafted, accepted = _total(ours, "drafted"), _total(ours, "accepted")
    steps, rejected = _total(ours, "steps"), _total(ours, "rejected")
    known = accepted is not None and rejected is not None and accepted + rejected > 0
    return {
        "acceptance_rate": _over(accepted, drafted),
        "acceptance_length": None if accepted is None or not steps else 1 + accepted / steps,
        "acceptance": theory.acceptance(int(accepted), int(rejected)) if known else None,  # type: ignore[arg-type]
    }


def _total(measurements: Sequence[Measurement], name: str) -> float | None:
    values = [m[name] for m in measurements]
    return None if not values or any(value is None for value in values) else float(sum(values))


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _speeds(groups: Sequence[ItemMeasurements], system: str) -> list[float]:
    sums: dict[int, list[float]] = {}
    for group in groups:
        if (m := group.measurements.get(system)) is not None:
            tokens_seconds = sums.setdefault(group.round, [0.0, 0.0])
            tokens_seconds[0] += m["tokens"]
            tokens_seconds[1] += m["seconds"]
    return [tokens / seconds for tokens, seconds in sums.values() if seconds > 0]


def ratio(groups: Sequence[ItemMeasurements], system: str, to: str) -> Interval | None:
    """Return the speedup of a system over another, from the groups that have both."""
    both = [group for group in groups if {system, to} <= set(group.measurements)]
    return speedup(_by_item(both, system), _by_item(both, to)) if both else None


def _by_item(groups: Sequence[ItemMeasurements], system: str) -> list[list[tuple[float, float]]]:
    out: dict[str, list[tuple[float, float]]] = {}
    for group in groups:
        m = group.measurements[system]
        out.setdefault(group.item, []).append((m["tokens"], m["seconds"]))
    return list(out.values())
