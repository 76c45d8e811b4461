"""Timing of a loaded model's passes: a session with random text."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

from paceline.speculative.interfaces import RequiredOutputs, Target
from paceline.speculative.tree import chain

MIN_SECONDS = 1e-9  # reported if the clock stands still or goes back

Clock = Callable[[], float]
Progress = Callable[[float], None]  # called with the share of work done; an exception ends the work


def no_progress(_share: float) -> None:
    """Ignore the progress."""


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
