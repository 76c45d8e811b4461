"""The cost of a forward pass on this machine, in seconds by rows and context length.

The curve has steps, as kernels work in tiles: three rows can cost more than four. Smoothing would hide the
edges at which drafts should end. cost_measurement.py measures the curve; every real pass updates it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from paceline.speculative.errors import UsageError
from paceline.speculative.policy.cost_cells import (
    MAX_CELL_SAMPLES,
    MAX_INVERSION,
    TRUSTED_SAMPLES,
    UNSETTLED_SAMPLES,
    CostCells,
    Table,
)

# Contexts within a factor of two cost alike: bucket b is about MIN_CONTEXT_BUCKET * 2^b.
MIN_CONTEXT_BUCKET, N_CONTEXT_BUCKETS = 256, 24
CONTEXT_BUCKET_EDGES = [round(MIN_CONTEXT_BUCKET * 2 ** (b + 0.5)) for b in range(N_CONTEXT_BUCKETS - 1)]

# A deviation from the prediction moves the machine's pace quickly, and the cell of its rows slowly.
PACE_WEIGHT, CELL_WEIGHT = 0.2, 0.03
PACE_WINDOW = 5  # passes whose median moves the pace, so that a hiccup does not
MAX_LOG_DEVIATION = math.log(1.5)  # a cell learns no more than this from one pass
RECENT_PASSES = 32  # passes that show whether other cells saw the same pace
MIN_OBSERVATIONS = 3  # passes that make a new cell
OVERDUE_PASSES = 512  # a cell not seen for so many passes is replaced by three that contradict it
CURVE_REFRESH_UPDATES = 64  # passes between rebuilt curves; cells move by half a percent meanwhile

MAX_BATCH_TOKENS = 1 << 16  # rows of a pass
MIN_SECONDS, MAX_SECONDS = 1e-12, 1e9  # valid pass times
NO_CURVE = (
    "no cost curve: it needs rows, depths and seconds above 0 by depth and rows, one row among them; "
    "`paceline doctor --json` prints one"
)


def context_bucket(depth: int) -> int:
    """Return the bucket of a context length."""
    return bisect_left(CONTEXT_BUCKET_EDGES, depth)


def is_valid_seconds(seconds: float) -> bool:
    return MIN_SECONDS <= seconds <= MAX_SECONDS


class PassCosts:
    """Seconds of one forward pass of one model.
    table: measured seconds by context length and rows; one row must be measured somewhere.
    noise: timing jitter, the ratio between measurements of the same pass; 1 is none.
    samples: numbers of measurements in the shape of the table; None means many.
    Raises UsageError for impossible costs, and for two context lengths in one bucket. An expensive cell is
    avoided and so never corrected: after OVERDUE_PASSES it is tried again (goodput.py)."""

    def __init__(
        self, table: Table, noise: float = 1.0, samples: Mapping[int, Mapping[int, int]] | None = None
    ) -> None:
        _require_costs(table, noise, samples)
        self._cells = CostCells(float(noise))  # at a pace of 1
        self._depth: dict[int, int] = {}  # context length by bucket
        for depth in sorted(table):
            if not table[depth]:
                continue
            place = context_bucket(depth)
            if place in self._depth:
                raise UsageError(
                    f"the depths {self._depth[place]} and {depth} are too much alike: keep a factor of two"
                )
            self._cells.seconds[place] = {n: float(s) for n, s in table[depth].items()}
            self._depth[place] = depth
            if samples is not None:
                self._cells.samples.update({(place, n): samples[depth][n] for n in table[depth]})
        self._pace = 1.0
        self._pending: dict[tuple[int, int], list[float]] = {}  # seconds at a pace of 1, by bucket and rows
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT_PASSES)
        self._implied: deque[float] = deque(maxlen=PACE_WINDOW)  # log pace implied by the last passes
        self._curves: dict[int, list[float]] = {}  # by bucket, at a pace of 1; extended as needed
        self._observed = 0
        self._seen: dict[tuple[int, int], int] = {}  # number of the last pass of each cell
        self._known()

    def _known(self) -> None:
        self.rows = self._cells.rows
        self.depths: tuple[int, ...] = tuple(self._depth[place] for place in sorted(self._depth))
        self._curves.clear()

    @property
    def timing_jitter(self) -> float:
        return self._cells.noise

    @property
    def table(self) -> dict[int, dict[int, float]]:
        """Seconds by context length and rows, as measured and updated."""
        return {
            self._depth[place]: {n: s * self._pace for n, s in sorted(self._cells.seconds[place].items())}
            for place in sorted(self._depth)
        }

    @property
    def max_batch_tokens(self) -> int:
        return self.rows[-1]

    def seconds(self, rows: int, depth: int) -> float:
        """Return the cost of a pass over `rows` after `depth` tokens.
        Rows that were not measured cost as much as the next larger number, to which a pass can be padded."""
        return self._curve(context_bucket(depth), rows)[rows] * self._pace

    def curve(self, most: int, depth: int) -> list[float]:
        """Return the seconds of 0 to `most` rows."""
        pace, shape = self.pace_factor(most, depth)
        return [s * pace for s in shape[: most + 1]]

    def pace_factor(self, most: int, depth: int) -> tuple[float, list[float]]:
        """Return the pace and the curve at pace 1, which may be longer and must not be changed."""
        return self._pace, self._curve(context_bucket(depth), most)

    def _curve(self, place: int, most: int) -> list[float]:
        curve = self._curves.get(place)
        if curve is None or len(curve) <= most:
            curve = self._curves[place] = self._cells.curve(place, most)
        return curve

    def update(self, rows: int, depth: int, seconds: float) -> None:
        """Learn from one real pass; implausible times are ignored."""
        if not is_valid_seconds(seconds) or rows < 1:
            return
        place = context_bucket(depth)
        cells = self._cells.seconds.get(place)
        self._observed += 1
        if cells is None or rows not in cells or self.is_overdue(rows, depth):
            self._collect(place, rows, depth, seconds / self._pace)
            return
        key, recent = (place, rows), self._recent
        if (
            1 in cells and cells[rows] > MAX_INVERSION * rows * cells[1]
        ):  # no pass costs that: it is not known
            cells[rows], self._cells.samples[key] = rows * cells[1], 1
        implied = math.log(seconds / cells[rows])
        samples, pace = self._cells.samples.get(key, MAX_CELL_SAMPLES), math.log(self._pace)
        off = implied - pace
        if samples >= TRUSTED_SAMPLES:  # an uncertain cell says nothing about the pace
            self._implied.append(implied)
            outcome = sorted(self._implied)[len(self._implied) // 2]
            pace += PACE_WEIGHT * (outcome - pace)
            self._pace = math.exp(pace)
            # The part explained by the change of pace does not count against the cell.
            off = implied - max(min(outcome, pace), min(max(outcome, pace), implied))
        # If all recent passes have one size, a slower machine and a slower size look the same.
        share = recent.count(key) / len(recent) if recent else 1.0
        self._cells.samples[key] = samples + 1
        weight = max(CELL_WEIGHT, 1.0 / (1 + samples))  # a plain mean at first
        cells[rows] *= math.exp(weight * (1.0 - share) * max(-MAX_LOG_DEVIATION, min(MAX_LOG_DEVIATION, off)))
        recent.append(key)
        self._seen[key] = self._observed
        if self._observed % CURVE_REFRESH_UPDATES == 0 or samples <= UNSETTLED_SAMPLES:
            self._curves.clear()

    def is_overdue(self, rows: int, depth: int) -> bool:
        """Return whether the last such pass is too long ago; never for a single row, the reference."""
        return rows > 1 and self._observed - self._seen.get((context_bucket(depth), rows), 0) > OVERDUE_PASSES

    def _collect(self, place: int, rows: int, depth: int, seconds: float) -> None:
        """Collect passes of an unknown or overdue cell; MIN_OBSERVATIONS create or replace it."""
        key = place, rows
        pending = self._pending.setdefault(key, [])
        pending.append(seconds)
        if len(pending) == MIN_OBSERVATIONS:
            del self._pending[key]
            self._seen[key], measured = self._observed, median(pending)
            cells = self._cells.seconds.setdefault(place, {})
            if rows not in cells or abs(math.log(measured / cells[rows])) > MAX_LOG_DEVIATION:
                cells[rows], self._cells.samples[key] = measured, MIN_OBSERVATIONS
            self._depth.setdefault(place, depth)
            self._known()

    def as_dict(self) -> dict[str, Any]:
        """Return the table for JSON, with None for unknown cells."""
        self._curves.clear()  # so that a copy that is read back agrees with this object
        table = self.table
        return {
            "rows": list(self.rows),
            "depths": list(self.depths),
            "seconds": [[cells.get(n) for n in self.rows] for cells in table.values()],
            "samples": [
                [
                    self._cells.samples.get((context_bucket(depth), n), MAX_CELL_SAMPLES)
                    if n in cells
                    else None
                    for n in self.rows
                ]
                for depth, cells in table.items()
            ],
            "noise": self.timing_jitter,
        }

    @classmethod
    def read(cls, value: Any) -> PassCosts:
        """Read the output of `as_dict`; samples and noise are optional. Raises UsageError for other data."""
        try:
            rows, samples = value["rows"], value.get("samples")
            lines = [dict(zip(rows, line, strict=True)) for line in value["seconds"]]
            table = {
                depth: {n: s for n, s in line.items() if s is not None}
                for depth, line in zip(value["depths"], lines, strict=True)
            }
            counts = samples and {
                depth: {n: k for n, k in zip(rows, line, strict=True) if k is not None}
                for depth, line in zip(value["depths"], samples, strict=True)
            }
            return cls(table, value.get("noise", 1.0), counts)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise UsageError(NO_CURVE) from error

    @classmethod
    def flat(cls, seconds: float = 1.0, per_row: float = 0.0, rows: int = 64) -> PassCosts:
        """Return an artificial curve: `seconds`, plus `per_row` for every row beyond the first."""
        return cls({MIN_CONTEXT_BUCKET: {n: seconds + per_row * (n - 1) for n in range(1, rows + 1)}})


def _require_costs(table: Table, noise: float, samples: Table | None) -> None:
    """Raise UsageError for impossible measurements."""
    numbers = [(n, s) for cells in table.values() for n, s in cells.items()]
    counts = [k for some in (samples or {}).values() for k in some.values()]
    if not all(isinstance(n, int) and 1 <= n <= MAX_BATCH_TOKENS and is_valid_seconds(s) for n, s in numbers):
        raise UsageError(f"costs must be seconds above 0, of passes of 1 to {MAX_BATCH_TOKENS:,} rows")
    if all(n != 1 for n, _ in numbers):
        raise UsageError("what a pass of one row costs is missing: measure again (paceline doctor)")
    if not all(isinstance(k, int) and k >= 1 for k in (*table, *counts)) or not 1 <= noise <= MAX_SECONDS:
        raise UsageError(
            "costs need depths, samples and noise of at least 1: measure again (paceline doctor)"
        )


@dataclass
class DecodingCosts:
    """The costs of decoding.
    target, draft: pass costs of the two models.
    step: seconds of a request's step outside the passes (verifying, committing, deciding); 0 is unknown."""

    target: PassCosts
    draft: PassCosts | None = None
    step: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target.as_dict(),
            "draft": None if self.draft is None else self.draft.as_dict(),
            "step": self.step,
        }

    @classmethod
    def read(cls, value: Any) -> DecodingCosts:
        """Read the output of `as_dict`. Raises UsageError for anything else."""
        if not isinstance(value, Mapping) or "target" not in value:
            raise UsageError(NO_CURVE)
        draft, step = value.get("draft"), value.get("step", 0.0)
        if type(step) not in (int, float) or not 0 <= step <= MAX_SECONDS:
            raise UsageError(f'no cost curve: its "step" is {step!r}, not seconds')
        return cls(
            PassCosts.read(value["target"]), None if draft is None else PassCosts.read(draft), float(step)
        )
