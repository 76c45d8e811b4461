"""A sequential test of counts against a distribution, which may be evaluated after every draw.

The evidence of a table is a likelihood ratio: its counts under Dirichlet-distributed probabilities around the
stated ones, over the stated ones. Several concentrations are averaged. Under the stated distribution the
evidence has mean 1 after every draw, so that it ever reaches 1 / level with probability at most `level`.
(Ville's inequality; Ramdas et al., "Game-theoretic statistics and safe anytime-valid inference",
arXiv:2210.01948.) Evidence of independent draws multiplies, so logarithms add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
RARE = 5.0  # outcomes with fewer expected counts are pooled
IMPOSSIBLE = 1e-12  # probabilities up to this count as zero
# Dirichlet concentrations: each allows the deviation that so many draws would produce.
CLOSENESS = (30.0, 300.0, 3000.0)
TRIALS, HALVINGS = 200, 10  # in the search for the smallest bias


class OutcomeTable:
    """Counts of the outcomes of a stated distribution.

    planned: expected number of draws, which decides in advance which outcomes are pooled as rare."""

    def __init__(self, law: Vector, planned: float) -> None:
        impossible = law <= IMPOSSIBLE
        often = ~impossible & (law * planned >= RARE)
        rare = ~impossible & ~often
        self.p: Vector = np.array([*law[often], *([law[rare].sum()] if rare.any() else []), 0.0])
        self.p /= self.p.sum()
        self.counts: NDArray[np.int64] = np.zeros(len(self.p), np.int64)
        self._cells = np.where(impossible, len(self.p) - 1, often.sum())
        self._cells[often] = np.arange(often.sum())

    def add(self, outcome: int) -> None:
        self.counts[self._cells[outcome]] += 1

    @property
    def evidence(self) -> float:
        """Logarithm of the evidence; infinite after an impossible outcome."""
        return float(evidence(self.counts, self.p))


def evidence(counts: NDArray[np.int64], p: Vector) -> Any:
    """Return the logarithm of the evidence of `counts` [..., outcomes], of which the last outcome is
    impossible."""
    drawn, stated = counts[..., :-1], p[:-1]
    n = drawn.sum(-1)
    bets = [
        math.lgamma(c) - log_gamma(c + n) + (log_gamma(c * stated + drawn) - log_gamma(c * stated)).sum(-1)
        for c in CLOSENESS
    ]
    ratio = np.logaddexp.reduce(bets, axis=0) - math.log(len(CLOSENESS)) - drawn @ np.log(stated)
    return np.where(counts[..., -1] > 0, np.inf, ratio)


def log_gamma(x: Any) -> Any:
    """Return log gamma by Stirling's series at x + 8 and the recurrence, since math.lgamma is not
    vectorised."""
    above = x + 8.0
    series = (above - 0.5) * np.log(above) - above + 0.5 * math.log(2.0 * math.pi)
    series += 1.0 / (12.0 * above) - 1.0 / (360.0 * above**3) + 1.0 / (1260.0 * above**5)
    below = x
    for i in range(1, 8):
        below = below * (x + i)
    return series - np.log(below)


def p_value(evidence: float) -> float:
    """Return the evidence as an anytime-valid p-value."""
    return math.exp(-evidence) if evidence > 0.0 else 1.0


def smallest_bias(tables: Sequence[OutcomeTable], level: float, seed: int) -> float:
    """Return the smallest bias that tables of this size would detect 99 times in 100, by bisection; 1 if
    none.

    A bias is the share of draws in which another outcome replaces the likeliest one."""
    random = np.random.default_rng(seed)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        share = (low + high) / 2
        total = np.zeros(TRIALS)
        for table in tables:
            drawn = random.multinomial(table.counts.sum(), shift_probability(table.p, share), size=TRIALS)
            total += evidence(drawn, table.p)
        if np.mean(total >= -math.log(level)) >= 0.99:
            high = share
        else:
            low = share
    return high


def shift_probability(p: Vector, share: float) -> Vector:
    """Move `share` of the mass, or all there is, from the likeliest outcome to the others in proportion."""
    likeliest = int(p.argmax())
    moved = min(share, float(p[likeliest]))
    others = 1.0 - p[likeliest]
    if others <= 0.0:
        return p
    out: Vector = p * (1.0 + moved / others)
    out[likeliest] = p[likeliest] - moved
    return np.minimum(out, 1.0)  # by rounding, where one outcome is left
