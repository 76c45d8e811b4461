"""A warning about passes that take far longer than they are known to take, as on a busy machine."""

from __future__ import annotations

from collections import deque
from statistics import median

from paceline.backends.interface import Backend
from paceline.speculative.policy.costs import DecodingCosts, PassCosts
from paceline.system.home import Warn

SLOW = 1.8  # median time of a pass, in units of its known cost
PASSES = 16  # that are judged together
MIN_SECONDS = 0.005  # cost of a pass; shorter ones are too noisy


def watch_passes(target: Backend, costs: DecodingCosts, warn: Warn) -> None:
    """Call `warn` once, at the first passes that are slow in a row; the costs are no longer stored then."""
    if not costs.is_reliable or target.on_forward is not None or costs.target.seconds(1, 1) < MIN_SECONDS:
        return
    known = PassCosts.read(costs.target.as_dict())  # the policy's own adapt to a slow machine
    passes: deque[tuple[int, int, float]] = deque(maxlen=PASSES)

    def on_forward(rows: int, depth: int, seconds: float) -> None:
        if depth <= known.depths[-1]:  # longer contexts cost more than is known
            passes.append((rows, depth, seconds))
        if len(passes) < PASSES:
            return
        times = median(seconds / known.seconds(rows, depth) for rows, depth, seconds in passes)
        passes.clear()
        if times >= SLOW:
            costs.is_reliable, target.on_forward = False, None
            warn(f"passes take {times:.1f} times what they usually take here; paceline doctor tells why")

    target.on_forward = on_forward
