"""The probability that each node of a draft is reached and accepted.

Every drafter has a calibrator. Where several drafters propose guesses for one position, every set of
proposers also has one, since agreement of drafters is the strongest evidence (stacking: Wolpert, Stacked
Generalization, 1992). Its inputs are
    x   the mean logit of the guess by its proposers' own calibrators
    y   the largest x of the other guesses at this position
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.speculative.policy.calibration import (
    MAX_PREDICTED_LOGIT,
    N_POSITIONS,
    Calibrator,
    logit_at,
    sigmoid,
)
from paceline.speculative.tree import ROOT, DraftTree, Votes

EMA_WEIGHT = 1 / 4  # weight of the last guess in a drafter's recent acceptance
# A set's initial weights: per further proposer, per dissenting drafter, of the best other guess.
AGREEMENT_WEIGHT, DISAGREEMENT_WEIGHT, RIVAL_WEIGHT = 0.4, -0.9, -0.3

Recent = dict[str, float]  # recent acceptance by drafter in one request, from -1 (rejected) to 1


class AcceptanceModel:
    """The calibrators of all drafters, shared by all requests; each request has a separate Recent."""

    def __init__(self) -> None:
        self._calibrators: dict[str, Calibrator] = {}
        self._sets: dict[tuple[frozenset[str], frozenset[str]], Calibrator] = {}

    def of(self, drafter: str) -> Calibrator:
        """Return the calibrator of a drafter."""
        calibrator = self._calibrators.get(drafter)
        if calibrator is None:
            calibrator = self._calibrators[drafter] = Calibrator()
        return calibrator

    def reach_probabilities(self, recent: Recent, tree: DraftTree) -> list[float]:
        """Return for each node the probability that it is reached and accepted; 0 for a probe."""
        probabilities, last, slope, biases = list[float](), "", 1.0, list[float]()
        votes = tree.votes or [((name, score),) for name, score in zip(tree.source, tree.score, strict=True)]
        for who, depth in zip(votes, tree.depths(), strict=True):  # by the first proposer alone
            name, score = who[0]
            if name != last:
                last, slope, biases = name, *self.of(name).at(recent.get(name, 0.0))
            z = slope * logit_at(score) + biases[depth if depth < N_POSITIONS else N_POSITIONS]
            probabilities.append(sigmoid(z))
        for parent in competing_votes(votes, tree.parents):
            nodes = tree.children(parent)
            own_logits = [
                [
                    self.of(name).logit(logit_at(score), tree.depths()[node], recent.get(name, 0.0))
                    for name, score in votes[node]
                ]
                for node in nodes
            ]
            for node, guess in zip(
                nodes, self._guesses([votes[node] for node in nodes], own_logits), strict=True
            ):
                probabilities[node] = sigmoid(guess.logit)
        for probe in tree.probe:
            probabilities[probe] = 0.0
        return reach_products(tree, probabilities)

    def _guesses(self, votes: Sequence[Votes], own_logits: Sequence[Sequence[float]]) -> list[Guess]:
        """Return the guesses for siblings. own_logits: by each proposer's calibrator."""
        everyone = frozenset([name for who in votes for name, _ in who])
        if len(everyone) == 1:
            return [Guess(logits[0]) for logits in own_logits]
        means = [min(sum(logits) / len(logits), MAX_PREDICTED_LOGIT) for logits in own_logits]
        guesses = []
        for at, (who, x) in enumerate(zip(votes, means, strict=True)):
            proposers = frozenset([name for name, _ in who])
            calibrator = self._sets.get((proposers, everyone))
            if calibrator is None:
                n = len(proposers)
                bias = AGREEMENT_WEIGHT * (n - 1) + DISAGREEMENT_WEIGHT * (len(everyone) - n)
                calibrator = self._sets[proposers, everyone] = Calibrator(1.0, RIVAL_WEIGHT, bias)
            y = max([*means[:at], *means[at + 1 :]], default=0.0)
            guesses.append(Guess(calibrator.logit(x, 1, y), calibrator, x, y))
        return guesses

    def learn(self, recent: Recent, tree: DraftTree, tokens: Sequence[int]) -> None:
        """Learn from all guesses along the emitted tokens, of which the last one is the target's."""
        at = ROOT
        for depth, token in enumerate(tokens, 1):
            nodes = tree.children(at)
            if not nodes:
                return
            right = tree.child(at, token)
            votes = [votes_by_node(tree, node) for node in nodes]
            own_logits = [
                [
                    self.of(name).update(logit_at(score), depth, recent.get(name, 0.0), node == right)
                    for name, score in who
                ]
                for node, who in zip(nodes, votes, strict=True)
            ]
            for node, guess in zip(nodes, self._guesses(votes, own_logits), strict=True):
                if guess.calibrator is not None:
                    guess.calibrator.update(guess.x, 1, guess.y, node == right)
            if depth == 1:
                hits = () if right is None else [name for name, _ in votes[nodes.index(right)]]
                for name in {name for who in votes for name, _ in who}:
                    before = recent.get(name, 0.0)
                    recent[name] = before + EMA_WEIGHT * ((1.0 if name in hits else -1.0) - before)
            if right is None:
                return
            at = right


class Guess(NamedTuple):
    """The logit of a guess's acceptance; if drafters compete, with its calibrator and inputs x and y."""

    logit: float
    calibrator: Calibrator | None = None
    x: float = 0.0
    y: float = 0.0


def competing_votes(votes: Sequence[Votes], parents: Sequence[int]) -> set[int]:
    """Return the parents below which several drafters propose guesses."""
    proposer: dict[int, str] = {}
    out: set[int] = set()
    for who, parent in zip(votes, parents, strict=True):
        if len(who) > 1 or proposer.setdefault(parent, who[0][0]) != who[0][0]:
            out.add(parent)
    return out


def reach_products(tree: DraftTree, probabilities: Sequence[float]) -> list[float]:
    """Return the products of the probabilities along each path.
    Siblings exclude each other: if theirs add up to more than 1, they are scaled down."""
    sums = dict.fromkeys(tree.parents, 0.0)
    if len(sums) < len(probabilities):
        for parent, p in zip(tree.parents, probabilities, strict=True):
            sums[parent] += p
    out: list[float] = []
    for parent, p in zip(tree.parents, probabilities, strict=True):
        if sums[parent] > 1.0:
            p /= sums[parent]
        out.append(p if parent == ROOT else out[parent] * p)
    return out


def votes_by_node(tree: DraftTree, node: int) -> Votes:
    """Return the drafters that proposed a node, with their scores."""
    return tree.votes[node] if tree.votes else ((tree.source[node], tree.score[node]),)
