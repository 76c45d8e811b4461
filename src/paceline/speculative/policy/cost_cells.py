"""The cost curve, seconds of a pass by rows, from measured passes; and a check of the measurements.

The policy tries every number of rows and would pick those measured too low by chance (the winner's curse). A
cell with fewer than TRUSTED_SAMPLES therefore costs at least as much as fewer rows, plus timing jitter.
Hiccups are the opposite error: a cell with fewer than UNSETTLED_SAMPLES is capped by the cost of more rows,
and every cell by the cost of its rows one by one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping

TRUSTED_SAMPLES = 3  # from so many samples on a cell is used as measured
UNSETTLED_SAMPLES = 8  # below it a pass moves a cell so far that the curve is rebuilt at once
MAX_CELL_SAMPLES = 33  # assumed where the number of samples is unknown
SEQUENTIAL_LIMIT = 1.1  # of the cost of the rows one by one: two rows were measured at 2.04 of one
# Of the cost of more rows: kernels in tiles of eight can make seven rows dearer. No ratio of small numbers,
# so that rounding decides nothing.
MAX_INVERSION = 1.503
# Measurements beyond these factors are wrong, even where a backend has a fast path for the single row.
MAX_SINGLE_TOKEN_FACTOR, MAX_INVERSION_FACTOR = 3.0, 3.0
# One row never costs more than several, which could fill its pass; the rest is an error of timing.
MAX_SINGLE_TOKEN_INVERSION = 1.15

Table = Mapping[int, Mapping[int, float]]  # seconds by context length and rows


class CostCells:
    """Measured seconds by context bucket and rows.
    samples: numbers of measurements, where known. noise: see PassCosts."""

    def __init__(self, noise: float) -> None:
        self.noise = noise
        self.seconds: dict[int, dict[int, float]] = {}
        self.samples: dict[tuple[int, int], int] = {}

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(sorted({n for cells in self.seconds.values() for n in cells}))

    def curve(self, place: int, most: int) -> list[float]:
        """Return the seconds of a pass by rows, from 0 to `most`.
        Beyond the measured rows the steps go on as a line with the slope of the upper half, at least half the
        mean cost per row: real passes correct a low guess, not a high one."""
        curve, last = [0.0], 0
        for n, cell, n_samples in reversed(self._monotone(place)):
            if n_samples < TRUSTED_SAMPLES:
                cell = max(curve[last], cell * self.noise ** (0.5 / math.sqrt(n_samples)))
            cell = max(curve[min(1, last)], cell)  # no pass costs less than that of one row
            curve += [cell] * (n - last)
            last = n
        before = max((n for n in self.rows if 2 * n <= last), default=0)
        slope = max((curve[last] - curve[before]) / (last - before), curve[last] / (2 * last))
        curve += [curve[last] + slope * i for i in range(1, most - last + 1)]
        return curve

    def _monotone(self, place: int) -> list[tuple[int, float, int]]:
        """Return (rows, seconds, samples) from the most rows down, limited to plausible costs."""
        out, cheapest, single = [], math.inf, self._cell(place, 1)
        for n in reversed(self.rows):
            cell, n_samples = min(self._cell(place, n), SEQUENTIAL_LIMIT * n * single), self._count(n)
            if n_samples < UNSETTLED_SAMPLES and cell > MAX_INVERSION * cheapest:
                cell = cheapest
            if n_samples >= TRUSTED_SAMPLES:
                cheapest = min(cheapest, cell)
            out.append((n, cell, n_samples))
        return out

    def _count(self, n: int) -> int:
        """Return the samples of n rows in all buckets."""
        buckets = [bucket for bucket, cells in self.seconds.items() if n in cells]
        return sum([self.samples.get((bucket, n), MAX_CELL_SAMPLES) for bucket in buckets])

    def _cell(self, place: int, n: int) -> float:
        """Return a cell; a missing one is estimated from other buckets by the ratio of shared cells."""
        cells = self.seconds.get(place, {})
        if n in cells:
            return cells[n]
        ratios = [
            math.log(s / guess) for m, s in cells.items() if (guess := self._neighbours(place, m)) is not None
        ]
        guess = self._neighbours(place, n)
        assert guess is not None  # some other bucket has the cell
        return guess * math.exp(sum(ratios) / len(ratios)) if ratios else guess

    def _neighbours(self, place: int, n: int) -> float | None:
        """Return the cell of n rows interpolated between the nearest buckets, None if no other has it."""
        places = sorted(p for p, cells in self.seconds.items() if p != place and n in cells)
        if not places:
            return None
        i = bisect_right(places, place)
        if i in (0, len(places)):
            return self.seconds[places[max(0, i - 1)]][n]
        below, above = places[i - 1], places[i]
        share = (2.0**place - 2.0**below) / (2.0**above - 2.0**below)
        return self.seconds[below][n] * (1 - share) + self.seconds[above][n] * share


def implausibility(table: Table) -> str:
    """Describe an impossible ratio in the table, such as after a hiccup; "" if there is none."""
    for depth, cells in table.items():
        single = cells.get(1)
        for n, seconds in cells.items():
            rows = "one row takes" if n == 1 else f"{n} rows take"
            if single is not None and seconds > MAX_SINGLE_TOKEN_FACTOR * n * single:
                return f"after {depth} tokens {rows} {seconds / single:.3g} times what one row does"
            m = min((m for m in cells if m > n), key=cells.__getitem__, default=n)
            if seconds > cells[m] * (MAX_SINGLE_TOKEN_INVERSION if n == 1 else MAX_INVERSION_FACTOR):
                return f"after {depth} tokens {rows} {seconds / cells[m]:.3g} times what {m} rows do"
    return ""
