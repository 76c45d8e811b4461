"""Measure what a loaded model's passes cost (cost.py), through the Target protocol alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median_low
from time import perf_counter

import numpy as np

from paceline.core.cost import Cost, bucket
from paceline.core.ports import Session, Target, Want
from paceline.core.tree import chain

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 17, 24, 32, 33, 48, 64)
DEPTHS = (256, 1024, 4096)
IMPORTANT = frozenset({1, 2, 3, 4, 8, 16})  # rows that get twice the time of others
LEAST = {1: 3, 2: 1}  # samples that are taken by rows, whatever the time: noise is told by three at least
FIRST = 4  # so much sooner comes a first sample: use mends what was timed once, but a gap hides an edge
SAMPLES = 25  # of one number of rows, at most
SHORTEST, REPEATS = 1e-4, 16  # seconds of a sample: shorter passes are repeated, up to so many times
TINIEST = 1e-9  # what a pass costs on a clock that stands still
START, PIECE, LONGEST_PIECE = 2, 16, 512  # tokens: how a context is filled while there is time
SPARE = 4096  # tokens, for a context that can only grow

Clock = Callable[[], float]
Tick = Callable[[float], None]


def _silent(_share: float) -> None:
    """No one watches."""


def measure(
    target: Target,
    *,
    seconds: float = 3.0,
    depths: Sequence[int] = DEPTHS,
    rows: Sequence[int] = ROWS,
    clock: Clock = perf_counter,
    tick: Tick = _silent,
) -> Cost:
    """Measure for about so many seconds, whatever the model's size. What does not fit in is left out, but for
    one row (three times) and two (once): the dear rows, and the depths that would take too long to fill. The
    first is filled as far as a quarter of the time goes.

    tick: told after every sample which share of the time is over; what it raises ends the measuring. Takes
    one session, and leaves nothing in the target's cache.
    """
    measuring = Measuring(target, clock, tick)
    try:
        return Cost(measuring.table(seconds, depths, rows), measuring.noise)
    finally:
        measuring.close()


def release(target: Target, session: Session) -> None:
    """Close a session that was there for measuring, and leave nothing of it in the target's cache."""
    session.close()
    target.forget()


class Measuring:
    """Owns one session, and the text in it: tokens drawn at random, since a mixture of experts is dear where
    tokens differ, as those of a draft do."""

    def __init__(self, target: Target, clock: Clock, tick: Tick) -> None:
        self._target, self._clock, self._tick = target, clock, tick
        self._session: Session = target.open()
        self._text: list[int] = []
        self._depth = 0  # tokens in the session, the root included
        self.noise = 1.0  # see Cost

    def close(self) -> None:
        release(self._target, self._session)

    def table(
        self, seconds: float, depths: Sequence[int], rows: Sequence[int]
    ) -> dict[int, dict[int, float]]:
        """Seconds by depth and rows."""
        caps = self._target.caps
        most = min(caps.rows, max(1, caps.n_ctx // 2)) if caps.rollback != "none" else 1
        rows = [n for n in sorted({1, 2, *rows}) if 1 <= n <= most]
        deepest = max(1, caps.n_ctx - rows[-1])
        wanted = sorted({max(1, min(depth, deepest)) for depth in depths})
        self._text = _random(self._target.vocab.size, min(caps.n_ctx, wanted[-1] + SPARE) + 1)
        self._began, self._end = self._clock(), self._clock() + seconds

        self._fill(min(START, wanted[0]))
        start = self._depth
        quick = self._spread(rows[:2], self._began + seconds / 10, {})
        rate = median_low(quick[rows[:2][-1]]) / len(quick)  # seconds a token that is put into the context
        rate = self._deepen(wanted[0], self._left() / 4, rate)
        out: dict[int, dict[int, float]] = {}
        while True:
            deeper = [d for d in wanted if bucket(d) > bucket(self._depth)]
            # As many of them as can be filled in half of the time that is left.
            deeper = [d for d in deeper if rate * (d - self._depth) < self._left() / 2]
            filling = rate * (deeper[-1] - self._depth) if deeper else 0.0
            share = (self._left() - filling) / (1 + len(deeper))
            place = self._depth
            samples = self._spread(rows, self._clock() + share, quick if place == start else {})
            out[place] = _seconds(samples)
            self.noise = max(self.noise, _noise(samples[1]))
            if not deeper:
                return out
            rate = self._deepen(deeper[0], self._left(), rate)
            if bucket(self._depth) <= bucket(place):
                return out

    def _left(self) -> float:
        return self._end - self._clock()

    def _fill(self, depth: int) -> None:
        """So many tokens, all of them computed: an engine may leave the last few of a prompt to the next
        pass."""
        self._session.extend(self._text[self._depth : depth])
        self._depth = depth
        self._pass(1)

    def _deepen(self, depth: int, budget: float, rate: float) -> float:
        """Fill on up to `depth`, as far as the budget of seconds goes; returns the best rate seen."""
        piece, until = PIECE, self._clock() + budget
        while self._depth < depth:
            began, length = self._clock(), min(piece, depth - self._depth)
            if began + rate * length > until:
                break
            self._fill(self._depth + length)
            rate = min(rate, (self._clock() - began) / length)  # a hiccup is no rate
            piece = min(2 * piece, LONGEST_PIECE)
        return rate

    def _spread(
        self, rows: Sequence[int], until: float, samples: dict[int, list[float]]
    ) -> dict[int, list[float]]:
        """More samples by rows, interleaved, so that a busy moment hits them all. Every number of rows gets
        the same time once each has a sample: cheap passes, which are timed worst, are repeated most."""
        waiting = [n for n in rows if len(samples.get(n, ())) < SAMPLES]
        while waiting:
            n = min(waiting, key=lambda n: _turn(n, samples))
            lasts = median_low(samples[n]) if n in samples else _plausible(n, samples)
            if len(samples.get(n, ())) >= LEAST.get(n, 0) and self._clock() + lasts > until:
                waiting.remove(n)
                continue
            samples.setdefault(n, []).append(self._sample(n))
            if len(samples[n]) == SAMPLES:
                waiting.remove(n)
            self._tick(self._share())
        return samples

    def _share(self) -> float:
        whole = self._end - self._began
        return max(0.0, min(1.0, (self._clock() - self._began) / whole)) if whole > 0 else 1.0

    def _sample(self, n: int) -> float:
        """Seconds of a pass over n rows; the mean of several where one is too short for the clock."""
        total, repeats = 0.0, 0
        while total < SHORTEST and repeats < REPEATS:
            total += self._pass(n)
            repeats += 1
        return max(total / repeats, TINIEST)

    def _pass(self, n: int) -> float:
        """Timed as the loop times it: the forward alone. Nothing of an earlier tree is in the cache."""
        session, text, depth = self._session, self._text, self._depth
        rewind = self._target.caps.rollback != "none"
        if rewind:
            session.extend(())
        elif depth == len(text):
            session.close()
            session = self._session = self._target.open()
            self._depth = depth = 1
            session.extend(text[:depth])
        tree = chain(text[depth : depth + n - 1], "filler")
        began = self._clock()
        self._target.forward([(session, tree)], Want())
        took = self._clock() - began
        if not rewind:
            session.keep((), text[depth])
            self._depth += 1
        return took if took > 0 else 0.0


def _turn(n: int, samples: Mapping[int, Sequence[float]]) -> float:
    """Whose is the least is measured next: the time its samples should have taken, with one more."""
    own, plausible = samples.get(n, ()), _plausible(n, samples)
    few = len(own) < LEAST.get(n, 1) or (len(own) == 1 and own[0] > plausible)  # it may have been a hiccup
    return (len(own) + 1) * plausible / ((2 if n in IMPORTANT else 1) * (FIRST if few else 1))


def _plausible(n: int, samples: Mapping[int, Sequence[float]]) -> float:
    """What a pass should cost at most, by its own samples and by others': no more than one of more rows, nor
    than its share of one of fewer. What a hiccup has made dear so gets another try first."""
    return min((median_low(some) * max(1.0, n / m) for m, some in samples.items()), default=0.0)


def _seconds(samples: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """The median, since the least of many would flatter what was measured most; the lower one, since
    interruptions only ever add."""
    return {n: median_low(some) for n, some in sorted(samples.items())}


def _noise(samples: Sequence[float]) -> float:
    """The upper quartile over the lower."""
    ordered = sorted(samples)
    return ordered[len(ordered) * 3 // 4] / ordered[len(ordered) // 4]


def _random(size: int, length: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(0).integers(size, size=length).tolist()
    return tokens
