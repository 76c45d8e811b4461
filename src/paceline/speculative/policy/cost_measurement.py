"""Measurement of the pass costs (costs.py) of a loaded model, through the Target protocol alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from statistics import median, median_low
from time import perf_counter

from paceline.speculative.interfaces import Target
from paceline.speculative.policy.costs import PassCosts, Table, context_bucket
from paceline.speculative.policy.pass_timer import Clock, PassTimer, Progress, no_progress

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

Samples = dict[int, list[float]]  # seconds by rows


def measure(
    target: Target,
    *,
    seconds: float = 3.0,
    depths: Sequence[int] = CONTEXT_LENGTHS,
    rows: Sequence[int] = TOKEN_COUNTS,
    clock: Clock = perf_counter,
    progress: Progress = no_progress,
) -> PassCosts:
    """Measure for about so many seconds, whatever the model's size.
    Expensive rows and contexts that do not fit are left out, but one row is measured three times and two rows
    once. Uses one session and leaves nothing in the target's cache."""
    caps = target.caps
    most = min(caps.max_batch_tokens, max(1, caps.n_ctx // 2)) if caps.rollback != "none" else 1
    rows = [n for n in sorted({1, 2, *rows}) if 1 <= n <= most]
    deepest = max(1, caps.n_ctx - rows[-1])
    with closing(PassTimer(target, clock)) as timer:
        measuring = _Measuring(timer, seconds, clock, progress)
        table = measuring.table(sorted({max(1, min(depth, deepest)) for depth in depths}), rows)
        return PassCosts(table, measuring.noise, measuring.samples)


class _Measuring:
    """One measurement with its deadline."""

    def __init__(self, timer: PassTimer, seconds: float, clock: Clock, progress: Progress) -> None:
        self._timer, self._clock, self._progress = timer, clock, progress
        self._seconds, self._end = seconds, clock() + seconds
        self.noise = 1.0  # see PassCosts
        self.samples: dict[int, dict[int, int]] = {}

    def table(self, depths: Sequence[int], rows: Sequence[int]) -> dict[int, dict[int, float]]:
        """Return seconds by context length and rows."""
        timer = self._timer
        timer.prefill(min(INITIAL_TOKENS, depths[0]))
        start = timer.context_length
        quick = self._sample(rows[:2], self._end - 0.9 * self._seconds, {})
        rate = median_low(quick[rows[:2][-1]]) / len(quick)  # prefill seconds per token
        rate = self._deepen(depths[0], self._left() / 4, rate)
        out: dict[int, dict[int, float]] = {}
        while True:
            deeper = [d for d in depths if context_bucket(d) > context_bucket(timer.context_length)]
            # Only those that can be filled in half of the remaining time.
            deeper = [d for d in deeper if rate * (d - timer.context_length) < self._left() / 2]
            filling = rate * (deeper[-1] - timer.context_length) if deeper else 0.0
            share = (self._left() - filling) / (1 + len(deeper))
            place = timer.context_length
            samples = self._sample(rows, self._clock() + share, quick if place == start else {})
            # The median: a minimum would favour what was measured most.
            out[place] = {n: median_low(some) for n, some in sorted(samples.items())}
            self.samples[place] = {n: len(some) for n, some in samples.items()}
            often = [_timing_jitter(some) for some in samples.values() if len(some) >= MIN_JITTER_SAMPLES]
            self.noise = max(self.noise, _timing_jitter(samples[1]), median(often) if often else 1.0)
            if deeper:
                rate = self._deepen(deeper[0], self._left(), rate)
            if context_bucket(timer.context_length) <= context_bucket(place):
                return out

    def _left(self) -> float:
        return self._end - self._clock()

    def _deepen(self, depth: int, budget: float, rate: float) -> float:
        """Prefill up to `depth` within `budget` seconds; return the best seconds per token seen."""
        piece, until = FILL_TOKENS, self._clock() + budget
        while (missing := depth - self._timer.context_length) > 0:
            length = min(piece, missing)
            if self._clock() + rate * length > until:
                break
            seconds = self._timer.prefill(self._timer.context_length + length)
            rate = min(rate, seconds / length)  # the minimum ignores hiccups
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
            total += self._timer.time_pass(n)
            repeats += 1
        return total / repeats


def _priority(n: int, samples: Mapping[int, Sequence[float]]) -> float:
    """Return the time the samples of n rows take with one more; the least comes next."""
    taken, plausible = samples.get(n, ()), _plausible(n, samples)
    may_be_hiccup = len(taken) == 1 and taken[0] > plausible
    few = len(taken) < MIN_SAMPLES.get(n, 1) or may_be_hiccup
    weight = (2 if n in PRIORITY_TOKEN_COUNTS else 1) * (FIRST_SAMPLE_PRIORITY if few else 1)
    return (len(taken) + 1) * plausible / weight


def _plausible(n: int, samples: Mapping[int, Sequence[float]]) -> float:
    """Return an upper limit of a pass: the cost of more rows, or in proportion that of fewer."""
    return min((median_low(some) * max(1.0, n / m) for m, some in samples.items()), default=0.0)


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
