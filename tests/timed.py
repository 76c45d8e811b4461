"""A target whose passes take given times on its simulated clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from paceline.backends.toy import ToyForward, ToySession, ToyTarget
from paceline.speculative.interfaces import RequiredOutputs, Session
from paceline.speculative.tree import DraftTree


class TimedSession(ToySession):
    def __init__(self, target: TimedTarget) -> None:
        super().__init__(target)
        self._timed = target

    def extend(self, tokens: Sequence[int]) -> None:
        if self._timed.caps.rollback == "none":
            assert tokens  # no rollback
        super().extend(tokens)
        self._timed.now += self._timed.fill * len(tokens)

    def close(self) -> None:
        super().close()
        self._timed.closed += 1


class TimedTarget(ToyTarget):
    """seconds: of a pass, by its rows and how many passes of as many rows there were. fill: of a token of a
    prompt. Each pass has to compute all of its rows."""

    def __init__(
        self, seconds: Callable[[int, int], float], fill: float = 0.0, deeper: float = 0.0, **caps: Any
    ) -> None:
        super().__init__(16)
        self.caps = replace(self.caps, **caps)
        self.seconds, self.fill, self.deeper = seconds, fill, deeper
        self.now = 0.0
        self.passes: Counter[int] = Counter()
        self.longest = self.opened = self.closed = self.forgot = 0

    def open(self, beside: Session | None = None) -> TimedSession:
        self.opened += 1
        return TimedSession(self)

    def forward(
        self, batch: Sequence[tuple[ToySession, DraftTree | int]], want: RequiredOutputs
    ) -> list[ToyForward]:
        ((session, tree),) = batch
        assert isinstance(tree, DraftTree)
        out = super().forward(batch, want)
        assert out[0].logits(0) is not None  # the root was not computed before
        n = len(tree) + 1
        self.passes[n] += 1
        self.longest = max(self.longest, len(session.tokens) + len(tree))
        self.now += self.seconds(n, self.passes[n]) + self.deeper * len(session.tokens)
        return out

    def clock(self) -> float:
        return self.now

    def forget(self) -> None:
        assert self.closed == self.opened
        self.forgot += 1
