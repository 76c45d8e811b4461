"""The cost of a forward pass on this machine, in seconds by rows (tokens of the batch) and context length.

The curve has steps, as kernels work in tiles: three rows can cost more than four. Smoothing would hide the
edges at which drafts should end. `measure` measures the curve; every real pass updates it.

The policy tries every number of rows and would pick those measured too low by chance (the winner's curse). A
cell with fewer than TRUSTED_SAMPLES therefore costs at least as much as fewer rows, plus timing jitter.
Hiccups are the opposite error: a cell with fewer than UNSETTLED_SAMPLES is capped by the cost of more rows,
and every cell by the cost of its rows one by one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median, median_low
from time import perf_counter
from typing import Any

import numpy as np

from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs, Target
from paceline.speculative.tree import chain

TRUSTED_SAMPLES = 3  # a cell with so many samples is used as measured
UNSETTLED_SAMPLES = 8  # below it a pass moves a cell so far that the curve is rebuilt at once
MAX_CELL_SAMPLES = 33  # assumed where the number of samples is unknown
SEQUENTIAL_LIMIT = 1.1  # of the cost of the rows one by one: two rows were measured at 2.04 of one
# Of the cost of more rows: kernels in tiles of eight can make seven rows more expensive. Not a round ratio,
# so that rounding cannot tip the comparison.
MAX_INVERSION = 1.503

# Contexts within a factor of two cost the same: bucket b is about MIN_CONTEXT_BUCKET * 2^b.
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

MAX_TABLE_ROWS = 1 << 16  # rows of a pass
MIN_SECONDS, MAX_SECONDS = 1e-9, 1e9  # valid pass times
NO_CURVE = (
    "no cost curve: it needs rows, depths and seconds above 0 by depth and rows, one row among them; "
    "`paceline doctor --json` prints one"
)

# What is measured
TOKEN_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 17, 24, 32, 33, 48, 64)
CONTEXT_LENGTHS = (256, 1024, 4096)
PRIORITY_TOKEN_COUNTS = frozenset({1, 2, 3, 4, 8, 16})  # these get twice the time of others
MIN_SAMPLES = {1: 3, 2: 1}  # by rows, taken even without time; three are needed for the jitter
FIRST_SAMPLE_PRIORITY = 4  # factor for first samples: use corrects a cell, but a gap hides an edge
MIN_JITTER_SAMPLES = 4  # samples of several rows from which jitter is estimated
MAX_SAMPLES = 25  # by rows
MIN_SAMPLE_SECONDS, MAX_REPEATS = 1e-4, 16  # shorter passes are repeated
INITIAL_TOKENS, FILL_TOKENS, MAX_FILL_TOKENS = 2, 16, 512  # pieces in which a context is filled
# Measurements beyond these factors are wrong, even where a backend has a fast path for the single row.
MAX_SINGLE_TOKEN_FACTOR, MAX_INVERSION_FACTOR = 3.0, 3.0
# One row never costs more than several, which could fill its pass; the rest is an error of timing.
MAX_SINGLE_TOKEN_INVERSION = 1.15

Table = Mapping[int, Mapping[int, float]]  # seconds by context length and rows
Samples = dict[int, list[float]]  # seconds by rows
Clock = Callable[[], float]
Progress = Callable[[float], None]  # called with the share of work done; an exception ends the work


def context_bucket(depth: int) -> int:
    """Return the bucket of a context length."""
    return bisect_left(CONTEXT_BUCKET_EDGES, depth)


@dataclass(slots=True, eq=False)
class CostCell:
    """The cost of passes of one size."""

    seconds: float  # at a pace of 1
    samples: int  # number of measurements
    last_pass: int = 0  # number of the last such pass


class PassCosts:
    """Seconds of one forward pass of one model.
    table: measured seconds by context length and rows; one row must be measured somewhere.
    noise: timing jitter, the ratio between measurements of the same pass; 1 is none.
    samples: numbers of measurements in the shape of the table; None means many.
    Raises UsageError for impossible costs, and for two context lengths in one bucket. An expensive cell is
    avoided and so never corrected: after OVERDUE_PASSES it is tried again (goodput.py)."""

    def __init__(self, table: Table, noise: float = 1.0, samples: Table | None = None) -> None:
        _require_costs(table, noise, samples)
        self.timing_jitter = float(noise)
        self._buckets: dict[int, dict[int, CostCell]] = {}  # cells by context bucket and rows
        self._depth: dict[int, int] = {}  # context length by bucket
        for depth in sorted(depth for depth, cells in table.items() if cells):
            bucket = context_bucket(depth)
            if bucket in self._depth:
                raise UsageError(
                    f"the depths {self._depth[bucket]} and {depth} are too much alike: keep a factor of two"
                )
            self._depth[bucket] = depth
            self._buckets[bucket] = {
                n: CostCell(float(s), MAX_CELL_SAMPLES if samples is None else int(samples[depth][n]))
                for n, s in table[depth].items()
            }
        self._pace, self._log_pace = 1.0, 0.0
        self._pending: dict[tuple[int, int], list[float]] = {}  # seconds at a pace of 1, by bucket and rows
        self._recent: deque[CostCell] = deque(maxlen=RECENT_PASSES)
        self._implied: deque[float] = deque(maxlen=PACE_WINDOW)  # log pace implied by the last passes
        self._curves: dict[int, list[float]] = {}  # by bucket, at a pace of 1; extended as needed
        self._observed = 0
        self._index()

    def _index(self) -> None:
        self.rows = tuple(sorted({n for cells in self._buckets.values() for n in cells}))
        self.max_batch_tokens = self.rows[-1]
        self.depths: tuple[int, ...] = tuple(self._depth[bucket] for bucket in sorted(self._depth))
        self._curves.clear()

    @property
    def table(self) -> dict[int, dict[int, float]]:
        """Seconds by context length and rows, as measured and updated."""
        return {
            depth: {n: cell.seconds * self._pace for n, cell in sorted(self._bucket(depth).items())}
            for depth in self.depths
        }

    def _bucket(self, depth: int) -> dict[int, CostCell]:
        return self._buckets.get(context_bucket(depth), {})

    def seconds(self, rows: int, depth: int) -> float:
        """Return the cost of a pass over `rows` after `depth` tokens.
        Rows that were not measured cost as much as the next larger number, to which a pass can be padded."""
        return self._curve(context_bucket(depth), rows)[rows] * self._pace

    def curve(self, limit: int, depth: int) -> list[float]:
        """Return the seconds of 0 to `limit` rows."""
        return [s * self._pace for s in self._curve(context_bucket(depth), limit)[: limit + 1]]

    def pace_factor(self, limit: int, depth: int) -> tuple[float, list[float]]:
        """Return the pace and the curve at pace 1, which may be longer and must not be changed."""
        return self._pace, self._curve(context_bucket(depth), limit)

    def _curve(self, bucket: int, limit: int) -> list[float]:
        curve = self._curves.get(bucket)
        if curve is None or len(curve) <= limit:
            curve = self._curves[bucket] = self._make_curve(bucket, limit)
        return curve

    def _make_curve(self, bucket: int, limit: int) -> list[float]:
        """Return the seconds of a pass by rows, from 0 to `limit`, at a pace of 1.
        Beyond the measured rows the curve is a line with the slope of the upper half, at least half the mean
        cost per row: real passes correct a low guess, not a high one."""
        curve, last = [0.0], 0
        for n, seconds, n_samples in reversed(self._plausible(bucket)):
            if n_samples < TRUSTED_SAMPLES:
                seconds = max(curve[last], seconds * self.timing_jitter ** (0.5 / math.sqrt(n_samples)))
            seconds = max(curve[min(1, last)], seconds)  # no pass costs less than that of one row
            curve += [seconds] * (n - last)
            last = n
        before = max((n for n in self.rows if 2 * n <= last), default=0)
        slope = max((curve[last] - curve[before]) / (last - before), curve[last] / (2 * last))
        return curve + [curve[last] + slope * i for i in range(1, limit - last + 1)]

    def _plausible(self, bucket: int) -> list[tuple[int, float, int]]:
        """Return (rows, plausible seconds, samples in all buckets) from the most rows down."""
        out, cheapest, single = [], math.inf, self._cell_seconds(bucket, 1)
        for n in reversed(self.rows):
            seconds = min(self._cell_seconds(bucket, n), SEQUENTIAL_LIMIT * n * single)
            n_samples = sum([cells[n].samples for cells in self._buckets.values() if n in cells])
            if n_samples < UNSETTLED_SAMPLES and seconds > MAX_INVERSION * cheapest:
                seconds = cheapest
            if n_samples >= TRUSTED_SAMPLES:
                cheapest = min(cheapest, seconds)
            out.append((n, seconds, n_samples))
        return out

    def _cell_seconds(self, bucket: int, n: int) -> float:
        """Return a cell's cost; if missing, an estimate from other buckets by the ratio of shared cells."""
        cells = self._buckets.get(bucket, {})
        if n in cells:
            return cells[n].seconds
        shared = [(cell.seconds, self._interpolated(bucket, m)) for m, cell in cells.items()]
        ratios = [math.log(seconds / guess) for seconds, guess in shared if guess is not None]
        guess = self._interpolated(bucket, n)
        assert guess is not None  # some other bucket has the cell
        return guess * math.exp(sum(ratios) / len(ratios)) if ratios else guess

    def _interpolated(self, bucket: int, n: int) -> float | None:
        """Return the cost of n rows between the nearest other buckets, None if none of them has it."""
        buckets = sorted(b for b, cells in self._buckets.items() if b != bucket and n in cells)
        if not buckets:
            return None
        i = bisect_right(buckets, bucket)
        below, above = buckets[max(0, i - 1)], buckets[min(i, len(buckets) - 1)]
        share = (2.0**bucket - 2.0**below) / (2.0**above - 2.0**below) if above > below else 0.0
        return self._buckets[below][n].seconds * (1 - share) + self._buckets[above][n].seconds * share

    def update(self, rows: int, depth: int, seconds: float) -> None:
        """Learn from one real pass; implausible times are ignored."""
        if not MIN_SECONDS <= seconds <= MAX_SECONDS or rows < 1:
            return
        self._observed += 1
        bucket, recent = context_bucket(depth), self._recent
        cells = self._buckets.get(bucket, {})
        cell, single = cells.get(rows), cells.get(1)
        if cell is None or (rows > 1 and self._observed - cell.last_pass > OVERDUE_PASSES):
            self._collect((bucket, rows), depth, seconds / self._pace)
            return
        if single is not None and cell.seconds > MAX_INVERSION * rows * single.seconds:
            cell.seconds, cell.samples = rows * single.seconds, 1  # no pass costs that: it is not known
        implied, samples = math.log(seconds / cell.seconds), cell.samples
        pace = self._log_pace
        off = implied - pace
        if samples >= TRUSTED_SAMPLES:  # an uncertain cell does not show the pace
            self._implied.append(implied)
            outcome = sorted(self._implied)[len(self._implied) // 2]
            pace += PACE_WEIGHT * (outcome - pace)
            self._log_pace, self._pace = pace, math.exp(pace)
            # The part explained by the change of pace does not count against the cell.
            low, high = (outcome, pace) if outcome < pace else (pace, outcome)
            off = implied - (high if implied > high else low if implied < low else implied)
        # If all recent passes have one size, a slower machine and a slower size look the same.
        others = len(recent) - recent.count(cell)
        if off and others:
            weight = max(CELL_WEIGHT, 1.0 / (1 + samples))  # a plain mean at first
            off = max(-MAX_LOG_DEVIATION, min(MAX_LOG_DEVIATION, off))
            cell.seconds *= math.exp(weight * off * others / len(recent))
        cell.samples, cell.last_pass = samples + 1, self._observed
        recent.append(cell)
        if self._observed % CURVE_REFRESH_UPDATES == 0 or samples <= UNSETTLED_SAMPLES:
            self._curves.clear()

    def is_overdue(self, rows: int, depth: int) -> bool:
        """Return whether the last such pass is too long ago; never for a single row, the reference."""
        cell = self._bucket(depth).get(rows)
        return rows > 1 and self._observed - (cell.last_pass if cell else 0) > OVERDUE_PASSES

    def _collect(self, key: tuple[int, int], depth: int, seconds: float) -> None:
        """Collect passes of an unknown or overdue cell; MIN_OBSERVATIONS create or replace it."""
        pending = self._pending.setdefault(key, [])
        pending.append(seconds)
        if len(pending) == MIN_OBSERVATIONS:
            del self._pending[key]
            bucket, rows = key
            cells, measured = self._buckets.setdefault(bucket, {}), median(pending)
            if rows not in cells or abs(math.log(measured / cells[rows].seconds)) > MAX_LOG_DEVIATION:
                cells[rows] = CostCell(measured, MIN_OBSERVATIONS)
            cells[rows].last_pass = self._observed
            self._depth.setdefault(bucket, depth)
            self._index()

    def as_dict(self) -> dict[str, Any]:
        """Return the table for JSON, with None for unknown cells."""
        self._curves.clear()  # so that a copy that is read back agrees with this object
        cells = [[self._bucket(depth).get(n) for n in self.rows] for depth in self.depths]
        return {
            "rows": list(self.rows),
            "depths": list(self.depths),
            "seconds": [[cell and cell.seconds * self._pace for cell in line] for line in cells],
            "samples": [[cell and cell.samples for cell in line] for line in cells],
            "noise": self.timing_jitter,
        }

    @classmethod
    def read(cls, value: Any) -> PassCosts:
        """Read the output of `as_dict`; samples and noise are optional. Raises UsageError for other data."""

        def by_cell(lines: Any) -> dict[int, dict[int, Any]]:
            rows = value["rows"]
            cells = [{n: x for n, x in zip(rows, line, strict=True) if x is not None} for line in lines]
            return dict(zip(value["depths"], cells, strict=True))

        try:
            counts = value.get("samples")
            return cls(by_cell(value["seconds"]), value.get("noise", 1.0), counts and by_cell(counts))
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
    sizes_valid = all(isinstance(n, int) and 1 <= n <= MAX_TABLE_ROWS for n, _ in numbers)
    if not sizes_valid or not all(MIN_SECONDS <= s <= MAX_SECONDS for _, s in numbers):
        raise UsageError(f"costs must be seconds above 0, of passes of 1 to {MAX_TABLE_ROWS:,} rows")
    if all(n != 1 for n, _ in numbers):
        raise UsageError("what a pass of one row costs is missing: measure again (paceline doctor)")
    if not all(isinstance(k, int) and k >= 1 for k in (*table, *counts)) or not 1 <= noise <= MAX_SECONDS:
        raise UsageError("costs need depths, samples and noise from 1: measure again (paceline doctor)")


@dataclass
class DecodingCosts:
    """The costs of decoding.
    target, draft: pass costs of the two models.
    step: seconds of a request's step outside the passes (verifying, committing, deciding); 0 is unknown."""

    target: PassCosts
    draft: PassCosts | None = None
    step: float = 0.0
    is_reliable: bool = True  # false once passes took far longer than known, which no process must learn

    def as_dict(self) -> dict[str, Any]:
        draft = None if self.draft is None else self.draft.as_dict()
        return {"target": self.target.as_dict(), "draft": draft, "step": self.step}

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


class PassTimer:
    """A timer that owns one session of a target, filled with random tokens (a mixture of experts is slower on
    varied tokens). Nothing is left in the target's cache after `close`."""

    def __init__(self, target: Target, clock: Clock = perf_counter) -> None:
        self._target, self._clock = target, clock
        length = target.caps.n_ctx + 1
        self._text: list[int] = np.random.default_rng(0).integers(target.vocab.size, size=length).tolist()
        self._session = target.open()
        self.context_length = 0  # tokens in the session, root included
        self._depth = 1  # as it was filled

    def close(self) -> None:
        self._session.close()
        self._target.forget()

    def _reopen(self) -> None:
        self._session.close()
        self._session, self.context_length = self._target.open(), 0

    def prefill(self, depth: int) -> float:
        """Return the seconds until the session holds `depth` computed tokens, which may be fewer than now."""
        if depth < self.context_length:
            self._reopen()
        self._depth = depth
        began = self._clock()
        self._session.extend(self._text[self.context_length : depth])
        self.context_length = depth
        self.time_pass(1)
        return max(MIN_SECONDS, self._clock() - began)

    def time_pass(self, n: int) -> float:
        """Return the seconds of a forward over n rows after the current text.
        After one row the text grows, up to the end of the context, unless the cache can drop it. If the
        target has no rollback, n is 1."""
        rollback = self._target.caps.rollback
        grows = rollback == "none" or (rollback == "restore" and n == 1)  # an empty draft has no checkpoint
        if rollback != "none":
            self._session.extend(())
        if rollback == "restore" and self.context_length + n > len(self._text):
            self._reopen()
            self.prefill(self._depth)
            self._session.extend(())
        elif grows and self.context_length == len(self._text):
            self._reopen()
            self._session.extend(self._text[:1])
            self.context_length = 1
        tree = chain(self._text[self.context_length : self.context_length + n - 1], "filler")
        began = self._clock()
        self._target.forward([(self._session, tree)], RequiredOutputs())
        seconds = self._clock() - began
        if grows:
            self._session.commit((), self._text[self.context_length])
            self.context_length += 1
        return max(MIN_SECONDS, seconds)


class _Measurement(PassTimer):
    """One measurement with its deadline."""

    def __init__(self, target: Target, seconds: float, clock: Clock, progress: Progress) -> None:
        super().__init__(target, clock)
        self._seconds, self._end, self._progress = seconds, clock() + seconds, progress

    def run(self, depths: Sequence[int], rows: Sequence[int]) -> PassCosts:
        """Measure passes over so many rows at the context lengths that can be filled in time."""
        self.prefill(min(INITIAL_TOKENS, depths[0]))
        noise, start = 1.0, self.context_length
        quick = self._sample(rows[:2], self._end - 0.9 * self._seconds, {})
        rate = median_low(quick[rows[:2][-1]]) / len(quick)  # prefill seconds per token
        rate = self._deepen(depths[0], self._left() / 4, rate)
        table: dict[int, dict[int, float]] = {}
        counts: dict[int, dict[int, int]] = {}
        while True:
            length = self.context_length
            deeper = [d for d in depths if context_bucket(d) > context_bucket(length)]
            # Only those that can be filled in half of the remaining time.
            deeper = [d for d in deeper if rate * (d - length) < self._left() / 2]
            filling = rate * (deeper[-1] - length) if deeper else 0.0
            share = (self._left() - filling) / (1 + len(deeper))
            samples = self._sample(rows, self._clock() + share, quick if length == start else {})
            # The median: a minimum would favour what was measured most.
            table[length] = {n: median_low(taken) for n, taken in sorted(samples.items())}
            counts[length] = {n: len(taken) for n, taken in samples.items()}
            jitters = [_timing_jitter(it) for it in samples.values() if len(it) >= MIN_JITTER_SAMPLES]
            noise = max(noise, _timing_jitter(samples[1]), median(jitters) if jitters else 1.0)
            if deeper:
                rate = self._deepen(deeper[0], self._left(), rate)
            if context_bucket(self.context_length) <= context_bucket(length):
                return PassCosts(table, noise, counts)

    def _left(self) -> float:
        return self._end - self._clock()

    def _deepen(self, depth: int, budget: float, rate: float) -> float:
        """Prefill up to `depth` within `budget` seconds; return the best seconds per token seen."""
        piece, until = FILL_TOKENS, self._clock() + budget
        while (missing := depth - self.context_length) > 0:
            length = min(piece, missing)
            if self._clock() + rate * length > until:
                break
            # The minimum ignores hiccups.
            rate = min(rate, self.prefill(self.context_length + length) / length)
            piece = min(2 * piece, MAX_FILL_TOKENS)
        return rate

    def _sample(self, rows: Sequence[int], until: float, samples: Samples) -> Samples:
        """Take samples in interleaved order, so that a busy moment affects all rows.
        After one sample each, all rows get equal time, as cheap passes are the noisiest."""
        waiting = [n for n in rows if len(samples.get(n, ())) < MAX_SAMPLES]
        while waiting:
            n = min(waiting, key=lambda n: _priority(n, samples))
            lasts = median_low(samples[n]) if n in samples else _plausible(n, samples)
            if len(samples.get(n, ())) >= MIN_SAMPLES.get(n, 0) and self._clock() + lasts > until:
                waiting.remove(n)
                continue
            samples.setdefault(n, []).append(self._time(n))
            if len(samples[n]) == MAX_SAMPLES:
                waiting.remove(n)
            over = 1.0 - self._left() / self._seconds if self._seconds > 0 else 1.0
            self._progress(max(0.0, min(1.0, over)))
        return samples

    def _time(self, n: int) -> float:
        """Return the seconds of a pass over n rows, averaged if one is too short for the clock."""
        total, repeats = 0.0, 0
        while total < MIN_SAMPLE_SECONDS and repeats < MAX_REPEATS:
            total += self.time_pass(n)
            repeats += 1
        return total / repeats


def measure(
    target: Target,
    *,
    seconds: float = 3.0,
    depths: Sequence[int] = CONTEXT_LENGTHS,
    rows: Sequence[int] = TOKEN_COUNTS,
    clock: Clock = perf_counter,
    progress: Progress = lambda _share: None,
) -> PassCosts:
    """Measure for about so many seconds, whatever the model's size.
    Expensive rows and contexts that do not fit are left out, but one row is measured three times and two rows
    once. Uses one session and leaves nothing in the target's cache."""
    caps = target.caps
    limit = min(caps.max_batch_tokens, max(1, caps.n_ctx // 2)) if caps.rollback != "none" else 1
    rows = [n for n in sorted({1, 2, *rows}) if 1 <= n <= limit]
    deepest = max(1, caps.n_ctx - rows[-1])
    with closing(_Measurement(target, seconds, clock, progress)) as measurement:
        return measurement.run(sorted({max(1, min(depth, deepest)) for depth in depths}), rows)


def _priority(n: int, samples: Mapping[int, Sequence[float]]) -> float:
    """Return the priority of measuring n rows next: their total sample time including one more run, weighted.
    The smallest is measured first."""
    taken, plausible = samples.get(n, ()), _plausible(n, samples)
    may_be_hiccup = len(taken) == 1 and taken[0] > plausible
    is_uncertain = len(taken) < MIN_SAMPLES.get(n, 1) or may_be_hiccup
    weight = (2 if n in PRIORITY_TOKEN_COUNTS else 1) * (FIRST_SAMPLE_PRIORITY if is_uncertain else 1)
    return (len(taken) + 1) * plausible / weight


def _plausible(n: int, samples: Mapping[int, Sequence[float]]) -> float:
    """Return an upper limit of a pass: the cost of more rows, or in proportion that of fewer."""
    return min((median_low(taken) * max(1.0, n / m) for m, taken in samples.items()), default=0.0)


def _timing_jitter(samples: Sequence[float]) -> float:
    """Return the ratio of the upper to the lower quartile."""
    ordered = sorted(samples)
    return ordered[len(ordered) * 3 // 4] / ordered[len(ordered) // 4]


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
