"""What a forward pass costs on this machine: seconds by rows and by the depth of the context.

The curve is no smooth line. Kernels work in tiles, so that three rows can cost more than four and eight what
five do; to smooth it would hide the edges that a draft has to end at. It is measured once
(cost_measurement.py) and kept up to date by every real pass. cost_plausibility.py tells a curve that no
machine can have.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from paceline.speculative.errors import UsageError

# Depths that differ by less than a factor of two cost alike: bucket b is about SHALLOW * 2^b.
SHALLOW, BUCKETS = 256, 24
EDGES = [round(SHALLOW * 2 ** (b + 0.5)) for b in range(BUCKETS - 1)]

# How a pass that was faster or slower than predicted is shared out. The machine's pace, common to all passes,
# changes within seconds (another program, a warm processor); what one number of rows costs beside the others
# hardly does.
PACE, CELL = 0.2, 0.03
JUDGES = 5  # passes whose median moves the pace, so that one hiccup does not, and a slow minute does at once
SURE = 3  # samples of a cell that is believed as it is
OLD = round(1 / CELL)  # samples of a cell that nothing is told of
CLIP = math.log(1.5)  # what a pass is off by beyond this, up or down, is no fault of its cell
RECENT = 32  # passes that tell whether the pace was seen by other cells as well
ENOUGH = 3  # observations that make a cell of what was never measured
FEW = 8  # samples of a cell that is hardly known: a pass moves it so far that its curve is made anew at once
SINGLY = 1.1  # times what its rows cost one by one: two rows were measured at 2.04 of one
INVERTED = 1.5  # times what more rows cost: kernels that take rows by eights make seven dearer, not by more
OVERDUE = 512  # passes without one of a cell, after which three that contradict it take its place
RENEW = 64  # observations after which curves are made anew; in between cells move by half a percent

Table = Mapping[int, Mapping[int, float]]


MOST = 1 << 16  # rows; and what can be the seconds of one pass
LEAST_SECONDS, MOST_SECONDS = 1e-12, 1e9


def bucket(depth: int) -> int:
    return bisect_left(EDGES, depth)


def is_time(seconds: float) -> bool:
    """Whether a clock that works can have told it: not 0, negative, or no number."""
    return LEAST_SECONDS <= seconds <= MOST_SECONDS


class PassCosts:
    """Seconds of one forward pass of one model.

    table: seconds by context depth and by rows, as measured; not every depth needs all the rows, but one of
    them the single row. noise: how far measurements of one and the same pass lay apart, 1 being not at all.
    samples: how many each number of the table rests on; many where nothing is said.
    Raises UsageError for values that are not above 0, and for two depths of one bucket.

    The rule tries every number of rows, and would find the cells whose few samples were too low (the winner's
    curse). So a cell of fewer than SURE samples costs no less than the one of fewer rows, and more by what
    the noise may have hidden; and the fewer they are, the further one real pass moves it. A hiccup is the
    other error: a cell of fewer than FEW costs little more than one of more rows that is believed, and none
    costs more than its rows do one by one. A cell that is too dear is avoided, and no pass would mend it: so
    one that was not seen for OVERDUE passes is to be tried (goodput.py), and replaced where it proves wrong.
    """

    def __init__(
        self, table: Table, noise: float = 1.0, samples: Mapping[int, Mapping[int, int]] | None = None
    ) -> None:
        self.noise = noise
        self._samples: dict[tuple[int, int], int] = {}  # of cells, by bucket and rows, where known
        self._cells: dict[int, dict[int, float]] = {}  # by bucket and rows, at a pace of 1
        self._depth: dict[int, int] = {}  # of a bucket that something is known of
        for depth in sorted(table):
            if not table[depth]:
                continue
            place = bucket(depth)
            if place in self._cells:
                raise UsageError(
                    f"the depths {self._depth[place]} and {depth} are too much alike: keep a factor of two"
                )
            self._cells[place], self._depth[place] = dict(table[depth]), depth
            if samples is not None:
                self._samples.update({(place, n): samples[depth][n] for n in table[depth]})
        self._pace = 1.0
        self._pending: dict[tuple[int, int], list[float]] = {}  # seconds at a pace of 1, by bucket and rows
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT)
        # Logarithms of what the last passes say the pace is.
        self._implied: deque[float] = deque(maxlen=JUDGES)
        self._curves: dict[int, list[float]] = {}  # by bucket, at a pace of 1; as long as was asked for yet
        self._observed = 0
        self._seen: dict[tuple[int, int], int] = {}  # passes that there had been at a cell's last one
        self._check()
        self._known()

    def _check(self) -> None:
        numbers = [(n, s) for cells in self._cells.values() for n, s in cells.items()]
        if any(not 1 <= n <= MOST or not is_time(s) for n, s in numbers):
            raise UsageError(f"costs must be seconds above 0, of passes of 1 to {MOST:,} rows")
        if all(n != 1 for n, _ in numbers):
            raise UsageError("what a pass of one row costs is missing: measure again (paceline doctor)")

    def _known(self) -> None:
        self.rows: tuple[int, ...] = tuple(sorted({n for cells in self._cells.values() for n in cells}))
        self.depths: tuple[int, ...] = tuple(self._depth[place] for place in sorted(self._cells))
        self._curves.clear()

    @property
    def table(self) -> dict[int, dict[int, float]]:
        """Seconds by depth and rows: what was measured, with what use has made of it."""
        return {
            self._depth[place]: {n: s * self._pace for n, s in sorted(self._cells[place].items())}
            for place in sorted(self._cells)
        }

    @property
    def most(self) -> int:
        """The largest number of rows that is known."""
        return self.rows[-1]

    def seconds(self, rows: int, depth: int) -> float:
        """Of a pass over `rows` (0 takes none) after `depth` tokens. What was not measured costs what the
        next larger number does, to which it can be filled up."""
        return self._curve(bucket(depth), rows)[rows] * self._pace

    def curve(self, most: int, depth: int) -> list[float]:
        """0.0, then the seconds of 1 to `most` rows."""
        pace, shape = self.paced(most, depth)
        return [s * pace for s in shape[: most + 1]]

    def paced(self, most: int, depth: int) -> tuple[float, list[float]]:
        """What makes a curve of the numbers beside it: the same without multiplying them all. They may be
        more than were asked for, and are not to be changed."""
        return self._pace, self._curve(bucket(depth), most)

    def _curve(self, place: int, most: int) -> list[float]:
        curve = self._curves.get(place)
        if curve is None or len(curve) <= most:
            curve = self._curves[place] = self._drawn(place, most)
        return curve

    def _drawn(self, place: int, most: int) -> list[float]:
        """Steps up to the largest known rows; beyond them a line as steep as from half as many to them, which
        an edge or a hiccup at the last ones changes little, and of no less than half of what they cost a row.
        A guess that is too low is mended by the first few passes, one that is too high by none."""
        curve, last = [0.0], 0
        for n, cell, few in reversed(self._held(place)):
            if few < SURE:
                cell = max(curve[last], cell * self.noise ** (0.5 / math.sqrt(few)))
            curve += [cell] * (n - last)
            last = n
        before = max((n for n in self.rows if 2 * n <= last), default=0)
        slope = max((curve[last] - curve[before]) / (last - before), curve[last] / (2 * last))
        curve += [curve[last] + slope * i for i in range(1, most - last + 1)]
        return curve

    def _held(self, place: int) -> list[tuple[int, float, int]]:
        """Rows, from the most down, with their cells and samples. All are held to what their rows cost one by
        one; those of few samples to what more rows cost, of those that are believed."""
        out, least, one = [], math.inf, self._cell(place, 1)
        for n in reversed(self.rows):
            cell, few = min(self._cell(place, n), SINGLY * n * one), self._count(n)
            if few < FEW and cell > INVERTED * least:
                cell = least
            if few >= SURE:
                least = min(least, cell)
            out.append((n, cell, few))
        return out

    def _count(self, n: int) -> int:
        """Samples of n rows, at whatever depth."""
        return sum([self._samples.get((place, n), OLD) for place, cells in self._cells.items() if n in cells])

    def _cell(self, place: int, n: int) -> float:
        """What is known of this bucket; or what its neighbours say, times how they compare in what is known
        of both."""
        cells = self._cells.get(place, {})
        if n in cells:
            return cells[n]
        ratios = [
            math.log(s / guess) for m, s in cells.items() if (guess := self._neighbours(place, m)) is not None
        ]
        guess = self._neighbours(place, n)
        assert guess is not None  # some bucket has it, and it is not this one
        return guess * math.exp(sum(ratios) / len(ratios)) if ratios else guess

    def _neighbours(self, place: int, n: int) -> float | None:
        """The cell of n rows by those of the nearest buckets: in between on a line, since attention grows
        with the depth; outside as the nearest. None where no other bucket has it."""
        places = sorted(p for p, cells in self._cells.items() if p != place and n in cells)
        if not places:
            return None
        i = bisect_right(places, place)
        if i in (0, len(places)):
            return self._cells[places[max(0, i - 1)]][n]
        below, above = places[i - 1], places[i]
        share = (2.0**place - 2.0**below) / (2.0**above - 2.0**below)
        return self._cells[below][n] * (1 - share) + self._cells[above][n] * share

    def update(self, rows: int, depth: int, seconds: float) -> None:
        """One real pass; ignored where no clock can have told its time."""
        if not is_time(seconds) or rows < 1:
            return
        place = bucket(depth)
        cells = self._cells.get(place)
        self._observed += 1
        if cells is None or rows not in cells or self.is_overdue(rows, depth):
            self._wait(place, rows, depth, seconds / self._pace)
            return
        key, recent = (place, rows), self._recent
        if 1 in cells and cells[rows] > INVERTED * rows * cells[1]:  # no pass costs that: it is not known
            cells[rows], self._samples[key] = rows * cells[1], 1
        implied = math.log(seconds / cells[rows])
        samples, pace = self._samples.get(key, OLD), math.log(self._pace)
        off = implied - pace
        if samples >= SURE:  # what is hardly known tells nothing of the pace
            self._implied.append(implied)
            lately = sorted(self._implied)[len(self._implied) // 2]
            pace += PACE * (lately - pace)
            self._pace = math.exp(pace)
            # What lies between where the pace was and where it goes is no fault of the cell.
            off = implied - max(min(lately, pace), min(max(lately, pace), implied))
        # Nor is what only one kind of pass tells, which cannot be told apart from the pace: otherwise a slow
        # minute of plain decoding would leave its mark on the single row.
        alone = recent.count(key) / len(recent) if recent else 1.0
        self._samples[key] = samples + 1
        weight = max(CELL, 1.0 / (1 + samples))  # a mean, at first
        cells[rows] *= math.exp(weight * (1.0 - alone) * max(-CLIP, min(CLIP, off)))
        recent.append(key)
        self._seen[key] = self._observed
        if self._observed % RENEW == 0 or samples <= FEW:
            self._curves.clear()

    def is_overdue(self, rows: int, depth: int) -> bool:
        """Whether there was no such pass for so long that what is known of it may be wrong by now. The single
        row is what others are compared with."""
        return rows > 1 and self._observed - self._seen.get((bucket(depth), rows), 0) > OVERDUE

    def _wait(self, place: int, rows: int, depth: int, seconds: float) -> None:
        """What was never measured, or long ago, says nothing of the pace. After a few times it is a cell of
        its own; or the one that there was, unless they contradict it."""
        key = place, rows
        pending = self._pending.setdefault(key, [])
        pending.append(seconds)
        if len(pending) == ENOUGH:
            del self._pending[key]
            self._seen[key], found = self._observed, median(pending)
            cells = self._cells.setdefault(place, {})
            if rows not in cells or abs(math.log(found / cells[rows])) > CLIP:
                cells[rows], self._samples[key] = found, ENOUGH
            self._depth.setdefault(place, depth)
            self._known()

    def as_dict(self) -> dict[str, Any]:
        """What it says now: seconds by depth and, in each, by rows; null where nothing is known."""
        self._curves.clear()  # up to the last observation, as what is read of this will be
        table = self.table
        return {
            "rows": list(self.rows),
            "depths": list(self.depths),
            "seconds": [[cells.get(n) for n in self.rows] for cells in table.values()],
            "samples": [
                [self._samples.get((bucket(depth), n), OLD) if n in cells else None for n in self.rows]
                for depth, cells in table.items()
            ],
            "noise": self.noise,
        }

    @classmethod
    def read(cls, said: Any) -> PassCosts:
        """What `as_dict` wrote; samples and noise may be missing. Raises UsageError for what is not that."""
        try:
            rows, depths, seconds = said["rows"], said["depths"], said["seconds"]
            samples, noise = said.get("samples"), said.get("noise", 1.0)
            good = (
                _ascending(rows, 1)
                and _ascending(depths, 0)
                and rows[0] == 1
                and rows[-1] <= MOST
                and len(seconds) == len(depths)
                and all(len(line) == len(rows) and all(map(_is_cell, line)) for line in seconds)
                and type(noise) in (int, float)
                and 1.0 <= noise <= MOST_SECONDS
                and (samples is None or _are_samples(samples, seconds))
            )
        except (TypeError, KeyError, IndexError, AttributeError):
            good = False
        if not good:
            raise UsageError(
                "no cost curve: it needs ascending rows from 1, ascending depths, and seconds above 0 by "
                "depth and rows; `paceline doctor --json` prints one"
            )
        table = {
            depth: {n: float(s) for n, s in zip(rows, line, strict=True) if s is not None}
            for depth, line in zip(depths, seconds, strict=True)
        }
        counts = samples and {
            depth: {n: k for n, k in zip(rows, line, strict=True) if k is not None}
            for depth, line in zip(depths, samples, strict=True)
        }
        return cls(table, float(noise), counts)

    @classmethod
    def flat(cls, seconds: float = 1.0, per_row: float = 0.0, rows: int = 64) -> PassCosts:
        """A made-up one, without an edge: `seconds`, and `per_row` for every row beyond the first."""
        return cls({SHALLOW: {n: seconds + per_row * (n - 1) for n in range(1, rows + 1)}})


def _ascending(values: Any, low: int) -> bool:
    """Whether it is a list of whole numbers, at least one of them, each above the one before."""
    return (
        isinstance(values, Sequence)
        and len(values) > 0
        and all(type(v) is int and v >= low for v in values)
        and all(a < b for a, b in pairwise(values))
    )


def _is_cell(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and is_time(value))


def _are_samples(samples: Any, seconds: Any) -> bool:
    """Whether there is a count for each cell, and none for others."""
    return len(samples) == len(seconds) and all(
        len(counts) == len(line)
        and all(
            count is None if cell is None else type(count) is int and count >= 1
            for count, cell in zip(counts, line, strict=True)
        )
        for counts, line in zip(samples, seconds, strict=True)
    )


@dataclass
class DecodingCosts:
    """What a step costs: the target's pass, the draft model's, and everything else: verifying, committing,
    deciding. step: seconds of one request's step, 0 where it is not known yet. usual: False once passes took
    far longer than they are known to: what they taught is not for the next process."""

    target: PassCosts
    draft: PassCosts | None = None
    step: float = 0.0
    usual: bool = True

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target.as_dict(),
            "draft": None if self.draft is None else self.draft.as_dict(),
            "step": self.step,
        }

    @classmethod
    def read(cls, said: Any) -> DecodingCosts:
        """What `as_dict` wrote, whatever stands beside it. Raises UsageError for what is not that."""
        if not isinstance(said, Mapping) or "target" not in said:
            raise UsageError(
                'no cost curve: a JSON object with "target" is needed; `paceline doctor --json` prints one'
            )
        draft, step = said.get("draft"), said.get("step", 0.0)
        if type(step) not in (int, float) or not 0 <= step <= MOST_SECONDS:
            raise UsageError(f'no cost curve: its "step" is {step!r}, not seconds')
        return cls(
            PassCosts.read(said["target"]), None if draft is None else PassCosts.read(draft), float(step)
        )
