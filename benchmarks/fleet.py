"""Many replicas, computed from one: how many requests a second they take within limits of latency.

Conversations go to replicas by a hash ring, whatever is going on there, so that each replica has an arrival
process of its own, and what one does is nothing to the others. What is computed here is only how the load of
all is shared; what one replica does at a load comes from elsewhere (arrivals.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.errors import UsageError

VIRTUAL = 100  # points a replica has on the ring, as in Ray Serve's ConsistentHashRouter
HALVINGS = 50


@dataclass(frozen=True)
class Curve:
    """One replica. loads: requests a second, ascending. missed: of each, the share of requests that were not
    answered within the limits. Beyond the last load all are taken to be late. Raises UsageError where there
    is nothing to go by."""

    loads: tuple[float, ...]
    missed: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.loads, self.loads[1:], strict=False))
        if not self.loads or len(self.loads) != len(self.missed) or not rising or self.loads[0] <= 0:
            raise UsageError("a curve needs ascending loads above 0, and what is missed at each")

    def at(self, loads: NDArray[np.float64]) -> NDArray[np.float64]:
        """More load never misses less: what says otherwise is chance."""
        return np.interp(loads, self.loads, np.maximum.accumulate(self.missed), right=1.0)


def shares(replicas: int, seed: int = 0, virtual: int = VIRTUAL) -> NDArray[np.float64]:
    """The part of all conversations that each replica gets, of a ring with random points: [replicas], sums to
    1. A key belongs to the next point on the ring."""
    points = np.random.default_rng(seed).random(replicas * virtual)
    order = np.argsort(points)
    arcs = np.diff(points[order], prepend=points[order[-1]] - 1.0)
    out = np.zeros(replicas)
    np.add.at(out, order // virtual, arcs)
    return out


def capacity(curve: Curve, parts: NDArray[np.float64] | Sequence[float], missed: float) -> float:
    """The most requests a second, of all replicas, of which no more than `missed` (0 to 1) are late: a late
    share grows with the load, so it is found by halving. 0 where even the least load misses more."""
    share = np.asarray(parts, dtype=np.float64)
    low, high = 0.0, curve.loads[-1] / float(share.max()) * len(share)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        late = float(share @ curve.at(middle * share))
        low, high = (middle, high) if late <= missed else (low, middle)
    return low if low > high * 1e-6 else 0.0
