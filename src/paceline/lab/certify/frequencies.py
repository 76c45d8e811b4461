"""Were these counts drawn from that distribution? An exact G-test: its null distribution is simulated.

Rare outcomes are pooled, since a handful of counts says nothing; what is left is compared as
G = 2 sum O ln(O / E). Several samples are judged together by their sum of G, which finds a small bias that
each of them alone would hide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
RARE = 5.0  # expected counts below this are pooled
SIMULATED = 100_000
CHUNK = 2_000_000  # numbers drawn at a time


@dataclass(frozen=True)
class Sample:
    """counts: how often each outcome came. p: its stated probability; both [n], rare outcomes pooled."""

    counts: NDArray[np.int64]
    p: Vector

    @property
    def n(self) -> int:
        return int(self.counts.sum())


def pooled(counts: NDArray[np.int64], p: Vector) -> Sample:
    """Outcomes expected fewer than five times together as one; one that cannot come stays by itself."""
    n = counts.sum()
    impossible = p <= 0.0
    frequent = p * n >= RARE
    rest = ~frequent & ~impossible
    kept_counts = [*counts[frequent], counts[rest].sum(), counts[impossible].sum()]
    kept_p = [*p[frequent], p[rest].sum(), 0.0]
    return Sample(np.array(kept_counts, dtype=np.int64), np.array(kept_p))


def g(counts: NDArray[np.int64], p: Vector) -> Any:
    """The statistic over the last axis; infinite where something impossible came."""
    n = counts.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(counts > 0, counts * np.log(counts / (n * p)), 0.0)
    return 2.0 * terms.sum(-1)


def simulated(sample: Sample, p: Vector, times: int, random: np.random.Generator) -> Vector:
    """G against the stated distribution of `times` samples drawn from `p`, as large as this one."""
    step = max(1, CHUNK // len(p))
    parts = [
        g(random.multinomial(sample.n, p / p.sum(), size=min(step, times - done)), sample.p)
        for done in range(0, times, step)
    ]
    return np.concatenate(parts)


@dataclass(frozen=True)
class Tested:
    """p_values: of each sample, and last that of all together. smallest_bias: the smallest share of draws
    whose likeliest outcome is replaced by another one that would have been found 99 times in 100."""

    p_values: tuple[float, ...]
    smallest_bias: float


def judge(samples: Sequence[Sample], level: float, seed: int) -> Tested:
    """level: the p-value below which a sample counts as biased, already corrected for the number of tests."""
    random = np.random.default_rng(seed)
    null = np.stack([simulated(sample, sample.p, SIMULATED, random) for sample in samples])
    found = np.array([g(sample.counts, sample.p) for sample in samples])
    values = [*((null >= found[:, None]).sum(1) + 1), int((null.sum(0) >= found.sum()).sum()) + 1]
    limit = float(np.quantile(null.sum(0), 1 - level))
    # What cannot come and came needs no simulation.
    certain = [*np.isinf(found), np.isinf(found).any()]
    chances = (
        0.0 if is_certain else v / (SIMULATED + 1) for v, is_certain in zip(values, certain, strict=True)
    )
    return Tested(tuple(float(chance) for chance in chances), smallest_bias(samples, limit, random))


def smallest_bias(samples: Sequence[Sample], limit: float, random: np.random.Generator) -> float:
    """By bisection over the share of draws that are replaced; 1 where nothing could have been found."""
    low, high = 0.0, 1.0
    for _ in range(12):
        share = (low + high) / 2
        total = sum(simulated(sample, replaced(sample.p, share), 400, random) for sample in samples)
        if np.mean(total > limit) >= 0.99:
            high = share
        else:
            low = share
    return high


def replaced(p: Vector, share: float) -> Vector:
    """`share` of the mass (or all there is) moved from the likeliest outcome to the others in proportion."""
    likeliest = int(p.argmax())
    moved = min(share, float(p[likeliest]))
    others = 1.0 - p[likeliest]
    if others <= 0.0:
        return p
    out: Vector = p * (1.0 + moved / others)
    out[likeliest] = p[likeliest] - moved
    return out
