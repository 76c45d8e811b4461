"""Were these counts drawn from that distribution? One may look after every draw, and stop when one knows.

The evidence of a table is a bet against its stated law: how much likelier its counts are where the outcomes'
probabilities are themselves drawn at random around the stated ones (a Dirichlet distribution; close and wide
ones are averaged). While the law holds the evidence has mean 1 after every draw, so that the chance that it
ever comes to 1 / level is at most `level` (Ville's inequality; Ramdas et al., "Game-theoretic statistics and
safe anytime-valid inference", arXiv:2210.01948). Evidence of independent draws multiplies: logarithms add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
RARE = 5.0  # outcomes that are expected less often are counted as one
IMPOSSIBLE = 1e-12  # rounding's share of a probability that is zero
# How close around the stated law the bets are: as far as so many draws would let it wander.
CLOSENESS = (30.0, 300.0, 3000.0)
TRIALS, HALVINGS = 200, 10  # of the search for the smallest bias


class OutcomeTable:
    """Counts of outcomes of a stated law. planned: about how often it will be drawn from, which decides
    before the first draw which outcomes are too rare to be looked at one by one."""

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
        """Its logarithm; infinite where something impossible came."""
        return float(evidence(self.counts, self.p))


def evidence(counts: NDArray[np.int64], p: Vector) -> Any:
    """The logarithm of the evidence of `counts` [..., outcomes], the last of which cannot come."""
    found, stated = counts[..., :-1], p[:-1]
    n = found.sum(-1)
    bets = [
        math.lgamma(c) - log_gamma(c + n) + (log_gamma(c * stated + found) - log_gamma(c * stated)).sum(-1)
        for c in CLOSENESS
    ]
    ratio = np.logaddexp.reduce(bets, axis=0) - math.log(len(CLOSENESS)) - found @ np.log(stated)
    return np.where(counts[..., -1] > 0, np.inf, ratio)


def log_gamma(x: Any) -> Any:
    """Stirling's series eight above, and the recurrence down again: math.lgamma takes one number a call."""
    above = x + 8.0
    series = (above - 0.5) * np.log(above) - above + 0.5 * math.log(2.0 * math.pi)
    series += 1.0 / (12.0 * above) - 1.0 / (360.0 * above**3) + 1.0 / (1260.0 * above**5)
    below = x
    for i in range(1, 8):
        below = below * (x + i)
    return series - np.log(below)


def p_value(evidence: float) -> float:
    """What it comes to as a p-value that holds whenever one looks."""
    return math.exp(-evidence) if evidence > 0.0 else 1.0


def smallest_bias(tables: Sequence[OutcomeTable], level: float, seed: int) -> float:
    """The smallest share of draws whose likeliest outcome is replaced by another one that tables of this size
    together would have shown 99 times in 100. By bisection; 1 where nothing could have been found."""
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
    """`share` of the mass (or all there is) moved from the likeliest outcome to the others in proportion."""
    likeliest = int(p.argmax())
    moved = min(share, float(p[likeliest]))
    others = 1.0 - p[likeliest]
    if others <= 0.0:
        return p
    out: Vector = p * (1.0 + moved / others)
    out[likeliest] = p[likeliest] - moved
    return np.minimum(out, 1.0)  # by rounding, where one outcome is left
