"""Scores to acceptance probabilities, learned online.

One logistic regression learns from every guess whose outcome is known:

    logit(probability) = slope * x + trend * y + bias[position]

For one drafter x is the logit of its score, and y its recent acceptance in this request, from -1 to 1: so a
change of the text is followed within a few dozen tokens. (For several drafters see acceptance_model.py.) The
steps are those of a diagonal Newton method that forgets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

N_POSITIONS = 4  # 1, 2, 3, and all that are deeper
DECAY = 0.99  # a weight rests on about a hundred outcomes
NEWTON_STEP = 0.7  # of a Newton step: single outcomes are noisy
PRIOR_WEIGHT = 4.0  # the starting weights count as so many undecided outcomes
INITIAL_SLOPE = 1.5  # to begin with; by drafters and texts it ends at 0 to 3
MIN_SCORE, MAX_SCORE = 0.01, 0.99  # scores beyond them say no more than these
MAX_LOGIT = 6.0  # logits of what is predicted: 0.9975
LOGIT_TABLE_SIZE = 1000
N_BINS = 10


def logit_of(score: float) -> float:
    """NaN counts as the smallest score."""
    score = MAX_SCORE if score > MAX_SCORE else score if score > MIN_SCORE else MIN_SCORE
    return math.log(score / (1.0 - score))


# A logarithm takes longer than a look into a table: of a score, LOGITS[int(score * GRAIN)].
LOGIT_TABLE = [logit_of(i / LOGIT_TABLE_SIZE) for i in range(LOGIT_TABLE_SIZE + 1)]


def logit_at(score: float) -> float:
    """By the table; also for scores beyond 0 and 1."""
    return LOGIT_TABLE[int(score * LOGIT_TABLE_SIZE)] if 0.0 <= score <= 1.0 else logit_of(score)


def sigmoid(z: float) -> float:
    return 1.0 / (1.0 + math.exp(-z if -MAX_LOGIT < z < MAX_LOGIT else MAX_LOGIT if z < 0.0 else -MAX_LOGIT))


class Calibration(NamedTuple):
    """error: the expected calibration error over the outcomes. chance: the error if every probability were
    true."""

    outcomes: int
    error: float
    chance: float


@dataclass
class Reliability:
    """What was predicted beside what happened, in ten bins of what was predicted."""

    bins: list[list[float]] = field(default_factory=lambda: [[0, 0.0, 0] for _ in range(N_BINS)])

    def add(self, probability: float, accepted: bool) -> None:
        found = self.bins[int(probability * N_BINS)]  # how many, the sum of predictions, how many accepted
        found[0] += 1
        found[1] += probability
        found[2] += accepted

    @property
    def total(self) -> int:
        return int(sum(n for n, _, _ in self.bins))

    @property
    def calibration(self) -> Calibration:
        """How far the bins' means were off. Only where there were outcomes."""
        n = self.total
        off = sum(abs(predicted - happened) for _, predicted, happened in self.bins)
        # A sum of m outcomes of probability p is off by a normal error's mean size, sqrt(2/pi m p (1 - p)).
        chance = sum(math.sqrt(2 / math.pi * value * (1 - value / m)) for m, value, _ in self.bins if m)
        return Calibration(n, off / n, chance / n)


class Calibrator:
    """One regression, over all requests. weights: slope, trend, then a bias for each position, which counts
    from 1 (directly below the root)."""

    __slots__ = ("_curvature", "reliability", "weights")

    def __init__(self, slope: float = 1.0, trend: float = INITIAL_SLOPE, bias: float = 0.0) -> None:
        self.weights = [slope, trend] + [bias] * N_POSITIONS
        self._curvature = [PRIOR_WEIGHT] * len(self.weights)
        self.reliability = Reliability()

    def logit(self, x: float, depth: int, y: float) -> float:
        """Of the chance that a guess is accepted where its parent is."""
        weights = self.weights
        return weights[0] * x + weights[1] * y + weights[1 + (depth if depth < N_POSITIONS else N_POSITIONS)]

    def at(self, y: float) -> tuple[float, list[float]]:
        """For one y, the slope, and what is added by position (from 1)."""
        weights, trend = self.weights, self.weights[1] * y
        return weights[0], [0.0, *[bias + trend for bias in weights[2:]]]

    def probability(self, score: float, depth: int, recent: float = 0.0) -> float:
        return sigmoid(self.logit(logit_at(score), depth, recent))

    def update(self, x: float, depth: int, y: float, accepted: bool) -> float:
        """The outcome of one guess whose parent was accepted. Returns the logit that was predicted before."""
        weights, curvature = self.weights, self._curvature
        place = 1 + (depth if depth < N_POSITIONS else N_POSITIONS)
        z = weights[0] * x + weights[1] * y + weights[place]
        p = sigmoid(z)
        self.reliability.add(p, accepted)
        if (z >= MAX_LOGIT and accepted) or (z <= -MAX_LOGIT and not accepted):
            return z  # as firm as can be: weights that grew on would have to be unlearned
        step, variance = NEWTON_STEP * (accepted - p), p * (1.0 - p)
        # One after the other and not in a loop, which took a third of the time: every guess comes by here.
        if x != 0.0:
            c = DECAY * curvature[0] + variance * x * x
            curvature[0] = c = c if c > 1.0 else 1.0
            weights[0] += step * x / c
        if y != 0.0:
            c = DECAY * curvature[1] + variance * y * y
            curvature[1] = c = c if c > 1.0 else 1.0
            weights[1] += step * y / c
        c = DECAY * curvature[place] + variance
        curvature[place] = c = c if c > 1.0 else 1.0
        weights[place] += step / c
        return z
