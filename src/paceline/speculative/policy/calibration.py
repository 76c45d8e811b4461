"""Online calibration from drafter scores to acceptance probabilities.

A logistic regression learns from every guess with a known outcome:

    logit(probability) = slope * x + trend * y + bias[position]

For one drafter x is the logit of its score, and y its recent acceptance in the request, from -1 to 1. A
change in the text thus takes effect within a few dozen tokens. (For several drafters see
acceptance_model.py.) The updates are diagonal Newton steps with exponential forgetting.
"""

from __future__ import annotations

import math

N_POSITIONS = 4  # 1, 2, 3, and all deeper positions
DECAY = 0.99  # a memory of about a hundred outcomes
NEWTON_STEP = 0.7  # a fraction of a full step, as single outcomes are noisy
PRIOR_WEIGHT = 4.0  # the initial weights count as so many undecided outcomes
INITIAL_TREND = 1.5  # of the trend; it converges to values from 0 to 3
MIN_SCORE, MAX_SCORE = 0.01, 0.99  # scores are clipped to this range
MAX_PREDICTED_LOGIT = 6.0  # predicted probabilities are at most 0.9975
LOGIT_TABLE_SIZE = 1000


def logit_of(score: float) -> float:
    """Return the logit of a clipped score; NaN counts as the smallest score."""
    score = MAX_SCORE if score > MAX_SCORE else score if score > MIN_SCORE else MIN_SCORE
    return math.log(score / (1.0 - score))


# A table is faster than a logarithm.
LOGIT_TABLE = [logit_of(i / LOGIT_TABLE_SIZE) for i in range(LOGIT_TABLE_SIZE + 1)]


def logit_at(score: float) -> float:
    """Return the logit of a score by the table; scores outside 0 to 1 are allowed."""
    return LOGIT_TABLE[int(score * LOGIT_TABLE_SIZE)] if 0.0 <= score <= 1.0 else logit_of(score)


def sigmoid(z: float) -> float:
    return 1.0 / (
        1.0
        + math.exp(
            -z
            if -MAX_PREDICTED_LOGIT < z < MAX_PREDICTED_LOGIT
            else MAX_PREDICTED_LOGIT
            if z < 0.0
            else -MAX_PREDICTED_LOGIT
        )
    )


class Calibrator:
    """One regression. weights: slope, trend, then a bias per position from 1 (the root's children)."""

    __slots__ = ("_curvature", "weights")

    def __init__(self, slope: float = 1.0, trend: float = INITIAL_TREND, bias: float = 0.0) -> None:
        self.weights = [slope, trend] + [bias] * N_POSITIONS
        self._curvature = [PRIOR_WEIGHT] * len(self.weights)

    def logit(self, x: float, depth: int, y: float) -> float:
        """Return the logit of the acceptance of a guess whose parent is accepted."""
        weights = self.weights
        return weights[0] * x + weights[1] * y + weights[1 + (depth if depth < N_POSITIONS else N_POSITIONS)]

    def at(self, y: float) -> tuple[float, list[float]]:
        """Return the slope, and for one y the constant term by position (from 1)."""
        weights, trend = self.weights, self.weights[1] * y
        return weights[0], [0.0, *[bias + trend for bias in weights[2:]]]

    def probability(self, score: float, depth: int, recent: float = 0.0) -> float:
        return sigmoid(self.logit(logit_at(score), depth, recent))

    def update(self, x: float, depth: int, y: float, accepted: bool) -> float:
        """Learn the outcome of one guess whose parent was accepted. Return the logit predicted before."""
        weights, curvature = self.weights, self._curvature
        place = 1 + (depth if depth < N_POSITIONS else N_POSITIONS)
        z = weights[0] * x + weights[1] * y + weights[place]
        p = sigmoid(z)
        if (z >= MAX_PREDICTED_LOGIT and accepted) or (z <= -MAX_PREDICTED_LOGIT and not accepted):
            return z  # saturated: growing weights would only have to be unlearned
        step, variance = NEWTON_STEP * (accepted - p), p * (1.0 - p)
        # Unrolled for speed: every guess passes here.
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
