"""Raw scores to acceptance probabilities, learned online.

A drafter's score says which of its guesses are the likelier ones; how likely they are depends on the target,
the text and the sampler. One logistic regression a drafter learns it from every guess whose outcome is known:

    logit(probability) = bias[position] + slope * logit(score) + trend * recent

`recent` is how the request's own last guesses fared, from -1 to 1: with it a text that changes its nature is
followed within a few dozen tokens, while the other weights keep what is true of all texts. It starts by
believing the score. The step sizes are those of a diagonal Newton method that forgets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

POSITIONS = 4  # 1, 2, 3, and all that are deeper
FORGET = 0.99  # a weight rests on about a hundred outcomes
STEP = 0.7
PRIOR = 4.0
LEAST, MOST = 0.01, 0.99  # what is believed at the most: the curve of a score ends there
BINS = 10


@dataclass
class Reliability:
    """What was said beside what happened, in ten bins of what was said."""

    n: list[int] = field(default_factory=lambda: [0] * BINS)
    said: list[float] = field(default_factory=lambda: [0.0] * BINS)
    happened: list[int] = field(default_factory=lambda: [0] * BINS)

    def add(self, probability: float, accepted: bool) -> None:
        place = min(int(probability * BINS), BINS - 1)
        self.n[place] += 1
        self.said[place] += probability
        self.happened[place] += accepted

    @property
    def total(self) -> int:
        return sum(self.n)

    @property
    def error(self) -> float | None:
        """The expected calibration error: how far a bin's mean was off, over all bins. None without any."""
        off = sum(abs(said - hap) for said, hap in zip(self.said, self.happened, strict=True))
        return off / self.total if self.total else None


class Calibrator:
    """One drafter's, over all requests."""

    __slots__ = ("_curvature", "_weights", "reliability")

    def __init__(self) -> None:
        # slope, trend, then a bias a position
        self._weights = [1.0, 1.0] + [0.0] * POSITIONS
        self._curvature = [PRIOR] * (2 + POSITIONS)
        self.reliability = Reliability()

    def probability(self, score: float, depth: int, recent: float = 0.0) -> float:
        """That a guess at `depth` (1: right below the root) is accepted where its parent is."""
        weights = self._weights
        score = LEAST if score < LEAST else MOST if score > MOST else score
        z = weights[0] * math.log(score / (1.0 - score)) + weights[1] * recent
        z += weights[1 + (depth if depth < POSITIONS else POSITIONS)]
        return 1.0 / (1.0 + math.exp(-z)) if -6.0 < z < 6.0 else (0.0025 if z < 0.0 else 0.9975)

    def observe(self, score: float, depth: int, recent: float, accepted: bool) -> None:
        """The outcome of one guess whose parent was accepted."""
        p = self.probability(score, depth, recent)
        self.reliability.add(p, accepted)
        score = min(max(score, LEAST), MOST)
        error, variance = accepted - p, p * (1.0 - p)
        inputs = ((0, math.log(score / (1.0 - score))), (1, recent), (1 + min(depth, POSITIONS), 1.0))
        for place, value in inputs:
            curvature = max(1.0, FORGET * self._curvature[place] + variance * value * value)
            self._curvature[place] = curvature
            self._weights[place] += STEP * error * value / curvature


class Calibration:
    """All drafters', by name, and those of what several say together (policy.py)."""

    def __init__(self) -> None:
        self._by_name: dict[str, Calibrator] = {}

    def of(self, name: str) -> Calibrator:
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = Calibrator()
        return found

    def errors(self) -> dict[str, tuple[int, float]]:
        """By name: how many outcomes, and the expected calibration error over them."""
        known = {name: one.reliability for name, one in self._by_name.items()}
        return {name: (one.total, one.error) for name, one in known.items() if one.error is not None}
