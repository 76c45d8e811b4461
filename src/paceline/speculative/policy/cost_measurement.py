"""Measure what a loaded model's passes cost (cost_model.py), through the Target protocol alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from statistics import median, median_low
from time import perf_counter

from paceline.speculative.interfaces import Target
from paceline.speculative.policy.cost_model import PassCosts, context_bucket
from paceline.speculative.policy.pass_timer import Clock, PassTimer, Progress, cold_tokens

BATCH_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 17, 24, 32, 33, 48, 64)
CONTEXT_LENGTHS = (256, 1024, 4096)
PRIORITY_BATCH_SIZES = frozenset({1, 2, 3, 4, 8, 16})  # rows that get twice the time of others
MIN_SAMPLES = {
    1: 3,
    2: 1,
}  # samples that are taken by rows, whatever the time: noise is told by three at least
FIRST_SAMPLE_PRIORITY = (
    4  # so much sooner comes a first sample: use mends what was timed once, but a gap hides an edge
)
MIN_JITTER_SAMPLES = 4  # samples that noise is told by, beside those of single rows
MAX_SAMPLES = 25  # of one number of rows, at most
MIN_SAMPLE_SECONDS, MAX_REPEATS = (
    1e-4,
    16,
)  # seconds of a sample: shorter passes are repeated, up to so many times
INITIAL_TOKENS, FILL_TOKENS, MAX_FILL_TOKENS = (
    2,
    16,
    512,
)  # tokens: how a context is filled while there is time

Samples = dict[int, list[float]]  # seconds by rows


def measure(
    target: Target,
    *,
    seconds: float = 3.0,
    depths: Sequence[int] = CONTEXT_LENGTHS,
    rows: Sequence[int] = BATCH_SIZES,
    clock: Clock = perf_counter,
    progress: Progress = cold_tokens,
) -> PassCosts:
    """Measure for about so many seconds, whatever the model's size. Dear rows and depths that do not fit in
    are left out, but for one row (three times) and two (once). Takes one session, and leaves nothing in the
    target's cache."""
    caps = target.caps
    most = min(caps.max_batch_tokens, max(1, caps.n_ctx // 2)) if caps.rollback != "none" else 1
    rows = [n for n in sorted({1, 2, *rows}) if 1 <= n <= most]
    deepest = max(1, caps.n_ctx - rows[-1])
    with closing(PassTimer(target, clock)) as timer:
        measuring = _Measuring(timer, seconds, clock, progress)
        table = measuring.table(sorted({max(1, min(depth, deepest)) for depth in depths}), rows)
        return PassCosts(table, measuring.noise, measuring.samples)


class _Measuring:
    """One measurement, and the time that is left for it."""

    def __init__(self, timer: PassTimer, seconds: float, clock: Clock, progress: Progress) -> None:
        self._timer, self._clock, self._progress = timer, clock, progress
        self._seconds, self._end = seconds, clock() + seconds
        self.noise = 1.0  # see Cost
        self.samples: dict[int, dict[int, int]] = {}

    def table(self, depths: Sequence[int], rows: Sequence[int]) -> dict[int, dict[int, float]]:
        """Seconds by depth and rows."""
        timer = self._timer
        timer.prefill(min(INITIAL_TOKENS, depths[0]))
        start = timer.context_length
        quick = self._sample(rows[:2], self._end - 0.9 * self._seconds, {})
        rate = median_low(quick[rows[:2][-1]]) / len(quick)  # seconds a token that is put into the context
        rate = self._deepen(depths[0], self._left() / 4, rate)
        out: dict[int, dict[int, float]] = {}
        while True:
            deeper = [d for d in depths if context_bucket(d) > context_bucket(timer.context_length)]
            # As many of them as can be filled in half of the time that is left.
            deeper = [d for d in deeper if rate * (d - timer.context_length) < self._left() / 2]
            filling = rate * (deeper[-1] - timer.context_length) if deeper else 0.0
            share = (self._left() - filling) / (1 + len(deeper))
            place = timer.context_length
            samples = self._sample(rows, self._clock() + share, quick if place == start else {})
            # The median, since the least of many would flatter what was measured most.
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
        """Fill on up to `depth`, as far as the budget of seconds goes; returns the best rate seen."""
        piece, until = FILL_TOKENS, self._clock() + budget
        while (missing := depth - self._timer.context_length) > 0:
            length = min(piece, missing)
            if self._clock() + rate * length > until:
                break
            rate = min(
                rate, self._timer.prefill(self._timer.context_length + length) / length
            )  # a hiccup is no rate
            piece = min(2 * piece, MAX_FILL_TOKENS)
        return rate

    def _sample(self, rows: Sequence[int], until: float, samples: Samples) -> Samples:
        """Take samples, interleaved, so that a busy moment hits all rows. Once each number of rows has one,
        all get the same time: cheap passes, which are timed worst, are repeated most."""
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
        """Seconds of a pass over n rows; the mean of several where one is too short for the clock."""
        total, repeats = 0.0, 0
        while total < MIN_SAMPLE_SECONDS and repeats < MAX_REPEATS:
            total += self._timer.time_pass(n)
            repeats += 1
        return total / repeats


def _priority(n: int, samples: Mapping[int, Sequence[float]]) -> float:
    """Whose is the least is measured next: the time its samples should have taken, with one more."""
    own, plausible = samples.get(n, ()), _plausible(n, samples)
    few = len(own) < MIN_SAMPLES.get(n, 1) or (
        len(own) == 1 and own[0] > plausible
    )  # it may have been a hiccup
    return (
        (len(own) + 1)
        * plausible
        / ((2 if n in PRIORITY_BATCH_SIZES else 1) * (FIRST_SAMPLE_PRIORITY if few else 1))
    )


def _plausible(n: int, samples: Mapping[int, Sequence[float]]) -> float:
    """What a pass should cost at most: no more than one of more rows, nor than its share of one of fewer."""
    return min((median_low(some) * max(1.0, n / m) for m, some in samples.items()), default=0.0)


def _timing_jitter(samples: Sequence[float]) -> float:
    """The upper quartile over the lower."""
    ordered = sorted(samples)
    return ordered[len(ordered) * 3 // 4] / ordered[len(ordered) // 4]
