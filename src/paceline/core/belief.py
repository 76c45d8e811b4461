"""What is believed of a draft: how likely each node is to be reached and accepted.

Every drafter has its calibrator. Where several speak about the same place, agreement.py makes one chance of
theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from paceline.core.agreement import Agreement
from paceline.core.calibrate import (
    GRAIN,
    LOGITS,
    POSITIONS,
    SUREST,
    Calibration,
    Calibrator,
    Reliability,
    logit_at,
    sigmoid,
)
from paceline.core.tree import ROOT, DraftTree

RECENT = 1 / 4  # what the last guess counts in how a request's guesses fare
DRAFT = "a draft"  # what is believed of its guesses in the end, whoever made them
Known = tuple[float, list[float]]  # what one drafter's scores are weighed by at one mood
Mood = dict[str, float]  # of one request: how each drafter's last guesses fared, -1 (wrong) to 1


class Belief:
    """Shared by all requests, each of which has its own Mood."""

    def __init__(self) -> None:
        self._calibrators: dict[str, Calibrator] = {}
        self._agreement = Agreement()
        self._told = Reliability()

    def of(self, drafter: str) -> Calibrator:
        found = self._calibrators.get(drafter)
        if found is None:
            found = self._calibrators[drafter] = Calibrator()
        return found

    def survivals(self, mood: Mood, tree: DraftTree) -> list[float]:
        """Of each node, the chance that it is reached and accepted; none for a probe."""
        if not tree.tokens:
            return []
        if tree.said and tree.is_chain and not tree.probe:
            return self._along(mood, tree)
        out: list[float] = []
        sums = dict.fromkeys(tree.parents, 0.0)
        chances = self._mixed(mood, tree)
        if len(sums) < len(chances):
            for parent, p in zip(tree.parents, chances, strict=True):
                sums[parent] += p
        # Siblings exclude each other: where their chances add up to more than 1 they are scaled down to it.
        for parent, p in zip(tree.parents, chances, strict=True):
            if sums[parent] > 1.0:
                p /= sums[parent]
            out.append(p if parent == ROOT else out[parent] * p)
        for probe in tree.probe:
            out[probe] = 0.0
        return out

    def _along(self, mood: Mood, tree: DraftTree) -> list[float]:
        """What `_mixed` comes to for a chain, in one go: the commonest draft of all."""
        known: dict[str, Known] = {}
        survival, place, out = 1.0, 0, list[float]()
        for who in tree.said:
            place += place < POSITIONS
            if len(who) == 1:
                name, score = who[0]
                slope, biases = known.get(name) or self._known(name, mood, known)
                x = LOGITS[int(score * GRAIN)] if 0.0 <= score <= 1.0 else logit_at(score)
                z = slope * x + biases[place]
            else:
                z = self._agreement.unopposed(self._heard(mood, who, place, known))
            survival *= 1.0 / (1.0 + exp(-z)) if -SUREST < z < SUREST else sigmoid(z)
            out.append(survival)
        return out

    def _mixed(self, mood: Mood, tree: DraftTree) -> list[float]:
        """Of each node, the chance that it is accepted where its parent is."""
        known: dict[str, Known] = {}
        said, depths, out, alone = tree.said, tree.depths(), list[float](), list[float]()
        if not said:
            said = tuple([((name, score),) for name, score in zip(tree.source, tree.score, strict=True)])
        last, turns = "", 0
        for who, depth in zip(said, depths, strict=True):
            name, score = who[0]
            if name != last:
                last, turns = name, turns + 1
                slope, biases = known.get(name) or self._known(name, mood, known)
            x = LOGITS[int(score * GRAIN)] if 0.0 <= score <= 1.0 else logit_at(score)
            z = slope * x + biases[depth if depth < POSITIONS else POSITIONS]
            alone.append(z)
            out.append(1.0 / (1.0 + exp(-z)) if -SUREST < z < SUREST else sigmoid(z))
        if turns == 1 and sum(map(len, said)) == len(said):
            return out
        for parent in _shared(said, tree.parents):
            nodes = tree.children(parent)
            siblings = [
                [(said[node][0][0], alone[node])]
                if len(said[node]) == 1
                else self._heard(mood, said[node], depths[node], known)
                for node in nodes
            ]
            for node, z in zip(nodes, self._agreement.logits(siblings), strict=True):
                out[node] = sigmoid(z)
        return out

    def _heard(
        self, mood: Mood, who: Sequence[tuple[str, float]], depth: int, known: dict[str, Known]
    ) -> list[tuple[str, float]]:
        """Who proposes a node, each with the logit of the chance that it alone gives it."""
        heard, place = [], depth if depth < POSITIONS else POSITIONS
        for name, score in who:
            slope, biases = known.get(name) or self._known(name, mood, known)
            x = LOGITS[int(score * GRAIN)] if 0.0 <= score <= 1.0 else logit_at(score)
            heard.append((name, slope * x + biases[place]))
        return heard

    def _known(self, name: str, mood: Mood, known: dict[str, Known]) -> Known:
        """A drafter's weights at this mood: the slope, and for each position the rest."""
        weights = self.of(name).weights
        trend = weights[1] * mood.get(name, 0.0)
        found = known[name] = weights[0], [0.0, *[bias + trend for bias in weights[2:]]]
        return found

    def learn(self, mood: Mood, tree: DraftTree, tokens: Sequence[int]) -> list[str]:
        """Every guess along the emitted text has an outcome, verified or not: tokens are what followed the
        root, the last one what the target put in a guess's place. Returns who knew the first of them."""
        at, knew = ROOT, list[str]()
        for depth, token in enumerate(tokens, 1):
            nodes = tree.children(at)
            if not nodes:
                break
            right = tree.child(at, token)
            self._hear(mood, tree, nodes, depth, right)
            if depth == 1:
                knew = self._fare(mood, tree, nodes, right)
            if right is None:
                break
            at = right
        return knew

    def _hear(self, mood: Mood, tree: DraftTree, nodes: Sequence[int], depth: int, right: int | None) -> None:
        """The outcomes of siblings."""
        who = voices_of(tree, nodes[0])
        if len(nodes) == len(who) == 1:  # one voice, the commonest: what follows, in one go
            (name, score), hit = who[0], right is not None
            x = LOGITS[int(score * GRAIN)] if 0.0 <= score <= 1.0 else logit_at(score)
            self._told.add(sigmoid(self.of(name).observe(x, depth, mood.get(name, 0.0), hit)), hit)
            return
        siblings: list[list[tuple[str, float]]] = []
        first, several, calibrators = "", False, self._calibrators
        for node in nodes:
            hit, heard = node == right, list[tuple[str, float]]()
            for name, score in voices_of(tree, node):
                calibrator = calibrators.get(name) or self.of(name)
                x = LOGITS[int(score * GRAIN)] if 0.0 <= score <= 1.0 else logit_at(score)
                heard.append((name, calibrator.observe(x, depth, mood.get(name, 0.0), hit)))
                first = first or name
                several = several or name != first
            siblings.append(heard)
        if several:
            logits = self._agreement.observe(siblings, None if right is None else nodes.index(right))
        else:
            logits = [heard[0][1] for heard in siblings]
        for node, z in zip(nodes, logits, strict=True):
            self._told.add(sigmoid(z), node == right)

    def _fare(self, mood: Mood, tree: DraftTree, nodes: Sequence[int], right: int | None) -> list[str]:
        """How everyone's first guess fared becomes part of the request's mood. Returns who was right."""
        knew = [] if right is None else [name for name, _ in voices_of(tree, right)]
        for name in dict.fromkeys([name for node in nodes for name, _ in voices_of(tree, node)]):
            before = mood.get(name, 0.0)
            mood[name] = before + RECENT * ((1.0 if name in knew else -1.0) - before)
        return knew

    def calibration(self) -> dict[str, Calibration]:
        """Of what each drafter's guesses were believed to be, and of what the rule goes by (DRAFT)."""
        known = {name: one.reliability for name, one in self._calibrators.items()} | {DRAFT: self._told}
        return {name: told.calibration for name, told in known.items() if told.total}


def voices_of(tree: DraftTree, node: int) -> Sequence[tuple[str, float]]:
    """Who proposed a node, with which score."""
    return tree.said[node] if tree.said else ((tree.source[node], tree.score[node]),)


def _shared(said: Sequence[Sequence[tuple[str, float]]], parents: Sequence[int]) -> set[int]:
    """Parents below which several drafters speak."""
    speaker: dict[int, str] = {}
    several: set[int] = set()
    for who, parent in zip(said, parents, strict=True):
        if len(who) > 1 or speaker.setdefault(parent, who[0][0]) != who[0][0]:
            several.add(parent)
    return several
