"""A warning where passes take far longer than they are known to take here."""

from __future__ import annotations

from collections import deque
from statistics import median

from paceline.api import LLM
from paceline.speculative.policy.cost_model import DecodingCosts, PassCosts

TIMES = 3.0  # over the known cost: half of the passes took more
MIN_PASSES = 8
MIN_SECONDS = 0.005  # of a pass: shorter ones are late for reasons that nobody can mend


class SlowPassMonitor:
    """Watches the target's passes from now on, where it is known what they cost."""

    def __init__(self, llm: LLM) -> None:
        self._passes: deque[tuple[int, int, float]] = deque(maxlen=256)
        self._known: PassCosts | None = None
        self._costs: DecodingCosts | None = getattr(llm.policy, "costs", None)
        costs = self._costs
        if costs is None or llm.target.on_pass is not None or costs.target.seconds(1, 1) < MIN_SECONDS:
            return
        # A copy: the policy's own adapts to a slow machine.
        self._known = PassCosts.read(costs.target.as_dict())
        llm.target.on_pass = lambda *seen: self._passes.append(seen)

    def warning(self) -> str:
        """Return what to tell the user; "" where passes take what they should."""
        if self._known is None or self._costs is None or len(self._passes) < MIN_PASSES:
            return ""
        times = median(seconds / self._known.seconds(rows, depth) for rows, depth, seconds in self._passes)
        if times < TIMES:
            return ""
        self._costs.usual = False  # nothing of such a run is kept for the next one
        return f"passes took {times:.1f} times what they usually take here; paceline doctor tells why"
