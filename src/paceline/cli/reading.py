"""Monitoring of a generation: progress of the prefill, Ctrl-C, and unusually slow passes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from statistics import median
from time import monotonic

from paceline.api import LLM
from paceline.cli.interrupts import Interrupts
from paceline.engine import Stream
from paceline.request_handle import StepOutput
from paceline.speculative.policy.costs import PassCosts

MIN_PROMPT_TOKENS = 256  # of a prompt whose progress is shown
SLOW = 3.0  # median time of a pass, in units of its known cost
MIN_PASSES = 8
MIN_SECONDS = 0.005  # cost of a pass; shorter ones are too noisy


class PrefillProgress:
    """A progress line of the prefill, for `on_prefill` of `LLM.stream`. `close` removes it.

    Raises KeyboardInterrupt after Ctrl-C."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._began, self._width = monotonic(), 0

    def __call__(self, read: int, total: int) -> None:
        self._interrupts.check()
        if read == 0:
            self._began = monotonic()
        if read == total or total < MIN_PROMPT_TOKENS:
            self.close()
        elif sys.stderr.isatty():
            seconds = monotonic() - self._began
            speed = f", {read / seconds:.0f} tokens/s" if read and seconds > 0 else ""
            line = f"reading the prompt: {read:,} of {total:,} tokens{speed}"
            self._width = max(self._width, len(line))
            sys.stderr.write(f"\r{line:{self._width}}")
            sys.stderr.flush()

    def close(self) -> None:
        """Remove the line."""
        if self._width:
            sys.stderr.write(f"\r{'':{self._width}}\r")
            sys.stderr.flush()
            self._width = 0


def until_interrupted(stream: Stream, interrupts: Interrupts) -> Iterator[StepOutput]:
    """Yield an answer's pieces until Ctrl-C, which PrefillProgress may raise during the prefill."""
    try:
        for piece in stream:
            yield piece
            if interrupts.pressed:
                return
    except KeyboardInterrupt:
        pass


class SlowPassMonitor:
    """A monitor of the target's passes, if their costs are known."""

    def __init__(self, llm: LLM) -> None:
        self._passes: deque[tuple[int, int, float]] = deque(maxlen=256)
        self._known: PassCosts | None = None
        self._costs = costs = llm.policy.costs
        if costs is None or llm.target.on_forward is not None or costs.target.seconds(1, 1) < MIN_SECONDS:
            return
        # A copy: the policy's own adapts to a slow machine.
        self._known = PassCosts.read(costs.target.as_dict())
        llm.target.on_forward = lambda *forward: self._passes.append(forward)

    def warning(self) -> str:
        """Return a warning about slow passes, or ""."""
        if self._known is None or self._costs is None or len(self._passes) < MIN_PASSES:
            return ""
        times = median(seconds / self._known.seconds(rows, depth) for rows, depth, seconds in self._passes)
        if times < SLOW:
            return ""
        self._costs.is_reliable = False  # costs updated in a slow run are not stored
        return f"passes took {times:.1f} times what they usually take here; paceline doctor tells why"
