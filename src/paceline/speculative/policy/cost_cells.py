"""From measured passes to a curve of seconds by rows; and which measurements no machine can have.

The rule tries every number of rows, and would find the cells whose few samples were too low (the winner's
curse). So a cell of fewer than SURE samples costs no less than one of fewer rows, and more by the noise. A
hiccup is the other error: a cell of fewer than FEW is held to more rows, every cell to its rows one by one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping

TRUSTED_SAMPLES = 3  # samples of a cell that is believed as it is
UNSETTLED_SAMPLES = (
    8  # samples of a cell that is hardly known: a pass moves it so far that its curve is made anew at once
)
MAX_CELL_SAMPLES = 33  # samples of a cell that nothing is told of
SEQUENTIAL_LIMIT = 1.1  # times what its rows cost one by one: two rows were measured at 2.04 of one
MAX_INVERSION = (
    1.5  # times what more rows cost: kernels that take rows by eights make seven dearer, not by more
)
# Beyond these a measurement is wrong: some engines have a faster way for the single row, but none so much.
MAX_SINGLE_TOKEN_FACTOR, MAX_INVERSION_FACTOR = 3.0, 3.0

Table = Mapping[int, Mapping[int, float]]  # seconds by context depth and rows


class CostCells:
    """seconds: by bucket of depths and by rows. samples: of cells, where known. noise: see PassCosts."""

    def __init__(self, noise: float) -> None:
        self.noise = noise
        self.seconds: dict[int, dict[int, float]] = {}
        self.samples: dict[tuple[int, int], int] = {}

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(sorted({n for cells in self.seconds.values() for n in cells}))

    def curve(self, place: int, most: int) -> list[float]:
        """Steps up to the largest known rows; beyond them a line as steep as from half as many to them, and
        of no less than half of what they cost a row. Passes mend a guess that is too low, but none that is
        too high."""
        curve, last = [0.0], 0
        for n, cell, few in reversed(self._monotone(place)):
            if few < TRUSTED_SAMPLES:
                cell = max(curve[last], cell * self.noise ** (0.5 / math.sqrt(few)))
            curve += [cell] * (n - last)
            last = n
        before = max((n for n in self.rows if 2 * n <= last), default=0)
        slope = max((curve[last] - curve[before]) / (last - before), curve[last] / (2 * last))
        curve += [curve[last] + slope * i for i in range(1, most - last + 1)]
        return curve

    def _monotone(self, place: int) -> list[tuple[int, float, int]]:
        """Rows from the most down, with their cells and samples, each held to what can be."""
        out, least, one = [], math.inf, self._cell(place, 1)
        for n in reversed(self.rows):
            cell, few = min(self._cell(place, n), SEQUENTIAL_LIMIT * n * one), self._count(n)
            if few < UNSETTLED_SAMPLES and cell > MAX_INVERSION * least:
                cell = least
            if few >= TRUSTED_SAMPLES:
                least = min(least, cell)
            out.append((n, cell, few))
        return out

    def _count(self, n: int) -> int:
        """Samples of n rows, at whatever depth."""
        return sum(
            [
                self.samples.get((place, n), MAX_CELL_SAMPLES)
                for place, cells in self.seconds.items()
                if n in cells
            ]
        )

    def _cell(self, place: int, n: int) -> float:
        """The cell of this bucket; or its neighbours', times the mean ratio of the cells that both have."""
        cells = self.seconds.get(place, {})
        if n in cells:
            return cells[n]
        ratios = [
            math.log(s / guess) for m, s in cells.items() if (guess := self._neighbours(place, m)) is not None
        ]
        guess = self._neighbours(place, n)
        assert guess is not None  # some bucket has it, and it is not this one
        return guess * math.exp(sum(ratios) / len(ratios)) if ratios else guess

    def _neighbours(self, place: int, n: int) -> float | None:
        """The cell of n rows by the nearest buckets: between two on a line, since attention grows with the
        depth. None where no other bucket has it."""
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
    """Say what no machine can have of these costs, after a bad minute; "" where they may be true."""
    for depth, cells in table.items():
        one = cells.get(1)
        for n, seconds in cells.items():
            rows = "one row takes" if n == 1 else f"{n} rows take"
            if one is not None and seconds > MAX_SINGLE_TOKEN_FACTOR * n * one:
                return f"after {depth} tokens {rows} {seconds / one:.0f} times what one row does"
            m = min((m for m in cells if m > n), key=cells.__getitem__, default=n)
            if seconds > MAX_INVERSION_FACTOR * cells[m]:
                return f"after {depth} tokens {rows} {seconds / cells[m]:.0f} times what {m} rows do"
    return ""
