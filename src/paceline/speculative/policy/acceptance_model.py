"""How likely each node of a draft is to be reached and accepted.

Every drafter has a calibrator. Where several propose something for the same place, so has every set of
proposers among them: whether drafters agree is the strongest sign there is (stacking: Wolpert, Stacked
Generalization, 1992). Its inputs are
    x   the mean logit that its proposers' own calibrators give the guess
    y   the largest x of the other guesses at this place
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.speculative.policy.calibration import (
    MAX_LOGIT,
    N_POSITIONS,
    Calibration,
    Calibrator,
    Reliability,
    logit_at,
    sigmoid,
)
from paceline.speculative.tree import ROOT, DraftTree, Votes

EMA_WEIGHT = 1 / 4  # the weight of the last guess in a drafter's recent acceptance
ALL_DRAFTERS = "a draft"  # what is predicted of all guesses, whoever made them
# A set's calibrator, to begin with: what a proposer more adds to the logit, and a drafter that proposes
# something else takes from it; and the weight of the best other guess.
AGREEMENT_WEIGHT, DISAGREEMENT_WEIGHT, RIVAL_WEIGHT = 0.4, -0.9, -0.3

Recent = dict[str, float]  # of one request: each drafter's recent acceptance, -1 (wrong) to 1


class AcceptanceModel:
    """Shared by all requests, each of which has its own Recent."""

    def __init__(self) -> None:
        self._calibrators: dict[str, Calibrator] = {}
        self._sets: dict[tuple[frozenset[str], frozenset[str]], Calibrator] = {}
        self._reliability = Reliability()

    def of(self, drafter: str) -> Calibrator:
        found = self._calibrators.get(drafter)
        if found is None:
            found = self._calibrators[drafter] = Calibrator()
        return found

    def reach_probabilities(self, recent: Recent, tree: DraftTree) -> list[float]:
        """Of each node, the chance that it is reached and accepted; 0 for a probe."""
        chances, last, slope, biases = list[float](), "", 1.0, list[float]()
        votes = tree.votes or [((name, score),) for name, score in zip(tree.source, tree.score, strict=True)]
        for who, depth in zip(votes, tree.depths(), strict=True):  # as if its first proposer were alone
            name, score = who[0]
            if name != last:
                last, slope, biases = name, *self.of(name).at(recent.get(name, 0.0))
            z = slope * logit_at(score) + biases[depth if depth < N_POSITIONS else N_POSITIONS]
            chances.append(sigmoid(z))
        for parent in competing_votes(votes, tree.parents):
            nodes = tree.children(parent)
            own = [
                [
                    self.of(name).logit(logit_at(score), tree.depths()[node], recent.get(name, 0.0))
                    for name, score in votes[node]
                ]
                for node in nodes
            ]
            for node, guess in zip(nodes, self._guesses([votes[node] for node in nodes], own), strict=True):
                chances[node] = sigmoid(guess.logit)
        for probe in tree.probe:
            chances[probe] = 0.0
        return reach_products(tree, chances)

    def _guesses(self, votes: Sequence[Votes], own: Sequence[Sequence[float]]) -> list[Guess]:
        """Of siblings. own: the logit of each proposer's own calibrator."""
        everyone = frozenset([name for who in votes for name, _ in who])
        if len(everyone) == 1:
            return [Guess(logits[0]) for logits in own]
        means = [min(sum(logits) / len(logits), MAX_LOGIT) for logits in own]
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
        """Every guess along the emitted text has an outcome, verified or not: tokens are what followed the
        root, the last one what the target put in a guess's place."""
        at = ROOT
        for depth, token in enumerate(tokens, 1):
            nodes = tree.children(at)
            if not nodes:
                return
            right = tree.child(at, token)
            votes = [votes_by_node(tree, node) for node in nodes]
            own = [
                [
                    self.of(name).update(logit_at(score), depth, recent.get(name, 0.0), node == right)
                    for name, score in who
                ]
                for node, who in zip(nodes, votes, strict=True)
            ]
            for node, guess in zip(nodes, self._guesses(votes, own), strict=True):
                self._reliability.add(sigmoid(guess.logit), node == right)
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

    def calibration(self) -> dict[str, Calibration]:
        """Of what each drafter's calibrator predicted, and of what the rule goes by (DRAFT)."""
        known = {name: one.reliability for name, one in self._calibrators.items()}
        known[ALL_DRAFTERS] = self._reliability
        return {name: one.calibration for name, one in known.items() if one.total}


class Guess(NamedTuple):
    """logit: of the chance that it is accepted. calibrator: of the set of its proposers, where several
    drafters propose something, with the inputs x and y."""

    logit: float
    calibrator: Calibrator | None = None
    x: float = 0.0
    y: float = 0.0


def competing_votes(votes: Sequence[Votes], parents: Sequence[int]) -> set[int]:
    """The places, by the node above them, for which several drafters propose something."""
    proposer: dict[int, str] = {}
    out: set[int] = set()
    for who, parent in zip(votes, parents, strict=True):
        if len(who) > 1 or proposer.setdefault(parent, who[0][0]) != who[0][0]:
            out.add(parent)
    return out


def reach_products(tree: DraftTree, chances: Sequence[float]) -> list[float]:
    """Along each path. Siblings exclude each other: chances that add up to more than 1 are scaled down."""
    sums = dict.fromkeys(tree.parents, 0.0)
    if len(sums) < len(chances):
        for parent, p in zip(tree.parents, chances, strict=True):
            sums[parent] += p
    out: list[float] = []
    for parent, p in zip(tree.parents, chances, strict=True):
        if sums[parent] > 1.0:
            p /= sums[parent]
        out.append(p if parent == ROOT else out[parent] * p)
    return out


def votes_by_node(tree: DraftTree, node: int) -> Votes:
    """Who proposed a node, with which score."""
    return tree.votes[node] if tree.votes else ((tree.source[node], tree.score[node]),)
