"""How the passes of a loaded model are timed: a session with random text, and contenders in rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median_low
from time import perf_counter

import numpy as np

from paceline.speculative.interfaces import RequiredOutputs, Target
from paceline.speculative.tree import chain

MIN_SECONDS = 1e-9  # seconds that anything takes, on a clock that stands still or goes back

Clock = Callable[[], float]
Progress = Callable[[float], None]  # is told which share of the work is done; what it raises ends the work


def cold_tokens(_share: float) -> None:
    """Nobody watches the progress."""


class PassTimer:
    """Owns one session of a target, and random text as long as its context: a mixture of experts is dear
    where tokens differ. Nothing is left in the target's cache after `close`."""

    def __init__(self, target: Target, clock: Clock = perf_counter) -> None:
        self._target, self._clock = target, clock
        length = target.caps.n_ctx + 1
        self._text: list[int] = np.random.default_rng(0).integers(target.vocab.size, size=length).tolist()
        self._session = target.open()
        self.context_length = 0  # tokens of the text that are in the session, the root included

    def close(self) -> None:
        self._session.close()
        self._target.forget()

    def reset(self) -> None:
        """Another text in a new session: nothing of it is in the cache."""
        self._text.append(self._text.pop(0))
        self._reopen()

    def _reopen(self) -> None:
        self._session.close()
        self._session, self.context_length = self._target.open(), 0

    def prefill(self, depth: int) -> float:
        """Seconds until `depth` tokens of the text are in the session, all of them computed. Where that is
        fewer than there are, the text is read again."""
        if depth < self.context_length:
            self._reopen()
        began = self._clock()
        self._session.extend(self._text[self.context_length : depth])
        self.context_length = depth
        self.time_pass(1)
        return max(MIN_SECONDS, self._clock() - began)

    def time_pass(self, n: int) -> float:
        """Seconds of a forward over n rows after the text so far. Where the target cannot go back, n is 1 and
        the text grows, up to the end of the context."""
        goes_back = self._target.caps.rollback != "none"
        if goes_back:
            self._session.extend(())
        elif self.context_length == len(self._text):
            self._reopen()
            self._session.extend(self._text[:1])
            self.context_length = 1
        tree = chain(self._text[self.context_length : self.context_length + n - 1], "filler")
        began = self._clock()
        self._target.forward([(self._session, tree)], RequiredOutputs())
        took = self._clock() - began
        if not goes_back:
            self._session.commit((), self._text[self.context_length])
            self.context_length += 1
        return max(MIN_SECONDS, took)


def measurement_order(contenders: int, rounds: int, progress: Progress = cold_tokens) -> Iterator[int]:
    """Which contender is measured next: each once a round, in rounds that go there and back, so that a busy
    moment hits all of them alike."""
    there = list(range(contenders))
    for done in range(rounds):
        for i, contender in enumerate(there, 1):
            yield contender
            progress((done + i / contenders) / rounds)
        there.reverse()


def medians(samples: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Of each of the numbers in a sample. The lower one of two, since interruptions only ever add."""
    return tuple(map(median_low, zip(*samples, strict=True)))
