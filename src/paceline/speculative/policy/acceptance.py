"""The probability that each node of a draft is reached and accepted, learned online from drafters' scores.

A logistic regression learns from every guess with a known outcome:

    logit(probability) = slope * x + trend * y + bias[position]

Every drafter has one: x is the logit of its score, and y its recent acceptance in the request, from -1 to 1.
A change in the text thus takes effect within a few dozen tokens. The updates are diagonal Newton steps with
exponential forgetting.

Where several drafters propose guesses for one position, every set of proposers also has one, since agreement
of drafters is the strongest evidence (stacking: Wolpert, Stacked Generalization, 1992). Its inputs are
    x   the mean logit of the guess by its proposers' own calibrators
    y   the largest x of the other guesses at this position
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import exp
from operator import mul

from paceline.speculative.tree import ROOT, DraftTree, Votes

N_POSITIONS = 4  # 1, 2, 3, and all deeper positions
DECAY = 0.99  # a memory of about a hundred outcomes
NEWTON_STEP = 0.7  # a fraction of a full step, as single outcomes are noisy
PRIOR_WEIGHT = 4.0  # the initial weights count as so many undecided outcomes
INITIAL_TREND = 1.5  # converges to values from 0 to 3
MIN_SCORE, MAX_SCORE = 0.01, 0.99  # scores are clipped to this range
MAX_WEIGHT = 8.0  # of a calibrator from another process
MAX_PREDICTED_LOGIT = 6.0  # predicted probabilities are at most 0.9975
LOGIT_TABLE_SIZE = 1000

EMA_WEIGHT = 1 / 4  # weight of the last guess in a drafter's recent acceptance
# A set's initial weights: per further proposer, per dissenting drafter, of the best other guess.
AGREEMENT_WEIGHT, DISAGREEMENT_WEIGHT, RIVAL_WEIGHT = 0.4, -0.9, -0.3

Recent = dict[str, float]  # recent acceptance by drafter in one request, from -1 (rejected) to 1


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
    """Return the probability of a logit, which is clipped to MAX_PREDICTED_LOGIT."""
    if not -MAX_PREDICTED_LOGIT < z < MAX_PREDICTED_LOGIT:
        z = -MAX_PREDICTED_LOGIT if z < 0.0 else MAX_PREDICTED_LOGIT
    return 1.0 / (1.0 + exp(-z))


MAX_PREDICTED = sigmoid(MAX_PREDICTED_LOGIT)


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
        i = 1 + (depth if depth < N_POSITIONS else N_POSITIONS)
        z = weights[0] * x + weights[1] * y + weights[i]
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
        c = DECAY * curvature[i] + variance
        curvature[i] = c = c if c > 1.0 else 1.0
        weights[i] += step / c
        return z


class AcceptanceModel:
    """The calibrators of all drafters, shared by all requests; each request has a separate Recent."""

    def __init__(self) -> None:
        self._calibrators: defaultdict[str, Calibrator] = defaultdict(Calibrator)
        # Of sets of proposers, by all that propose at a position.
        self._sets: defaultdict[frozenset[str], dict[str | frozenset[str], Calibrator]] = defaultdict(dict)

        # By tenths of the predicted probability: sum of the predictions, accepted guesses, all guesses.
        self._bins = [[0.0, 0.0, 0.0] for _ in range(11)]

    @property
    def reliability(self) -> list[tuple[float, float, float]]:
        """Return mean prediction, share of accepted guesses and their number, for each tenth with guesses."""
        return [(p / n, accepted / n, n) for p, accepted, n in self._bins if n]

    @property
    def weights(self) -> dict[str, list[float]]:
        """The weights of each drafter's calibrator."""
        return {name: list(one.weights) for name, one in self._calibrators.items()}

    def begin_with(self, weights: Mapping[str, Sequence[float]]) -> None:
        """Start calibrators from weights, with as little trust as in the initial ones. Raises ValueError."""
        started = {name: Calibrator() for name in weights}
        for name, calibrator in started.items():
            if len(weights[name]) != 2 + N_POSITIONS or not all(map(math.isfinite, weights[name])):
                raise ValueError(name)
            calibrator.weights = [min(MAX_WEIGHT, max(-MAX_WEIGHT, weight)) for weight in weights[name]]
        self._calibrators.update(started)

    def of(self, drafter: str) -> Calibrator:
        """Return the calibrator of a drafter."""
        return self._calibrators[drafter]

    def reach_probabilities(self, recent: Recent, tree: DraftTree) -> list[float]:
        """Return for each node the probability that it is reached and accepted; 0 for a probe."""
        # For speed: every guess passes here, and list[float]() takes a microsecond.
        logits: list[float] = []
        votes, last, slope, biases = tree.votes, "", 1.0, [0.0]
        table, size, positions = LOGIT_TABLE, LOGIT_TABLE_SIZE, N_POSITIONS
        scores = [proposers[0][1] for proposers in votes] if votes else tree.score
        for name, score, depth in zip(tree.source, scores, tree.depths(), strict=True):
            if name != last:
                last, slope, biases = name, *self._calibrators[name].at(recent.get(name, 0.0))
            x = table[int(score * size)] if 0.0 <= score <= 1.0 else logit_of(score)
            logits.append(slope * x + biases[depth if depth < positions else positions])
        for parent in competing_votes(tree) if votes else ():
            nodes, depth = tree.children(parent), 1 if parent == ROOT else tree.depths()[parent] + 1
            for node in nodes:
                if len(who := votes[node]) > 1:
                    own = [self.of(name).logit(logit_at(s), depth, recent.get(name, 0.0)) for name, s in who]
                    logits[node] = sum(own) / len(who)
            rivals = self._rivals([votes[node] for node in nodes], [logits[node] for node in nodes])
            for node, (calibrator, x, y) in zip(nodes, rivals, strict=True):
                logits[node] = calibrator.logit(x, 1, y)
        probabilities = [
            1.0 / (1.0 + exp(-(z if z > -MAX_PREDICTED_LOGIT else -MAX_PREDICTED_LOGIT)))
            if z < MAX_PREDICTED_LOGIT
            else MAX_PREDICTED
            for z in logits
        ]
        for probe in tree.probe:
            probabilities[probe] = 0.0
        return reach_products(tree, probabilities)

    def _rivals(
        self, siblings: Sequence[Votes], logits: Sequence[float]
    ) -> Iterator[tuple[Calibrator, float, float]]:
        """Yield the calibrator and inputs of each sibling, which several drafters have proposed.
        logits: the means by their proposers' own calibrators."""
        everyone = frozenset([name for votes in siblings for name, _ in votes])
        sets, means = self._sets[everyone], [min(logit, MAX_PREDICTED_LOGIT) for logit in logits]
        second, best = [0.0, *sorted(means)][-2:]
        for votes, x in zip(siblings, means, strict=True):
            proposers = votes[0][0] if len(votes) == 1 else frozenset([name for name, _ in votes])
            calibrator = sets.get(proposers)
            if calibrator is None:
                n = 1 if len(votes) == 1 else len(proposers)
                bias = AGREEMENT_WEIGHT * (n - 1) + DISAGREEMENT_WEIGHT * (len(everyone) - n)
                calibrator = sets[proposers] = Calibrator(1.0, RIVAL_WEIGHT, bias)
            yield calibrator, x, second if x == best else best

    def learn(self, recent: Recent, tree: DraftTree, tokens: Sequence[int]) -> None:
        """Learn from all guesses along the emitted tokens, of which the last one is the target's."""
        parent, calibrators, bins = ROOT, self._calibrators, self._bins
        for depth, token in enumerate(tokens, 1):
            nodes, accepted = tree.children(parent), None
            siblings: list[Votes] = []
            means: list[float] = []
            names: dict[str, bool] = {}  # whether each drafter was right
            for node in nodes:
                votes = tree.votes[node] if tree.votes else ((tree.source[node], tree.score[node]),)
                right, total = accepted is None and tree.tokens[node] == token, 0.0
                for name, score in votes:
                    z = calibrators[name].update(logit_at(score), depth, recent.get(name, 0.0), right)
                    total += z
                    p = sigmoid(z)
                    tenth = bins[int(10.0 * p)]
                    tenth[0] += p
                    tenth[1] += right
                    tenth[2] += 1.0
                    names[name] = right or names.get(name, False)
                if right:
                    accepted = node
                siblings.append(votes)
                means.append(total / len(votes))
            if len(names) > 1:
                rivals = self._rivals(siblings, means)
                for node, (calibrator, x, y) in zip(nodes, rivals, strict=True):
                    calibrator.update(x, 1, y, node == accepted)
            for name, hit in names.items() if depth == 1 else ():
                before = recent.get(name, 0.0)
                recent[name] = before + EMA_WEIGHT * ((1.0 if hit else -1.0) - before)
            if accepted is None:
                return
            parent = accepted


def competing_votes(tree: DraftTree) -> set[int]:
    """Return the parents below which several drafters propose guesses."""
    proposer: dict[int, str] = {}
    out: set[int] = set()
    for proposers, parent, name in zip(tree.votes, tree.parents, tree.source, strict=True):
        if len(proposers) > 1 or proposer.setdefault(parent, name) != name:
            out.add(parent)
    return out


def reach_products(tree: DraftTree, probabilities: Sequence[float]) -> list[float]:
    """Return the products of the probabilities along each path.
    Siblings exclude each other: if theirs add up to more than 1, they are scaled down."""
    if tree.is_chain:
        return list(accumulate(probabilities, mul))
    n = len(probabilities)
    sums, out = [0.0] * (n + 1), [1.0] * (n + 1)  # the last entry is the root's
    for parent, p in zip(tree.parents, probabilities, strict=True):
        sums[parent] += p
    for node, (parent, p) in enumerate(zip(tree.parents, probabilities, strict=True)):
        total = sums[parent]
        out[node] = out[parent] * (p / total if total > 1.0 else p)
    return out[:n]
