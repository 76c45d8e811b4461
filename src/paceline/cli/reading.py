"""An answer as it comes: how far its prompt is read, Ctrl-C, and passes that are slower than usual."""

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
from paceline.speculative.policy.cost_model import DecodingCosts, PassCosts

MIN_PROMPT_TOKENS = 256  # tokens of a prompt whose progress is shown
SLOW = 3.0  # times the known cost: half of the passes took more
MIN_PASSES = 8
MIN_SECONDS = 0.005  # of a pass: shorter ones are late for reasons that nobody can mend


class PrefillProgress:
    """What `LLM.stream` takes as `on_prefill`: a line on a terminal, which is gone afterwards. Close it.

    Raises KeyboardInterrupt once Ctrl-C was pressed."""

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
        """Take the line away."""
        if self._width:
            sys.stderr.write(f"\r{'':{self._width}}\r")
            sys.stderr.flush()
            self._width = 0


def until_interrupted(stream: Stream, interrupts: Interrupts) -> Iterator[StepOutput]:
    """Yield an answer's pieces up to Ctrl-C, which may come while the prompt is read (see
    PrefillProgress)."""
    try:
        for piece in stream:
            yield piece
            if interrupts.pressed:
                return
    except KeyboardInterrupt:
        pass


class SlowPassMonitor:
    """Watches the target's passes from now on, where it is known what they cost."""

    def __init__(self, llm: LLM) -> None:
        self._passes: deque[tuple[int, int, float]] = deque(maxlen=256)
        self._known: PassCosts | None = None
        self._costs: DecodingCosts | None = getattr(llm.policy, "costs", None)
        costs = self._costs
        if costs is None or llm.target.on_forward is not None or costs.target.seconds(1, 1) < MIN_SECONDS:
            return
        # A copy: the policy's own adapts to a slow machine.
        self._known = PassCosts.read(costs.target.as_dict())
        llm.target.on_forward = lambda *seen: self._passes.append(seen)

    def warning(self) -> str:
        """Return what to tell the user; "" where passes take what they should."""
        if self._known is None or self._costs is None or len(self._passes) < MIN_PASSES:
            return ""
        times = median(seconds / self._known.seconds(rows, depth) for rows, depth, seconds in self._passes)
        if times < SLOW:
            return ""
        self._costs.is_default = False  # nothing of such a run is kept for the next one
        return f"passes took {times:.1f} times what they usually take here; paceline doctor tells why"
