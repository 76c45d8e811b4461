"""What is believed of a draft: how likely each node is to be reached and accepted.

Every drafter has its calibrator. Where several speak about the same place a second one corrects the surest of
them, by who agrees and who says something else: "suffix and model against lookup" has a record of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from paceline.core.calibrate import (
    FARTHEST,
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
Mood = dict[str, float]  # of one request: how each drafter's last guesses fared, -1 (wrong) to 1


class Belief:
    """Shared by all requests, each of which has its own Mood."""

    def __init__(self) -> None:
        self._calibrators: dict[str, Calibrator] = {}
        self._bits: dict[str, int] = {}
        self._together: dict[tuple[int, int], Calibrator] = {}  # by who says it, and who speaks at all
        self._told = Reliability()

    def of(self, drafter: str) -> Calibrator:
        found = self._calibrators.get(drafter)
        if found is None:
            found = self._calibrators[drafter] = Calibrator()
            self._bits[drafter] = 1 << len(self._bits)
        return found

    def together(self, who: int, voices: int) -> Calibrator:
        found = self._together.get((who, voices))
        if found is None:
            found = self._together[who, voices] = Calibrator(0.0, self._told)
        return found

    def survivals(self, mood: Mood, tree: DraftTree) -> list[float]:
        """Of each node, the chance that it is reached and accepted; none for a probe."""
        if not tree.tokens:
            return []
        if tree.said and tree.is_chain and not tree.probe:
            return self._along(mood, tree)
        chances = self._mixed(mood, tree) if tree.said else self._single(mood, tree)
        if len(set(tree.parents)) < len(chances):
            chances = _shared(chances, tree.parents)
        out: list[float] = []
        for parent, p in zip(tree.parents, chances, strict=True):
            out.append(p if parent == ROOT else out[parent] * p)
        for probe in tree.probe:
            out[probe] = 0.0
        return out

    def _along(self, mood: Mood, tree: DraftTree) -> list[float]:
        """What `_mixed` comes to for a chain, in one go: the commonest draft of all."""
        known: dict[str, tuple[float, list[float], int]] = {}
        survival, place, out = 1.0, 0, list[float]()
        for who in tree.said:
            place += place < POSITIONS
            z, mask = -FARTHEST, 0
            for name, score in who:
                found = known.get(name)
                if found is None:
                    found = known[name] = (*self._slope_and_biases(name, mood), self._bits[name])
                slope, biases, bit = found
                said = slope * (LOGITS[int(score * GRAIN)] if 0.0 <= score <= 1.0 else logit_at(score))
                said += biases[place]
                if said > z:
                    z = said
                mask |= bit
            if mask & (mask - 1):
                weights = self.together(mask, mask).weights
                z = weights[0] * (z if z < FARTHEST else FARTHEST) + weights[1 + place]
            survival *= 1.0 / (1.0 + exp(-z)) if -SUREST < z < SUREST else sigmoid(z)
            out.append(survival)
        return out

    def _single(self, mood: Mood, tree: DraftTree) -> list[float]:
        """Of each node, the chance that it is accepted where its parent is: one voice a node."""
        known: dict[str, tuple[float, list[float]]] = {}
        out: list[float] = []
        for name, score, depth in zip(tree.source, tree.score, tree.depths(), strict=True):
            found = known.get(name)
            if found is None:
                found = known[name] = self._slope_and_biases(name, mood)
            out.append(sigmoid(found[0] * logit_at(score) + found[1][min(depth, POSITIONS)]))
        return out

    def _mixed(self, mood: Mood, tree: DraftTree) -> list[float]:
        names = {name for who in tree.said for name, _ in who}
        known = {name: self._slope_and_biases(name, mood) for name in names}
        masks, voices = self._voices(tree)
        out: list[float] = []
        for parent, who, depth, mask in zip(tree.parents, tree.said, tree.depths(), masks, strict=True):
            place, z = depth if depth < POSITIONS else POSITIONS, -FARTHEST
            for name, score in who:
                slope, biases = known[name]
                said = slope * (LOGITS[int(score * GRAIN)] if 0.0 <= score <= 1.0 else logit_at(score))
                said += biases[place]
                if said > z:
                    z = said
            at = voices[parent]
            if at & (at - 1):  # more than one voice
                weights = self.together(mask, at).weights
                z = weights[0] * (z if z < FARTHEST else FARTHEST) + weights[1 + place]
            out.append(1.0 / (1.0 + exp(-z)) if -SUREST < z < SUREST else sigmoid(z))
        return out

    def _slope_and_biases(self, name: str, mood: Mood) -> tuple[float, list[float]]:
        """A drafter's weights at this mood: the slope, and for each position the rest."""
        weights = self.of(name).weights
        trend = weights[1] * mood.get(name, 0.0)
        return weights[0], [0.0, *(bias + trend for bias in weights[2:])]

    def _voices(self, tree: DraftTree) -> tuple[list[int], dict[int, int]]:
        """Who proposed each node, and by parent who proposed anything below it; as bits."""
        bits, masks = self._bits, list[int]()
        voices: dict[int, int] = {}
        for parent, who in zip(tree.parents, tree.said, strict=True):
            mask = 0
            for name, _ in who:
                mask |= bits[name]
            masks.append(mask)
            voices[parent] = voices.get(parent, 0) | mask
        return masks, voices

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
        believed: list[tuple[int, int, float]] = []
        voices, calibrators, bits = 0, self._calibrators, self._bits
        for node in nodes:
            hit, mask, best = node == right, 0, -FARTHEST
            for name, score in voices_of(tree, node):
                calibrator = calibrators.get(name) or self.of(name)
                x = LOGITS[int(score * GRAIN)] if 0.0 <= score <= 1.0 else logit_at(score)
                z = calibrator.observe(x, depth, mood.get(name, 0.0), hit)
                if z > best:
                    best = z
                mask |= bits[name]
            believed.append((node, mask, best if best < FARTHEST else FARTHEST))
            voices |= mask
        if voices & (voices - 1):
            for node, mask, z in believed:
                self.together(mask, voices).observe(z, depth, 0.0, node == right)
        else:
            for node, _, z in believed:
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


def _shared(chances: list[float], parents: Sequence[int]) -> list[float]:
    """Siblings exclude each other: where their chances add up to more than 1 they are scaled down to it."""
    sums: dict[int, float] = {}
    for parent, p in zip(parents, chances, strict=True):
        sums[parent] = sums.get(parent, 0.0) + p
    return [p / sums[parent] if sums[parent] > 1.0 else p for p, parent in zip(chances, parents, strict=True)]
