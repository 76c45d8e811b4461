"""Measurement of the pass costs (costs.py) of a loaded model, through the Target protocol alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from statistics import median, median_low
from time import perf_counter

import numpy as np

from paceline.speculative.interfaces import RequiredOutputs, Target
from paceline.speculative.policy.costs import PassCosts, Table, context_bucket
from paceline.speculative.tree import chain

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

MIN_SECONDS = 1e-9  # reported if the clock stands still or goes back

Samples = dict[int, list[float]]  # seconds by rows
Clock = Callable[[], float]
Progress = Callable[[float], None]  # called with the share of work done; an exception ends the work


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
    with closing(PassTimer(target, clock)) as timer:
        measurement = _Measurement(timer, seconds, clock, progress)
        return measurement.run(sorted({max(1, min(depth, deepest)) for depth in depths}), rows)


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
        """Return the seconds until the session holds `depth` computed tokens.
        If it holds more already, the text is computed again from the start."""
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


class _Measurement:
    """One measurement with its deadline."""

    def __init__(self, timer: PassTimer, seconds: float, clock: Clock, progress: Progress) -> None:
        self._timer, self._clock, self._progress = timer, clock, progress
        self._seconds, self._end = seconds, clock() + seconds

    def run(self, depths: Sequence[int], rows: Sequence[int]) -> PassCosts:
        """Measure passes over so many rows at the context lengths that can be filled in time."""
        timer, noise = self._timer, 1.0
        timer.prefill(min(INITIAL_TOKENS, depths[0]))
        start = timer.context_length
        quick = self._sample(rows[:2], self._end - 0.9 * self._seconds, {})
        rate = median_low(quick[rows[:2][-1]]) / len(quick)  # prefill seconds per token
        rate = self._deepen(depths[0], self._left() / 4, rate)
        table, counts = dict[int, dict[int, float]](), dict[int, dict[int, int]]()
        while True:
            deeper = [d for d in depths if context_bucket(d) > context_bucket(timer.context_length)]
            # Only those that can be filled in half of the remaining time.
            deeper = [d for d in deeper if rate * (d - timer.context_length) < self._left() / 2]
            filling = rate * (deeper[-1] - timer.context_length) if deeper else 0.0
            share = (self._left() - filling) / (1 + len(deeper))
            length = timer.context_length
            samples = self._sample(rows, self._clock() + share, quick if length == start else {})
            # The median: a minimum would favour what was measured most.
            table[length] = {n: median_low(taken) for n, taken in sorted(samples.items())}
            counts[length] = {n: len(taken) for n, taken in samples.items()}
            jitters = [
                _timing_jitter(taken) for taken in samples.values() if len(taken) >= MIN_JITTER_SAMPLES
            ]
            noise = max(noise, _timing_jitter(samples[1]), median(jitters) if jitters else 1.0)
            if deeper:
                rate = self._deepen(deeper[0], self._left(), rate)
            if context_bucket(timer.context_length) <= context_bucket(length):
                return PassCosts(table, noise, counts)

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
